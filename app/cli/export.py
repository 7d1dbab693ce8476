"""`emtc export`: the figures and tables of the pages as files, without a browser, and the raw tables."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from app.analysis.aggregates import BAND_NAMES, BANDS
from app.analysis.comparable import Budget, parse_budget, select_runs
from app.analysis.finals import FINAL_RULES
from app.analysis.format import format_run_count
from app.analysis.intervals import CENTERS
from app.analysis.provenance import describe_runs
from app.analysis.quantities import RATE_MEANING, RATE_NAMES
from app.analysis.selection import NODE_QUANTITIES
from app.analysis.settings import with_code
from app.analysis.tables import TABLE_FORMATS, export_table
from app.analysis.variants import list_run_code_warnings
from app.cli.evaluate import CheckpointName, read_checkpoint
from app.cli.export_raw import MARL_EVAL, export_marl_eval, export_raw, find_raw
from app.cli.output import DEFAULT_DATABASE, DatabaseUrl, choose, print_message, printable, write_file
from app.cli.progress import show_shares
from app.figures.figure import FigureKind, Options
from app.figures.registry import FIGURES, TABLES
from app.figures.render.export import EXPORT_FORMATS, WIDTHS, export_figure
from emtc_core.errors import ConfigError
from storage.engine import Database, open_database
from storage.queries.tables import TABLE_NAMES, TableName
from storage.runs.rows import RunRow
from storage.runs.sweeps import get_sweep, sweep_runs

ENCODER_TIMING = "encoder-timing"
_BANDS = ", ".join(f"{band} ({name})" for band, name in BAND_NAMES.items())
_FORMATS = (
    "Figures: svg, pdf, png, html, csv; tables: csv, latex, markdown, parquet; raw: csv, parquet, arrow, marl-eval; "
    "replays: html, gif, svg"
)


def export(
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN…", help="Run ids or beginnings of them")] = None,
    figure: Annotated[str | None, typer.Option(help="Name of a figure")] = None,
    table: Annotated[str | None, typer.Option(help=f"Name of a table; raw: {', '.join(TABLE_NAMES)}")] = None,
    sweep: Annotated[str, typer.Option(metavar="SWEEP", help="The runs of a sweep, instead of RUN")] = "",
    format: Annotated[str, typer.Option(help=_FORMATS)] = "",
    out: Annotated[Path | None, typer.Option(help="File to write; a table goes to stdout without it")] = None,
    map: Annotated[list[str] | None, typer.Option(help="Only runs on this map; may be repeated")] = None,
    algo: Annotated[list[str] | None, typer.Option(help="Only runs of this algorithm; may be repeated")] = None,
    center: Annotated[str, typer.Option(help=f"Over seeds: {', '.join(CENTERS)}")] = "",
    band: Annotated[str, typer.Option(help=f"Over seeds: {_BANDS}")] = "",
    include_unfinished: Annotated[
        bool, typer.Option("--include-unfinished", help="Count runs that have not finished too, marked with a dagger")
    ] = False,
    budget: Annotated[
        str,
        typer.Option(
            metavar="STEPS",
            help="Env steps at which runs of different lengths are compared, as 20000 or 0.8M; the most that all "
            "reached if missing; own: each at its own end, marked",
        ),
    ] = "",
    final: Annotated[
        str,
        typer.Option(help=f"Win rate at a run's end: {', '.join(FINAL_RULES)}; a mean over the last tenth if missing"),
    ] = "",
    rate: Annotated[
        str,
        typer.Option(help=f"Win rate of which episodes; {RATE_MEANING}; auto if missing"),
    ] = "",
    width: Annotated[str, typer.Option(help="Columns of the paper that an image spans: one or two")] = "",
    color: Annotated[str, typer.Option(help="What colours the memory atlas; h when missing")] = "",
    method: Annotated[str, typer.Option(help="Projection of a memory: pca, tsne or umap")] = "",
    episodes: Annotated[str, typer.Option(help="Two episodes of strategy-divergence, as 120,87")] = "",
    refit_every: Annotated[
        int | None,
        typer.Option(
            min=1, help="Env steps between the refits of gate-readings; at 10000 it takes about a sixth of the time"
        ),
    ] = None,
    set: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION=VALUE", help="An option that only this figure has; may be repeated"),
    ] = None,
    replay: Annotated[
        str | None,
        typer.Option(help="Episode to replay: 512, or 80000-0 for the first of the evaluation at step 80000"),
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the RUN's policy as TorchScript, read back and compared")
    ] = None,
    checkpoint: CheckpointName = "last",
    beside: Annotated[
        str, typer.Option(help="Another episode beside --replay, of the second RUN if two are named")
    ] = "",
    t: Annotated[int, typer.Option(min=0, help="Step of --replay that an svg shows and an html starts at")] = 0,
    db: DatabaseUrl = DEFAULT_DATABASE,
) -> None:
    """Write one figure or one table of some runs, the replay of an episode, or a run's policy.

    What compares runs takes every evaluated one when none is named; --map and --algo choose among them.
    """
    if policy is not None or checkpoint != "last":
        _write_policy(db, runs or [], policy, checkpoint)
        return
    if replay is not None or beside or t:
        wanted = _name_episodes(replay, beside, other=bool(figure or table or sweep))
        _write_replay(db, runs or [], wanted, format, out, t)
        return
    raw = find_raw(table, format)
    if (figure is None) == (table is None and raw is None):
        raise typer.BadParameter("Give either --figure or --table, or --replay EPISODE.")
    shared: dict[str, Any] = {
        "center": choose("center", center, CENTERS) if center else None,
        "band": choose("band", band, BANDS) if band else None,
        "color": choose("color", color, NODE_QUANTITIES) if color else None,
        "method": choose("method", method, ("pca", "tsne", "umap", "axes")) if method else None,
        "episodes": _read_pair(episodes) if episodes else (),
        "refit_every": refit_every,
        "include_unfinished": include_unfinished,
        "budget": _read_budget(budget) if budget else None,
        "final": choose("final", final, FINAL_RULES) if final else None,
        "rate": choose("rate", rate, RATE_NAMES) if rate else None,
    }
    if set and figure is None:
        raise typer.BadParameter("--set belongs to a figure; a table has no option of its own.")
    if width and figure is None:
        raise typer.BadParameter("--width belongs to an image; a table has none.")
    asked = _Asked(db, _of_sweep(db, sweep, runs) if sweep else runs, map, algo)
    if raw is not None:
        _write_raw(asked, raw, format, Options(**shared), out)
    elif table is not None:
        _write(_make_table(asked, table, format, Options(**shared)), out)
    elif out is None:
        raise typer.BadParameter("--figure needs --out FILE.")
    else:
        given = {name: value for name, value in shared.items() if value} | _read_own(set or [])
        kind = FIGURES[choose("figure", figure or "", FIGURES)]
        _write(_make_figure(kind, given, asked, format or out.suffix.removeprefix("."), width), out)


@dataclass(frozen=True)
class _Asked:
    """Which runs of which database; where nothing is named, all that were evaluated."""

    url: str
    runs: Sequence[str] | None
    maps: Sequence[str] | None
    algos: Sequence[str] | None

    @property
    def names_some(self) -> bool:
        """Whether runs, maps or algorithms were named."""
        return bool(self.runs or self.maps or self.algos)

    def select(self, db: Database) -> list[RunRow]:
        """Choose the runs.

        Raises:
            ConfigError: If there is none.
        """
        rows = select_runs(db, self.runs, maps=self.maps, algos=self.algos)
        if not rows:
            raise ConfigError("No evaluated run is selected", hint="List all runs with: emtc runs")
        return rows


def _make_figure(kind: FigureKind, given: Mapping[str, Any], asked: _Asked, format: str, width: str) -> bytes:
    image = choose("format", format, EXPORT_FORMATS)
    columns = choose("width", width or "two", WIDTHS)
    if width and image in ("html", "csv"):
        raise typer.BadParameter(f"--width belongs to svg, pdf and png; {image} has none.")
    if kind.needs_runs and not asked.runs:
        raise typer.BadParameter("Name at least one run; list them with: emtc runs")
    database = open_database(asked.url, create=False)
    rows = asked.select(database)
    judges = "refit_every" in kind.supported_options  # for minutes
    with show_shares() if judges else nullcontext() as on_progress:
        drawn = kind.make(database, rows, kind.read_options(given, on_progress=on_progress))
    if judges:
        print_message(drawn.caption)
    for doubt in list_run_code_warnings({row.id: with_code(row.config, row.versions) for row in rows}):
        print_message(doubt)
    return export_figure(drawn, image, sources=describe_runs(rows), columns=columns)


def _write_policy(url: str, runs: Sequence[str], out: Path | None, checkpoint: str) -> None:
    if out is None:
        raise typer.BadParameter("--checkpoint belongs to --policy FILE.")
    if len(runs) != 1:
        raise typer.BadParameter("--policy takes one RUN; list them with: emtc runs")
    wanted = read_checkpoint(checkpoint)
    database = open_database(url, read_only=True)
    from app.jobs.policies import export_policy

    chosen = export_policy(database, runs[0], out, checkpoint=wanted)
    print_message(
        f"Wrote {out} ({out.stat().st_size:,} bytes) of {chosen.description}; it acts as the stored policy does."
    )


def _name_episodes(replay: str | None, beside: str, *, other: bool) -> list[str]:
    if replay is None:
        raise typer.BadParameter("--beside and --t belong to --replay.")
    if other:
        raise typer.BadParameter("Give either --figure or --table, or --replay EPISODE.")
    return [replay, beside] if beside else [replay]


def _write_replay(
    url: str, runs: Sequence[str], episodes: Sequence[str], format: str, out: Path | None, t: int
) -> None:
    from app.replay.files import FORMATS, make_file, read_replays

    if out is None:
        raise typer.BadParameter("--replay needs --out FILE.")
    image = choose("format", format or out.suffix.removeprefix("."), FORMATS)
    if not runs or len(runs) > len(episodes):
        raise typer.BadParameter("--replay takes one RUN, or two with --beside; list them with: emtc runs")
    database = open_database(url, read_only=True)
    replays = read_replays(database, list(zip([*runs, runs[0]], episodes, strict=False)))
    if image == "gif":
        print_message("Drawing the frames …")
    _write(make_file(replays, image, t=t), out)


def _of_sweep(url: str, sweep: str, runs: Sequence[str] | None) -> list[str]:
    if runs:
        raise typer.BadParameter("Name either runs or --sweep.")
    database = open_database(url, read_only=True)
    found = get_sweep(database, sweep)
    ids = [row.id for row in sweep_runs(database, found.id)]
    if not ids:
        raise ConfigError(f"Sweep {found.id} has no runs yet")
    return ids


def _write_raw(asked: _Asked, table: TableName, format: str, options: Options, out: Path | None) -> None:
    """Write a raw table; only marl-eval's JSON, which compares, takes every evaluated run when none is named."""
    unused = [each for each in options.names if format != MARL_EVAL or each not in ("include_unfinished", "budget")]
    if unused:
        raise typer.BadParameter(f"--{unused[0].replace('_', '-')} would change nothing in a raw table.")
    if not (asked.names_some or format == MARL_EVAL):
        raise typer.BadParameter("Name at least one run, or --sweep, --map or --algo; list runs with: emtc runs")
    database = open_database(asked.url, read_only=True)
    rows = asked.select(database)
    if format == MARL_EVAL:
        unfinished = options.include_unfinished
        export_marl_eval(database, rows, table, out, include_unfinished=unfinished, budget=options.comparison_budget)
    else:
        export_raw(database, rows, table, format, out)


def _make_table(asked: _Asked, table: str, format: str, options: Options) -> bytes:
    name = choose("table", table, (*TABLES, ENCODER_TIMING))
    image = choose("format", format or "csv", TABLE_FORMATS)
    chosen = asked.names_some
    if name == ENCODER_TIMING:
        if chosen or options.names:
            raise typer.BadParameter(f"--table {name} measures this machine; leave out runs and options over seeds.")
        return export_table(_measure_encoders(), image)
    kind = TABLES[name]
    if chosen and not kind.selects_runs:
        raise typer.BadParameter(f"--table {name} is made of all runs; leave out RUN, --map and --algo.")
    database = open_database(asked.url, read_only=True)
    rows = asked.select(database) if chosen else select_runs(database) if kind.selects_runs else []
    made = kind.make(database, rows, options)
    if made.empty and kind.selects_runs:
        raise ConfigError(
            f"None of {format_run_count(len(rows))} belongs in {name}: it needs {kind.required_runs}.{_why(made)}"
        )
    return export_table(made, image)


def _why(table: pd.DataFrame) -> str:
    """Why the first of the runs that were left out does not count."""
    left_out = [str(each) for each in table.attrs.get("left_out", ())]
    more = f", and {len(left_out) - 1} more" if len(left_out) > 1 else ""
    return f" Left out: {left_out[0]}{more}." if left_out else ""


def _measure_encoders() -> pd.DataFrame:
    """Measure now; no database knows how fast this machine is."""
    from app.bench.embedder import make_encoder_timing_table

    print_message("Measuring the encoders …")
    return make_encoder_timing_table()


def _read_own(given: Sequence[str]) -> dict[str, Any]:
    """Read OPTION=VALUE; a value that is JSON is taken as such, anything else as a text."""
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"--set takes OPTION=VALUE, got {text!r}.")
        try:
            found[name.strip()] = json.loads(value)
        except ValueError:
            found[name.strip()] = value
    return found


def _read_pair(text: str) -> tuple[int, int]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(part.isdecimal() and part.isascii() for part in parts):
        raise typer.BadParameter(f"--episodes takes two numbers as 120,87, got {text!r}.")
    return int(parts[0]), int(parts[1])


def _read_budget(text: str) -> Budget:
    try:
        return parse_budget(text)
    except ValueError as exc:
        raise typer.BadParameter(f"--budget: {exc}.") from exc


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
    write_file(out, content)
    print_message(f"Wrote {out} ({len(content):,} bytes).")
