"""Drop the recorded place of a run's files: it is the folder of EMTC_FILES, or the folder of the database."""

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drop the column."""
    op.drop_column("runs", "files")
