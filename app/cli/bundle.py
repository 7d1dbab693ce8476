"""`emtc bundle`: write runs to one file. `emtc open`: check such a file, show it in the app, or import its runs.

Such a file is a bundle: an archive of a database with only these runs, and of their files.
"""

from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from app.analysis.format import format_run_count, format_size
from app.cli.arguments import DEFAULT_DATABASE, AsJson, DatabaseUrl, Runs, Where, choose_runs
from app.cli.output import print_json, print_message
from app.cli.serve import become_app
from app.figures.named.memories import best_and_worst
from emtc_core import __version__
from emtc_core.errors import ConfigError
from storage.bundles.bundle_cache import cache_bundle
from storage.bundles.contents import THIN, WHOLE, Contents
from storage.bundles.import_bundle import import_bundle
from storage.bundles.write import write_bundle
from storage.engine import READ_ONLY_VARIABLE, Database, open_database
from storage.queries.run_search import RunFilter, matching_ids
from storage.runs.rows import RunRow, find_run
from storage.runs.sweeps import get_sweep, sweep_runs

BundleFile = Annotated[Path, typer.Argument(metavar="FILE", help="Bundle, for example study.emtc")]


def bundle(
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write, for example study.emtc")],
    runs: Runs = None,
    where: Where = None,
    sweep: Annotated[
        list[str] | None, typer.Option(metavar="SWEEP", help="All runs of a sweep, instead of RUN; may be repeated")
    ] = None,
    thin: Annotated[bool, typer.Option("--thin", help="Only curves and configurations: a few MB at most")] = False,
    whole: Annotated[bool, typer.Option("--whole", help="Also the states and actions of every episode")] = False,
    episode: Annotated[
        list[int] | None, typer.Option("--episode", help="Training episode to include; may be repeated")
    ] = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """Write runs to one file with a manifest and checksums.

    The file contains configurations, evaluations, metrics, gate statistics and the outcomes of all episodes. Without
    --thin it also contains all transitions, the snapshots of the memory, the episodes of the evaluations and the two
    episodes of the figure strategy-divergence.
    """
    if thin and whole:
        raise typer.BadParameter("Give one of --thin and --whole.")
    if bool(runs or where) == bool(sweep):
        raise typer.BadParameter("Give run ids or --where, or a sweep with --sweep. List runs with: emtc runs")
    database = open_database(db, read_only=True)
    if sweep:
        rows = _list_sweep_runs(database, sweep)
    else:
        rows = [find_run(database, run_id) for run_id in choose_runs(database, runs, where)]
    contents = _choose_contents(database, rows, thin=thin, whole=whole, episodes=episode or ())
    written = write_bundle(database, [row.id for row in rows], out, contents, made_by=f"emtc-lab {__version__}")
    if json:
        print_json(asdict(written) | {"place": str(written.place)})
        return
    print_message(
        f"Wrote {out}: {format_run_count(written.runs)} in {format_size(written.size_bytes)} "
        f"({format_size(written.study_bytes)} unpacked). Show it in the app: emtc open {out}"
    )


def open_file(
    file: BundleFile,
    import_: Annotated[
        bool, typer.Option("--import", help="Copy the runs that the database of --db does not have into it")
    ] = False,
    no_app: Annotated[
        bool, typer.Option("--no-app", help="Check and unpack it, print the URL of its database, and exit")
    ] = False,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """Check a bundle and show it in the app, read-only."""
    if import_:
        _import(file, db, json=json)
        return
    url = cache_bundle(file).url
    if json:
        run_ids = matching_ids(open_database(url, read_only=True), RunFilter(visibility="all"))
        print_json({"database": url, "runs": run_ids})
    else:
        print_message(f"{file.name} is valid. Its database (read-only): {url}")
    if not (no_app or json):
        become_app(url, environment={READ_ONLY_VARIABLE: "1"})


def _import(file: Path, url: str, *, json: bool) -> None:
    database = open_database(url)
    try:
        imported = import_bundle(database, file)
    finally:
        database.dispose()
    if json:
        runs = {"runs": list(imported.new), "existing": list(imported.existing)}
        print_json({"database": database.safe_url, **runs})
        return
    listed = f": {', '.join(imported.new)}" if imported.new else ""
    print_message(f"Imported {format_run_count(len(imported.new))} into {database.safe_url}{listed}.")
    if imported.existing:
        print_message(f"Already in the database and not changed: {', '.join(imported.existing)}.")


def _list_sweep_runs(db: Database, names: Sequence[str]) -> list[RunRow]:
    rows: list[RunRow] = []
    for name in dict.fromkeys(names):
        rows += sweep_runs(db, get_sweep(db, name).id)
    return rows


def _choose_contents(
    db: Database, rows: Sequence[RunRow], *, thin: bool, whole: bool, episodes: Collection[int]
) -> Contents:
    contents = Contents()
    if thin:
        contents = THIN
    elif whole:
        contents = WHOLE
    kept_episodes: dict[str, frozenset[int]] = {}
    for row in rows:
        numbers = frozenset(episodes) | _list_figure_episodes(db, row, contents)
        if numbers:
            kept_episodes[row.id] = numbers
    return replace(contents, kept_episodes=kept_episodes)


def _list_figure_episodes(db: Database, row: RunRow, contents: Contents) -> frozenset[int]:
    """List the episodes of the figure strategy-divergence, unless the bundle contains all episodes or no snapshots."""
    if not contents.snapshots or contents.trajectories:
        return frozenset()
    try:
        return frozenset(best_and_worst(db, row))
    except ConfigError:  # the run has no memory, or too few episodes
        return frozenset()
