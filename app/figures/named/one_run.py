"""Figures of one run: its gate over time, its memory as a map."""

from collections.abc import Sequence

from app.analysis.projections.snapshots import project_snapshot, sample_rows
from app.figures.figure import FigureKind, Options
from app.figures.kinds.chart import Chart
from app.figures.kinds.cloud import Cloud
from app.figures.live import GATE_METRICS, draw_gate_dynamics
from app.figures.memory import draw_memory
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.queries.curves import metric
from storage.queries.gate import gate_stats
from storage.queries.memory import get_snapshot, list_snapshots
from storage.runs.rows import RunRow


def _gate_dynamics(db: Database, rows: Sequence[RunRow], options: Options) -> Chart:
    """Draw delta_mem and beta of one run over env steps, of new transitions and of the memory, and tau."""
    if len(rows) > 1:
        raise ConfigError(f"gate-dynamics shows one run, got {len(rows)}.")
    stats = gate_stats(db, rows[0].id)
    if stats.empty:
        raise ConfigError(
            f"Run {rows[0].id} ({rows[0].algo}) has no gate statistics. Choose a run of an EMTC algorithm."
        )
    return draw_gate_dynamics(stats, metric(db, rows[0].id, GATE_METRICS), run=rows[0].name)


def _memory_atlas(db: Database, rows: Sequence[RunRow], options: Options) -> Cloud:
    """Draw the newest snapshot of one run as a map."""
    color, method = options.color or "h", options.method or "pca"
    if len(rows) > 1:
        raise ConfigError(f"memory-atlas shows one run, got {len(rows)}.")
    snapshots = list_snapshots(db, rows[0].id)
    if snapshots.empty:
        raise ConfigError(f"Run {rows[0].id} has no snapshot of a memory. Choose a run of an EMTC or EMU algorithm.")
    snapshot = get_snapshot(db, int(snapshots["id"].iloc[-1]))
    projection = project_snapshot(db, snapshot.id, method=method)
    shown = sample_rows(snapshot, n=20_000, seed=0)
    return draw_memory(
        snapshot,
        shown,
        projection.coordinates[shown],
        x_label=f"{method} 1",
        y_label=f"{method} 2",
        color=color,
        title=f"Memory of {rows[0].name} at step {snapshot.env_step}",
        caption=f"Showing {len(shown)} of {snapshot.size} nodes, stratified by return and time, seed 0.",
    )


FIGURES = (
    FigureKind("gate-dynamics", _gate_dynamics, needs_runs=True),
    FigureKind("memory-atlas", _memory_atlas, frozenset({"color", "method"}), needs_runs=True),
)
