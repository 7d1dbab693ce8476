"""Turn off the compression of PostgreSQL for columns that are already compressed."""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

PACKED = {
    "episodes": ("trajectory",),
    "eval_episodes": ("trajectory",),
    "snapshots": (
        *("slot", "embedding", "H", "xi", "n_call", "n_xi", "t", "reward", "idx_next", "episode"),
        *("delta_mem", "beta", "state"),
    ),
    "projections": ("coordinates",),
}


def upgrade() -> None:
    """Store them as they are. The attempts to compress them took most of the time of inserting an episode."""
    if op.get_bind().dialect.name != "postgresql":
        return
    for table, columns in PACKED.items():
        op.execute(f"ALTER TABLE {table} " + ", ".join(f'ALTER "{name}" SET STORAGE EXTERNAL' for name in columns))
