"""Add the owner of a run, the run that it was restarted from, and what a resume removed."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add columns that may be NULL."""

    op.add_column("runs", sa.Column("parent_id", sa.String(length=12), nullable=True))
    op.add_column("runs", sa.Column("owner_token", sa.Text(), nullable=True))
    op.add_column("runs", sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("resumes", sa.Column("episodes", sa.BigInteger(), nullable=True))
    op.add_column("resumes", sa.Column("checkpoint", sa.Text(), nullable=True))
    op.add_column("resumes", sa.Column("passed_over", sa.Text(), nullable=True))
