"""`emtc tag | note | archive | hide`: what people say about runs; the Home table does the same."""

from typing import Annotated

import typer

from app.cli.output import DEFAULT_DATABASE, DatabaseUrl, RunPrefix, say
from emtc_core.errors import ConfigError
from storage.engine import Database, open_database
from storage.runs.labels import Act, edit_run, note_runs, shelve_runs, tag_runs
from storage.runs.rows import find_run

Runs = Annotated[list[str], typer.Argument(metavar="RUN…", help="Run ids or unambiguous beginnings of them")]
Undo = Annotated[bool, typer.Option("--undo", help="Bring them back")]


def tag(
    runs: Annotated[list[str], typer.Argument(metavar="RUN… [NAME]", help="Runs; and a tag, unless --add or --remove")],
    add: Annotated[list[str] | None, typer.Option("--add", help="Tag to add; may be repeated")] = None,
    remove: Annotated[list[str] | None, typer.Option("--remove", help="Tag to take away; may be repeated")] = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
) -> None:
    """Tag runs, or take tags away: emtc tag RUN… NAME, or emtc tag RUN… --add NAME --remove NAME."""
    if not add and not remove:
        if len(runs) < 2:
            raise ConfigError("A tag is missing. Write: emtc tag RUN… NAME, or emtc tag RUN… --remove NAME")
        *runs, name = runs
        add = [name]
    database = open_database(db, create=False)
    ids = find_runs(database, runs)
    changed = tag_runs(database, ids, add=add or (), remove=remove or ())
    say(f"Changed the tags of {changed} of {_count(ids)}.")


def note(
    run: RunPrefix,
    text: Annotated[str, typer.Argument(help="The note; an empty one takes it away")],
    append: Annotated[bool, typer.Option("--append", help="Add a line to the note that is there")] = False,
    db: DatabaseUrl = DEFAULT_DATABASE,
) -> None:
    """Write the note of a run."""
    database = open_database(db, create=False)
    run_id = find_run(database, run).id
    if append:
        note_runs(database, [run_id], text)
    else:
        edit_run(database, run_id, notes=text)
    say(f"Wrote the note of run {run_id}.")


def archive(runs: Runs, undo: Undo = False, db: DatabaseUrl = DEFAULT_DATABASE) -> None:
    """Archive runs: lists and figures leave them out; nothing is deleted. List them with: emtc runs --archived."""
    _shelve(db, runs, "restore" if undo else "archive")


def hide(runs: Runs, undo: Undo = False, db: DatabaseUrl = DEFAULT_DATABASE) -> None:
    """Hide runs from figures that nobody chose them for; lists go on to show them."""
    _shelve(db, runs, "show" if undo else "hide")


def _shelve(db: str, runs: list[str], act: Act) -> None:
    database = open_database(db, create=False)
    ids = find_runs(database, runs)
    done = {"archive": "Archived", "restore": "Restored", "hide": "Hid", "show": "Show again"}[act]
    say(f"{done} {shelve_runs(database, ids, act)} of {_count(ids)}.")


def find_runs(database: Database, prefixes: list[str]) -> list[str]:
    """Find the ids of runs by their beginnings, each once.

    Raises:
        RunNotFoundError: If one is none's, or more than one's.
    """
    return list(dict.fromkeys(find_run(database, prefix).id for prefix in prefixes))


def _count(ids: list[str]) -> str:
    return "1 run" if len(ids) == 1 else f"{len(ids):,} runs"
