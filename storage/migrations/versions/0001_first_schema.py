"""The first schema: runs and their records."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create all tables."""

    op.create_table(
        "runs",
        sa.Column("id", sa.String(length=12), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("env", sa.Text(), nullable=False),
        sa.Column("map", sa.Text(), nullable=False),
        sa.Column("algo", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("env_steps", sa.BigInteger(), nullable=False),
        sa.Column("target_steps", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("pid", sa.BigInteger(), nullable=True),
        sa.Column("pid_created_at", sa.Double(), nullable=True),
        sa.Column("host", sa.Text(), nullable=True),
        sa.Column("device", sa.Text(), nullable=True),
        sa.Column("sweep_id", sa.Text(), nullable=True),
        sa.Column("launch_token", sa.Text(), nullable=True),
        sa.Column("win_rate", sa.Double(), nullable=True),
        sa.Column("return_mean", sa.Double(), nullable=True),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("notes", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("versions", sa.JSON(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("launch_token"),
    )
    op.create_index("ix_runs_created_at", "runs", ["created_at"], unique=False)
    op.create_table(
        "commands",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("run_id", sa.String(length=12), nullable=False),
        sa.Column("command", sa.String(length=16), nullable=False),
        sa.Column("requested_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("acknowledged_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_commands_run_id", "commands", ["run_id", "id"], unique=False)
    op.create_table(
        "entries",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("run_id", sa.String(length=12), nullable=True),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("figure", sa.JSON(), nullable=True),
        sa.Column("view", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_entries_run_id", "entries", ["run_id"], unique=False)
    op.create_table(
        "episodes",
        sa.Column("run_id", sa.String(length=12), nullable=False),
        sa.Column("episode", sa.BigInteger(), nullable=False),
        sa.Column("first_env_step", sa.BigInteger(), nullable=False),
        sa.Column("length", sa.BigInteger(), nullable=False),
        sa.Column("episode_return", sa.Double(), nullable=False),
        sa.Column("won", sa.Boolean(), nullable=False),
        sa.Column("epsilon", sa.Double(), nullable=False),
        sa.Column("trajectory", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "episode"),
    )
    op.create_index(
        "ix_episodes_outline",
        "episodes",
        ["run_id", "episode", "first_env_step", "length", "episode_return", "won", "epsilon"],
        unique=False,
    )
    op.create_table(
        "eval_episodes",
        sa.Column("run_id", sa.String(length=12), nullable=False),
        sa.Column("env_step", sa.BigInteger(), nullable=False),
        sa.Column("episode", sa.BigInteger(), nullable=False),
        sa.Column("length", sa.BigInteger(), nullable=False),
        sa.Column("episode_return", sa.Double(), nullable=False),
        sa.Column("won", sa.Boolean(), nullable=False),
        sa.Column("trajectory", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "env_step", "episode"),
    )
    op.create_table(
        "evaluations",
        sa.Column("run_id", sa.String(length=12), nullable=False),
        sa.Column("env_step", sa.BigInteger(), nullable=False),
        sa.Column("episodes", sa.Integer(), nullable=False),
        sa.Column("wins", sa.Integer(), nullable=False),
        sa.Column("win_rate", sa.Double(), nullable=False),
        sa.Column("return_mean", sa.Double(), nullable=False),
        sa.Column("return_std", sa.Double(), nullable=False),
        sa.Column("length_mean", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "env_step"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "gate_stats",
        sa.Column("run_id", sa.String(length=12), nullable=False),
        sa.Column("env_step", sa.BigInteger(), nullable=False),
        sa.Column("delta_mem_mean", sa.Double(), nullable=True),
        sa.Column("delta_mem_q05", sa.Double(), nullable=True),
        sa.Column("delta_mem_q25", sa.Double(), nullable=True),
        sa.Column("delta_mem_q50", sa.Double(), nullable=True),
        sa.Column("delta_mem_q75", sa.Double(), nullable=True),
        sa.Column("delta_mem_q95", sa.Double(), nullable=True),
        sa.Column("beta_mean", sa.Double(), nullable=True),
        sa.Column("beta_q05", sa.Double(), nullable=True),
        sa.Column("beta_q25", sa.Double(), nullable=True),
        sa.Column("beta_q50", sa.Double(), nullable=True),
        sa.Column("beta_q75", sa.Double(), nullable=True),
        sa.Column("beta_q95", sa.Double(), nullable=True),
        sa.Column("tau", sa.Double(), nullable=False),
        sa.Column("memory_size", sa.BigInteger(), nullable=False),
        sa.Column("desirable_fraction", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "env_step"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "metrics",
        sa.Column("run_id", sa.String(length=12), nullable=False),
        sa.Column("env_step", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "env_step", "name"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_metrics_curve", "metrics", ["run_id", "name", "env_step", "value"], unique=False)
    op.create_table(
        "resumes",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("run_id", sa.String(length=12), nullable=False),
        sa.Column("env_step", sa.BigInteger(), nullable=False),
        sa.Column("reached_env_step", sa.BigInteger(), nullable=False),
        sa.Column("resumed_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_resumes_run_id", "resumes", ["run_id"], unique=False)
    op.create_table(
        "snapshots",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("run_id", sa.String(length=12), nullable=False),
        sa.Column("env_step", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("slot", sa.LargeBinary(), nullable=False),
        sa.Column("embedding", sa.LargeBinary(), nullable=False),
        sa.Column("H", sa.LargeBinary(), nullable=False),
        sa.Column("xi", sa.LargeBinary(), nullable=False),
        sa.Column("n_call", sa.LargeBinary(), nullable=False),
        sa.Column("n_xi", sa.LargeBinary(), nullable=False),
        sa.Column("t", sa.LargeBinary(), nullable=False),
        sa.Column("reward", sa.LargeBinary(), nullable=False),
        sa.Column("idx_next", sa.LargeBinary(), nullable=False),
        sa.Column("episode", sa.LargeBinary(), nullable=False),
        sa.Column("delta_mem", sa.LargeBinary(), nullable=False),
        sa.Column("beta", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_snapshots_run_step", "snapshots", ["run_id", "env_step"], unique=True)
    op.create_table(
        "transition_summary",
        sa.Column("run_id", sa.String(length=12), nullable=False),
        sa.Column("bucket", sa.BigInteger(), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.Column("delta_mem_n", sa.BigInteger(), nullable=False),
        sa.Column("delta_mem_sum", sa.Double(), nullable=False),
        sa.Column("delta_mem_max", sa.Double(), nullable=True),
        sa.Column("beta_n", sa.BigInteger(), nullable=False),
        sa.Column("beta_sum", sa.Double(), nullable=False),
        sa.Column("beta_min", sa.Double(), nullable=True),
        sa.Column("tau_n", sa.BigInteger(), nullable=False),
        sa.Column("tau_sum", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "bucket"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "transitions",
        sa.Column("run_id", sa.String(length=12), nullable=False),
        sa.Column("env_step", sa.BigInteger(), nullable=False),
        sa.Column("episode", sa.BigInteger(), nullable=False),
        sa.Column("t", sa.Integer(), nullable=False),
        sa.Column("reward", sa.Double(), nullable=False),
        sa.Column("h", sa.Double(), nullable=True),
        sa.Column("h_next", sa.Double(), nullable=True),
        sa.Column("delta_mem", sa.Double(), nullable=True),
        sa.Column("beta", sa.Double(), nullable=True),
        sa.Column("tau", sa.Double(), nullable=True),
        sa.Column("slot", sa.BigInteger(), nullable=True),
        sa.Column("next_slot", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "env_step"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("snapshot_id", sa.Integer(), nullable=False),
        sa.Column("method", sa.String(length=16), nullable=False),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("progress", sa.Double(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=True),
        sa.Column("pid_created_at", sa.Double(), nullable=True),
        sa.Column("host", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["snapshot_id"], ["snapshots.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_jobs_snapshot", "jobs", ["snapshot_id", "method"], unique=False)
    op.create_table(
        "projections",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("snapshot_id", sa.Integer(), nullable=False),
        sa.Column("method", sa.String(length=16), nullable=False),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("coordinates", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["snapshot_id"], ["snapshots.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_projections_snapshot", "projections", ["snapshot_id", "method"], unique=False)
