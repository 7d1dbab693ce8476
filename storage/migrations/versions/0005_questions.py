"""Add a table for evaluations that users request during training."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column that may be NULL, and an empty table."""

    op.add_column("commands", sa.Column("episode", sa.BigInteger(), nullable=True))
    op.create_table(
        "asked_evaluations",
        sa.Column("command_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("run_id", sa.String(length=12), nullable=False),
        sa.Column("env_step", sa.BigInteger(), nullable=False),
        sa.Column("episodes", sa.Integer(), nullable=False),
        sa.Column("wins", sa.Integer(), nullable=False),
        sa.Column("win_rate", sa.Double(), nullable=False),
        sa.Column("return_mean", sa.Double(), nullable=False),
        sa.Column("return_std", sa.Double(), nullable=False),
        sa.Column("length_mean", sa.Double(), nullable=False),
        sa.Column("again_of", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["command_id"], ["commands.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("command_id"),
    )
    op.create_index("ix_asked_evaluations_run_id", "asked_evaluations", ["run_id", "env_step"], unique=False)
