"""Change the names, tags and notes of runs; hide and archive runs. A call changes all of its runs or none."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import Connection, select, update

from emtc_core.errors import RunNotFoundError, RunStateError
from storage.engine import Database
from storage.frames import in_parts
from storage.guards import MAX_NAME_LENGTH, shorten
from storage.models import Run
from storage.runs.rows import get_locked_row, read_live_status
from storage.runs.status import STATUS_COLUMNS, check_allowed, read_clock

VisibilityAction = Literal["hide", "show", "archive", "restore"]

LONGEST_TAG, LONGEST_NOTE = 64, 20_000
"""Maximum lengths [characters]."""
MOST_TAGS = 50
"""Maximum number of tags of a run."""


def check_tags(tags: Sequence[str]) -> list[str]:
    """Return tags sorted and without duplicates.

    Raises:
        RunStateError: If a tag is empty, longer than LONGEST_TAG or contains a comma or an unprintable character, or if
            there are more than MOST_TAGS.
    """
    for tag in tags:
        if not tag.strip() or tag != tag.strip() or len(tag) > LONGEST_TAG or "," in tag or not tag.isprintable():
            raise RunStateError(
                f"A tag is 1 to {LONGEST_TAG} printable characters without a comma or a space at its ends "
                f"(got {shorten(tag)})."
            )
    if len(set(tags)) > MOST_TAGS:
        raise RunStateError(f"A run can have at most {MOST_TAGS} tags (got {len(set(tags))}).")
    return sorted(set(tags))


def tag_runs(db: Database, run_ids: Sequence[str], *, add: Sequence[str] = (), remove: Sequence[str] = ()) -> int:
    """Add tags to runs and remove others; other tags stay. Return the number of runs that changed.

    Args:
        db: An open database.
        run_ids: The runs.
        add: Tags to add.
        remove: Tags to remove.

    Raises:
        RunNotFoundError: If one of the runs does not exist.
        RunStateError: If a tag is invalid; see `check_tags`.
    """
    added, removed = set(check_tags(add)), set(remove)
    changed = 0
    with db.transaction() as connection:
        for row in _read_locked(connection, run_ids, Run.tags):
            tags = sorted((set(row.tags) - removed) | added)
            if tags != row.tags:
                connection.execute(update(Run).where(Run.id == row.id).values(tags=check_tags(tags)))
                changed += 1
    return changed


def note_runs(db: Database, run_ids: Sequence[str], text: str) -> int:
    """Add a line to the notes of runs; return the number of runs.

    Args:
        db: An open database.
        run_ids: The runs.
        text: The line.

    Raises:
        RunNotFoundError: If one of the runs does not exist.
        RunStateError: If a note would be longer than LONGEST_NOTE.
    """
    with db.transaction() as connection:
        rows = list(_read_locked(connection, run_ids, Run.notes))
        for row in rows:
            notes = f"{row.notes}\n{text}" if row.notes else text
            connection.execute(update(Run).where(Run.id == row.id).values(notes=_check_note(notes)))
    return len(rows)


def set_visibility(db: Database, run_ids: Sequence[str], act: VisibilityAction) -> int:
    """Hide runs in figures, archive them (also hidden in lists), or undo it. Return the number of runs that changed.

    Args:
        db: An open database.
        run_ids: The runs.
        act: What to do.

    Raises:
        RunNotFoundError: If one of the runs does not exist.
        RunStateError: If a run to be archived has a trainer.
    """
    column = Run.hidden_at if act in ("hide", "show") else Run.archived_at
    sets_time = act in ("hide", "archive")
    with db.transaction() as connection:
        rows = list(_read_locked(connection, run_ids, column.label("since"), *STATUS_COLUMNS))
        if act == "archive":
            now = read_clock(connection)
            for row in rows:
                check_allowed(row.id, read_live_status(db, row, now)[0], "archive")
        ids = [row.id for row in rows if (row.since is None) == sets_time]
        for part in in_parts(ids):
            values = {column.key: datetime.now(UTC) if sets_time else None}
            connection.execute(update(Run).where(Run.id.in_(part)).values(**values))
    return len(ids)


def edit_run(db: Database, run_id: str, *, name: str | None = None, notes: str | None = None) -> None:
    """Change the name or the notes of a run.

    Args:
        db: An open database.
        run_id: The run.
        name: New name; None: no change.
        notes: New notes; None: no change.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If the name is empty, or a text is too long.
    """
    values: dict[str, Any] = {}
    if name is not None:
        if not name.strip():
            raise RunStateError("The name of a run must not be empty.")
        if len(name) > MAX_NAME_LENGTH:
            raise RunStateError(
                f"The name of a run can have at most {MAX_NAME_LENGTH:,} characters (got {len(name):,})."
            )
        values["name"] = name
    if notes is not None:
        values["notes"] = _check_note(notes)
    with db.transaction() as connection:
        get_locked_row(connection, run_id)
        if values:
            connection.execute(update(Run).where(Run.id == run_id).values(**values))


def _check_note(text: str) -> str:
    if len(text) > LONGEST_NOTE:
        raise RunStateError(f"A note can have at most {LONGEST_NOTE:,} characters (got {len(text):,}).")
    return text


def _read_locked(connection: Connection, run_ids: Sequence[str], *columns: Any) -> Iterator[Any]:
    """Read columns of runs and lock their rows, in the order of the ids, so that two writers cannot deadlock."""
    by_name = {column.key: column for column in (Run.id, *columns)}
    for part in in_parts(sorted(set(run_ids))):
        statement = select(*by_name.values()).where(Run.id.in_(part)).order_by(Run.id).with_for_update(of=Run)
        rows = connection.execute(statement).all()
        if missing := set(part) - {row.id for row in rows}:
            raise RunNotFoundError(f'There is no run "{min(missing)}". List them with: emtc runs')
        yield from rows
