"""How many episodes of an evaluation differ, and the win rate from shifted starts."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add columns that may be empty: earlier evaluations did not count, and played from the map's own starts only."""
    op.add_column("evaluations", sa.Column("distinct", sa.Integer(), nullable=True))
    op.add_column("evaluations", sa.Column("robust_win_rate", sa.Double(), nullable=True))
    op.add_column("evaluations", sa.Column("robust_distinct", sa.Integer(), nullable=True))
    op.add_column("asked_evaluations", sa.Column("distinct", sa.Integer(), nullable=True))
