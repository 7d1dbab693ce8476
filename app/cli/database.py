"""`emtc db`: look at a database before trusting it, and bring an older one to this version."""

import sys
from dataclasses import asdict
from json import dumps
from typing import Annotated

import typer

from app.cli import maintenance
from app.cli.output import (
    DEFAULT_DATABASE,
    AsJson,
    DatabaseFile,
    DatabaseUrl,
    database_url,
    print_json,
    print_table,
    say,
)
from emtc_core.envs.trust import is_allowed
from emtc_core.errors import ConfigError
from storage.engine import find_schema, open_database
from storage.maintenance.check_database import check_database
from storage.sql_console import reader_role

app = typer.Typer(help="Care for a database, a foreign one too.", no_args_is_help=True)

MOST_SHOWN = 200

app.command("stats")(maintenance.stats)
app.command("thin")(maintenance.thin)
app.command("vacuum")(maintenance.vacuum)
app.command("backup")(maintenance.backup)


@app.command()
def check(file: DatabaseFile = None, db: DatabaseUrl = DEFAULT_DATABASE, json: AsJson = False) -> int:
    """Look for what was made to harm its reader, and for damage; nothing is unpacked, imported or changed.

    Exit code 1 says that something was found.
    """
    report = check_database(database_url(file, db), is_allowed=is_allowed)
    rows = [asdict(finding) for finding in report.findings]
    if json:
        facts = {"database": report.database, "schema": report.schema, "runs": report.runs, "ok": report.is_sound}
        print_json(facts | {"findings": rows})
    else:
        print_table(rows[:MOST_SHOWN], title=report.database, empty=f"{report.database}: nothing is wrong.")
        if len(rows) > MOST_SHOWN:
            say(f"… and {len(rows) - MOST_SHOWN:,} more; all of them with --json.")
    return 0 if report.is_sound else 1


@app.command()
def reader(
    create: Annotated[bool, typer.Option("--create", help="Make the role now, by the login of --db")] = False,
    name: Annotated[str, typer.Option(help="Name of the role")] = reader_role.NAME,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """Make a PostgreSQL role that can only read, by which `emtc sql` and the SQL page ask; or print what makes it."""
    database = open_database(db, create=False)
    made = reader_role.create_reader(database, name=name) if create else None
    statements, url = ([], made) if made else reader_role.describe_reader(database, name=name)
    if json:
        sys.stdout.write(dumps({"statements": statements, "variable": reader_role.VARIABLE, "url": url}) + "\n")
        return
    for statement in statements:
        sys.stdout.write(f"{statement};\n")
    say("Run this as an administrator of the server." if statements else f"Made the role {name}.")
    say("Then let the app and `emtc sql` know, and nobody else, for it holds the role's password:")
    sys.stdout.write(f"{'-- ' if statements else ''}export {reader_role.VARIABLE}='{url}'\n")


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
        raise ConfigError("A server's database is not copied here. After pg_dump, use: emtc db upgrade --no-backup")
    database = open_database(url)
    database.dispose()
    if json:
        print_json({"database": database.shown, "backup": database.backup and str(database.backup)})
        return
    kept = f" As it was before: {database.backup}" if database.backup else ""
    say(f"{database.shown} has the schema of this version.{kept}")
