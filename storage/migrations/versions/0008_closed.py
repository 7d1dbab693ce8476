"""Add the number of transitions of an episode on which the gate is closed."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

OUTLINE = ["run_id", "episode", "first_env_step", "length", "episode_return", "won", "epsilon", "closed"]
CLOSED = """
    UPDATE episodes SET closed = (
        SELECT sum(CASE WHEN beta < 0.5 THEN 1 WHEN beta >= 0.5 THEN 0 END)
        FROM transitions
        WHERE transitions.run_id = episodes.run_id
        AND transitions.env_step >= episodes.first_env_step
        AND transitions.env_step < episodes.first_env_step + episodes.length
    )
"""


def upgrade() -> None:
    """Count them in the recorded transitions. The count is NULL if the transitions were thinned away."""
    op.add_column("episodes", sa.Column("closed", sa.BigInteger(), nullable=True))
    op.execute(CLOSED)
    op.drop_index("ix_episodes_outline", "episodes")
    op.create_index("ix_episodes_outline", "episodes", OUTLINE)
