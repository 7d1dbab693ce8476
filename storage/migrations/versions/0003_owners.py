"""Owners: who works on a run and since when, which run it was started again from, and what a resume superseded."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add columns that may be empty: no row of an earlier version changes its meaning."""

    op.add_column("runs", sa.Column("parent_id", sa.String(length=12), nullable=True))
    op.add_column("runs", sa.Column("owner_token", sa.Text(), nullable=True))
    op.add_column("runs", sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("resumes", sa.Column("episodes", sa.BigInteger(), nullable=True))
    op.add_column("resumes", sa.Column("checkpoint", sa.Text(), nullable=True))
    op.add_column("resumes", sa.Column("passed_over", sa.Text(), nullable=True))
