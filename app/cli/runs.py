"""Commands for runs: `emtc runs | show | stop | pause | ask | delete | tag | note | archive | hide`.

They call the same functions as the pages.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import Annotated, Any, get_args

import typer

from app.analysis.format import format_run_count
from app.cli.arguments import (
    DEFAULT_DATABASE,
    AsJson,
    DatabaseUrl,
    RunPrefix,
    Runs,
    Where,
    choose,
    choose_run,
    choose_runs,
)
from app.cli.output import print_json, print_message, print_table
from emtc_core.control import QuestionKind
from emtc_core.errors import CommandTimeoutError, ConfigError, EmtcError, StorageError
from storage.engine import Database, open_database
from storage.files import run_folder
from storage.queries.gate_state import GateState, gate_state, idle_incentives
from storage.queries.run_search import SORTS, TABLE_COLUMNS, RunFilter, run_rows
from storage.queries.runs import list_resumes
from storage.runs.control import request_stop, send_and_wait
from storage.runs.labels import VisibilityAction, edit_run, note_runs, set_visibility, tag_runs
from storage.runs.rows import find_run, imported_label
from storage.runs.status import Status, check_allowed

PAGE, MAX_ROWS, MAX_EPISODE = 200, 1_000_000, 10**15
STATUSES = get_args(Status)
_KIND = "evaluate: play the episodes of an evaluation; play: play one episode"
_EPISODE = "play: repeat the start of this training episode"
_WAIT = "Maximum time to wait for the answer after the trainer has read the question [s]"

Undo = Annotated[bool, typer.Option("--undo", help="Undo it for these runs")]


def tag(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN… [NAME]", help="Runs, then a tag if neither --add nor --remove is given"),
    ] = None,
    where: Where = None,
    add: Annotated[list[str] | None, typer.Option("--add", help="Tag to add; may be repeated")] = None,
    remove: Annotated[list[str] | None, typer.Option("--remove", help="Tag to remove; may be repeated")] = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
) -> None:
    """Add or remove tags: emtc tag RUN… NAME, or emtc tag RUN… --add NAME --remove NAME."""
    runs = list(runs or ())
    if not add and not remove:
        if not runs or (len(runs) < 2 and not where):
            raise ConfigError("A tag is missing", hint="Use: emtc tag RUN… NAME, or emtc tag RUN… --remove NAME")
        add = [runs.pop()]
    database = open_database(db, create=False)
    ids = choose_runs(database, runs, where)
    changed = tag_runs(database, ids, add=add or (), remove=remove or ())
    print_message(f"Changed the tags of {changed} of {format_run_count(len(ids))}.")


def note(
    words: Annotated[
        list[str], typer.Argument(metavar="[RUN] TEXT", help="Run, unless --where selects it, and the note")
    ],
    where: Where = None,
    append: Annotated[bool, typer.Option("--append", help="Add a line to the present note")] = False,
    db: DatabaseUrl = DEFAULT_DATABASE,
) -> None:
    """Write the note of a run. An empty text removes it."""
    run, text = _split_words(words, where, usage='note RUN "TEXT"')
    database = open_database(db, create=False)
    run_id = choose_run(database, run, where).id
    if append:
        note_runs(database, [run_id], text)
    else:
        edit_run(database, run_id, notes=text)
    print_message(f"Wrote the note of run {run_id}.")


def archive(runs: Runs = None, where: Where = None, undo: Undo = False, db: DatabaseUrl = DEFAULT_DATABASE) -> None:
    """Archive runs: lists and figures omit them, and nothing is deleted. List them with: emtc runs --archived."""
    _set_visibility(db, runs, where, "restore" if undo else "archive")


def hide(runs: Runs = None, where: Where = None, undo: Undo = False, db: DatabaseUrl = DEFAULT_DATABASE) -> None:
    """Hide runs in figures, unless they are selected there. Lists still show them."""
    _set_visibility(db, runs, where, "show" if undo else "hide")


def _split_words(words: Sequence[str], where: Sequence[str] | None, *, usage: str) -> tuple[str | None, str]:
    """Split the arguments [RUN] LAST of a command. The run is None if only --where selects it.

    Raises:
        ConfigError: If the arguments contain no run and --where is not given, or if they contain several runs.
    """
    *runs, last = words
    if len(runs) > 1 or not (runs or where):
        raise ConfigError("Too many arguments" if runs else "The run is missing", hint=f"Use: emtc {usage}")
    return (runs[0] if runs else None), last


def runs(
    where: Where = None,
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
    print_table(table, title="Runs", empty=empty)


def show(run: RunPrefix = None, where: Where = None, db: DatabaseUrl = DEFAULT_DATABASE, json: AsJson = False) -> None:
    """Show one run: status, progress, configuration and versions."""
    from app.analysis.quantities import read_last_success_rate
    from app.jobs.resume import examine_checkpoints

    database = open_database(db, read_only=True)
    row = choose_run(database, run, where)
    facts: dict[str, Any] = {**asdict(row), "folder": _folder(database, row.id)}
    facts["status"] = facts.pop("live_status")
    del facts["owner_token"]
    facts["gate"] = _gate_facts(gate_state(database, row.id))
    facts["no_success"] = idle_incentives(database, [row.id]).get(row.id)
    facts["success_rate"] = read_last_success_rate(database, row.id)
    status = examine_checkpoints(database, row)
    facts["checkpoints"] = [asdict(checkpoint) for checkpoint in status.checkpoints]
    facts["best"] = [asdict(checkpoint) for checkpoint in status.best]
    facts["resumes"] = list_resumes(database, row.id).astype(object).to_dict("records")
    facts["superseded_steps"] = sum(row["reached_env_step"] - row["env_step"] for row in facts["resumes"])
    label = imported_label(row.config)
    facts["steps_note"] = (
        f"Transitions are numbered 1 to {row.env_steps} without gaps. The training length is {row.target_steps}; "
        "the run ends with the episode that reaches it."
        if label is None
        else f"The run was imported ({label}): it has evaluations, and no episodes or transitions."
    )
    if json:
        print_json(facts)
        return
    config = facts.pop("config")
    print_table([{"field": k, "value": v} for k, v in facts.items()], title=f"Run {row.id}")
    print_table([{"section": k, "values": v} for k, v in config.items()], title="Configuration")


def stop(runs: Runs = None, where: Where = None, db: DatabaseUrl = DEFAULT_DATABASE) -> int:
    """Stop runs. Each writes a checkpoint. The exit code is 1 if a trainer does not respond."""
    database = open_database(db, create=False)
    return apply_to_runs(choose_runs(database, runs, where), partial(request_stop, database))


def pause(runs: Runs = None, where: Where = None, db: DatabaseUrl = DEFAULT_DATABASE) -> int:
    """Pause runs between two environment steps. The exit code is 1 if a trainer does not respond."""
    database = open_database(db, create=False)
    return apply_to_runs(choose_runs(database, runs, where), lambda run_id: send_and_wait(database, run_id, "pause"))


def apply_to_runs(run_ids: Sequence[str], command: Callable[[str], str]) -> int:
    """Apply a command to each run, also if it fails for another one, and print each result.

    Args:
        run_ids: The runs.
        command: Applies the command to the run with this id, and returns the message to print.

    Returns:
        The exit code: 1 if a trainer does not respond, 2 if a run does not allow the command, otherwise 0.
    """
    codes = {0}
    for run_id in run_ids:
        try:
            print_message(command(run_id))
        except EmtcError as exc:
            print_message(str(exc))
            codes.add(1 if isinstance(exc, CommandTimeoutError) else 2)
    return 1 if 1 in codes else max(codes)


def ask_run(
    words: Annotated[
        list[str], typer.Argument(metavar="[RUN] KIND", help=f"Run, unless --where selects it, and the kind. {_KIND}")
    ],
    where: Where = None,
    episode: Annotated[int | None, typer.Option("--episode", min=1, max=MAX_EPISODE, help=_EPISODE)] = None,
    wait: Annotated[float, typer.Option("--wait", min=0, max=86_400, help=_WAIT)] = 600.0,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """Evaluate or play the present policy of an active run. The results of its training do not change."""
    from app.jobs.questions import ask_and_wait, describe

    run, last = _split_words(words, where, usage="ask RUN KIND")
    kind = choose("kind", last, get_args(QuestionKind))
    database = open_database(db, create=False)
    row = choose_run(database, run, where)
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
    runs: Runs = None,
    where: Where = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask. A terminal is asked; elsewhere --where needs it")
    ] = False,
) -> None:
    """Delete runs with their recorded data, their logs and their checkpoints."""
    from storage.runs.removal import count_run_contents, remove_run

    database = open_database(db, create=False)
    run_ids = choose_runs(database, runs, where)
    for run_id in run_ids:
        check_allowed(run_id, find_run(database, run_id).live_status, "delete")
    contents = {run_id: count_run_contents(database, run_id) for run_id in run_ids}
    if not yes and sys.stdin.isatty():
        if len(run_ids) > 1:
            for run_id, content in contents.items():
                print_message(f"Run {run_id}: {content}.")
        what = f"run {run_ids[0]}: {contents[run_ids[0]]}" if len(run_ids) == 1 else f"these {len(run_ids)} runs"
        typer.confirm(f"Permanently delete {what}?", abort=True)
    elif where and not yes:
        print_message(f"Nothing was deleted. To delete {format_run_count(len(run_ids))}, add: --yes")
        return
    for run_id, content in contents.items():
        remove_run(database, run_id)
        print_message(f"Deleted run {run_id}: {content}.")


def _set_visibility(db: str, runs: Sequence[str] | None, where: Sequence[str] | None, act: VisibilityAction) -> None:
    database = open_database(db, create=False)
    ids = choose_runs(database, runs, where, visibility="archived" if act == "restore" else "open")
    verb = {"archive": "Archived", "restore": "Restored", "hide": "Hid", "show": "Unhid"}[act]
    print_message(f"{verb} {set_visibility(database, ids, act)} of {format_run_count(len(ids))}.")


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
    """Return the folder of a run's files, or why EMTC_FILES cannot be used."""
    try:
        return str(run_folder(db, run_id))
    except StorageError as exc:
        return str(exc)


def _gate_facts(state: GateState | None) -> dict[str, Any] | None:
    """Return the state of the gate with the short names of its metrics; None for a run without a gate."""
    if state is None:
        return None
    values = {name.partition("/")[2]: value for name, value in state.values.items()}
    return {"state": state.state, "reason": state.sentence, **values}
