"""Drop the columns that identified a process: a run has an owner token instead."""

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drop the columns."""
    for table in ("runs", "sweeps", "jobs"):
        op.drop_column(table, "pid_created_at")
        op.drop_column(table, "process_key")
