"""Add the place of a run's checkpoints and logs, if it is not the folder next to the database."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column that may be NULL. The files of existing runs are next to the database."""
    op.add_column("runs", sa.Column("files", sa.Text(), nullable=True))
