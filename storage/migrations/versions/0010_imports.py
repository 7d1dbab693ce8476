"""What did an evaluation that was made elsewhere not tell?"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

UNTOLD = {
    "episodes": sa.Integer(),
    "wins": sa.Integer(),
    "win_rate": sa.Double(),
    "return_mean": sa.Double(),
    "return_std": sa.Double(),
    "length_mean": sa.Double(),
}


def upgrade() -> None:
    """Let them be empty: a curve of another program is a win rate or a return over steps, and nothing is made up."""
    with op.batch_alter_table("evaluations", table_kwargs={"sqlite_with_rowid": False}) as table:
        for name, kind in UNTOLD.items():
            table.alter_column(name, existing_type=kind, nullable=True)
