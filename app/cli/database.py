"""`emtc db check | stats | thin | vacuum | backup | reader`: maintain a database. `emtc sql`: query it.

`thin` counts the data and asks before it removes them; active runs are not changed. `check` searches for damage.
`sql` runs read-only statements, with a maximum number of rows and a maximum duration.
"""

import sys
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from app.analysis.format import format_run_count, format_size
from app.analysis.tables import NO_PARQUET, can_write_parquet, export_table, make_plain_table
from app.cli.arguments import (
    DEFAULT_DATABASE,
    AsJson,
    DatabaseFile,
    DatabaseUrl,
    Runs,
    Where,
    choose_runs,
    database_url,
)
from app.cli.output import print_json, print_message, print_table, write_result
from emtc_core.errors import ConfigError, Fault
from storage.engine import Database, check_not_read_only, open_database
from storage.maintenance.backup import back_up_database
from storage.maintenance.backup import vacuum as vacuum_database
from storage.maintenance.check import check_database
from storage.maintenance.sizes import KINDS, measure_sizes
from storage.maintenance.thin import RemovedData, Thinning, count_thinning, thin_run
from storage.queries.runs import get_rows, list_runs
from storage.runs.status import allows
from storage.sql import reader_role
from storage.sql.glossary import describe_schema
from storage.sql.query import DEFAULT_ROWS, DEFAULT_SECONDS, MAX_ROWS, MAX_SECONDS, run_query

MAX_FINDINGS = 200
"""Maximum number of printed findings of `emtc db check`; --json prints all."""

Schema = Annotated[bool, typer.Option("--schema", help="List the tables and columns with their meaning instead")]

app = typer.Typer(help="Maintain a database.", no_args_is_help=True)


@app.command()
def stats(file: DatabaseFile = None, db: DatabaseUrl = DEFAULT_DATABASE, json: AsJson = False) -> None:
    """Print the size of each run by kind of data, and the space that a vacuum would free."""
    sizes = measure_sizes(open_database(database_url(file, db), read_only=True))
    if json:
        runs = [asdict(run) | {"total": run.total} for run in sizes.runs]
        print_json(asdict(sizes) | {"runs": runs})
        return
    rows = []
    for run in sizes.runs:
        row = {"id": run.run_id, "name": run.name, "status": run.status, "total": format_size(run.total)}
        for kind in KINDS:
            size = getattr(run, kind)
            row[kind.replace("_", " ")] = format_size(size) if size else ""
        rows.append(row)
    print_table(rows, title=sizes.url, empty=f"{sizes.url} contains no runs.")
    sentences = [f"The database takes {format_size(sizes.database)}."]
    if sizes.reusable is not None:
        sentences.append(f"A vacuum would free {format_size(sizes.reusable)} of it.")
    if sizes.disk_free is not None:
        sentences.append(f"Its disk has {format_size(sizes.disk_free)} of free space.")
    print_message(" ".join(sentences))
    if sizes.unmeasured:
        print_message(sizes.unmeasured)
    if sizes.left_behind:
        print_message(f"Folders of deleted runs take {format_size(sizes.left_behind)}.")


@app.command()
def thin(
    runs: Runs = None,
    where: Where = None,
    every: Annotated[bool, typer.Option("--all", help="Every run that has ended, instead of RUN")] = False,
    trajectories: Annotated[
        bool, typer.Option("--trajectories", help="States and actions of training episodes")
    ] = False,
    transitions: Annotated[
        bool, typer.Option("--transitions", help="Rows of single steps; the summaries for curves remain")
    ] = False,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Checkpoints; the run cannot be resumed afterwards")
    ] = False,
    snapshots: Annotated[int, typer.Option(min=1, help="Keep the last snapshot and every N-th before it")] = 1,
    yes: Annotated[bool, typer.Option("--yes", help="Remove the data; without it they are only counted")] = False,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """Remove data from runs to make them smaller. Curves, evaluations and notes remain."""
    thinning = Thinning(trajectories, transitions, checkpoints, snapshots)
    if thinning.is_empty:
        raise typer.BadParameter(
            "Give the data to remove: --trajectories, --transitions, --checkpoints or --snapshots N."
        )
    if bool(runs or where) == every:
        raise typer.BadParameter("Give run ids or --where, or --all.")
    database = open_database(db, create=False)
    check_not_read_only("thin a run")
    run_ids = _list_ended(database) if every else choose_runs(database, runs, where)
    removed = {run_id: count_thinning(database, run_id, thinning) for run_id in run_ids}
    if json and not yes:
        _print_removed(removed, done=False)
        return
    total = sum(removed.values(), RemovedData())
    n_runs = format_run_count(len(removed))
    for run_id, data in removed.items():
        print_message(f"Run {run_id}: {data}.")
    print_message(f"To be removed permanently from {n_runs}: {total}.")
    if thinning.transitions or thinning.checkpoints:
        print_message("A run without its transitions or checkpoints cannot be resumed.")
    has_data_to_remove = total != RemovedData()
    is_confirmed = has_data_to_remove and _confirm_removal(yes)
    if is_confirmed:
        removed = {run_id: thin_run(database, run_id, thinning) for run_id in run_ids}
    if json:
        _print_removed(removed, done=is_confirmed)
    if is_confirmed:
        print_message(f"Thinned {n_runs}. Free the space on the disk with: emtc db vacuum")


@app.command()
def vacuum(file: DatabaseFile = None, db: DatabaseUrl = DEFAULT_DATABASE, json: AsJson = False) -> None:
    """Free the disk space of removed data. No run may be active."""
    freed = vacuum_database(open_database(database_url(file, db), create=False))
    if json:
        print_json(asdict(freed))
    else:
        print_message(f"{freed}.")


@app.command()
def backup(
    file: DatabaseFile = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write; default: in the folder of the database")
    ] = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """Copy a SQLite database, also during training. Logs and checkpoints are not copied."""
    database = open_database(database_url(file, db), create=False)
    backup_file = back_up_database(database, out.absolute() if out else None)
    size_bytes = backup_file.stat().st_size
    if json:
        print_json({"backup": str(backup_file), "size_bytes": size_bytes})
    else:
        print_message(f"Copied to {backup_file} ({format_size(size_bytes)}). It does not contain logs and checkpoints.")


@app.command()
def check(file: DatabaseFile = None, db: DatabaseUrl = DEFAULT_DATABASE, json: AsJson = False) -> int:
    """Check the pages of a SQLite file, and the invariants of every run. Nothing is changed.

    The exit code is 1 if there are findings.
    """
    database = open_database(database_url(file, db), read_only=True)
    findings = check_database(database)
    if json:
        print_json({"database": database.safe_url, "ok": not findings, "findings": findings})
        return int(bool(findings))
    rows = [{"finding": finding} for finding in findings[:MAX_FINDINGS]]
    print_table(rows, title=database.safe_url, empty=f"{database.safe_url}: no findings.")
    if len(findings) > MAX_FINDINGS:
        print_message(f"… and {len(findings) - MAX_FINDINGS:,} more. Print all with --json.")
    return int(bool(findings))


@app.command()
def reader(
    create: Annotated[bool, typer.Option("--create", help="Create the role now, with the login of --db")] = False,
    name: Annotated[str, typer.Option(help="Name of the role")] = reader_role.READER_NAME,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """Print the statements that create a read-only PostgreSQL role for `emtc sql` and the page SQL, or run them."""
    database = open_database(db, create=False)
    if create:
        statements: list[str] = []
        url = reader_role.create_reader(database, name=name)
    else:
        statements, url = reader_role.describe_reader(database, name=name)
    # The functions of `output` hide passwords, which are a part of this result.
    if json:
        sys.stdout.write(dumps({"statements": statements, "variable": reader_role.READER_VARIABLE, "url": url}) + "\n")
        return
    for statement in statements:
        sys.stdout.write(f"{statement};\n")
    if create:
        print_message(f"Created the role {name}.")
    else:
        print_message("Run these statements as an administrator of the server.")
    print_message("Then set this variable for the app and `emtc sql`. It contains the role's password; keep it secret:")
    comment = "" if create else "-- "  # without --create, the output is an SQL script
    sys.stdout.write(f"{comment}export {reader_role.READER_VARIABLE}='{url}'\n")


def sql(
    query: Annotated[
        str, typer.Argument(metavar="[QUERY]", help="One statement that only reads, for example a SELECT")
    ] = "",
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV")] = False,
    parquet: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a Parquet file")] = None,
    limit: Annotated[int, typer.Option(help=f"Maximum number of rows, up to {MAX_ROWS:,}")] = DEFAULT_ROWS,
    seconds: Annotated[float, typer.Option(help=f"Maximum duration [s], up to {MAX_SECONDS:.0f}")] = DEFAULT_SECONDS,
    schema: Schema = False,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """Query the database in SQL, read-only."""
    if [csv, json, parquet is not None].count(True) > 1:
        raise typer.BadParameter("Give at most one of --csv, --json and --parquet.")
    if schema:
        _print_schema(json=json)
        return
    if parquet is not None and not can_write_parquet():
        raise ConfigError(Fault(hint=NO_PARQUET))
    result = run_query(open_database(db, read_only=True), query, max_rows=limit, seconds=seconds)
    frame = result.frame()
    if parquet is not None:
        write_result(export_table(make_plain_table(frame), "parquet"), parquet)
    elif csv:
        write_result(export_table(make_plain_table(frame), "csv"), None)
    else:
        names = [str(name) for name in frame.columns]
        rows = [dict(zip(names, row, strict=True)) for row in result.rows]
        print_table(rows, empty="The result has no rows.", json=json)
    if result.truncation:
        print_message(f"{result.truncation} See more with --limit.")


def _list_ended(db: Database) -> list[str]:
    """List the runs that can be thinned, and print the ids of the others."""
    rows = get_rows(db, list_runs(db, None)["id"].tolist())
    active = [row.id for row in rows if not allows(row.live_status, "thin")]
    if active:
        print_message(f"Skipped, because they are active or have not started: {', '.join(active)}.")
    return [row.id for row in rows if row.id not in active]


def _confirm_removal(yes: bool) -> bool:
    """Return whether the data are to be removed: with --yes, or after the answer on a terminal."""
    if yes:
        return True
    if sys.stdin.isatty():
        return typer.confirm("Remove these data?", abort=True)
    print_message("Nothing was removed. To remove the data, add: --yes")
    return False


def _print_removed(removed: dict[str, RemovedData], *, done: bool) -> None:
    print_json({"done": done, "runs": {run_id: asdict(data) for run_id, data in removed.items()}})


def _print_schema(*, json: bool) -> None:
    tables = describe_schema()
    if json:
        print_json([asdict(table) for table in tables])
        return
    for table in tables:
        rows = [asdict(column) for column in table.columns]
        print_table(rows, title=f"{table.name}: {table.meaning}")
