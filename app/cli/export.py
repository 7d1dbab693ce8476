"""`emtc export`: the figures and tables of the pages as files, without a browser, and the raw tables."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from app.analysis.format import format_run_count
from app.analysis.provenance import describe_runs
from app.analysis.results import select_runs
from app.analysis.settings import add_code_settings
from app.analysis.tables import ROWS_ONLY, TABLE_FORMATS, Table, TableFormat, export_table, make_plain_table
from app.analysis.variants import list_run_code_warnings
from app.cli.arguments import DEFAULT_DATABASE, DatabaseUrl, Runs, Where, check_choice, check_run_count, choose_runs
from app.cli.evaluate import CheckpointName, read_checkpoint
from app.cli.export_raw import MARL_EVAL, export_marl_eval, export_raw, find_raw_table
from app.cli.output import print_message, print_table, write_result
from app.figures.figure import FigureKind
from app.figures.image_options import ImageOptions, read_image_options
from app.figures.named.memories import DivergenceOptions
from app.figures.named.memory_map import AtlasOptions
from app.figures.options import BudgetOptions, CurveOptions, Options, SeedResultOptions
from app.figures.registry import FIGURES, TABLES
from app.figures.render.export import EXPORT_FORMATS, describe_figure, export_figure
from emtc_core.errors import ConfigError
from emtc_core.kernel_cache import check_kernel_cache
from storage.engine import Database, open_database
from storage.queries.run_search import RunFilter, matching_ids
from storage.queries.tables import TABLE_NAMES, TableName
from storage.runs.rows import RunRow
from storage.runs.sweeps import get_sweep, sweep_runs

ENCODER_TIMING = "encoder-timing"
_FORMATS = (
    "Figures: svg, pdf, png, html, csv; tables: csv, latex, markdown, parquet; raw: csv, parquet, arrow, marl-eval; "
    "replays: html, gif, mp4, svg, png"
)


def _get_help(model: type[Options], name: str) -> str:
    """Return the help of the flag of an option."""
    return model.get_option(name).help


def export(
    runs: Runs = None,
    where: Where = None,
    figure: Annotated[str | None, typer.Option(help="Name of a figure")] = None,
    table: Annotated[str | None, typer.Option(help=f"Name of a table; raw: {', '.join(TABLE_NAMES)}")] = None,
    sweep: Annotated[str, typer.Option(metavar="SWEEP", help="The runs of a sweep, instead of RUN")] = "",
    format: Annotated[str, typer.Option(help=_FORMATS)] = "",
    out: Annotated[Path | None, typer.Option(help="File to write. Default for a table: stdout")] = None,
    map: Annotated[list[str] | None, typer.Option(help="Only runs on this map; may be repeated")] = None,
    algo: Annotated[list[str] | None, typer.Option(help="Only runs of this algorithm; may be repeated")] = None,
    set: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION=VALUE", help="An option of this figure or table alone; may be repeated"),
    ] = None,
    replay: Annotated[
        str | None,
        typer.Option(help="Episode to replay: 512, or 80000-0 for the first of the evaluation at step 80000"),
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the policy of RUN as TorchScript and check the file")
    ] = None,
    checkpoint: CheckpointName = "last",
    beside: Annotated[str, typer.Option(help="A second episode for --replay, of the second RUN if two are given")] = "",
    t: Annotated[
        int, typer.Option(min=0, help="Step of --replay that an svg or png shows, or where an html starts")
    ] = 0,
    db: DatabaseUrl = DEFAULT_DATABASE,
    list_: Annotated[bool, typer.Option("--list", help="List all figures and tables with their options")] = False,
    center: Annotated[str, typer.Option(help=_get_help(SeedResultOptions, "center"))] = "",
    band: Annotated[str, typer.Option(help=_get_help(SeedResultOptions, "band"))] = "",
    color: Annotated[str, typer.Option(help=_get_help(AtlasOptions, "color"))] = "",
    method: Annotated[str, typer.Option(help=_get_help(AtlasOptions, "method"))] = "",
    episodes: Annotated[str, typer.Option(help=_get_help(DivergenceOptions, "episodes"))] = "",
    include_unfinished: Annotated[
        bool, typer.Option("--include-unfinished", help=_get_help(SeedResultOptions, "include_unfinished"))
    ] = False,
    budget: Annotated[str, typer.Option(metavar="STEPS", help=_get_help(SeedResultOptions, "budget"))] = "",
    final: Annotated[str, typer.Option(help=_get_help(SeedResultOptions, "final"))] = "",
    rate: Annotated[str, typer.Option(help=_get_help(SeedResultOptions, "rate"))] = "",
    x_axis: Annotated[str, typer.Option(help=_get_help(CurveOptions, "x_axis"))] = "",
    width: Annotated[str, typer.Option(metavar="WIDTH", help=_get_help(ImageOptions, "width"))] = "",
    no_title: Annotated[bool, typer.Option("--no-title", help=_get_help(ImageOptions, "no_title"))] = False,
    font: Annotated[str, typer.Option(metavar="FONT", help=_get_help(ImageOptions, "font"))] = "",
    line_names: Annotated[str, typer.Option(metavar="PLACE", help=_get_help(ImageOptions, "line_names"))] = "",
    label: Annotated[list[str] | None, typer.Option(metavar="A=B", help=_get_help(ImageOptions, "label"))] = None,
) -> None:
    """Write one figure or one table of some runs, the replay of an episode, or the policy of a run.

    Figures and tables that compare runs use all evaluated runs if no RUN is given. --where, --map and --algo filter the
    runs.
    """
    if list_:
        _print_list()
        return
    flags = {
        "center": center,
        "band": band,
        "color": color,
        "method": method,
        "episodes": episodes,
        "include_unfinished": include_unfinished,
        "budget": budget,
        "final": final,
        "rate": rate,
        "x_axis": x_axis,
        "width": width,
        "no_title": no_title,
        "font": font,
        "line_names": line_names,
        "label": label,
    }
    image_options, figure_values = read_image_options({name: value for name, value in flags.items() if value})
    if image_options.model_fields_set and figure is None:
        raise typer.BadParameter(f"{_list_flags(image_options)[0]} has an effect on images only. Give --figure NAME.")
    if policy is not None or checkpoint != "last":
        _check_selection(map, algo, sweep)
        _write_policy(db, runs, where, policy, checkpoint)
        return
    if replay is not None or beside or t:
        replayed = _list_replayed_episodes(replay, beside, is_other_result=bool(figure or table or sweep))
        _check_selection(map, algo, sweep)
        _write_replay(db, runs, where, replayed, format, out, t)
        return
    raw_table = find_raw_table(table, format)
    has_table = table is not None or raw_table is not None  # --format marl-eval needs no --table
    if (figure is not None) == has_table:
        raise typer.BadParameter(
            "Give either --figure or --table, or --replay EPISODE. List all names with: emtc export --list"
        )
    selected_runs = _list_sweep_runs(db, sweep, runs) if sweep else runs
    selection = _RunSelection(db, selected_runs, where, map, algo)
    all_values = figure_values | _parse_assignments(set or [])
    if raw_table is not None:
        _write_raw_table(selection, raw_table, format, all_values, out)
    elif table is not None:
        _write_table(selection, table, format, all_values, out)
    elif out is None:
        raise typer.BadParameter("--figure needs --out FILE.")
    else:
        kind = FIGURES[check_choice("figure", figure or "", FIGURES)]
        _write_figure(kind, selection, format, image_options, all_values, out)


def _print_list() -> None:
    """Print all figures and tables with their options."""
    figures = [
        {"figure": kind.name, "question": kind.question, "options": _list_option_names(kind.options)}
        for kind in FIGURES.values()
    ]
    tables = [
        {
            "table": kind.name,
            "needs": kind.required_runs if kind.selects_runs else "–",
            "options": _list_option_names(kind.options),
        }
        for kind in TABLES.values()
    ]
    print_table(figures, title="Figures: emtc export RUN… --figure NAME --out FILE", empty="")
    print_table(tables, title="Tables: emtc export RUN… --table NAME", empty="")
    print_message(
        f"Raw tables: {', '.join(TABLE_NAMES)}. The table {ENCODER_TIMING} measures this machine. "
        "--set is followed by OPTION=VALUE."
    )


def _list_option_names(model: type[Options]) -> str:
    """List the flags of a model and the names that --set takes; "–" if there are none."""
    options = model.list_options().values()
    flags = [option.flag if option.has_flag else f"--set {option.name}" for option in options]
    return ", ".join(sorted(flags)) or "–"


def _list_flags(options: ImageOptions) -> list[str]:
    """List the flags of the image options that are set."""
    fields = ImageOptions.model_fields
    names = [fields[name].alias or name for name in fields if name in options.model_fields_set]  # an alias is the flag
    return [ImageOptions.get_option(name).flag for name in names]


@dataclass(frozen=True)
class _RunSelection:
    """The database, and the options of the command that select runs. Without them, all evaluated runs are used."""

    url: str
    runs: Sequence[str] | None
    where: Sequence[str] | None
    maps: Sequence[str] | None
    algos: Sequence[str] | None

    @property
    def is_given(self) -> bool:
        """Whether at least one of the options is given."""
        return bool(self.runs or self.where or self.maps or self.algos)

    def read_rows(self, db: Database) -> list[RunRow]:
        """Read the rows of the selected runs.

        Raises:
            ConfigError: If no run matches.
        """
        rows = select_runs(db, self.runs, maps=self.maps, algos=self.algos)
        if self.where:
            run_filter = RunFilter(where=tuple(self.where), visibility="all", ids=tuple(row.id for row in rows))
            matching = set(matching_ids(db, run_filter))
            rows = [row for row in rows if row.id in matching]
        if not rows:
            raise ConfigError("No evaluated run is selected", hint="List all runs with: emtc runs")
        return rows


def _write_figure(
    kind: FigureKind[Any, Any],
    selection: _RunSelection,
    format: str,
    image_options: ImageOptions,
    values: Mapping[str, Any],
    out: Path,
) -> None:
    image_format = check_choice("format", format or out.suffix.removeprefix("."), EXPORT_FORMATS)
    image_flags = [flag for flag in _list_flags(image_options) if flag != "--label"]
    if image_flags and image_format in ("html", "csv"):
        raise typer.BadParameter(f"{image_flags[0]} has an effect on svg, pdf and png only, not on {image_format}.")
    if kind.needs_runs and not (selection.runs or selection.where):
        raise typer.BadParameter("Name at least one run; list them with: emtc runs")
    options = kind.read_options(values)  # before the database is opened
    database = open_database(selection.url, create=False)
    rows = selection.read_rows(database)
    figure = kind.make(database, rows, options)
    for warning in list_run_code_warnings({row.id: add_code_settings(row.config, row.versions) for row in rows}):
        print_message(warning)
    sources = describe_runs(rows)
    content = export_figure(figure, image_format, sources=sources, options=image_options)
    notes = describe_figure(figure, sources=sources, options=image_options) if image_format == "csv" else ""
    write_result(content, out, notes=notes)


def _check_selection(maps: Sequence[str] | None, algos: Sequence[str] | None, sweep: str) -> None:
    """Check that --map, --algo and --sweep are not given: replays and policies are of RUN or --where."""
    if maps or algos or sweep:
        raise typer.BadParameter("--map, --algo and --sweep select runs of figures and tables. Give RUN or --where.")


def _write_policy(
    url: str, runs: Sequence[str] | None, where: Sequence[str] | None, out: Path | None, checkpoint: str
) -> None:
    if out is None:
        raise typer.BadParameter("--checkpoint needs --policy FILE.")
    checkpoint_to_export = read_checkpoint(checkpoint)
    database = open_database(url, read_only=True)
    run_ids = choose_runs(database, runs, where)
    check_run_count(run_ids, where, 1)
    check_kernel_cache()
    from app.jobs.policies import export_policy

    exported = export_policy(database, run_ids[0], out, checkpoint=checkpoint_to_export)
    size = out.stat().st_size
    print_message(f"Wrote {out} ({size:,} bytes) of {exported.description}. It acts as the stored policy does.")


def _list_replayed_episodes(replay: str | None, beside: str, *, is_other_result: bool) -> list[str]:
    """List the one or two episodes to replay, or raise if the options do not fit together."""
    if replay is None:
        raise typer.BadParameter("--beside and --t belong to --replay.")
    if is_other_result:
        raise typer.BadParameter("Give either --figure or --table, or --replay EPISODE.")
    return [replay, beside] if beside else [replay]


def _write_replay(
    url: str,
    runs: Sequence[str] | None,
    where: Sequence[str] | None,
    episodes: Sequence[str],
    format: str,
    out: Path | None,
    t: int,
) -> None:
    from app.replay.files import FORMATS, make_file, read_replays

    if out is None:
        raise typer.BadParameter("--replay needs --out FILE.")
    file_format = check_choice("format", format or out.suffix.removeprefix("."), FORMATS)
    database = open_database(url, read_only=True)
    run_ids = choose_runs(database, runs, where)
    if len(run_ids) != len(episodes):
        check_run_count(run_ids, where, 1)
    run_ids = [*run_ids, run_ids[0]]  # a second episode is of the second run, or of the same run if there is only one
    replays = read_replays(database, list(zip(run_ids, episodes, strict=False)))
    if file_format in ("gif", "mp4"):
        print_message("Drawing the frames …")
    write_result(make_file(replays, file_format, t=t), out)


def _list_sweep_runs(url: str, sweep: str, runs: Sequence[str] | None) -> list[str]:
    """List the runs of --sweep. It cannot be given together with RUN."""
    if runs:
        raise typer.BadParameter("Give either RUN or --sweep.")
    database = open_database(url, read_only=True)
    sweep_id = get_sweep(database, sweep).id
    ids = [row.id for row in sweep_runs(database, sweep_id)]
    if not ids:
        raise ConfigError(f"Sweep {sweep_id} has no runs yet")
    return ids


def _write_raw_table(
    selection: _RunSelection, table: TableName, format: str, values: Mapping[str, Any], out: Path | None
) -> None:
    """Write a raw table. Only the format marl-eval, which compares runs, uses all evaluated runs by default."""
    if values and format != MARL_EVAL:
        raise typer.BadParameter(f"--{next(iter(values)).replace('_', '-')} would change nothing in a raw table.")
    options = BudgetOptions.read(values, owner=f"format {MARL_EVAL}")
    if not (selection.is_given or format == MARL_EVAL):
        raise typer.BadParameter(
            "Name at least one run, or --sweep, --where, --map or --algo; list runs with: emtc runs"
        )
    database = open_database(selection.url, read_only=True)
    rows = selection.read_rows(database)
    if format == MARL_EVAL:
        export_marl_eval(
            database, rows, table, out, include_unfinished=options.include_unfinished, budget=options.budget
        )
    else:
        export_raw(database, rows, table, format, out)


def _write_table(
    selection: _RunSelection, table: str, format: str, values: Mapping[str, Any], out: Path | None
) -> None:
    name = check_choice("table", table, (*TABLES, ENCODER_TIMING))
    table_format: TableFormat = check_choice("format", format or "csv", TABLE_FORMATS)
    if name == ENCODER_TIMING:
        if selection.is_given or values:
            raise typer.BadParameter(f"--table {name} measures this machine. It takes no runs and no options.")
        write_result(export_table(_measure_encoders(), table_format), out)
        return
    kind = TABLES[name]
    options = kind.read_options(values)
    if selection.is_given and not kind.selects_runs:
        raise typer.BadParameter(f"--table {name} contains all runs. It takes no RUN, --where, --map and --algo.")
    database = open_database(selection.url, read_only=True)
    rows: list[RunRow] = []
    if selection.is_given:
        rows = selection.read_rows(database)
    elif kind.selects_runs:
        rows = select_runs(database)
    result = kind.make(database, rows, options)
    if not len(result) and kind.selects_runs:
        excluded = result.excluded
        reason = ""
        if excluded:
            first, *others = excluded
            more = f", and {len(others)} more" if others else ""
            reason = f" Left out: {first}{more}."
        runs = format_run_count(len(rows))
        raise ConfigError(f"None of {runs} belongs in {name}: it needs {kind.required_runs}.{reason}")
    notes = result.notes if table_format in ROWS_ONLY else ""
    write_result(export_table(result, table_format), out, notes=notes)


def _measure_encoders() -> Table:
    """Measure the speed of the encoders on this machine."""
    from app.analysis.encoder_timing import make_encoder_timing_table  # imports torch

    print_message("Measuring the encoders …")
    return make_plain_table(make_encoder_timing_table())


def _parse_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """Parse texts such as OPTION=VALUE. A value that is not valid JSON is a text."""
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise typer.BadParameter(f"--set takes OPTION=VALUE, got {assignment!r}.")
        try:
            values[name.strip()] = json.loads(text)
        except ValueError:
            values[name.strip()] = text
    return values
