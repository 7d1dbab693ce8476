"""Add sweeps: plans of several runs."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table, and an index that finds the runs of a sweep."""

    op.create_table(
        "sweeps",
        sa.Column("id", sa.String(length=12), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("jobs", sa.Integer(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=True),
        sa.Column("pid_created_at", sa.Double(), nullable=True),
        sa.Column("host", sa.Text(), nullable=True),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_runs_sweep_id", "runs", ["sweep_id"], unique=False)
