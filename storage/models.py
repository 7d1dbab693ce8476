"""The tables of the database, one mapped class each.

`doc` of a column is its description in the SQL console. Names that mean the same in every table are described once, in
`sql.glossary`. Every table that belongs to a run has a column `run_id`, and its rows are deleted with the run.
Big values are the last columns of a row, so that reading the columns before them loads no overflow page. Columns with a
time end in `_at` and are UTC.
"""

from datetime import datetime
from typing import Any, Final, Literal, get_args

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
)
from sqlalchemy.orm import Mapped
from sqlalchemy.orm import mapped_column as column
from sqlalchemy.types import JSON

from emtc_core.metrics import CLOSED_BELOW
from storage.column_types import USE, Base, ColumnUse, make_id_column, run_column, run_key

SCHEMA_VERSION: Final = 1
"""Number of this schema, which every database stores. Increase it with every change of a table."""

Status = Literal["queued", "running", "paused", "finished", "stopped", "failed"]
"""The stored status of a run."""

SUMMARY_STEPS = 1000
"""Env steps in one row of `transition_summary`."""

MAX_PLAYBACKS = 1000
"""Maximum number of greedy episodes stored per evaluation; the upper bound of `eval.keep_playbacks`."""

_ID = String(12)
"""Type of the ids of runs and sweeps."""
_WORD = String(16)
"""Type of a status, a command or a method."""
_METRIC_NAME = String(64)
_DISTINCT = "number of the episodes that differ in actions or outcome; quote the name in SQL"
_UNIQUE_IDS = {"sqlite_autoincrement": True}
"""The id of a deleted row is not used again, because pages cache by id."""
_CLUSTERED = {"sqlite_with_rowid": False}
"""The rows are stored in the order of the primary key, so SQLite needs one B-tree instead of two."""


class Run(Base):
    """One training run: its configuration, its progress and the process that trains it.

    `info` declares where a column is listed, searched, shown and bundled, see `column_types.ColumnUse`. `mu_w` and
    `gate_removed` are computed from the evaluations and metrics so far by `runs.rows.update_run_summary`.
    """

    __tablename__ = "runs"
    __table_args__ = (
        Index("ix_runs_created_at", "created_at"),
        Index("ix_runs_sweep_id", "sweep_id"),
        CheckConstraint(f"status IN {get_args(Status)}", name="status_is_known"),
    )

    id: Mapped[str] = column(
        _ID,
        primary_key=True,
        doc="id of the run; other tables call it run_id",
        info={USE: ColumnUse("Id", search="id", sort="id", has_words=True, on_home=True)},
    )
    name: Mapped[str] = column(
        Text, info={USE: ColumnUse("Run", search="name", sort="name", has_words=True, on_home=True)}
    )
    env: Mapped[str] = column(
        Text, doc="environment", info={USE: ColumnUse("Environment", search="env", sort="env", has_words=True)}
    )
    map: Mapped[str] = column(
        Text,
        doc="map or scenario",
        info={USE: ColumnUse("Map", search="map", sort="map", has_words=True, on_home=True)},
    )
    algo: Mapped[str] = column(
        Text,
        doc="algorithm, for example emtc-qplex",
        info={USE: ColumnUse("Algorithm", search="algo", sort="algo", has_words=True, on_home=True)},
    )
    seed: Mapped[int] = column(
        doc="random seed; −n is the nth run of an import without seeds",
        info={USE: ColumnUse("Seed", search="seed", sort="seed", on_home=True)},
    )
    status: Mapped[Status] = column(
        _WORD,
        doc="queued, running, paused, finished, stopped or failed; lists show starting, stopping and lost, too",
        info={USE: ColumnUse("Status", on_home=True)},  # a search compares the status of `runs.status`
    )
    env_steps: Mapped[int] = column(
        default=0,
        doc="env steps recorded",
        info={USE: ColumnUse("Env steps", search="env_steps", sort="env_steps")},
    )
    target_steps: Mapped[int] = column(
        doc="env steps to train",
        info={USE: ColumnUse("Target steps", search="target_steps", sort="target_steps")},
    )
    created_at: Mapped[datetime] = column(info={USE: ColumnUse("Created (UTC)", sort="created", on_home=True)})
    started_at: Mapped[datetime | None] = column(doc="start of the training (UTC)")
    ended_at: Mapped[datetime | None] = column(doc="end of the training (UTC)")
    heartbeat_at: Mapped[datetime | None] = column(doc="last heartbeat of the trainer (UTC)")
    pid: Mapped[int | None] = column(info={USE: ColumnUse(is_listed=False, is_bundled=False)})
    host: Mapped[str | None] = column(Text, info={USE: ColumnUse(search="host", is_listed=False, is_bundled=False)})
    device: Mapped[str | None] = column(
        Text, doc="cpu or cuda; imported if another program trained it", info={USE: ColumnUse(search="device")}
    )
    sweep_id: Mapped[str | None] = column(
        Text, doc="sweep that it belongs to: sweeps.id", info={USE: ColumnUse(search="sweep")}
    )
    launch_token: Mapped[str | None] = column(
        Text,
        unique=True,
        doc="id of the launch: one click starts one run",
        info={USE: ColumnUse(is_listed=False, is_public=False, is_bundled=False)},
    )
    win_rate: Mapped[float | None] = column(
        doc="fraction of greedy test episodes won in the last evaluation",
        info={USE: ColumnUse("Last greedy win rate", search="win_rate", sort="win_rate", on_home=True)},
    )
    return_mean: Mapped[float | None] = column(
        doc="mean return of the last evaluation [env return]",
        info={USE: ColumnUse("Return", search="return", sort="return", on_home=True)},
    )
    tags: Mapped[list[str]] = column(
        default=list, doc="tags (JSON list)", info={USE: ColumnUse("Tags", search="tag", on_home=True)}
    )
    notes: Mapped[str] = column(
        Text,
        default="",
        doc="notes of users",
        info={USE: ColumnUse("Note", search="note", has_words=True, on_home=True)},
    )
    error: Mapped[str | None] = column(Text)
    versions: Mapped[dict[str, Any]] = column(
        doc="versions of code and libraries (JSON)", info={USE: ColumnUse(is_listed=False)}
    )
    config: Mapped[dict[str, Any]] = column(
        doc="every setting (JSON): config -> 'gate' ->> 'enabled'", info={USE: ColumnUse(is_listed=False)}
    )
    parent_id: Mapped[str | None] = column(
        _ID, doc="run that this one repeats from step 0", info={USE: ColumnUse(search="parent")}
    )
    owner_token: Mapped[str | None] = column(
        Text,
        doc="token of the process that may write the run; NULL: no owner",
        info={USE: ColumnUse(is_listed=False, is_public=False, is_bundled=False)},
    )
    claimed_at: Mapped[datetime | None] = column(
        doc="when that process claimed the run (UTC)", info={USE: ColumnUse(is_listed=False, is_bundled=False)}
    )
    mu_w: Mapped[float | None] = column(
        doc="μ̄_w: area under the greedy win-rate curve so far, per env step",
        info={USE: ColumnUse("μ̄_w (greedy)", search="mu_w", sort="mu_w", on_home=True)},
    )
    gate_removed: Mapped[float | None] = column(
        doc="fraction of the incentive removed by the gate; NULL without a gate",
        info={USE: ColumnUse(is_listed=False)},  # lists contain the state of the gate
    )
    hidden_at: Mapped[datetime | None] = column(
        doc="when it was hidden: plots show it only if it is selected (UTC)", info={USE: ColumnUse(is_bundled=False)}
    )
    archived_at: Mapped[datetime | None] = column(
        doc="when it was archived: lists leave it out (UTC)", info={USE: ColumnUse(is_bundled=False)}
    )


class SweepRow(Base):
    """One sweep: the plan of its runs, and whether a worker starts them."""

    __tablename__ = "sweeps"

    id: Mapped[str] = column(_ID, primary_key=True)
    name: Mapped[str] = column(Text)
    status: Mapped[str] = column(_WORD)
    created_at: Mapped[datetime]
    jobs: Mapped[int] = column(Integer, doc="maximum number of runs trained at the same time")
    heartbeat_at: Mapped[datetime | None] = column(doc="time of the last heartbeat of a worker of its runs (UTC)")
    owner_token: Mapped[str | None] = column(
        Text, doc="token of the process that asks Optuna for the trials of a search"
    )
    plan: Mapped[dict[str, Any]] = column(doc="the sweep file and the planned runs (JSON)")


class Resume(Base):
    """One resume of a run from the checkpoint at `env_step`. The rows recorded after that step were deleted."""

    __tablename__ = "resumes"
    __table_args__ = (Index("ix_resumes_run_id", "run_id"), _UNIQUE_IDS)

    id: Mapped[int] = make_id_column()
    run_id: Mapped[str] = run_column()
    env_step: Mapped[int] = column(doc="env step from which training continued")
    reached_env_step: Mapped[int] = column(doc="env steps recorded before the resume")
    resumed_at: Mapped[datetime] = column(doc="time of the resume (UTC)")
    episodes: Mapped[int | None] = column(doc="number of deleted episodes")
    checkpoint: Mapped[str | None] = column(Text, doc="checkpoint file that was loaded")
    passed_over: Mapped[str | None] = column(Text, doc="why newer checkpoint files were not loaded")


class CommandRow(Base):
    """One request to a trainer: a command (stop, pause, resume) or a request for an evaluation (evaluate, play)."""

    __tablename__ = "commands"
    __table_args__ = (Index("ix_commands_run_id", "run_id", "id"), _UNIQUE_IDS)

    id: Mapped[int] = make_id_column()
    run_id: Mapped[str] = run_column()
    command: Mapped[str] = column(_WORD, doc="stop, pause, resume; evaluate and play request greedy episodes")
    requested_at: Mapped[datetime] = column(doc="time of the request (UTC)")
    acknowledged_at: Mapped[datetime | None] = column(doc="when the trainer read it (UTC)")
    episode: Mapped[int | None] = column(doc="training episode whose start state a play repeats")


class EpisodeRow(Base):
    """One training episode. Lists are answered from the index ix_episodes_outline, without reading trajectories."""

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
    epsilon: Mapped[float] = column(doc="fraction of random actions")
    closed: Mapped[int | None] = column(doc=f"number of its transitions with β < {CLOSED_BELOW:g}; NULL without a gate")
    trajectory: Mapped[bytes]


class EvalEpisode(Base):
    """One greedy episode of an evaluation, stored for the Replay page.

    The episodes of a regular evaluation are numbered from 0, those of a requested one from `first_playback(command)`.
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
    """One training transition with the gate's values; NULL if the lookup found nothing or there is no gate.

    PostgreSQL has no foreign key here, because it would run one query per row. Every insertion is in a transaction that
    has locked the row of the run, and `runs.removal` deletes the transitions together with that row.
    """

    __tablename__ = "transitions"
    __table_args__ = (
        ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE").ddl_if(dialect="sqlite"),
        _CLUSTERED,
    )

    run_id: Mapped[str] = column(_ID, primary_key=True)
    env_step: Mapped[int] = column(primary_key=True, doc="1, 2, 3 … without a gap")
    episode: Mapped[int]
    t: Mapped[int] = column(Integer)
    reward: Mapped[float] = column(doc="extrinsic reward in the learner's unit")
    h: Mapped[float | None] = column(doc="recalled return at s [return]")
    h_next: Mapped[float | None] = column(doc="recalled return at s′; 0 at a terminal step [return]")
    delta_mem: Mapped[float | None] = column(doc="|r + γ h_next − h|; NULL if the lookup found nothing [return]")
    beta: Mapped[float | None] = column(doc="gate: exp(−(scale Δ_mem)² / 2τ²), or the law of gate.type; 0 to 1")
    tau: Mapped[float | None]
    slot: Mapped[int | None] = column(doc="slot of the memory node of s")
    next_slot: Mapped[int | None] = column(doc="slot of the memory node of s′")


class TransitionSummary(Base):
    """Sums over SUMMARY_STEPS transitions, written by the recorder so that gate charts of long runs are fast."""

    __tablename__ = "transition_summary"
    __table_args__ = _CLUSTERED

    run_id: Mapped[str] = run_key()
    bucket: Mapped[int] = column(primary_key=True, doc="(env_step − 1) // 1000")
    n: Mapped[int] = column(doc="number of transitions")
    delta_mem_n: Mapped[int] = column(doc="number of transitions with a Δ_mem")
    delta_mem_sum: Mapped[float] = column(doc="sum of Δ_mem [return]")
    delta_mem_max: Mapped[float | None] = column(doc="largest Δ_mem [return]")
    beta_n: Mapped[int] = column(doc="number of transitions with a β")
    beta_sum: Mapped[float] = column(doc="sum of β")
    beta_min: Mapped[float | None] = column(doc="smallest β")
    tau_n: Mapped[int] = column(doc="number of transitions with a τ")
    tau_sum: Mapped[float] = column(doc="sum of τ [return]")


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
    memory_size: Mapped[int] = column(doc="number of nodes in the memory")
    desirable_fraction: Mapped[float | None] = column(doc="fraction of nodes with ξ = 1")


class MetricRow(Base):
    """One value of a metric of `emtc_core.metrics`. Curves are answered from the index ix_metrics_curve."""

    __tablename__ = "metrics"
    __table_args__ = (
        Index("ix_metrics_curve", "run_id", "name", "env_step", "value"),
        _CLUSTERED,
    )

    run_id: Mapped[str] = run_key()
    env_step: Mapped[int] = column(primary_key=True)
    name: Mapped[str] = column(_METRIC_NAME, primary_key=True, doc="group/name; the Method page lists all")
    value: Mapped[float | None] = column(doc="value of the metric")


class Evaluation(Base):
    """One evaluation: greedy test episodes, and as many from shifted starts if the environment supports them.

    For an imported run the values that its source does not contain are NULL.
    """

    __tablename__ = "evaluations"
    __table_args__ = _CLUSTERED

    run_id: Mapped[str] = run_key()
    env_step: Mapped[int] = column(primary_key=True)
    episodes: Mapped[int | None] = column(Integer, doc="number of greedy episodes; NULL if unknown (imports)")
    wins: Mapped[int | None] = column(Integer, doc="number of episodes won")
    win_rate: Mapped[float | None]
    return_mean: Mapped[float | None]
    return_std: Mapped[float | None] = column(doc="standard deviation over the episodes [env return]")
    length_mean: Mapped[float | None] = column(doc="mean length [steps]")
    distinct: Mapped[int | None] = column(Integer, doc=_DISTINCT)
    robust_win_rate: Mapped[float | None] = column(doc="fraction won of as many greedy episodes from shifted starts")
    robust_distinct: Mapped[int | None] = column(Integer, doc="number of them that differ in actions or outcome")


class RequestedEvaluationRow(Base):
    """One evaluation that a user requested. It is not in `evaluations`, so that it adds no point to learning curves."""

    __tablename__ = "asked_evaluations"
    __table_args__ = (Index("ix_asked_evaluations_run_id", "run_id", "env_step"),)

    command_id: Mapped[int] = column(
        Integer,
        ForeignKey("commands.id", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
        doc="the request: commands.id",
    )
    run_id: Mapped[str] = run_column()
    env_step: Mapped[int]
    episodes: Mapped[int] = column(Integer, doc="greedy episodes; eval_episodes numbers them from 1000 × command_id")
    wins: Mapped[int] = column(Integer, doc="number of episodes won")
    win_rate: Mapped[float]
    return_mean: Mapped[float]
    return_std: Mapped[float] = column(doc="standard deviation over the episodes [env return]")
    length_mean: Mapped[float] = column(doc="mean length [steps]")
    distinct: Mapped[int | None] = column(Integer, doc=_DISTINCT)
    again_of: Mapped[int | None] = column(doc="training episode whose start state was repeated")


class PolicyEvaluation(Base):
    """One evaluation of a stored policy outside of training (`emtc evaluate`). It is not part of learning curves."""

    __tablename__ = "policy_evaluations"
    __table_args__ = (
        Index("ix_policy_evaluations_run_id", "run_id", "env_step"),
        _UNIQUE_IDS,
    )

    id: Mapped[int] = make_id_column()
    run_id: Mapped[str] = run_column()
    env_step: Mapped[int] = column(doc="env step of the checkpoint")
    created_at: Mapped[datetime]
    episodes: Mapped[int] = column(Integer, doc="number of greedy episodes")
    wins: Mapped[int] = column(Integer, doc="number of episodes won")
    win_rate: Mapped[float]
    return_mean: Mapped[float]
    return_std: Mapped[float] = column(doc="standard deviation over the episodes [env return]")
    length_mean: Mapped[float] = column(doc="mean length [steps]")
    distinct: Mapped[int] = column(Integer, doc=_DISTINCT)
    seed: Mapped[int] = column(doc="seed of the episodes")
    settings: Mapped[dict[str, Any]] = column(doc="settings that differ from the training (JSON)")


class SnapshotRow(Base):
    """The episodic memory at one env step; each array is one packed column, see `storage.blobs`.

    The blob `state` contains two arrays: `state` (float16), the states of a sample of nodes, and `state_rows`, their
    rows in the snapshot.
    """

    __tablename__ = "snapshots"
    __table_args__ = (
        Index("ix_snapshots_run_step", "run_id", "env_step", unique=True),
        _UNIQUE_IDS,
    )

    id: Mapped[int] = make_id_column()
    run_id: Mapped[str] = run_column()
    env_step: Mapped[int]
    size: Mapped[int] = column(doc="number of nodes in the snapshot, which may be a sample")
    created_at: Mapped[datetime]
    slot: Mapped[bytes] = column(doc="slot of each node")
    embedding: Mapped[bytes] = column(doc="embedding of each node (4 coordinates)")
    H: Mapped[bytes] = column(doc="highest return recorded from each node")
    xi: Mapped[bytes] = column(doc="success flag ξ of each node")
    n_call: Mapped[bytes] = column(doc="number of visits of each node")
    n_xi: Mapped[bytes] = column(doc="number of visits in successful episodes")
    t: Mapped[bytes] = column(doc="step in the episode of the stored state")
    reward: Mapped[bytes] = column(doc="reward of each node")
    idx_next: Mapped[bytes] = column(doc="slot of the successor, −1 for none")
    episode: Mapped[bytes] = column(doc="training episode of the stored state")
    delta_mem: Mapped[bytes] = column(doc="Δ_mem from the node to its successor")
    beta: Mapped[bytes] = column(doc="β from the node to its successor")
    state: Mapped[bytes] = column(doc="states of a sample of the nodes")


class ProjectionRow(Base):
    """Coordinates of every node of a snapshot: two of a projection, or the embedding of another embedder."""

    __tablename__ = "projections"
    __table_args__ = (Index("ix_projections_snapshot", "snapshot_id", "method"), _UNIQUE_IDS)

    id: Mapped[int] = make_id_column()
    snapshot_id: Mapped[int] = column(Integer, ForeignKey("snapshots.id", ondelete="CASCADE"))
    method: Mapped[str] = column(_WORD)
    params: Mapped[dict[str, Any]]
    seconds: Mapped[float] = column(doc="computing time [s]")
    created_at: Mapped[datetime]
    coordinates: Mapped[bytes] = column(doc="x and y of each node; for embed-… the embedding of each node")


class Job(Base):
    """A background job that computes a projection."""

    __tablename__ = "jobs"
    __table_args__ = (Index("ix_jobs_snapshot", "snapshot_id", "method"), _UNIQUE_IDS)

    id: Mapped[int] = make_id_column()
    snapshot_id: Mapped[int] = column(Integer, ForeignKey("snapshots.id", ondelete="CASCADE"))
    method: Mapped[str] = column(_WORD)
    params: Mapped[dict[str, Any]]
    status: Mapped[str] = column(_WORD)
    progress: Mapped[float] = column(default=0.0, doc="0 to 1")
    pid: Mapped[int | None]
    host: Mapped[str | None] = column(Text)
    error: Mapped[str | None] = column(Text)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class Entry(Base):
    """One entry of the research notebook. It is kept when the run that it cites is deleted."""

    __tablename__ = "entries"
    __table_args__ = (Index("ix_entries_run_id", "run_id"), _UNIQUE_IDS)

    id: Mapped[int] = make_id_column()
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    run_id: Mapped[str | None] = column(_ID, ForeignKey("runs.id", ondelete="SET NULL"))
    title: Mapped[str] = column(Text, doc="title")
    body: Mapped[str] = column(Text, doc="text (Markdown)")
    figure: Mapped[dict[str, Any] | None] = column(JSON, doc="figure as plain values (JSON)")
    view: Mapped[dict[str, Any] | None] = column(JSON, doc="page, URL state and cited runs (JSON)")


def get_first_playback(command_id: int) -> int:
    """Return the number of a command's first greedy episode, above those of regular evaluations and never reused."""
    return MAX_PLAYBACKS * command_id


RUN_TABLE_COLUMNS = Base.metadata.tables["runs"].columns
"""The columns of `runs`."""
SNAPSHOT_ARRAYS: Final = tuple(
    column.name for column in Base.metadata.tables["snapshots"].columns if isinstance(column.type, LargeBinary)
)
"""The packed columns of `snapshots`."""
