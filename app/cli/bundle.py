"""`emtc bundle | open`: some runs as one file for a colleague, and such a file looked at or taken in."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from app.analysis.format import format_size
from app.cli.output import DEFAULT_DATABASE, AsJson, DatabaseUrl, print_json, say
from app.cli.serve import become_app
from app.figures.named.memories import best_and_worst
from emtc_core import __version__
from emtc_core.errors import ConfigError
from storage.bundles.bundle_cache import cache_bundle
from storage.bundles.contents import THIN, WHOLE, Contents
from storage.bundles.write import import_bundle, write_bundle
from storage.engine import READ_ONLY_VARIABLE, Database, open_database
from storage.queries.runs import RunFilter, matching_ids
from storage.runs.rows import RunRow, find_run
from storage.runs.sweeps import get_sweep, sweep_runs

BundleFile = Annotated[Path, typer.Argument(metavar="FILE", help="A bundle, as study.emtc")]


def bundle(
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to, as study.emtc")],
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN…", help="Run ids or beginnings of them")] = None,
    sweep: Annotated[
        list[str] | None, typer.Option(metavar="SWEEP", help="The runs of a sweep, instead of RUN; may be repeated")
    ] = None,
    thin: Annotated[bool, typer.Option("--thin", help="Curves and configurations only: a few MB at most")] = False,
    whole: Annotated[bool, typer.Option("--whole", help="States and actions of every episode, too")] = False,
    example: Annotated[
        bool, typer.Option("--example", help="Thin, and of one run per variant samples of its memory and episodes")
    ] = False,
    episode: Annotated[
        list[int] | None, typer.Option("--episode", help="A training episode to take along; may be repeated")
    ] = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """Write runs into one file that describes and checks itself.

    Configurations, evaluations, metrics, gate statistics and the outcomes of all episodes; without --thin also every
    transition, the memory's snapshots, the evaluations' episodes and the two that strategy-divergence shows.
    """
    if thin + whole + example > 1:
        raise typer.BadParameter("Give one of --thin, --whole and --example.")
    if bool(runs) == bool(sweep):
        raise typer.BadParameter("Name runs, or a sweep with --sweep; list runs with: emtc runs")
    database = open_database(db, read_only=True)
    rows = _find(database, runs, sweep)
    rows = [row for row in rows if row.env_steps] if example else rows
    contents = THIN if thin else WHOLE if whole else _choose_example(database, rows) if example else Contents()
    chosen = {
        row.id: frozenset(episode or ())
        | _usual_episodes(database, row, contents)
        | contents.kept_episodes.get(row.id, set())
        for row in rows
    }
    contents = replace(contents, kept_episodes={run_id: numbers for run_id, numbers in chosen.items() if numbers})
    ids = [row.id for row in rows]
    add = partial(_tell_story, order=[*contents.sampled_snapshots, *ids]) if example else None
    made = write_bundle(database, ids, out, contents, made_by=f"emtc-lab {__version__}", add=add)
    if json:
        print_json(asdict(made) | {"place": str(made.place)})
        return
    n = f"{made.runs} run{'s' if made.runs != 1 else ''}"
    say(
        f"Wrote {out}: {n} in {format_size(made.size_bytes)} ({format_size(made.study_bytes)} unpacked). Look at "
        f"it: emtc open {out}"
    )


def _choose_example(db: Database, rows: Sequence[RunRow]) -> Contents:
    from app.notebook.example_study import choose_contents  # with it come the figures

    return choose_contents(db, rows)


def _tell_story(db: Database, order: list[str]) -> None:
    """Write the notebook of the example study into its own database; the first run is the one that is shown."""
    from app.notebook.example_study import write_story

    rows = {row.id: row for row in (find_run(db, run_id) for run_id in dict.fromkeys(order))}
    write_story(db, list(rows.values()))


def open_file(
    file: BundleFile,
    take_in: Annotated[bool, typer.Option("--import", help="Copy its runs into your own database (--db)")] = False,
    no_app: Annotated[bool, typer.Option("--no-app", help="Only check and unpack it, and say where")] = False,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> int:
    """Check a bundle, and show it in the app, where nothing can be changed."""
    if take_in:
        _import(file, db, json=json)
        return 0
    opened = cache_bundle(file)
    if json:
        ids = matching_ids(open_database(opened.url, read_only=True), RunFilter(shelf="all"))
        print_json({"database": opened.url, "runs": ids})
    else:
        say(f"{file.name} is sound. Its database, which is read and not written: {opened.url}")
    if no_app or json:
        return 0
    become_app(opened.url, environment={READ_ONLY_VARIABLE: "1"})
    return 0


def _import(file: Path, url: str, *, json: bool) -> None:
    database = open_database(url)
    try:
        ids = import_bundle(database, file)
    finally:
        database.dispose()
    if json:
        print_json({"database": database.safe_url, "runs": ids})
    else:
        say(f"Imported {len(ids)} run{'s' if len(ids) != 1 else ''} into {database.safe_url}: {', '.join(ids)}.")


def _find(db: Database, runs: list[str] | None, sweeps: list[str] | None) -> list[RunRow]:
    if sweeps:
        return [row for sweep in dict.fromkeys(sweeps) for row in sweep_runs(db, get_sweep(db, sweep).id)]
    return list({row.id: row for row in (find_run(db, name) for name in runs or ())}.values())


def _usual_episodes(db: Database, row: RunRow, contents: Contents) -> frozenset[int]:
    """Choose the episodes without which a figure of the whole bundle could not be drawn."""
    if not contents.snapshots or contents.trajectories:
        return frozenset()
    try:
        return frozenset(best_and_worst(db, row))
    except ConfigError:  # it has no memory, or hardly any episode
        return frozenset()
