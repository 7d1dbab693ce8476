"""What people say about many runs at once: tags, notes, and the shelf where they lie. All of them or none change.

Name, tags and note of a single run are written by `storage.runs.edit_run`; what may be written says `label_rules`.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import Connection, select, update

from emtc_core.errors import RunNotFoundError, RunStateError
from storage import lifecycle
from storage.engine import Database
from storage.label_rules import check_note, check_tags
from storage.lifecycle import Event
from storage.models import Run
from storage.runs import STATE_COLUMNS, state_now

Act = Literal["hide", "show", "archive", "restore"]
_AT_ONCE = 500  # databases limit the parameters of one statement


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
        for part in _parts(ids):
            values = {column.key: datetime.now(UTC) if aside else None}
            connection.execute(update(Run).where(Run.id.in_(part)).values(**values))
    return len(ids)


def _refuse_at_work(rows: Sequence[Any]) -> None:
    for row in rows:
        if not lifecycle.allows(state := state_now(row), Event.DELETE):
            raise RunStateError(f"Run {row.id} is {state.value}: only a run at rest is archived. emtc stop {row.id}")


def _locked(connection: Connection, run_ids: Sequence[str], *columns: Any) -> Iterator[Any]:
    """Read columns of runs for writing, in the order of their ids, so that two who write never wait for each other."""
    asked = sorted(set(run_ids))
    chosen = {column.key: column for column in (Run.id, *columns)}
    for part in _parts(asked):
        rows = connection.execute(
            select(*chosen.values()).where(Run.id.in_(part)).order_by(Run.id).with_for_update(of=Run)
        ).all()
        if missing := set(part) - {row.id for row in rows}:
            raise RunNotFoundError(f'There is no run "{min(missing)}". List them with: emtc runs')
        yield from rows


def _parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[first : first + _AT_ONCE] for first in range(0, len(ids), _AT_ONCE))
