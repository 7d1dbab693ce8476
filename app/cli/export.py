"""`emtc export`: the figures and tables of the pages as files, without a browser."""

import sys
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from app.cli.output import DEFAULT_DATABASE, DatabaseUrl, say
from app.figures.cloud import QUANTITIES
from app.figures.export import EXPORT_FORMATS, ExportFormat, export_figure
from app.paper.registry import FIGURES, TABLES
from app.paper.single import make_memory_atlas
from app.tables import TABLE_FORMATS, TableFormat, export_table
from emtc_core.errors import ConfigError
from storage.engine import Database, open_database
from storage.queries.runs import get_run

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
        make_memory_atlas(database, rows, color, method)
        if figure == "memory-atlas"
        else FIGURES[figure](database, rows)
    )
    _write(export_figure(drawn, chosen), out)


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
