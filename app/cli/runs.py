"""Commands for runs: `emtc runs | show | stop | pause | ask | delete | tag | note | archive | hide`.

They call the same functions as the pages.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from math import ceil
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
    check_choice,
    choose_run,
    choose_runs,
)
from app.cli.output import print_json, print_message, print_table
from emtc_core.control import QuestionKind
from emtc_core.errors import CommandTimeoutError, ConfigError, EmtcError, StorageError
from storage.engine import Database, open_database
from storage.files import run_folder
from storage.queries.final_rates import read_final_rates
from storage.queries.gate_state import GateState, gate_state, idle_incentives
from storage.queries.run_search import SORTS, TABLE_COLUMNS, RunFilter, run_rows
from storage.queries.runs import list_resumes
from storage.runs.control import request_stop, send_and_wait
from storage.runs.labels import VisibilityAction, edit_run, note_runs, set_visibility, tag_runs
from storage.runs.rows import RunRow, find_run, imported_label
from storage.runs.status import Status, check_allowed

PAGE_ROWS = 200
"""Rows per page of `emtc runs`, unless --limit is given."""
MAX_ROWS = 1_000_000
MAX_EPISODE = 10**15
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
    prefixes = list(runs or ())
    if not add and not remove:
        if not prefixes or (len(prefixes) < 2 and not where):
            raise ConfigError("A tag is missing", hint="Use: emtc tag RUN… NAME, or emtc tag RUN… --remove NAME")
        add = [prefixes.pop()]
    database = open_database(db, create=False)
    run_ids = choose_runs(database, prefixes, where)
    n_changed = tag_runs(database, run_ids, add=add or (), remove=remove or ())
    print_message(f"Changed the tags of {n_changed} of {format_run_count(len(run_ids))}.")


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
    page_size = limit
    if limit is None and not json:
        page_size = PAGE_ROWS
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
    rows, n_matching = run_rows(database, run_filter, sort=sort, limit=page_size, offset=offset)
    _print_page_number(len(rows), n_matching, page, page_size)
    if json:
        print_json([{name: _write_time(value) for name, value in row.items()} for row in rows])
        return
    is_database_empty = run_filter == RunFilter() and not n_matching
    empty = "No runs yet. Start one with: emtc train --set preset=demo" if is_database_empty else "No run matches."
    table = [{column: row[column] for column in TABLE_COLUMNS} for row in rows]
    print_table(table, title="Runs", empty=empty)


def show(run: RunPrefix = None, where: Where = None, db: DatabaseUrl = DEFAULT_DATABASE, json: AsJson = False) -> None:
    """Show one run: status, progress, configuration and versions."""
    database = open_database(db, read_only=True)
    description = _describe_run(database, choose_run(database, run, where))
    if json:
        print_json(description)
        return
    config = description.pop("config")
    fields = [{"field": name, "value": value} for name, value in description.items()]
    sections = [{"section": name, "values": values} for name, values in config.items()]
    print_table(fields, title=f"Run {description['id']}")
    print_table(sections, title="Configuration")


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
    is_without_response = is_refused = False
    for run_id in run_ids:
        try:
            print_message(command(run_id))
        except CommandTimeoutError as exc:
            print_message(str(exc))
            is_without_response = True
        except EmtcError as exc:
            print_message(str(exc))
            is_refused = True
    if is_without_response:
        return 1
    return 2 if is_refused else 0


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
    kind = check_choice("kind", last, get_args(QuestionKind))
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
        _confirm_deletion(contents)
    elif where and not yes:
        print_message(f"Nothing was deleted. To delete {format_run_count(len(run_ids))}, add: --yes")
        return
    for run_id, content in contents.items():
        remove_run(database, run_id)
        print_message(f"Deleted run {run_id}: {content}.")


def _confirm_deletion(contents: Mapping[str, object]) -> None:
    """Ask on the terminal whether the runs with these contents are to be deleted.

    Raises:
        Abort: If the user declines.
    """
    if len(contents) == 1:
        [(run_id, content)] = contents.items()
        typer.confirm(f"Permanently delete run {run_id}: {content}?", abort=True)
        return
    for run_id, content in contents.items():
        print_message(f"Run {run_id}: {content}.")
    typer.confirm(f"Permanently delete these {len(contents)} runs?", abort=True)


def _set_visibility(
    db: str, prefixes: Sequence[str] | None, where: Sequence[str] | None, action: VisibilityAction
) -> None:
    database = open_database(db, create=False)
    run_ids = choose_runs(database, prefixes, where, visibility="archived" if action == "restore" else "open")
    verb = {"archive": "Archived", "restore": "Restored", "hide": "Hid", "show": "Unhid"}[action]
    n_changed = set_visibility(database, run_ids, action)
    print_message(f"{verb} {n_changed} of {format_run_count(len(run_ids))}.")


def _print_page_number(n_rows: int, n_matching: int, page: int, page_size: int | None) -> None:
    """Print to stderr which page is listed, if there are others."""
    if page_size is None or n_rows == n_matching:
        return
    n_pages = ceil(n_matching / page_size)
    if page > n_pages:
        print_message(f"There is no page {page}: {n_matching:,} runs match, on {n_pages:,} pages.")
    else:
        next_page = f" Next: --page {page + 1}" if page < n_pages else ""
        print_message(f"Page {page} of {n_pages:,}: {n_rows:,} of {n_matching:,} matching runs.{next_page}")


def _write_time(value: Any) -> Any:
    return str(value) if isinstance(value, datetime) else value


def _describe_run(db: Database, row: RunRow) -> dict[str, Any]:
    """Return what `emtc show --json` prints about a run."""
    from app.analysis.quantities import read_last_success_rate
    from app.jobs.resume import examine_checkpoints

    checkpoint_status = examine_checkpoints(db, row)
    resumes = list_resumes(db, row.id).astype(object).to_dict("records")
    description: dict[str, Any] = {**asdict(row), "folder": _describe_folder(db, row.id)}
    description["status"] = description.pop("live_status")
    del description["owner_token"]
    description["gate"] = _describe_gate(gate_state(db, row.id))
    description["no_success"] = idle_incentives(db, [row.id]).get(row.id)  # why the run has no incentive
    final = read_final_rates(db, [row.id]).get(row.id)
    description["final_rate"] = final.rate if final else None
    description["final_rate_episodes"] = final.episodes if final else None
    description["success_rate"] = read_last_success_rate(db, row.id)
    description["checkpoints"] = [asdict(checkpoint) for checkpoint in checkpoint_status.checkpoints]
    description["best"] = [asdict(checkpoint) for checkpoint in checkpoint_status.best]
    description["resumes"] = resumes
    description["superseded_steps"] = sum(resume["reached_env_step"] - resume["env_step"] for resume in resumes)
    description["steps_note"] = _describe_steps(row)
    return description


def _describe_folder(db: Database, run_id: str) -> str:
    """Return the folder of a run's files, or why EMTC_FILES cannot be used."""
    try:
        return str(run_folder(db, run_id))
    except StorageError as exc:
        return str(exc)


def _describe_gate(state: GateState | None) -> dict[str, Any] | None:
    """Return the state of the gate (the weight of the episodic incentive) and its metrics; None if the run has none."""
    if state is None:
        return None
    values = {name.partition("/")[2]: value for name, value in state.values.items()}  # gate/tau → tau
    return {"state": state.state, "reason": state.sentence, **values}


def _describe_steps(row: RunRow) -> str:
    label = imported_label(row.config)
    if label is not None:
        return f"The run was imported ({label}): it has evaluations, and no episodes or transitions."
    return (
        f"Transitions are numbered 1 to {row.env_steps} without gaps. The training length is {row.target_steps}; "
        "the run ends with the episode that reaches it."
    )
