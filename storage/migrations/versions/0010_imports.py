"""Allow NULL in columns of evaluations, for curves that are imported from other programs."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

NULLABLE_COLUMNS = {
    "episodes": sa.Integer(),
    "wins": sa.Integer(),
    "win_rate": sa.Double(),
    "return_mean": sa.Double(),
    "return_std": sa.Double(),
    "length_mean": sa.Double(),
}


def upgrade() -> None:
    """Allow NULL. An imported curve contains only a win rate or a return over steps."""
    with op.batch_alter_table("evaluations", table_kwargs={"sqlite_with_rowid": False}) as table:
        for name, kind in NULLABLE_COLUMNS.items():
            table.alter_column(name, existing_type=kind, nullable=True)
