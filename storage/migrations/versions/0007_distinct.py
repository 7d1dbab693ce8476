"""Add the number of different episodes of an evaluation, and the win rate from shifted starts."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add columns that may be NULL, because existing evaluations do not have these values."""
    op.add_column("evaluations", sa.Column("distinct", sa.Integer(), nullable=True))
    op.add_column("evaluations", sa.Column("robust_win_rate", sa.Double(), nullable=True))
    op.add_column("evaluations", sa.Column("robust_distinct", sa.Integer(), nullable=True))
    op.add_column("asked_evaluations", sa.Column("distinct", sa.Integer(), nullable=True))
