"""Commands for runs: `emtc runs | show | stop | pause | ask | delete | tag | note | archive | hide`.

They call the same functions as the pages.
"""

import sys
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, get_args

import typer

from app.analysis.format import format_run_count
from app.cli.output import DEFAULT_DATABASE, AsJson, DatabaseUrl, RunPrefix, print_json, print_message, print_table
from emtc_core.control import QuestionKind
from emtc_core.errors import ConfigError, StorageError
from storage.engine import Database, open_database
from storage.files.places import get_run_place
from storage.queries.gate_state import GateState, gate_state, idle_incentives
from storage.queries.run_search import SORTS, TABLE_COLUMNS, RunFilter, run_rows
from storage.queries.runs import list_resumes
from storage.runs import lifecycle
from storage.runs.control import request_stop, send_and_wait
from storage.runs.labels import VisibilityAction, edit_run, note_runs, set_visibility, tag_runs
from storage.runs.lifecycle import Event, LiveStatus
from storage.runs.rows import find_run, get_state

PAGE, MAX_ROWS, MAX_EPISODE = 200, 1_000_000, 10**15
STATUSES = get_args(LiveStatus)
_WHERE = "Setting (gate.enabled=false) or column (win_rate>0.8), with = != < <= > >=; may be repeated, all must be true"
_KIND = "evaluate: play the episodes of an evaluation; play: play one episode"
_EPISODE = "play: repeat the start of this training episode"
_WAIT = "Maximum time to wait for the answer after the trainer has read the question [s]"

Runs = Annotated[list[str], typer.Argument(metavar="RUN…", help="Run ids or unambiguous beginnings of them")]
Undo = Annotated[bool, typer.Option("--undo", help="Undo it for these runs")]


def tag(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN… [NAME]", help="Runs, then a tag if neither --add nor --remove is given")
    ],
    add: Annotated[list[str] | None, typer.Option("--add", help="Tag to add; may be repeated")] = None,
    remove: Annotated[list[str] | None, typer.Option("--remove", help="Tag to remove; may be repeated")] = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
) -> None:
    """Add or remove tags: emtc tag RUN… NAME, or emtc tag RUN… --add NAME --remove NAME."""
    if not add and not remove:
        if len(runs) < 2:
            raise ConfigError("A tag is missing", hint="Use: emtc tag RUN… NAME, or emtc tag RUN… --remove NAME")
        *runs, name = runs
        add = [name]
    database = open_database(db, create=False)
    ids = find_runs(database, runs)
    changed = tag_runs(database, ids, add=add or (), remove=remove or ())
    print_message(f"Changed the tags of {changed} of {format_run_count(len(ids))}.")


def note(
    run: RunPrefix,
    text: Annotated[str, typer.Argument(help="The note; an empty text removes it")],
    append: Annotated[bool, typer.Option("--append", help="Add a line to the present note")] = False,
    db: DatabaseUrl = DEFAULT_DATABASE,
) -> None:
    """Write the note of a run."""
    database = open_database(db, create=False)
    run_id = find_run(database, run).id
    if append:
        note_runs(database, [run_id], text)
    else:
        edit_run(database, run_id, notes=text)
    print_message(f"Wrote the note of run {run_id}.")


def archive(runs: Runs, undo: Undo = False, db: DatabaseUrl = DEFAULT_DATABASE) -> None:
    """Archive runs: lists and figures omit them, and nothing is deleted. List them with: emtc runs --archived."""
    _set_visibility(db, runs, "restore" if undo else "archive")


def hide(runs: Runs, undo: Undo = False, db: DatabaseUrl = DEFAULT_DATABASE) -> None:
    """Hide runs in figures, unless they are selected there. Lists still show them."""
    _set_visibility(db, runs, "show" if undo else "hide")


def find_runs(database: Database, prefixes: list[str]) -> list[str]:
    """Return the ids of runs by the beginnings of their ids, without duplicates.

    Raises:
        RunNotFoundError: If no run, or more than one run, matches a prefix.
    """
    return list(dict.fromkeys(find_run(database, prefix).id for prefix in prefixes))


def runs(
    where: Annotated[list[str] | None, typer.Option("--where", metavar="KEY=VALUE", help=_WHERE)] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="Only runs with one of these tags")] = None,
    status: Annotated[
        list[str] | None, typer.Option("--status", help=f"Only runs with this status: {', '.join(STATUSES)}")
    ] = None,
    search: Annotated[str, typer.Option("--search", help="Words in name, id, note, tags, algorithm and map")] = "",
    sort: Annotated[
        str, typer.Option("--sort", help=f"Sort key, with - in descending order: {', '.join(SORTS)}")
    ] = "-created",
    limit: Annotated[int | None, typer.Option("--limit", help="Rows per page; default: 200, with --json all")] = None,
    page: Annotated[int, typer.Option("--page", help="Number of the page, from 1")] = 1,
    archived: Annotated[bool, typer.Option("--archived", help="List archived runs instead")] = False,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """List runs with their status, newest first. Runs can be searched, filtered and sorted."""
    page_size = limit if limit is not None else None if json else PAGE
    for option, value in (("--limit", page_size), ("--page", page)):
        if value is not None and not 1 <= value <= MAX_ROWS:
            raise ConfigError(f"must be 1 to {MAX_ROWS:,}", key=option, value=value)
    if unknown := [name for name in status or () if name not in STATUSES]:
        raise ConfigError(f"must be one of {', '.join(STATUSES)}", key="--status", value=unknown[0])
    run_filter = RunFilter(
        text=search,
        where=tuple(where or ()),
        tags=tuple(tag or ()),
        statuses=tuple(status or ()),
        visibility="archived" if archived else "open",
    )
    offset = (page - 1) * (page_size or 0)
    database = open_database(db, read_only=True)
    rows, total = run_rows(database, run_filter, sort=sort, limit=page_size, offset=offset)
    _print_page_number(len(rows), total, page, page_size)
    if json:
        print_json([{name: str(at) if isinstance(at, datetime) else at for name, at in row.items()} for row in rows])
        return
    no_run = "No runs yet. Start one with: emtc train --set preset=demo"
    empty = no_run if run_filter == RunFilter() and not total else "No run matches."
    table = [{column: row[column] for column in TABLE_COLUMNS} for row in rows]
    plugins = [_describe_plugins(row["plugins"]) for row in rows]
    if any(plugins):
        table = [row | {"plug-ins": text} for row, text in zip(table, plugins, strict=True)]
    print_table(table, title="Runs", empty=empty)


def show(run: RunPrefix, db: DatabaseUrl = DEFAULT_DATABASE, json: AsJson = False) -> None:
    """Show one run: status, progress, configuration and versions."""
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
    facts["checkpoints"] = [asdict(checkpoint) for checkpoint in status.checkpoints]
    facts["best"] = [asdict(checkpoint) for checkpoint in status.best]
    facts["resumes"] = list_resumes(database, row.id).astype(object).to_dict("records")
    facts["superseded_steps"] = sum(row["reached_env_step"] - row["env_step"] for row in facts["resumes"])
    facts["steps_note"] = (
        f"Transitions are numbered 1 to {row.env_steps} without gaps. The training length is {row.target_steps}; "
        "the run ends with the episode that reaches it."
    )
    if json:
        print_json(facts)
        return
    config = facts.pop("config")
    print_table([{"field": k, "value": v} for k, v in facts.items()], title=f"Run {row.id}", empty="")
    print_table([{"section": k, "values": v} for k, v in config.items()], title="Configuration", empty="")


def stop(run: RunPrefix, db: DatabaseUrl = DEFAULT_DATABASE) -> None:
    """Stop a run. It writes a checkpoint. The exit code is 1 if the trainer does not respond."""
    print_message(request_stop(open_database(db, create=False), run))


def pause(run: RunPrefix, db: DatabaseUrl = DEFAULT_DATABASE) -> None:
    """Pause a run between two environment steps. The exit code is 1 if the trainer does not respond."""
    database = open_database(db, create=False)
    row = find_run(database, run)
    lifecycle.check_allowed(row.id, row.state, Event.PAUSE)
    print_message(send_and_wait(database, row.id, "pause"))


def ask_run(
    run: RunPrefix,
    kind: Annotated[QuestionKind, typer.Argument(help=_KIND)],
    episode: Annotated[int | None, typer.Option("--episode", min=1, max=MAX_EPISODE, help=_EPISODE)] = None,
    wait: Annotated[float, typer.Option("--wait", min=0, max=86_400, help=_WAIT)] = 600.0,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """Evaluate or play the present policy of an active run. The results of its training do not change."""
    from app.jobs.questions import ask_and_wait, describe

    database = open_database(db, create=False)
    row = find_run(database, run)
    request = ask_and_wait(database, row.id, kind, episode=episode, answer_within_s=wait)
    if json:
        print_json(asdict(request))
        return
    print_message(f"Run {row.id}, {describe(request)}.")
    if request.answer is not None:
        print_message(
            f"Replay it in the app: /replay?run={row.id}&play={request.answer.env_step}-{request.answer.playback}"
        )


def delete(
    run: RunPrefix,
    db: DatabaseUrl = DEFAULT_DATABASE,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation; only a terminal is asked")] = False,
    leave_files: Annotated[
        bool,
        typer.Option("--leave-files", help="Do not delete checkpoints and logs that are not in the database's folder"),
    ] = False,
) -> None:
    """Delete a run with its recorded data, its log and its checkpoints."""
    from storage.runs.removal import count_run_contents, remove_run

    database = open_database(db, create=False)
    row = find_run(database, run)
    lifecycle.check_allowed(row.id, get_state(row), Event.DELETE)
    contents = count_run_contents(database, row.id, leave_files=leave_files)
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Permanently delete run {row.id}: {contents}?", abort=True)
    remove_run(database, row.id, leave_files=leave_files)
    print_message(f"Deleted run {row.id}: {contents}.")


def _set_visibility(db: str, runs: list[str], act: VisibilityAction) -> None:
    database = open_database(db, create=False)
    ids = find_runs(database, runs)
    verb = {"archive": "Archived", "restore": "Restored", "hide": "Hid", "show": "Unhid"}[act]
    print_message(f"{verb} {set_visibility(database, ids, act)} of {format_run_count(len(ids))}.")


def _describe_plugins(plugins: Any) -> str:
    """List the plug-ins of a run with their origins. A damaged row can contain any JSON value."""
    kinds = plugins.values() if isinstance(plugins, dict) else ()
    return ", ".join(f"{name} ({origin})" for kind in kinds if isinstance(kind, dict) for name, origin in kind.items())


def _print_page_number(n_rows: int, total: int, page: int, page_size: int | None) -> None:
    """Print to stderr which page is listed, if there are others."""
    if page_size is None or n_rows == total:
        return
    pages = -(-total // page_size)
    if page > pages:
        print_message(f"There is no page {page}: {total:,} runs match, on {pages:,} pages.")
    else:
        next_page = f" Next: --page {page + 1}" if page < pages else ""
        print_message(f"Page {page} of {pages:,}: {n_rows:,} of {total:,} matching runs.{next_page}")


def _folder(db: Database, run_id: str) -> str:
    """Return the place of a run's files, or why it cannot be used on this machine."""
    try:
        return get_run_place(db, run_id).show(run_id)
    except StorageError as exc:
        return str(exc)


def _gate_facts(state: GateState | None) -> dict[str, Any] | None:
    """Return the state of the gate with the short names of its metrics; None for a run without a gate."""
    if state is None:
        return None
    values = {name.partition("/")[2]: value for name, value in state.values.items()}
    return {"state": state.state, "reason": state.sentence, **values}
