"""`emtc db stats | thin | vacuum | backup | check | upgrade | reader` and `emtc sql`: a database cared for, and asked.

What goes is named and counted before it goes; a run that somebody works on is left alone. A database of unknown origin
is looked at before it is trusted, and an older one brought to this version. A question in SQL only reads, capped in
rows and in time.
"""

import sys
from dataclasses import asdict
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from app.analysis.format import format_size
from app.analysis.tables import NO_PARQUET, can_write_parquet, export_table, make_plain_table
from app.cli.output import (
    DEFAULT_DATABASE,
    AsJson,
    DatabaseFile,
    DatabaseUrl,
    database_url,
    print_json,
    print_rows,
    print_table,
    say,
    write_file,
)
from emtc_core.envs.trust import is_allowed
from emtc_core.errors import ConfigError, Fault
from storage.engine import Database, check_not_read_only, find_schema, open_database
from storage.maintenance.backup import back_up_database
from storage.maintenance.backup import vacuum as vacuum_database
from storage.maintenance.check_database import check_database
from storage.maintenance.sizes import KINDS, measure_sizes
from storage.maintenance.thin import RemovedData, Thinning, count_thinning, thin_run
from storage.queries.runs import list_runs
from storage.runs import lifecycle
from storage.runs.lifecycle import Event
from storage.runs.rows import find_run, get_state
from storage.sql_console import query
from storage.sql_console.glossary import describe_schema
from storage.sql_console.query import DEFAULT_ROWS, DEFAULT_SECONDS, MAX_ROWS, MAX_SECONDS, QueryResult, run_query

Runs = Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="Runs to thin; --all takes every ended one")]

Schema = Annotated[bool, typer.Option("--schema", help="List the tables and columns instead, and what they mean")]


def stats(file: DatabaseFile = None, db: DatabaseUrl = DEFAULT_DATABASE, json: AsJson = False) -> None:
    """Print how much room each run takes, by kind, and what a vacuum would give back."""
    sizes = measure_sizes(open_database(database_url(file, db), read_only=True))
    if json:
        runs = [asdict(run) | {"total": run.total} for run in sizes.runs]
        print_json(asdict(sizes) | {"runs": runs})
        return
    kinds = {kind: kind.replace("_", " ") for kind in KINDS}
    rows = [
        {"id": run.run_id, "name": run.name, "status": run.status, "total": format_size(run.total)}
        | {shown: format_size(getattr(run, kind)) if getattr(run, kind) else "" for kind, shown in kinds.items()}
        for run in sizes.runs
    ]
    print_table(rows, title=sizes.shown, empty=f"{sizes.shown} holds no run.")
    free = "" if sizes.disk_free is None else f"; {format_size(sizes.disk_free)} are free on its disk"
    say(
        f"The database takes {format_size(sizes.database)}, of which a vacuum would give back "
        f"{format_size(sizes.reusable)}{free}."
    )
    if sizes.unmeasured:
        say(sizes.unmeasured)
    if sizes.left_behind:
        say(f"Folders of runs that are no more take {format_size(sizes.left_behind)}.")


def thin(
    runs: Runs = None,
    every: Annotated[bool, typer.Option("--all", help="Every run that nobody works on")] = False,
    trajectories: Annotated[
        bool, typer.Option("--trajectories", help="States and actions of training episodes")
    ] = False,
    transitions: Annotated[
        bool, typer.Option("--transitions", help="Rows of single steps; sums over 1,000 steps, and so the curves, stay")
    ] = False,
    checkpoints: Annotated[bool, typer.Option("--checkpoints", help="What a resume needs")] = False,
    snapshots: Annotated[int, typer.Option(min=1, help="Keep the last snapshot and every N-th before it")] = 1,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without, it is only counted")] = False,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """Make runs smaller; curves, evaluations and notes stay."""
    what = Thinning(trajectories, transitions, checkpoints, snapshots)
    if what.is_empty:
        raise typer.BadParameter("Say what shall go: --trajectories, --transitions, --checkpoints or --snapshots N.")
    if bool(runs) == every:
        raise typer.BadParameter("Name the runs to thin, or --all of them.")
    database = open_database(db, create=False)
    check_not_read_only("thin a run")
    chosen = _ended(database) if every else [find_run(database, run).id for run in dict.fromkeys(runs or ())]
    gone = {run_id: count_thinning(database, run_id, what) for run_id in chosen}
    if json and not yes:
        _print_gone(gone, done=False)
        return
    _say_what_goes(gone, what)
    done = _is_wanted(yes, total=sum(gone.values(), RemovedData()))
    if done:
        gone = {run_id: thin_run(database, run_id, what) for run_id in chosen}
    if json:
        _print_gone(gone, done=done)
    if done:
        say(f"Thinned {len(gone)} run{'s' if len(gone) != 1 else ''}. Give the room back to the disk: emtc db vacuum")


def _ended(db: Database) -> list[str]:
    """List the runs that nobody works on, and name the others."""
    listed = [find_run(db, run_id) for run_id in list_runs(db, None)["id"]]
    busy = [row.id for row in listed if not lifecycle.allows(get_state(row), Event.THIN)]
    if busy:
        say(f"Left alone, as somebody works on them or nobody began: {', '.join(busy)}.")
    return [row.id for row in listed if row.id not in busy]


def _say_what_goes(gone: dict[str, RemovedData], what: Thinning) -> None:
    for run_id, counted in gone.items():
        say(f"Run {run_id}: {counted}.")
    say(f"For good, of {len(gone)} run{'s' if len(gone) != 1 else ''}: {sum(gone.values(), RemovedData())}.")
    if what.transitions or what.checkpoints:
        say("A run without its transitions or checkpoints cannot be resumed.")


def _is_wanted(yes: bool, *, total: RemovedData) -> bool:
    if total == RemovedData():
        return False
    if not yes and sys.stdin.isatty():
        typer.confirm("Remove it?", abort=True)
        return True
    if not yes:
        say("Nothing was removed. To do it, add: --yes")
    return yes


def _print_gone(gone: dict[str, RemovedData], *, done: bool) -> None:
    print_json({"done": done, "runs": {run_id: asdict(counted) for run_id, counted in gone.items()}})


def vacuum(file: DatabaseFile = None, db: DatabaseUrl = DEFAULT_DATABASE, json: AsJson = False) -> None:
    """Give the room of what was deleted or thinned back to the disk; no run may be at work."""
    done = vacuum_database(open_database(database_url(file, db), create=False))
    if json:
        print_json(asdict(done))
    else:
        say(f"{done}.")


def backup(
    file: DatabaseFile = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to; beside the database when missing")] = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """Copy a SQLite database while others write; the folders of its runs (logs, checkpoints) are not copied."""
    place = back_up_database(open_database(database_url(file, db), create=False), out and out.absolute())
    if json:
        print_json({"backup": str(place), "size_bytes": place.stat().st_size})
    else:
        say(f"Copied to {place} ({format_size(place.stat().st_size)}). Logs and checkpoints are not in it.")


app = typer.Typer(help="Care for a database, a foreign one too.", no_args_is_help=True)

MOST_SHOWN = 200

app.command("stats")(stats)
app.command("thin")(thin)
app.command("vacuum")(vacuum)
app.command("backup")(backup)


@app.command()
def check(file: DatabaseFile = None, db: DatabaseUrl = DEFAULT_DATABASE, json: AsJson = False) -> int:
    """Look for what was made to harm its reader, and for damage; nothing is unpacked, imported or changed.

    Exit code 1 says that something was found.
    """
    report = check_database(database_url(file, db), is_allowed=is_allowed)
    rows = [asdict(finding) for finding in report.findings]
    if json:
        facts = {"database": report.database, "schema": report.schema, "runs": report.runs, "ok": report.is_valid}
        print_json(facts | {"findings": rows})
    else:
        print_table(rows[:MOST_SHOWN], title=report.database, empty=f"{report.database}: nothing is wrong.")
        if len(rows) > MOST_SHOWN:
            say(f"… and {len(rows) - MOST_SHOWN:,} more; all of them with --json.")
    return 0 if report.is_valid else 1


@app.command()
def reader(
    create: Annotated[bool, typer.Option("--create", help="Make the role now, by the login of --db")] = False,
    name: Annotated[str, typer.Option(help="Name of the role")] = query.READER_NAME,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """Make a PostgreSQL role that can only read, by which `emtc sql` and the SQL page ask; or print what makes it."""
    database = open_database(db, create=False)
    made = query.create_reader(database, name=name) if create else None
    statements, url = ([], made) if made else query.describe_reader(database, name=name)
    if json:
        sys.stdout.write(dumps({"statements": statements, "variable": query.READER_VARIABLE, "url": url}) + "\n")
        return
    for statement in statements:
        sys.stdout.write(f"{statement};\n")
    say("Run this as an administrator of the server." if statements else f"Made the role {name}.")
    say("Then let the app and `emtc sql` know, and nobody else, for it holds the role's password:")
    sys.stdout.write(f"{'-- ' if statements else ''}export {query.READER_VARIABLE}='{url}'\n")


@app.command()
def upgrade(
    file: DatabaseFile = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
    no_backup: Annotated[bool, typer.Option("--no-backup", help="A server's database was backed up already")] = False,
    json: AsJson = False,
) -> None:
    """Bring a database to the schema of this version; a SQLite file is copied beside itself first."""
    url = database_url(file, db)
    schema, is_file = find_schema(url)  # a missing file is refused here, not made
    if schema is not None and not is_file and not no_backup:
        raise ConfigError(
            "A server's database is not copied here", hint="After pg_dump, use: emtc db upgrade --no-backup"
        )
    database = open_database(url)
    database.dispose()
    if json:
        print_json({"database": database.safe_url, "backup": database.backup and str(database.backup)})
        return
    kept = f" As it was before: {database.backup}" if database.backup else ""
    say(f"{database.safe_url} has the schema of this version.{kept}")


def sql(
    query: Annotated[str, typer.Argument(metavar="[QUERY]", help="One statement that reads, as a SELECT")] = "",
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV")] = False,
    parquet: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a Parquet file")] = None,
    limit: Annotated[int, typer.Option(help=f"Rows at most, up to {MAX_ROWS:,}")] = DEFAULT_ROWS,
    seconds: Annotated[float, typer.Option(help=f"Time at most, up to {MAX_SECONDS:.0f}")] = DEFAULT_SECONDS,
    schema: Schema = False,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """Ask the database in SQL; nothing is written, whatever is asked."""
    if sum((csv, json, parquet is not None)) > 1:
        raise typer.BadParameter("Give at most one of --csv, --json and --parquet.")
    if schema:
        _show_schema(json=json)
        return
    if parquet is not None and not can_write_parquet():
        raise ConfigError(Fault(hint=NO_PARQUET))
    answer = run_query(open_database(db, read_only=True), query, max_rows=limit, seconds=seconds)
    if parquet is not None:
        content = export_table(make_plain_table(answer.frame()), "parquet")
        write_file(parquet, content)
        say(f"Wrote {parquet} ({len(content):,} bytes).")
    elif csv:
        sys.stdout.buffer.write(export_table(make_plain_table(answer.frame()), "csv"))
    else:
        print_rows(_rows(answer), title="", empty="No row answers this.", json=json)
    if answer.truncation:
        say(f"{answer.truncation} See more with --limit.")


def _rows(answer: QueryResult) -> list[dict[str, object]]:
    names = [str(name) for name in answer.frame().columns]
    return [dict(zip(names, row, strict=True)) for row in answer.rows]


def _show_schema(*, json: bool) -> None:
    tables = describe_schema()
    if json:
        print_json([asdict(table) for table in tables])
        return
    for table in tables:
        rows = [asdict(column) for column in table.columns]
        print_table(rows, title=f"{table.name}: {table.meaning}", empty="")
