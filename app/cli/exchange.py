"""Runs of other programs in, ours out: `emtc import` and `emtc mirror`.

An import puts curves that another program trained beside one's own; a mirror shows runs in TensorBoard, W&B or MLflow
as they train, from the database alone.
"""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from app.cli.output import DEFAULT_DATABASE, AsJson, DatabaseUrl, print_json, say
from app.cli.runs import find_runs
from app.jobs.imports.curves import SourceOverrides
from app.jobs.imports.read import FORMATS, list_remarks, read_foreign
from app.jobs.mirror.sinks import TARGETS, make_mirror, mirror_continuously
from emtc_core.errors import StorageError
from storage.engine import open_database
from storage.runs.imports import save_imports

_FOLLOW = "Go on until all of RUN… have ended, or until Ctrl+C; --once writes what is there and ends"


def mirror(
    to: Annotated[str, typer.Option("--to", help=f"Program: {', '.join(TARGETS)}")],
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN…", help="Run ids; every run if none")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder; default: mirror/PROGRAM")] = None,
    keep: Annotated[bool, typer.Option("--follow/--once", help=_FOLLOW)] = True,
    every: Annotated[float, typer.Option(min=0.2, max=3600, help="Look so often [s]")] = 5.0,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """Mirror runs into another program: evaluations, metrics and gate statistics over env steps.

    Read from the database, so that trainers do nothing for it; what the program holds already is not written again,
    however the last mirror ended. W&B is written offline, MLflow into a SQLite file: nothing leaves this machine.
    """
    database = open_database(db, read_only=True)
    ids = find_runs(database, runs) if runs else None
    place = out or Path("mirror") / to
    made = make_mirror(to, place)
    written = 0
    try:
        if keep:
            with suppress(KeyboardInterrupt):
                mirror_continuously(made, database, ids, every_s=every, announce=say)
        else:
            written, _ = made.update(database, ids)
    finally:
        with suppress(StorageError):
            made.close(database, ids)
    if json:
        print_json({"out": str(place), "values": written})
    else:
        say(f"{place} is up to date." if keep else f"Wrote {written:,} values into {place}.")


def import_foreign(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="File or folder")],
    format: Annotated[str, typer.Option(help=f"What it is: {', '.join(FORMATS)}")],
    name: Annotated[
        str | None, typer.Option(help="What figures call this import, beside each algorithm; default: the format")
    ] = None,
    env: Annotated[str | None, typer.Option(help="Environment, instead of what the source tells, as smac")] = None,
    map: Annotated[str | None, typer.Option(help="Map, instead of what the source tells")] = None,
    algo: Annotated[str | None, typer.Option(help="Algorithm, instead of what the source tells")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed, where the source is one run and tells none")] = None,
    win_rate: Annotated[
        str | None, typer.Option("--win-rate", metavar="NAME", help="What the source calls the win rate, if otherwise")
    ] = None,
    score: Annotated[
        str | None, typer.Option("--return", metavar="NAME", help="What the source calls the return, if otherwise")
    ] = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """Import the curves of runs that PyMARL, EPyMARL, BenchMARL or another program trained.

    Evaluations alone: win rates, returns, lengths over env steps. Every run is marked as imported wherever it is shown;
    it has no memory and no checkpoint. All runs of PATH are imported, or none; what is here already is not doubled.
    """
    runs = read_foreign(path, format, SourceOverrides(env, map, algo, seed, name, win_rate, score))
    database = open_database(db)  # only now: a source that is refused leaves no database behind
    written = save_imports(database, runs)
    remarks = list(list_remarks(runs))
    for remark in remarks:
        say(remark)
    new, here = written.new, written.existing
    if json:
        print_json({"runs": list(new), "here": list(here), "remarks": remarks})
        return
    known = f" {len(here)} {'was' if len(here) == 1 else 'were'} here already: {', '.join(here)}." if here else ""
    ids = f": {', '.join(new)}" if new else ""
    say(f"Imported {len(new)} run{'s' if len(new) != 1 else ''} into {database.safe_url}{ids}.{known}")
