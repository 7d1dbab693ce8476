"""`emtc runs | show | stop | pause | ask | delete`: the same paths that the pages use.

`emtc tag | note | archive | hide`: what people say about runs; the Home table does the same.
"""

import sys
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, get_args

import typer

from app.cli.output import DEFAULT_DATABASE, AsJson, DatabaseUrl, RunPrefix, print_json, print_table, say
from emtc_core.control import QuestionKind
from emtc_core.errors import ConfigError, StorageError
from storage.engine import Database, open_database
from storage.files.places import get_run_place
from storage.queries.gate import GateState, gate_state, idle_incentives
from storage.queries.runs import SORTS, RunFilter, list_resumes, run_rows
from storage.runs import lifecycle
from storage.runs.control import request_stop, send_and_wait
from storage.runs.labels import ShelfAction, edit_run, note_runs, set_visibility, tag_runs
from storage.runs.lifecycle import Event, LiveStatus
from storage.runs.rows import find_run, get_state

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
            raise ConfigError("A tag is missing", hint="Use: emtc tag RUN… NAME, or emtc tag RUN… --remove NAME")
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


def _shelve(db: str, runs: list[str], act: ShelfAction) -> None:
    database = open_database(db, create=False)
    ids = find_runs(database, runs)
    done = {"archive": "Archived", "restore": "Restored", "hide": "Hid", "show": "Show again"}[act]
    say(f"{done} {set_visibility(database, ids, act)} of {_count(ids)}.")


def find_runs(database: Database, prefixes: list[str]) -> list[str]:
    """Find the ids of runs by their beginnings, each once.

    Raises:
        RunNotFoundError: If one is none's, or more than one's.
    """
    return list(dict.fromkeys(find_run(database, prefix).id for prefix in prefixes))


def _count(ids: list[str]) -> str:
    return "1 run" if len(ids) == 1 else f"{len(ids):,} runs"


PAGE, MOST_ROWS, MOST_EPISODE = 200, 1_000_000, 10**15
STATUSES = get_args(LiveStatus)
_WHERE = "Setting, as gate.enabled=false, or column, as win_rate>0.8; = != < <= > >=; may be repeated: all must hold"
COLUMNS = ("id", "name", "env", "map", "algo", "seed", "status", "env_steps", "target_steps", "win_rate", "device")


def runs(
    where: Annotated[list[str] | None, typer.Option("--where", metavar="KEY=VALUE", help=_WHERE)] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="Only runs with one of these tags")] = None,
    status: Annotated[list[str] | None, typer.Option("--status", help=f"Only these: {', '.join(STATUSES)}")] = None,
    search: Annotated[str, typer.Option("--search", help="Words of name, id, note, tags, algorithm and map")] = "",
    sort: Annotated[str, typer.Option("--sort", help=f"A leading - sorts downwards: {', '.join(SORTS)}")] = "-created",
    limit: Annotated[int | None, typer.Option("--limit", help="Rows of a page; 200, and with --json all")] = None,
    page: Annotated[int, typer.Option("--page", help="Page of so many rows, from 1")] = 1,
    archived: Annotated[bool, typer.Option("--archived", help="List what is archived instead")] = False,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """List runs with their live status, newest first; search, filter and sort them."""
    rows_a_page = limit if limit is not None else None if json else PAGE
    _check_page(rows_a_page, page, status or [])
    wanted = RunFilter(
        text=search,
        where=tuple(where or ()),
        tags=tuple(tag or ()),
        statuses=tuple(status or ()),
        shelf="archived" if archived else "open",
    )
    offset = (page - 1) * (rows_a_page or 0)
    database = open_database(db, read_only=True)
    rows, total = run_rows(database, wanted, sort=sort, limit=rows_a_page, offset=offset)
    _tell_pages(len(rows), total, page, rows_a_page)
    if json:
        print_json([{name: str(at) if isinstance(at, datetime) else at for name, at in row.items()} for row in rows])
        return
    no_run = "No runs yet. Start one with: emtc train --set preset=demo"
    nothing = no_run if wanted == RunFilter() and not total else "No run matches."
    shown = [{column: row[column] for column in COLUMNS} | _outside(row["plugins"]) for row in rows]
    if not any(row["outside"] for row in shown):
        shown = [{column: row[column] for column in COLUMNS} for row in rows]
    print_table(shown, title="Runs", empty=nothing)


def _outside(plugins: Any) -> dict[str, str]:
    """What a run has from outside, each with its origin, as one cell; a stored row may hold anything."""
    kinds = plugins.values() if isinstance(plugins, dict) else ()
    named = [f"{name} ({origin})" for kind in kinds if isinstance(kind, dict) for name, origin in kind.items()]
    return {"outside": ", ".join(named)}


def _check_page(limit: int | None, page: int, statuses: list[str]) -> None:
    for name, value in (("--limit", limit), ("--page", page)):
        if value is not None and not 1 <= value <= MOST_ROWS:
            raise ConfigError(f"must be 1 to {MOST_ROWS:,}", key=name, value=value)
    if strange := [each for each in statuses if each not in STATUSES]:
        raise ConfigError(f"must be one of {', '.join(STATUSES)}", key="--status", value=strange[0])


def _tell_pages(shown: int, total: int, page: int, limit: int | None) -> None:
    """Print on stderr what other pages hold: a list that stops must not look whole."""
    if limit is None or shown == total:
        return
    pages = -(-total // limit)
    if page > pages:
        say(f"There is no page {page}: {total:,} runs match, on {pages:,} pages.")
    else:
        more = f" Go on with: --page {page + 1}" if page < pages else ""
        say(f"Page {page} of {pages:,}: {shown:,} of {total:,} runs that match.{more}")


def show(run: RunPrefix, db: DatabaseUrl = DEFAULT_DATABASE, json: AsJson = False) -> None:
    """Show one run: status, progress, configuration, versions."""
    from app.analysis.quantities import read_last_success_rate
    from app.jobs.resume import examine_checkpoints

    database = open_database(db, read_only=True)
    row = find_run(database, run)
    facts: dict[str, Any] = {**asdict(row), "folder": _folder(database, row.id)}
    del facts["owner_token"]
    facts["gate"] = _gate_facts(gate_state(database, row.id))
    facts["no_success"] = idle_incentives(database, [row.id]).get(row.id)
    facts["success_rate"] = read_last_success_rate(database, row.id)
    status = examine_checkpoints(database, row)
    facts["checkpoints"] = [asdict(each) for each in status.checkpoints]
    facts["best"] = [asdict(each) for each in status.best]
    facts["resumes"] = list_resumes(database, row.id).astype(object).to_dict("records")
    facts["superseded_steps"] = sum(each["reached_env_step"] - each["env_step"] for each in facts["resumes"])
    facts["steps_note"] = (
        f"Transitions are numbered 1 to {row.env_steps} without gaps. The run aims at {row.target_steps} "
        "and ends with the episode that reaches it."
    )
    if json:
        print_json(facts)
        return
    config = facts.pop("config")
    print_table([{"field": k, "value": v} for k, v in facts.items()], title=f"Run {row.id}", empty="")
    print_table([{"section": k, "values": v} for k, v in config.items()], title="Configuration", empty="")


def _folder(db: Database, run_id: str) -> str:
    """The place of a run's files, or why it is not used here."""
    try:
        return get_run_place(db, run_id).show(run_id)
    except StorageError as exc:
        return str(exc)


def _gate_facts(state: GateState | None) -> dict[str, Any] | None:
    """Lay the gate's state out under the short names of its metrics; None for a run without a gate."""
    if state is None:
        return None
    values = {name.partition("/")[2]: value for name, value in state.values.items()}
    return {"state": state.state, "reason": state.sentence, **values}


def stop(run: RunPrefix, db: DatabaseUrl = DEFAULT_DATABASE) -> None:
    """Stop a run, which leaves a checkpoint; exit code 1 says that nobody has heard."""
    say(request_stop(open_database(db, create=False), run))


def pause(run: RunPrefix, db: DatabaseUrl = DEFAULT_DATABASE) -> None:
    """Pause a run between two of its environment steps; exit code 1 says that nobody has heard."""
    database = open_database(db, create=False)
    row = find_run(database, run)
    lifecycle.check_allowed(row.id, row.state, Event.PAUSE)
    say(send_and_wait(database, row.id, "pause"))


_KIND = "evaluate: greedy episodes as many as an evaluation has; play: one of them"
_EPISODE = "Let play repeat the start of this training episode"
_WAIT = "Seconds to wait for the answer once the trainer has heard"


def ask_run(
    run: RunPrefix,
    kind: Annotated[QuestionKind, typer.Argument(help=_KIND)],
    episode: Annotated[int | None, typer.Option("--episode", min=1, max=MOST_EPISODE, help=_EPISODE)] = None,
    wait: Annotated[float, typer.Option("--wait", min=0, max=86_400, help=_WAIT)] = 600.0,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """Ask a living run what its present policy does; its training goes on as if nobody had asked."""
    from app.jobs.questions import ask_and_wait, describe

    database = open_database(db, create=False)
    row = find_run(database, run)
    asked = ask_and_wait(database, row.id, kind, episode=episode, answer_within_s=wait)
    if json:
        print_json(asdict(asked))
        return
    say(f"Run {row.id}, {describe(asked)}.")
    if asked.answer is not None:
        say(f"Look at it: /replay?run={row.id}&play={asked.answer.env_step}-{asked.answer.playback}")


def delete(
    run: RunPrefix,
    db: DatabaseUrl = DEFAULT_DATABASE,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; a script is never asked")] = False,
    leave_files: Annotated[
        bool, typer.Option("--leave-files", help="Leave checkpoints and logs that do not lie beside the database")
    ] = False,
) -> None:
    """Delete a run with everything that it recorded, its log and its checkpoints."""
    from storage.runs.removal import count_run_contents, remove_run

    database = open_database(db, create=False)
    row = find_run(database, run)
    lifecycle.check_allowed(row.id, get_state(row), Event.DELETE)
    belongings = count_run_contents(database, row.id, leave_files=leave_files)
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Delete run {row.id} for good: {belongings}?", abort=True)
    remove_run(database, row.id, leave_files=leave_files)
    say(f"Deleted run {row.id}: {belongings}.")
