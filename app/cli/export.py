"""`emtc export`: the figures and tables of the pages as files, without a browser."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import pandas as pd
import typer

from app.cli.output import DEFAULT_DATABASE, DatabaseUrl, say
from app.figures.cloud import QUANTITIES
from app.figures.export import EXPORT_FORMATS, export_figure
from app.figures.kinds import AnyFigure
from app.paper import memories, single
from app.paper.compare import SEED_FIGURES, SEED_TABLES
from app.paper.memories import make_strategy_divergence
from app.paper.registry import FIGURES, TABLES
from app.provenance import describe_runs
from app.seed_statistics import BANDS, CENTERS, USUAL_BAND, Reading
from app.tables import TABLE_FORMATS, export_table
from emtc_core.errors import ConfigError
from storage.engine import Database, open_database
from storage.queries.runs import get_run, list_runs
from storage.runs import RunRow

Choice = TypeVar("Choice", bound=str)
EVERY_RUN = 1_000_000
ENCODER_TIMING = "encoder-timing"
GATE_READINGS = "gate-readings"


def export(
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN…", help="Run ids or beginnings of them")] = None,
    figure: Annotated[str | None, typer.Option(help="Name of a figure")] = None,
    table: Annotated[str | None, typer.Option(help="Name of a table")] = None,
    format: Annotated[str, typer.Option(help="svg, pdf, png, html, csv; csv, latex, markdown, parquet")] = "",
    out: Annotated[Path | None, typer.Option(help="File to write; a table goes to stdout without it")] = None,
    map: Annotated[list[str] | None, typer.Option(help="Only runs on this map; may be repeated")] = None,
    algo: Annotated[list[str] | None, typer.Option(help="Only runs of this algorithm; may be repeated")] = None,
    center: Annotated[str, typer.Option(help=f"Over seeds: {', '.join(CENTERS)}")] = "",
    band: Annotated[str, typer.Option(help=f"Over seeds: {', '.join(BANDS)}")] = "",
    color: Annotated[str, typer.Option(help="What colours the memory atlas")] = "h",
    method: Annotated[str, typer.Option(help="Projection of the memory atlas: pca, tsne or umap")] = "pca",
    episodes: Annotated[str, typer.Option(help="Two episodes of strategy-divergence, as 120,87")] = "",
    db: DatabaseUrl = DEFAULT_DATABASE,
) -> None:
    """Write one figure or one table of some runs.

    What compares runs takes every evaluated one when none is named; --map and --algo choose among them.
    """
    if (figure is None) == (table is None):
        raise typer.BadParameter("Give either --figure or --table.")
    reading = _make_reading(center, band)
    if table is not None:
        name = _choose("table", table, (*TABLES, ENCODER_TIMING))
        kind = _choose("format", format or "csv", TABLE_FORMATS)
        if name == ENCODER_TIMING:
            _write(export_table(_measure_encoders(), kind), out)
            return
        database = open_database(db, read_only=True)
        chosen = _select(database, runs, map, algo, finished=True) if runs or map or algo else None
        _write(export_table(_make_table(database, name, chosen, reading), kind), out)
        return
    if out is None:
        raise typer.BadParameter("--figure needs --out FILE.")
    name = _choose("figure", figure or "", (*FIGURES, GATE_READINGS))
    image = _choose("format", format or out.suffix.removeprefix("."), EXPORT_FORMATS)
    _choose("color", color, QUANTITIES)
    if (name in single.FIGURES or name in memories.FIGURES or name == GATE_READINGS) and not runs:
        raise typer.BadParameter("Name at least one run; list them with: emtc runs")
    database = open_database(db)
    rows = _select(database, runs, map, algo)
    if name == "memory-atlas":
        drawn: AnyFigure = single.make_memory_atlas(database, rows, color, method)
    elif name == GATE_READINGS:
        drawn = _judge_again(database, rows)
    elif name == "strategy-divergence" and episodes:
        drawn = make_strategy_divergence(database, rows, episodes=_read_pair(episodes))
    else:
        drawn = SEED_FIGURES[name](database, rows, reading) if name in SEED_FIGURES else FIGURES[name](database, rows)
    sources = describe_runs({row.id: row.config for row in rows}, {row.id: row.versions for row in rows})
    _write(export_figure(drawn, image, sources=sources), out)


def _make_table(db: Database, name: str, rows: Sequence[RunRow] | None, reading: Reading | None) -> pd.DataFrame:
    if name in SEED_TABLES:
        return SEED_TABLES[name](db, None if rows is None else [row.id for row in rows], reading)
    if rows is not None:
        raise typer.BadParameter(f"--table {name} is made of all runs; leave out RUN, --map and --algo.")
    return TABLES[name](db)


def _measure_encoders() -> pd.DataFrame:
    """Measure now; no database knows how fast this machine is."""
    from app.bench.encoder import make_encoder_timing_table

    say("Measuring the encoders …")
    return make_encoder_timing_table()


def _judge_again(db: Database, rows: list[RunRow]) -> AnyFigure:
    """Run memory and gate anew on what was recorded; the only figure that computes with the core."""
    from app.runs.readings import make_gate_readings

    chart = make_gate_readings(db, rows, on_progress=say)
    say(chart.caption)
    return chart


def _select(
    db: Database,
    runs: Sequence[str] | None,
    maps: Sequence[str] | None,
    algos: Sequence[str] | None,
    *,
    finished: bool = False,
) -> list[RunRow]:
    """Find the named runs, or every evaluated (or finished) one, on the wanted maps and of the wanted algorithms."""
    if runs:
        rows = [get_run(db, run) for run in dict.fromkeys(runs)]
        rows = [row for row in rows if (not maps or row.map in maps) and (not algos or row.algo in algos)]
    else:
        known = list_runs(db, limit=EVERY_RUN)
        wanted = known["win_rate"].notna() & ((known["status"] == "finished") | (not finished))
        wanted &= known["map"].isin(maps) if maps else True
        wanted &= known["algo"].isin(algos) if algos else True
        rows = [get_run(db, str(run_id)) for run_id in known.loc[wanted, "id"]]
    if not rows:
        raise ConfigError("No evaluated run was chosen. List what there is with: emtc runs")
    return rows


def _read_pair(text: str) -> tuple[int, int]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(part.isdecimal() and part.isascii() for part in parts):
        raise typer.BadParameter(f"--episodes takes two numbers as 120,87, got {text!r}.")
    return int(parts[0]), int(parts[1])


def _make_reading(center: str, band: str) -> Reading | None:
    if not center and not band:
        return None
    middle = _choose("center", center or "mean", CENTERS)
    return Reading(middle, _choose("band", band or USUAL_BAND[middle], BANDS))


def _choose(option: str, given: str, allowed: Iterable[Choice]) -> Choice:
    known = list(allowed)
    for each in known:
        if given == each:
            return each
    raise typer.BadParameter(f"--{option} must be one of {', '.join(known)}, got {given!r}.")


def _write(content: bytes, out: Path | None) -> None:
    if out is None:
        sys.stdout.buffer.write(content)
        return
    try:
        out.write_bytes(content)
    except OSError as exc:
        raise ConfigError(f"{out} cannot be written: {exc.strerror}. Choose another --out.") from exc
    say(f"Wrote {out} ({len(content):,} bytes).")
