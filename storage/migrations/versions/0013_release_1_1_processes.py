"""Add the key of a process, which its pid, its host and its start by the system clock do not identify."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column that may be NULL: the processes of earlier rows are not known well enough."""
    for table in ("runs", "sweeps", "jobs"):
        op.add_column(table, sa.Column("process_key", sa.Text(), nullable=True))
