"""`emtc import`: import curves from another program. `emtc mirror`: copy runs to TensorBoard, W&B or MLflow.

The gate is the weight β of the episodic incentive. Its statistics are stored for each training round.
"""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from app.analysis.format import format_run_count
from app.cli.arguments import DEFAULT_DATABASE, AsJson, DatabaseUrl, Where, choose_runs, parse_step_count
from app.cli.output import print_json, print_message
from app.jobs.imports.parsed_run import SourceOverrides
from app.jobs.imports.read import FORMATS, list_remarks, read_foreign
from app.jobs.mirror.mirror import PROGRAMS, make_mirror, mirror_continuously
from emtc_core.errors import StorageError
from storage.engine import open_database
from storage.runs.imports import save_imports

_FOLLOW = "Repeat until all of RUN… have ended, or until Ctrl+C; --once: write the present rows and exit"


def mirror(
    to: Annotated[str, typer.Option("--to", help=f"Program: {', '.join(PROGRAMS)}")],
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN…", help="Run ids; default: every run")] = None,
    where: Where = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder; default: mirror/PROGRAM")] = None,
    follow: Annotated[bool, typer.Option("--follow/--once", help=_FOLLOW)] = True,
    every: Annotated[float, typer.Option(min=0.2, max=3600, help="Time between two updates [s]")] = 5.0,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """Copy runs to another program: evaluations, metrics and gate statistics over env steps.

    The values are read from the database, so trainers are not slowed down. Values that were written before are not
    written again. W&B is written offline and MLflow to a SQLite file; no data are sent to a server.
    """
    database = open_database(db, read_only=True)
    run_ids = choose_runs(database, runs, where) if runs or where else None
    folder = out or Path("mirror") / to
    program = make_mirror(to, folder)
    n_values = 0
    try:
        if follow:
            with suppress(KeyboardInterrupt):
                mirror_continuously(program, database, run_ids, every_s=every, announce=print_message)
        else:
            n_values, _ = program.update(database, run_ids)
    finally:
        with suppress(StorageError):
            program.close(database, run_ids)
    if json:
        print_json({"out": str(folder), "values": n_values})  # with --follow, values are not counted
    else:
        print_message(f"{folder} is up to date." if follow else f"Wrote {n_values:,} values into {folder}.")


def import_foreign(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="File or folder")],
    format: Annotated[str, typer.Option(help=f"Format: {', '.join(FORMATS)}")],
    name: Annotated[
        str | None, typer.Option(help="Text that figures add to the name of each algorithm; default: the format")
    ] = None,
    env: Annotated[str | None, typer.Option(help="Environment, for example smac; replaces that of the source")] = None,
    map: Annotated[str | None, typer.Option(help="Map; replaces that of the source")] = None,
    algo: Annotated[str | None, typer.Option(help="Algorithm; replaces that of the source")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of a source with one run and no seed")] = None,
    win_rate: Annotated[
        str | None, typer.Option("--win-rate", metavar="NAME", help="Name of the win rate in the source")
    ] = None,
    return_name: Annotated[
        str | None, typer.Option("--return", metavar="NAME", help="Name of the return in the source")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="STEPS", help="Training length of the runs, for example 2M; default: from the source"),
    ] = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """Import the curves of runs that PyMARL, EPyMARL, MAPPO, BenchMARL or another program trained.

    Only evaluations are imported: win rates, returns and lengths over env steps. The runs are marked as imported; they
    have no memory and no checkpoints. Runs that cannot be read are named with the reason, and the others are imported.
    Runs that were imported before are not imported again.
    """
    overrides = SourceOverrides(
        env=env,
        map=map,
        algo=algo,
        seed=seed,
        label=name,
        win_rate=win_rate,
        return_name=return_name,
        budget=None if budget is None else parse_step_count(budget, "--budget"),
    )
    source = read_foreign(path, format, overrides)
    database = open_database(db)  # after the source was read, so that an invalid source creates no database
    saved = save_imports(database, source.runs)
    source = replace(source, skip_reasons=[*source.skip_reasons, *saved.skip_reasons])
    remarks = list(list_remarks(source))
    for remark in remarks:
        print_message(remark)
    new = saved.new
    existing = saved.existing
    if json:
        print_json({"runs": list(new), "here": list(existing), "skipped": source.skip_reasons, "remarks": remarks})
        return
    listed = f": {', '.join(new)}" if new else ""
    print_message(f"Imported {format_run_count(len(new))} into {database.safe_url}{listed}.")
    if existing:
        verb = "was" if len(existing) == 1 else "were"
        unchanged = " Their names and budgets are not changed." if name or budget else ""
        print_message(f"{len(existing)} {verb} imported before: {', '.join(existing)}.{unchanged}")
