"""The tables: one mapped class each. No query and no commit lives here.

What a column means stands beside it (`doc`), for whoever asks in SQL; what a name means in every table is told once, in
`sql_console.glossary`. Every table that belongs to a run carries its id and goes with it. Big values stand last in
their row, so that reading the columns before them touches no overflow page. Times end in `_at` and are UTC.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import Boolean, ForeignKey, Index, Integer, String, Text
from sqlalchemy.orm import Mapped
from sqlalchemy.orm import mapped_column as column
from sqlalchemy.types import JSON

from emtc_core.metrics import CLOSED_BELOW
from storage.column_types import Base, guard_columns, run_column, run_key, serial

SCHEMA_VERSION = "0012"
"""The newest Alembic revision; a test keeps it equal to the head of storage/migrations."""

SUMMARY_STEPS = 1000
"""Env steps in one row of `transition_summary`."""

_ID, _WORD, _NAME = String(12), String(16), String(64)  # of runs and sweeps; a status or command; a metric

PLAYBACKS_AT_MOST = 1000
"""Greedy episodes kept of one evaluation, as `eval.keep_playbacks` has it."""


_DISTINCT = "of the episodes, how many differ in actions or outcome; quote the name in SQL"
_NEVER_REUSED = {"sqlite_autoincrement": True}  # pages cache by id: a deleted row's id must not come back
_CLUSTERED = {"sqlite_with_rowid": False}  # rows lie in the order of their key: one tree instead of two


class Run(Base):
    """One training run: what was asked, where it stands, who works on it.

    `mu_w` and `gate_removed` cover the evaluations and reports so far, and are kept by `runs.run_summary`.
    """

    __tablename__ = "runs"
    __table_args__ = (Index("ix_runs_created_at", "created_at"), Index("ix_runs_sweep_id", "sweep_id"))

    id: Mapped[str] = column(_ID, primary_key=True, doc="short name of the run, in every table as run_id")
    name: Mapped[str] = column(Text)
    env: Mapped[str] = column(Text, doc="environment")
    map: Mapped[str] = column(Text, doc="map or scenario")
    algo: Mapped[str] = column(Text, doc="algorithm, as emtc-qplex")
    seed: Mapped[int] = column(doc="random seed; −n is the nth run of an import that tells no seeds")
    status: Mapped[str] = column(
        _WORD,
        doc="queued, running, paused, finished, stopped or failed; a dead process cannot write that it is lost",
    )
    env_steps: Mapped[int] = column(default=0, doc="env steps recorded")
    target_steps: Mapped[int] = column(doc="env steps asked for")
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None] = column(doc="when training began (UTC)")
    ended_at: Mapped[datetime | None] = column(doc="when it ended (UTC)")
    heartbeat_at: Mapped[datetime | None] = column(doc="last sign of life (UTC)")
    pid: Mapped[int | None]
    pid_created_at: Mapped[float | None]  # process create time in Unix seconds: process ids are reused
    host: Mapped[str | None] = column(Text)
    device: Mapped[str | None] = column(Text, doc="cpu or cuda; imported where another program trained it")
    sweep_id: Mapped[str | None] = column(Text, doc="whose plan it belongs to: sweeps.id")
    launch_token: Mapped[str | None] = column(Text, unique=True, doc="one press of a button")
    win_rate: Mapped[float | None] = column(doc="share of greedy test episodes won in the last evaluation")
    return_mean: Mapped[float | None]
    tags: Mapped[list[str]] = column(default=list, doc="labels (JSON list)")
    notes: Mapped[str] = column(Text, default="", doc="what people wrote about it")
    error: Mapped[str | None] = column(Text)
    versions: Mapped[dict[str, Any]] = column(doc="code and libraries (JSON)")
    config: Mapped[dict[str, Any]] = column(doc="every setting (JSON): config -> 'gate' ->> 'enabled'")
    parent_id: Mapped[str | None] = column(_ID, doc="the run that this one started again")
    owner_token: Mapped[str | None] = column(Text, doc="mark of the process that may write it")
    claimed_at: Mapped[datetime | None] = column(doc="since when that process has it (UTC)")
    mu_w: Mapped[float | None] = column(doc="μ̄_w: area under the greedy win-rate curve so far, per env step")
    gate_removed: Mapped[float | None] = column(doc="share of the incentive that the gate removed; NULL without a gate")
    hidden_at: Mapped[datetime | None] = column(doc="since when it is drawn only where it is chosen (UTC)")
    archived_at: Mapped[datetime | None] = column(doc="since when lists leave it out (UTC)")
    files: Mapped[str | None] = column(Text, doc="folder or URL of its checkpoints and logs; NULL: beside the database")


class SweepRow(Base):
    """One sweep: the plan of its runs, and the process that starts them one after the other."""

    __tablename__ = "sweeps"

    id: Mapped[str] = column(_ID, primary_key=True)
    name: Mapped[str] = column(Text)
    status: Mapped[str] = column(_WORD)
    created_at: Mapped[datetime]
    jobs: Mapped[int] = column(Integer, doc="trainers at once")
    pid: Mapped[int | None]  # of the scheduler that came last
    pid_created_at: Mapped[float | None]
    host: Mapped[str | None] = column(Text)
    plan: Mapped[dict[str, Any]] = column(doc="its file and its runs (JSON)")


class Resume(Base):
    """One resume: the run went on from `env_step`; rows after it were superseded, once the trainer stood there."""

    __tablename__ = "resumes"
    __table_args__ = (Index("ix_resumes_run_id", "run_id"), _NEVER_REUSED)

    id: Mapped[int] = serial()
    run_id: Mapped[str] = run_column()
    env_step: Mapped[int] = column(doc="where the run went on")
    reached_env_step: Mapped[int] = column(doc="how far it had come before")
    resumed_at: Mapped[datetime] = column(doc="when (UTC)")
    episodes: Mapped[int | None] = column(doc="episodes that were superseded")
    checkpoint: Mapped[str | None] = column(Text, doc="file that was restored")
    passed_over: Mapped[str | None] = column(Text, doc="why newer files were not")


class CommandRow(Base):
    """One request to a trainer, command or question; acknowledged when the trainer took it."""

    __tablename__ = "commands"
    __table_args__ = (Index("ix_commands_run_id", "run_id", "id"), _NEVER_REUSED)

    id: Mapped[int] = serial()
    run_id: Mapped[str] = run_column()
    command: Mapped[str] = column(_WORD, doc="stop, pause, resume; evaluate and play ask what the present policy does")
    requested_at: Mapped[datetime] = column(doc="when it was asked (UTC)")
    acknowledged_at: Mapped[datetime | None] = column(doc="when the trainer took it (UTC)")
    episode: Mapped[int | None] = column(doc="training episode whose start a play repeats")


class EpisodeRow(Base):
    """One training episode. Its outline is answered from an index, without touching trajectories."""

    __tablename__ = "episodes"
    __table_args__ = (
        Index(
            "ix_episodes_outline",
            *("run_id", "episode", "first_env_step", "length", "episode_return", "won", "epsilon", "closed"),
        ),
    )

    run_id: Mapped[str] = run_key()
    episode: Mapped[int] = column(primary_key=True)
    first_env_step: Mapped[int] = column(doc="env step of its first transition")
    length: Mapped[int]
    episode_return: Mapped[float]
    won: Mapped[bool] = column(Boolean)
    epsilon: Mapped[float] = column(doc="share of random actions")
    closed: Mapped[int | None] = column(doc=f"its transitions with β < {CLOSED_BELOW:g}; NULL without a gate")
    trajectory: Mapped[bytes]


class EvalEpisode(Base):
    """One greedy episode of an evaluation, kept for the replay page.

    Those of a regular evaluation are numbered from 0, those of an asked one from `first_playback` of its command.
    """

    __tablename__ = "eval_episodes"

    run_id: Mapped[str] = run_key()
    env_step: Mapped[int] = column(primary_key=True, doc="env step of the evaluation")
    episode: Mapped[int] = column(primary_key=True)
    length: Mapped[int]
    episode_return: Mapped[float]
    won: Mapped[bool] = column(Boolean)
    trajectory: Mapped[bytes]


class Transition(Base):
    """One training transition with its gate verdict; NULL where nothing was found or there is no gate.

    On PostgreSQL two triggers keep `run_id` in the place of a foreign key, which would ask for every row (schema 0011).
    """

    __tablename__ = "transitions"
    __table_args__ = _CLUSTERED

    run_id: Mapped[str] = run_key()
    env_step: Mapped[int] = column(primary_key=True, doc="1, 2, 3 … without a gap")
    episode: Mapped[int]
    t: Mapped[int] = column(Integer)
    reward: Mapped[float] = column(doc="extrinsic reward in the learner's unit")
    h: Mapped[float | None] = column(doc="return that the memory recalls at s [return]")
    h_next: Mapped[float | None] = column(doc="the same at s′; 0 at the end of an episode [return]")
    delta_mem: Mapped[float | None] = column(doc="|r + γ h_next − h|; NULL where nothing was found [return]")
    beta: Mapped[float | None] = column(doc="gate: exp(−(scale Δ_mem)² / 2τ²), or what gate.type names; 0 to 1")
    tau: Mapped[float | None]
    slot: Mapped[int | None] = column(doc="node of s")
    next_slot: Mapped[int | None] = column(doc="node of s′")


class TransitionSummary(Base):
    """Sums over SUMMARY_STEPS transitions, kept by the recorder so that long gate charts stay fast."""

    __tablename__ = "transition_summary"
    __table_args__ = _CLUSTERED

    run_id: Mapped[str] = run_key()
    bucket: Mapped[int] = column(primary_key=True, doc="(env_step − 1) // 1000")
    n: Mapped[int] = column(doc="transitions in it")
    delta_mem_n: Mapped[int] = column(doc="of them with a Δ_mem")
    delta_mem_sum: Mapped[float] = column(doc="their sum of Δ_mem [return]")
    delta_mem_max: Mapped[float | None] = column(doc="the largest of them [return]")
    beta_n: Mapped[int] = column(doc="transitions with a β")
    beta_sum: Mapped[float] = column(doc="their sum of β")
    beta_min: Mapped[float | None] = column(doc="the smallest of them")
    tau_n: Mapped[int] = column(doc="transitions with a τ")
    tau_sum: Mapped[float] = column(doc="their sum of τ [return]")


class GateStats(Base):
    """Distribution of delta_mem and beta over the whole episodic memory."""

    __tablename__ = "gate_stats"
    __table_args__ = _CLUSTERED

    run_id: Mapped[str] = run_key()
    env_step: Mapped[int] = column(primary_key=True)
    delta_mem_mean: Mapped[float | None]
    delta_mem_q05: Mapped[float | None]
    delta_mem_q25: Mapped[float | None]
    delta_mem_q50: Mapped[float | None]
    delta_mem_q75: Mapped[float | None]
    delta_mem_q95: Mapped[float | None]
    beta_mean: Mapped[float | None]
    beta_q05: Mapped[float | None]
    beta_q25: Mapped[float | None]
    beta_q50: Mapped[float | None]
    beta_q75: Mapped[float | None]
    beta_q95: Mapped[float | None]
    tau: Mapped[float]
    memory_size: Mapped[int] = column(doc="nodes in the memory")
    desirable_fraction: Mapped[float | None] = column(doc="share of nodes with ξ = 1")


class MetricRow(Base):
    """One logged number; names are those of `emtc_core.metrics`. Curves are answered from an index."""

    __tablename__ = "metrics"
    __table_args__ = (Index("ix_metrics_curve", "run_id", "name", "env_step", "value"), _CLUSTERED)

    run_id: Mapped[str] = run_key()
    env_step: Mapped[int] = column(primary_key=True)
    name: Mapped[str] = column(_NAME, primary_key=True, doc="group/name, as train/loss; the Method page lists them")
    value: Mapped[float | None] = column(doc="the number")


class Evaluation(Base):
    """Greedy test episodes at one moment, and as many from shifted starts where the environment has such.

    Of an imported run only what its source told stands here; the rest is NULL.
    """

    __tablename__ = "evaluations"
    __table_args__ = _CLUSTERED

    run_id: Mapped[str] = run_key()
    env_step: Mapped[int] = column(primary_key=True)
    episodes: Mapped[int | None] = column(Integer, doc="greedy episodes played; NULL where an import does not tell")
    wins: Mapped[int | None] = column(Integer, doc="of them won")
    win_rate: Mapped[float | None]
    return_mean: Mapped[float | None]
    return_std: Mapped[float | None] = column(doc="standard deviation over the episodes [env return]")
    length_mean: Mapped[float | None] = column(doc="mean length [steps]")
    distinct: Mapped[int | None] = column(Integer, doc=_DISTINCT)
    robust_win_rate: Mapped[float | None] = column(doc="share won of as many greedy episodes from shifted starts")
    robust_distinct: Mapped[int | None] = column(Integer, doc="of those, how many differ in actions or outcome")


class AskedEvaluation(Base):
    """What the greedy policy did when somebody asked: a table of its own, so that no curve gets a point unasked."""

    __tablename__ = "asked_evaluations"
    __table_args__ = (Index("ix_asked_evaluations_run_id", "run_id", "env_step"),)

    command_id: Mapped[int] = column(
        Integer,
        ForeignKey("commands.id", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
        doc="who asked what and when: commands.id",
    )
    run_id: Mapped[str] = run_column()
    env_step: Mapped[int]
    episodes: Mapped[int] = column(Integer, doc="greedy episodes played, from 1000 × command_id in eval_episodes")
    wins: Mapped[int] = column(Integer, doc="of them won")
    win_rate: Mapped[float]
    return_mean: Mapped[float]
    return_std: Mapped[float] = column(doc="standard deviation over the episodes [env return]")
    length_mean: Mapped[float] = column(doc="mean length [steps]")
    distinct: Mapped[int | None] = column(Integer, doc=_DISTINCT)
    again_of: Mapped[int | None] = column(doc="training episode whose start was repeated")


class PolicyEvaluation(Base):
    """Greedy episodes of a stored policy, played after or beside the training: on no curve."""

    __tablename__ = "policy_evaluations"
    __table_args__ = (Index("ix_policy_evaluations_run_id", "run_id", "env_step"), _NEVER_REUSED)

    id: Mapped[int] = serial()
    run_id: Mapped[str] = run_column()
    env_step: Mapped[int] = column(doc="of the checkpoint whose policy played")
    created_at: Mapped[datetime]
    episodes: Mapped[int] = column(Integer, doc="greedy episodes played")
    wins: Mapped[int] = column(Integer, doc="of them won")
    win_rate: Mapped[float]
    return_mean: Mapped[float]
    return_std: Mapped[float] = column(doc="standard deviation over the episodes [env return]")
    length_mean: Mapped[float] = column(doc="mean length [steps]")
    distinct: Mapped[int] = column(Integer, doc=_DISTINCT)
    seed: Mapped[int] = column(doc="of these episodes")
    settings: Mapped[dict[str, Any]] = column(doc="what was set otherwise than in training (JSON)")


class SnapshotRow(Base):
    """The episodic memory at one moment; each array is one packed column, see `storage.blobs`.

    `state` holds `state` as float16 and `state_rows`, the rows of the snapshot that they belong to.
    """

    __tablename__ = "snapshots"
    __table_args__ = (Index("ix_snapshots_run_step", "run_id", "env_step", unique=True), _NEVER_REUSED)

    id: Mapped[int] = serial()
    run_id: Mapped[str] = run_column()
    env_step: Mapped[int]
    size: Mapped[int] = column(doc="nodes in it")
    created_at: Mapped[datetime]
    slot: Mapped[bytes] = column(doc="place of each node")
    embedding: Mapped[bytes] = column(doc="four coordinates of each node")
    H: Mapped[bytes] = column(doc="best return known from each node")
    xi: Mapped[bytes] = column(doc="whether each node belongs to a success")
    n_call: Mapped[bytes] = column(doc="how often each node was visited")
    n_xi: Mapped[bytes] = column(doc="how often successfully")
    t: Mapped[bytes] = column(doc="step in its episode")
    reward: Mapped[bytes] = column(doc="reward of each node")
    idx_next: Mapped[bytes] = column(doc="slot of the successor, −1 for none")
    episode: Mapped[bytes] = column(doc="whose state stands in the node")
    delta_mem: Mapped[bytes] = column(doc="Δ_mem along its link")
    beta: Mapped[bytes] = column(doc="gate along its link")
    state: Mapped[bytes] = column(doc="states of a sample of the nodes")


class ProjectionRow(Base):
    """Two coordinates for every node of a snapshot."""

    __tablename__ = "projections"
    __table_args__ = (Index("ix_projections_snapshot", "snapshot_id", "method"), _NEVER_REUSED)

    id: Mapped[int] = serial()
    snapshot_id: Mapped[int] = column(Integer, ForeignKey("snapshots.id", ondelete="CASCADE"))
    method: Mapped[str] = column(_WORD)
    params: Mapped[dict[str, Any]]
    seconds: Mapped[float] = column(doc="how long it took")
    created_at: Mapped[datetime]
    coordinates: Mapped[bytes] = column(doc="x and y of each node; of embed-… what the embedder says")


class Job(Base):
    """A projection being computed in the background."""

    __tablename__ = "jobs"
    __table_args__ = (Index("ix_jobs_snapshot", "snapshot_id", "method"), _NEVER_REUSED)

    id: Mapped[int] = serial()
    snapshot_id: Mapped[int] = column(Integer, ForeignKey("snapshots.id", ondelete="CASCADE"))
    method: Mapped[str] = column(_WORD)
    params: Mapped[dict[str, Any]]
    status: Mapped[str] = column(_WORD)
    progress: Mapped[float] = column(default=0.0, doc="0 to 1")
    pid: Mapped[int | None]
    pid_created_at: Mapped[float | None]
    host: Mapped[str | None] = column(Text)
    error: Mapped[str | None] = column(Text)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class Entry(Base):
    """One entry of the research notebook; it survives the run that it cites."""

    __tablename__ = "entries"
    __table_args__ = (Index("ix_entries_run_id", "run_id"), _NEVER_REUSED)

    id: Mapped[int] = serial()
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    run_id: Mapped[str | None] = column(_ID, ForeignKey("runs.id", ondelete="SET NULL"))
    title: Mapped[str] = column(Text, doc="its heading")
    body: Mapped[str] = column(Text, doc="the note (Markdown)")
    figure: Mapped[dict[str, Any] | None] = column(JSON, doc="the figure as plain values (JSON)")
    view: Mapped[dict[str, Any] | None] = column(JSON, doc="where it came from (JSON)")


def first_playback(command_id: int) -> int:
    """The number of the first greedy episode that answers a command: past all regular ones, and never reused."""
    return PLAYBACKS_AT_MOST * command_id


guard_columns(Base.metadata)
