"""Add hidden and archived marks of runs, and summaries of a run's curves by which lists are sorted."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

MU_W = """
    UPDATE runs SET mu_w = (
        SELECT CASE WHEN max(env_step) > min(env_step)
               THEN sum(area) / (max(env_step) - min(env_step)) ELSE max(win_rate) END
        FROM (
            SELECT env_step, win_rate,
                   (env_step - lag(env_step) OVER (ORDER BY env_step))
                   * ((win_rate + lag(win_rate) OVER (ORDER BY env_step)) / 2.0) AS area
            FROM evaluations WHERE evaluations.run_id = runs.id
        ) AS pieces
    )
    WHERE EXISTS (SELECT 1 FROM evaluations WHERE evaluations.run_id = runs.id)
"""
GATE_REMOVED = """
    UPDATE runs SET gate_removed = coalesce((
        SELECT avg(value) FROM metrics WHERE metrics.run_id = runs.id AND name = 'gate/incentive_removed'
    ), 0.0)
    WHERE EXISTS (
        SELECT 1 FROM metrics WHERE metrics.run_id = runs.id AND name = 'gate/beta_new' AND value IS NOT NULL
    )
"""


def upgrade() -> None:
    """Add columns that may be NULL, and compute the summaries of existing runs."""

    op.add_column("runs", sa.Column("mu_w", sa.Double(), nullable=True))
    op.add_column("runs", sa.Column("gate_removed", sa.Double(), nullable=True))
    op.add_column("runs", sa.Column("hidden_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("runs", sa.Column("archived_at", sa.DateTime(timezone=True), nullable=True))
    op.execute(MU_W)
    op.execute(GATE_REMOVED)
