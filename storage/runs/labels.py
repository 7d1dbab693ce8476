"""What people say about runs: names, tags, notes, and the shelf where they lie. All runs of a call change, or none."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import Connection, select, update

from emtc_core.errors import RunNotFoundError, RunStateError
from storage.engine import Database
from storage.frames import in_parts
from storage.guards import LONGEST_NAME, shorten
from storage.models import Run
from storage.runs import lifecycle
from storage.runs.lifecycle import Event
from storage.runs.rows import STATE_COLUMNS, locked_row, state_now

LONGEST_TAG, MOST_TAGS, LONGEST_NOTE = 64, 50, 20_000


def check_labels(name: str | None, tags: Sequence[str] | None, notes: str | None) -> dict[str, Any]:
    """Return the columns that are to change; None changes nothing.

    Raises:
        RunStateError: If a tag is none, the name is empty or the note too long.
    """
    if name is not None:
        check_name(name)
    if notes is not None:
        check_note(notes)
    values = {"name": name, "tags": None if tags is None else check_tags(tags), "notes": notes}
    return {key: value for key, value in values.items() if value is not None}


def check_name(name: str) -> str:
    """Return the name of a run, or refuse one that is empty or too long.

    Raises:
        RunStateError: If it is.
    """
    if not name.strip():
        raise RunStateError("The name of a run must not be empty.")
    if len(name) > LONGEST_NAME:
        raise RunStateError(f"The name of a run holds at most {LONGEST_NAME:,} characters, got {len(name):,}.")
    return name


def check_note(text: str) -> str:
    """Return a note, or refuse one that is too long.

    Raises:
        RunStateError: If it has more than LONGEST_NOTE characters.
    """
    if len(text) > LONGEST_NOTE:
        raise RunStateError(f"A note holds at most {LONGEST_NOTE:,} characters, got {len(text):,}.")
    return text


def check_tags(tags: Sequence[str]) -> list[str]:
    """Return tags sorted and each once, or refuse what is none.

    Raises:
        RunStateError: If one is empty, longer than LONGEST_TAG or holds a comma or a sign that cannot be printed, or
            there are more than MOST_TAGS.
    """
    for tag in tags:
        if not tag.strip() or tag != tag.strip() or len(tag) > LONGEST_TAG or "," in tag or not tag.isprintable():
            raise RunStateError(
                f"A tag is 1 to {LONGEST_TAG} printable characters without a comma or a space at its ends, "
                f"got {shorten(tag)}.",
                reason="not_a_tag",
                subject=tag,
            )
    if len(set(tags)) > MOST_TAGS:
        raise RunStateError(f"A run carries at most {MOST_TAGS} tags, got {len(set(tags))}.")
    return sorted(set(tags))


Act = Literal["hide", "show", "archive", "restore"]


def tag_runs(db: Database, run_ids: Sequence[str], *, add: Sequence[str] = (), remove: Sequence[str] = ()) -> int:
    """Add tags to runs and take others away, whatever else they are tagged with; return how many runs changed.

    Raises:
        RunNotFoundError: If one of them is not there; nothing is changed then.
        RunStateError: If a tag is none; see `check_tags`.
    """
    new, old = set(check_tags(add)), set(remove)
    changed = 0
    with db.transaction() as connection:
        for row in _locked(connection, run_ids, Run.tags):
            tags = sorted((set(row.tags) - old) | new)
            if tags != row.tags:
                connection.execute(update(Run).where(Run.id == row.id).values(tags=check_tags(tags)))
                changed += 1
    return changed


def note_runs(db: Database, run_ids: Sequence[str], text: str) -> int:
    """Add a line to the notes of runs; return how many there are.

    Raises:
        RunNotFoundError: If one of them is not there; nothing is changed then.
        RunStateError: If a note gets too long; nothing is changed then.
    """
    with db.transaction() as connection:
        rows = list(_locked(connection, run_ids, Run.notes))
        for row in rows:
            notes = f"{row.notes}\n{text}" if row.notes else text
            connection.execute(update(Run).where(Run.id == row.id).values(notes=check_note(notes)))
    return len(rows)


def shelve_runs(db: Database, run_ids: Sequence[str], act: Act) -> int:
    """Hide runs from figures, archive them out of lists and figures, or bring them back; return how many changed.

    Raises:
        RunNotFoundError: If one of them is not there; nothing is changed then.
        RunStateError: If one that is to be archived is at work.
    """
    column = Run.hidden_at if act in ("hide", "show") else Run.archived_at
    aside = act in ("hide", "archive")
    with db.transaction() as connection:
        rows = list(_locked(connection, run_ids, column.label("since"), *STATE_COLUMNS))
        if act == "archive":
            _refuse_at_work(rows)
        ids = [row.id for row in rows if (row.since is None) == aside]
        for part in in_parts(ids):
            values = {column.key: datetime.now(UTC) if aside else None}
            connection.execute(update(Run).where(Run.id.in_(part)).values(**values))
    return len(ids)


def _refuse_at_work(rows: Sequence[Any]) -> None:
    for row in rows:
        if not lifecycle.allows(state := state_now(row), Event.DELETE):
            raise RunStateError(
                f"Run {row.id} is {state.value}: only a run at rest is archived. emtc stop {row.id}",
                reason="at_work",
                subject=row.id,
            )


def _locked(connection: Connection, run_ids: Sequence[str], *columns: Any) -> Iterator[Any]:
    """Read columns of runs for writing, in the order of their ids, so that two who write never wait for each other."""
    asked = sorted(set(run_ids))
    chosen = {column.key: column for column in (Run.id, *columns)}
    for part in in_parts(asked):
        rows = connection.execute(
            select(*chosen.values()).where(Run.id.in_(part)).order_by(Run.id).with_for_update(of=Run)
        ).all()
        if missing := set(part) - {row.id for row in rows}:
            raise RunNotFoundError(
                f'There is no run "{min(missing)}". List them with: emtc runs', reason="not_found", subject=min(missing)
            )
        yield from rows


def edit_run(
    db: Database,
    run_id: str,
    *,
    name: str | None = None,
    tags: Sequence[str] | None = None,
    notes: str | None = None,
) -> None:
    """Change what people say about a run; None leaves a field as it is.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If a tag is none, the name is empty or the note too long.
    """
    values = check_labels(name, tags, notes)
    with db.transaction() as connection:
        locked_row(connection, run_id)
        if values:
            connection.execute(update(Run).where(Run.id == run_id).values(**values))
