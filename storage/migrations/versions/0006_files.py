"""Where a run's checkpoints and logs lie, when that is not beside the database."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column that may be empty: the files of earlier runs lie beside the database."""
    op.add_column("runs", sa.Column("files", sa.Text(), nullable=True))
