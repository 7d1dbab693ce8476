"""The tables: one mapped class each. No query and no commit lives here.

Every table that belongs to a run carries its id and goes with it. Big values stand last in their row, so
that reading the columns before them touches no overflow page. Times end in `_at` and are UTC.
"""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, Boolean, DateTime, Double, ForeignKey, Index, Integer, LargeBinary, String, Text
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import JSON, TypeDecorator

from storage.guards import guard_columns

SCHEMA_VERSION = "0006"
"""The newest Alembic revision; a test keeps it equal to the head of storage/migrations."""

SUMMARY_STEPS = 1000
"""Env steps in one row of `transition_summary`."""

RUN_ID_LENGTH = 12

PLAYBACKS_AT_MOST = 1000
"""Greedy episodes kept of one evaluation, as `eval.keep_playbacks` has it."""


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC time; SQLite, which has no time type, gets it as naive UTC text."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse a time without a zone; store UTC."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"times must carry a zone, got {value!r}")
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Give back an aware UTC time."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """Parent of all mapped classes."""

    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads this attribute as it stands
        int: BigInteger,
        float: Double,
        datetime: UtcDateTime,
        dict[str, Any]: JSON,
        list[str]: JSON,
        bytes: LargeBinary,
    }


def _run_key() -> Mapped[str]:
    return mapped_column(String(RUN_ID_LENGTH), ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)


def _run_id() -> Mapped[str]:
    return mapped_column(String(RUN_ID_LENGTH), ForeignKey("runs.id", ondelete="CASCADE"))


def _serial() -> Mapped[int]:
    return mapped_column(Integer, primary_key=True, autoincrement=True)


_NEVER_REUSED = {"sqlite_autoincrement": True}  # pages cache by id: a deleted row's id must not come back
_CLUSTERED = {"sqlite_with_rowid": False}  # rows lie in the order of their key: one tree instead of two


class Run(Base):
    """One training run: what was asked, where it stands, who works on it."""

    __tablename__ = "runs"
    __table_args__ = (Index("ix_runs_created_at", "created_at"), Index("ix_runs_sweep_id", "sweep_id"))

    id: Mapped[str] = mapped_column(String(RUN_ID_LENGTH), primary_key=True)
    name: Mapped[str] = mapped_column(Text)
    env: Mapped[str] = mapped_column(Text)
    map: Mapped[str] = mapped_column(Text)
    algo: Mapped[str] = mapped_column(Text)
    seed: Mapped[int]
    status: Mapped[str] = mapped_column(String(16))
    env_steps: Mapped[int] = mapped_column(default=0)
    target_steps: Mapped[int]
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    heartbeat_at: Mapped[datetime | None]
    pid: Mapped[int | None]
    pid_created_at: Mapped[float | None]  # process create time in Unix seconds: process ids are reused
    host: Mapped[str | None] = mapped_column(Text)
    device: Mapped[str | None] = mapped_column(Text)
    sweep_id: Mapped[str | None] = mapped_column(Text)
    launch_token: Mapped[str | None] = mapped_column(Text, unique=True)
    win_rate: Mapped[float | None]  # of the last evaluation, so that the run list reads one table
    return_mean: Mapped[float | None]
    tags: Mapped[list[str]] = mapped_column(default=list)
    notes: Mapped[str] = mapped_column(Text, default="")
    error: Mapped[str | None] = mapped_column(Text)
    versions: Mapped[dict[str, Any]]
    config: Mapped[dict[str, Any]]
    parent_id: Mapped[str | None] = mapped_column(String(RUN_ID_LENGTH))  # started again from it; it may be deleted
    owner_token: Mapped[str | None] = mapped_column(Text)  # only the process that was given it may write
    claimed_at: Mapped[datetime | None]  # since when the present owner has the run
    mu_w: Mapped[float | None]  # of the evaluations so far; this and the next one are kept by `storage.standing`
    gate_removed: Mapped[float | None]  # share of the incentive, mean of the reports so far; none without a gate
    hidden_at: Mapped[datetime | None]  # since when it is drawn only where somebody chooses it
    archived_at: Mapped[datetime | None]  # since when lists leave it out, too
    files: Mapped[str | None] = mapped_column(Text)  # place of checkpoints and logs; none: beside the database


class SweepRow(Base):
    """One sweep: the plan of its runs, and the process that starts them one after the other."""

    __tablename__ = "sweeps"

    id: Mapped[str] = mapped_column(String(RUN_ID_LENGTH), primary_key=True)
    name: Mapped[str] = mapped_column(Text)
    status: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime]
    jobs: Mapped[int] = mapped_column(Integer)  # trainers at once
    pid: Mapped[int | None]  # of the scheduler that came last
    pid_created_at: Mapped[float | None]
    host: Mapped[str | None] = mapped_column(Text)
    plan: Mapped[dict[str, Any]]


class Resume(Base):
    """One resume: the run went on from `env_step`; rows after it were superseded, once the trainer stood there."""

    __tablename__ = "resumes"
    __table_args__ = (Index("ix_resumes_run_id", "run_id"), _NEVER_REUSED)

    id: Mapped[int] = _serial()
    run_id: Mapped[str] = _run_id()
    env_step: Mapped[int]
    reached_env_step: Mapped[int]
    resumed_at: Mapped[datetime]
    episodes: Mapped[int | None]  # superseded; unknown in rows of earlier versions
    checkpoint: Mapped[str | None] = mapped_column(Text)  # file that was restored
    passed_over: Mapped[str | None] = mapped_column(Text)  # why newer checkpoints were not used


class CommandRow(Base):
    """One request to a trainer, command or question; acknowledged when the trainer took it."""

    __tablename__ = "commands"
    __table_args__ = (Index("ix_commands_run_id", "run_id", "id"), _NEVER_REUSED)

    id: Mapped[int] = _serial()
    run_id: Mapped[str] = _run_id()
    command: Mapped[str] = mapped_column(String(16))
    requested_at: Mapped[datetime]
    acknowledged_at: Mapped[datetime | None]
    episode: Mapped[int | None]  # training episode whose start a `play` repeats


class EpisodeRow(Base):
    """One training episode. Its outline is answered from an index, without touching trajectories."""

    __tablename__ = "episodes"
    __table_args__ = (
        Index(
            "ix_episodes_outline",
            *("run_id", "episode", "first_env_step", "length", "episode_return", "won", "epsilon"),
        ),
    )

    run_id: Mapped[str] = _run_key()
    episode: Mapped[int] = mapped_column(primary_key=True)
    first_env_step: Mapped[int]
    length: Mapped[int]
    episode_return: Mapped[float]
    won: Mapped[bool] = mapped_column(Boolean)
    epsilon: Mapped[float]
    trajectory: Mapped[bytes]


class EvalEpisode(Base):
    """One greedy episode of an evaluation, kept for the replay page.

    Those of a regular evaluation are numbered from 0, those of an asked one from `first_playback` of its command.
    """

    __tablename__ = "eval_episodes"

    run_id: Mapped[str] = _run_key()
    env_step: Mapped[int] = mapped_column(primary_key=True)
    episode: Mapped[int] = mapped_column(primary_key=True)
    length: Mapped[int]
    episode_return: Mapped[float]
    won: Mapped[bool] = mapped_column(Boolean)
    trajectory: Mapped[bytes]


class Transition(Base):
    """One training transition with its gate verdict; NULL where nothing was found or there is no gate."""

    __tablename__ = "transitions"
    __table_args__ = _CLUSTERED

    run_id: Mapped[str] = _run_key()
    env_step: Mapped[int] = mapped_column(primary_key=True)
    episode: Mapped[int]
    t: Mapped[int] = mapped_column(Integer)
    reward: Mapped[float]
    h: Mapped[float | None]
    h_next: Mapped[float | None]
    delta_mem: Mapped[float | None]
    beta: Mapped[float | None]
    tau: Mapped[float | None]
    slot: Mapped[int | None]
    next_slot: Mapped[int | None]


class TransitionSummary(Base):
    """Sums over SUMMARY_STEPS transitions, kept by the recorder so that long gate charts stay fast."""

    __tablename__ = "transition_summary"
    __table_args__ = _CLUSTERED

    run_id: Mapped[str] = _run_key()
    bucket: Mapped[int] = mapped_column(primary_key=True)  # (env_step - 1) // SUMMARY_STEPS
    n: Mapped[int]
    delta_mem_n: Mapped[int]
    delta_mem_sum: Mapped[float]
    delta_mem_max: Mapped[float | None]
    beta_n: Mapped[int]
    beta_sum: Mapped[float]
    beta_min: Mapped[float | None]
    tau_n: Mapped[int]
    tau_sum: Mapped[float]


class GateStats(Base):
    """Distribution of delta_mem and beta over the whole episodic memory."""

    __tablename__ = "gate_stats"
    __table_args__ = _CLUSTERED

    run_id: Mapped[str] = _run_key()
    env_step: Mapped[int] = mapped_column(primary_key=True)
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
    memory_size: Mapped[int]
    desirable_fraction: Mapped[float | None]


class MetricRow(Base):
    """One logged number; names are those of `emtc_core.metrics`. Curves are answered from an index."""

    __tablename__ = "metrics"
    __table_args__ = (Index("ix_metrics_curve", "run_id", "name", "env_step", "value"), _CLUSTERED)

    run_id: Mapped[str] = _run_key()
    env_step: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[float | None]


class Evaluation(Base):
    """Greedy test episodes at one moment."""

    __tablename__ = "evaluations"
    __table_args__ = _CLUSTERED

    run_id: Mapped[str] = _run_key()
    env_step: Mapped[int] = mapped_column(primary_key=True)
    episodes: Mapped[int] = mapped_column(Integer)
    wins: Mapped[int] = mapped_column(Integer)
    win_rate: Mapped[float]
    return_mean: Mapped[float]
    return_std: Mapped[float]
    length_mean: Mapped[float]


class AskedEvaluation(Base):
    """What the greedy policy did when somebody asked: a table of its own, so that no curve gets a point unasked."""

    __tablename__ = "asked_evaluations"
    __table_args__ = (Index("ix_asked_evaluations_run_id", "run_id", "env_step"),)

    command_id: Mapped[int] = mapped_column(
        Integer, ForeignKey("commands.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    )
    run_id: Mapped[str] = _run_id()
    env_step: Mapped[int]
    episodes: Mapped[int] = mapped_column(Integer)
    wins: Mapped[int] = mapped_column(Integer)
    win_rate: Mapped[float]
    return_mean: Mapped[float]
    return_std: Mapped[float]
    length_mean: Mapped[float]
    again_of: Mapped[int | None]  # training episode whose start was repeated


class SnapshotRow(Base):
    """The episodic memory at one moment; each array is one packed column, see `storage.blobs`."""

    __tablename__ = "snapshots"
    __table_args__ = (Index("ix_snapshots_run_step", "run_id", "env_step", unique=True), _NEVER_REUSED)

    id: Mapped[int] = _serial()
    run_id: Mapped[str] = _run_id()
    env_step: Mapped[int]
    size: Mapped[int]
    created_at: Mapped[datetime]
    slot: Mapped[bytes]
    embedding: Mapped[bytes]
    H: Mapped[bytes]
    xi: Mapped[bytes]
    n_call: Mapped[bytes]
    n_xi: Mapped[bytes]
    t: Mapped[bytes]
    reward: Mapped[bytes]
    idx_next: Mapped[bytes]
    episode: Mapped[bytes]
    delta_mem: Mapped[bytes]
    beta: Mapped[bytes]
    state: Mapped[bytes]  # `state` float16 and `state_rows`, the rows of the snapshot they belong to


class ProjectionRow(Base):
    """Two coordinates for every node of a snapshot."""

    __tablename__ = "projections"
    __table_args__ = (Index("ix_projections_snapshot", "snapshot_id", "method"), _NEVER_REUSED)

    id: Mapped[int] = _serial()
    snapshot_id: Mapped[int] = mapped_column(Integer, ForeignKey("snapshots.id", ondelete="CASCADE"))
    method: Mapped[str] = mapped_column(String(16))
    params: Mapped[dict[str, Any]]
    seconds: Mapped[float]
    created_at: Mapped[datetime]
    coordinates: Mapped[bytes]


class Job(Base):
    """A projection being computed in the background."""

    __tablename__ = "jobs"
    __table_args__ = (Index("ix_jobs_snapshot", "snapshot_id", "method"), _NEVER_REUSED)

    id: Mapped[int] = _serial()
    snapshot_id: Mapped[int] = mapped_column(Integer, ForeignKey("snapshots.id", ondelete="CASCADE"))
    method: Mapped[str] = mapped_column(String(16))
    params: Mapped[dict[str, Any]]
    status: Mapped[str] = mapped_column(String(16))
    progress: Mapped[float] = mapped_column(default=0.0)
    pid: Mapped[int | None]
    pid_created_at: Mapped[float | None]
    host: Mapped[str | None] = mapped_column(Text)
    error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class Entry(Base):
    """One entry of the research notebook; it survives the run that it cites."""

    __tablename__ = "entries"
    __table_args__ = (Index("ix_entries_run_id", "run_id"), _NEVER_REUSED)

    id: Mapped[int] = _serial()
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    run_id: Mapped[str | None] = mapped_column(String(RUN_ID_LENGTH), ForeignKey("runs.id", ondelete="SET NULL"))
    title: Mapped[str] = mapped_column(Text)
    body: Mapped[str] = mapped_column(Text)
    figure: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    view: Mapped[dict[str, Any] | None] = mapped_column(JSON)


def first_playback(command_id: int) -> int:
    """Number the first greedy episode that answers a command: past every one of a regular evaluation, never reused."""
    return PLAYBACKS_AT_MOST * command_id


guard_columns(Base.metadata)
