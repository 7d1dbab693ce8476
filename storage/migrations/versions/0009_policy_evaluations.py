"""Add a table for evaluations of stored policies."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add an empty table."""

    op.create_table(
        "policy_evaluations",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("run_id", sa.String(length=12), nullable=False),
        sa.Column("env_step", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("episodes", sa.Integer(), nullable=False),
        sa.Column("wins", sa.Integer(), nullable=False),
        sa.Column("win_rate", sa.Double(), nullable=False),
        sa.Column("return_mean", sa.Double(), nullable=False),
        sa.Column("return_std", sa.Double(), nullable=False),
        sa.Column("length_mean", sa.Double(), nullable=False),
        sa.Column("distinct", sa.Integer(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_policy_evaluations_run_id", "policy_evaluations", ["run_id", "env_step"], unique=False)
