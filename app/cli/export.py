"""`emtc export`: the figures and tables of the pages as files, without a browser."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from app.cli.output import DEFAULT_DATABASE, DatabaseUrl, say
from app.figures.chart import Chart
from app.figures.cloud import QUANTITIES, Cloud
from app.figures.export import EXPORT_FORMATS, ExportFormat, export_figure
from app.figures.learning import draw_learning_curves
from app.figures.live import draw_gate_dynamics
from app.figures.memory import draw_memory
from app.projections.jobs import project_snapshot, sample_rows
from app.tables import TABLE_FORMATS, TABLES, TableFormat, export_table
from app.variants import label_variants
from emtc_core.errors import ConfigError
from storage.engine import Database, open_database
from storage.queries.curves import evaluations
from storage.queries.gate import gate_stats
from storage.queries.memory import get_snapshot, list_snapshots
from storage.queries.runs import get_run
from storage.runs import RunRow

Format = TypeVar("Format", ExportFormat, TableFormat)


def export(
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN…", help="Run ids or beginnings of them")] = None,
    figure: Annotated[str | None, typer.Option(help="Name of a figure")] = None,
    table: Annotated[str | None, typer.Option(help="Name of a table")] = None,
    format: Annotated[str, typer.Option(help="svg, pdf, png, html, csv; csv, latex, markdown, parquet")] = "",
    out: Annotated[Path | None, typer.Option(help="File to write; a table goes to stdout without it")] = None,
    color: Annotated[str, typer.Option(help="What colours the memory atlas")] = "h",
    method: Annotated[str, typer.Option(help="Projection of the memory atlas: pca, tsne or umap")] = "pca",
    db: DatabaseUrl = DEFAULT_DATABASE,
) -> None:
    """Write one figure of some runs, or one table."""
    if (figure is None) == (table is None):
        raise typer.BadParameter("Give either --figure or --table.")
    if table is not None:
        _write(_make_table(open_database(db, read_only=True), table, format or "csv"), out)
        return
    if out is None:
        raise typer.BadParameter("--figure needs --out FILE.")
    if figure not in FIGURES:
        raise typer.BadParameter(f"--figure must be one of {', '.join(FIGURES)}, got {figure!r}.")
    chosen = _choose(format or out.suffix.removeprefix("."), EXPORT_FORMATS)
    if color not in QUANTITIES:
        raise typer.BadParameter(f"--color must be one of {', '.join(QUANTITIES)}, got {color!r}.")
    database = open_database(db)
    rows = [get_run(database, run) for run in runs or []]
    if not rows:
        raise typer.BadParameter("Name at least one run; list them with: emtc runs")
    drawn = (
        _memory_atlas(database, rows, color, method) if figure == "memory-atlas" else FIGURES[figure](database, rows)
    )
    _write(export_figure(drawn, chosen), out)


def _gate_dynamics(db: Database, rows: list[RunRow]) -> Chart:
    if len(rows) > 1:
        raise ConfigError(f"gate-dynamics shows one run, got {len(rows)}.")
    stats = gate_stats(db, rows[0].id)
    if stats.empty:
        raise ConfigError(
            f"Run {rows[0].id} ({rows[0].algo}) has no gate statistics. Choose a run of an EMTC algorithm."
        )
    return draw_gate_dynamics(stats, run=rows[0].name)


def _learning_curves(db: Database, rows: list[RunRow]) -> Chart:
    groups: dict[str, list] = {}
    labels = label_variants({row.id: row.config for row in rows})
    for row in rows:
        frame = evaluations(db, row.id)
        if frame.empty:
            raise ConfigError(f"Run {row.id} has no evaluation yet. Wait for its first, or leave it out.")
        groups.setdefault(labels[row.id], []).append(frame)
    return draw_learning_curves(groups)


def _memory_atlas(db: Database, rows: list[RunRow], color: str = "h", method: str = "pca") -> Cloud:
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


FIGURES: dict[str, Callable[[Database, list[RunRow]], Chart | Cloud]] = {
    "gate-dynamics": _gate_dynamics,
    "learning-curves": _learning_curves,
    "memory-atlas": _memory_atlas,
}


def _make_table(db: Database, name: str, format: str) -> bytes:
    if name not in TABLES:
        raise typer.BadParameter(f"--table must be one of {', '.join(TABLES)}, got {name!r}.")
    return export_table(TABLES[name](db), _choose(format, TABLE_FORMATS))


def _choose(format: str, allowed: tuple[Format, ...]) -> Format:
    for known in allowed:
        if format == known:
            return known
    raise typer.BadParameter(f"--format must be one of {', '.join(allowed)}, got {format!r}.")


def _write(content: bytes, out: Path | None) -> None:
    if out is None:
        sys.stdout.buffer.write(content)
        return
    try:
        out.write_bytes(content)
    except OSError as exc:
        raise ConfigError(f"{out} cannot be written: {exc.strerror}. Choose another --out.") from exc
    say(f"Wrote {out} ({len(content):,} bytes).")
