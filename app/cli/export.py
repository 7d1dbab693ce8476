"""`emtc export`: the figures and tables of the pages as files, without a browser."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import pandas as pd
import typer

from app.cli.output import DEFAULT_DATABASE, DatabaseUrl, printable, say
from app.figures.chart import Chart
from app.figures.cloud import QUANTITIES
from app.figures.export import EXPORT_FORMATS, WIDTHS, export_figure
from app.results.kinds import FigureKind, Options
from app.results.provenance import describe_runs
from app.results.registry import FIGURES, TABLES
from app.results.select import select_runs
from app.results.statistics import BANDS, CENTERS
from app.tables import TABLE_FORMATS, export_table
from emtc_core.errors import ConfigError
from storage.engine import Database, open_database
from storage.runs import RunRow

Choice = TypeVar("Choice", bound=str)
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
    include_unfinished: Annotated[
        bool, typer.Option("--include-unfinished", help="Count runs that have not finished too, marked with a dagger")
    ] = False,
    width: Annotated[str, typer.Option(help="Columns of the paper that an image spans: one or two")] = "",
    color: Annotated[str, typer.Option(help="What colours the memory atlas; h when missing")] = "",
    method: Annotated[str, typer.Option(help="Projection of a memory: pca, tsne or umap")] = "",
    episodes: Annotated[str, typer.Option(help="Two episodes of strategy-divergence, as 120,87")] = "",
    replay: Annotated[
        str | None,
        typer.Option(help="Episode to replay: 512, or 80000-0 for the first of the evaluation at step 80000"),
    ] = None,
    beside: Annotated[
        str, typer.Option(help="Another episode beside --replay, of the second RUN if two are named")
    ] = "",
    t: Annotated[int, typer.Option(min=0, help="Step of --replay that an svg shows and an html starts at")] = 0,
    db: DatabaseUrl = DEFAULT_DATABASE,
) -> None:
    """Write one figure or one table of some runs, or the replay of an episode.

    What compares runs takes every evaluated one when none is named; --map and --algo choose among them.
    """
    if [figure, table, replay].count(None) != 2:
        raise typer.BadParameter("Give either --figure or --table, or --replay EPISODE.")
    if replay is None and (beside or t):
        raise typer.BadParameter("--beside and --t belong to --replay.")
    if replay is not None:
        _write_replay(db, runs or [], [replay, *([beside] if beside else [])], format, out, t)
        return
    options = Options(
        center=_choose("center", center, CENTERS) if center else None,
        band=_choose("band", band, BANDS) if band else None,
        color=_choose("color", color, QUANTITIES) if color else None,
        method=_choose("method", method, ("pca", "tsne", "umap")) if method else None,
        episodes=_read_pair(episodes) if episodes else (),
        include_unfinished=include_unfinished,
    )
    if table is not None:
        if width:
            raise typer.BadParameter("--width belongs to an image; a table has none.")
        _write(_make_table(db, table, format, runs, map, algo, options), out)
        return
    if out is None:
        raise typer.BadParameter("--figure needs --out FILE.")
    name = _choose("figure", figure or "", (*FIGURES, GATE_READINGS))
    image = _choose("format", format or out.suffix.removeprefix("."), EXPORT_FORMATS)
    columns = _choose("width", width or "two", WIDTHS)
    if width and image in ("html", "csv"):
        raise typer.BadParameter(f"--width belongs to svg, pdf and png; {image} has none.")
    kind = FIGURES.get(name) or FigureKind(name, _judge_again, needs_runs=True)
    if kind.needs_runs and not runs:
        raise typer.BadParameter("Name at least one run; list them with: emtc runs")
    database = open_database(db, create=False)
    rows = _select(database, runs, map, algo)
    drawn = kind.make(database, rows, options)
    sources = describe_runs({row.id: row.config for row in rows}, {row.id: row.versions for row in rows})
    _write(export_figure(drawn, image, sources=sources, columns=columns), out)


def _write_replay(
    url: str, runs: Sequence[str], episodes: Sequence[str], format: str, out: Path | None, t: int
) -> None:
    from app.playback.files import FORMATS, make_file, read_replays

    if out is None:
        raise typer.BadParameter("--replay needs --out FILE.")
    image = _choose("format", format or out.suffix.removeprefix("."), FORMATS)
    if not runs or len(runs) > len(episodes):
        raise typer.BadParameter("--replay takes one RUN, or two with --beside; list them with: emtc runs")
    database = open_database(url, read_only=True)
    replays = read_replays(database, list(zip([*runs, runs[0]], episodes, strict=False)))
    if image == "gif":
        say("Drawing the frames …")
    _write(make_file(replays, image, t=t), out)


def _make_table(
    url: str,
    table: str,
    format: str,
    runs: Sequence[str] | None,
    maps: Sequence[str] | None,
    algos: Sequence[str] | None,
    options: Options,
) -> bytes:
    name = _choose("table", table, (*TABLES, ENCODER_TIMING))
    image = _choose("format", format or "csv", TABLE_FORMATS)
    chosen = bool(runs or maps or algos)
    if name == ENCODER_TIMING:
        if chosen or options.given:
            raise typer.BadParameter(f"--table {name} measures this machine; leave out runs and options over seeds.")
        return export_table(_measure_encoders(), image)
    kind = TABLES[name]
    if chosen and not kind.takes_runs:
        raise typer.BadParameter(f"--table {name} is made of all runs; leave out RUN, --map and --algo.")
    database = open_database(url, read_only=True)
    rows = _select(database, runs, maps, algos) if chosen else select_runs(database) if kind.takes_runs else []
    return export_table(kind.make(database, rows, options), image)


def _measure_encoders() -> pd.DataFrame:
    """Measure now; no database knows how fast this machine is."""
    from app.bench.encoder import make_encoder_timing_table

    say("Measuring the encoders …")
    return make_encoder_timing_table()


def _judge_again(db: Database, rows: Sequence[RunRow], options: Options) -> Chart:
    """Run memory and gate anew on what was recorded; the only figure that computes with the core."""
    from app.runs.readings import make_gate_readings

    chart = make_gate_readings(db, rows, on_progress=say)
    say(chart.caption)
    return chart


def _select(
    db: Database, runs: Sequence[str] | None, maps: Sequence[str] | None, algos: Sequence[str] | None
) -> list[RunRow]:
    rows = select_runs(db, runs, maps=maps, algos=algos)
    if not rows:
        raise ConfigError("No evaluated run was chosen. List what there is with: emtc runs")
    return rows


def _read_pair(text: str) -> tuple[int, int]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(part.isdecimal() and part.isascii() for part in parts):
        raise typer.BadParameter(f"--episodes takes two numbers as 120,87, got {text!r}.")
    return int(parts[0]), int(parts[1])


def _choose(option: str, given: str, allowed: Iterable[Choice]) -> Choice:
    known = list(allowed)
    for each in known:
        if given == each:
            return each
    raise typer.BadParameter(f"--{option} must be one of {', '.join(known)}, got {given!r}.")


def _shown(content: bytes) -> bytes:
    """Make a text safe for a terminal; bytes of a format that is no text go to a pipe as they are."""
    try:
        return printable(content.decode()).encode()
    except UnicodeDecodeError:
        return content


def _write(content: bytes, out: Path | None) -> None:
    if out is None:
        sys.stdout.buffer.write(_shown(content))
        return
    try:
        out.write_bytes(content)
    except OSError as exc:
        raise ConfigError(f"{out} cannot be written: {exc.strerror}. Choose another --out.") from exc
    say(f"Wrote {out} ({len(content):,} bytes).")
