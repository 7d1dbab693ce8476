"""The research notebook: entries made, found, edited, deleted and brought back.

An entry holds a note, a figure frozen as plain values and the view that it came from (`view`: page, URL state,
the cited runs as they were). It outlives the runs that it cites. What figure and view mean is `app.notebook`'s.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from emtc_core.errors import EntryChangedError, EntryNotFoundError
from storage.engine import Database
from storage.frames import Statement
from storage.models import Entry, Run

_ONE_AT_A_TIME = 20_250_723
"""PostgreSQL's advisory lock of whoever makes an entry with a token."""
_COLUMNS = (
    *(Entry.id, Entry.created_at, Entry.updated_at, Entry.run_id, Entry.title, Entry.body, Entry.view),
    Entry.figure.is_not(None).label("has_figure"),
)


@dataclass(frozen=True)
class EntryRow:
    """One entry without its figure, which may be large; see `get_figure`."""

    id: int
    created_at: datetime
    updated_at: datetime
    run_id: str | None  # None when it cites no run, or several, or the run was deleted
    title: str
    body: str
    view: dict[str, Any] | None
    has_figure: bool

    @property
    def cited(self) -> list[dict[str, Any]]:
        """The runs that it cites as they were: id, name, algo, map, seed and more."""
        runs = (self.view or {}).get("runs")
        return [run for run in runs if isinstance(run, dict)] if isinstance(runs, list) else []


@dataclass(frozen=True)
class DeletedEntry:
    """All of an entry that was deleted, so that it can be brought back."""

    row: EntryRow
    figure: dict[str, Any] | None


def create_entry(
    db: Database,
    *,
    title: str,
    body: str = "",
    run_id: str | None = None,
    figure: Mapping[str, Any] | None = None,
    view: Mapping[str, Any] | None = None,
    token: str | None = None,
) -> int:
    """Write a new entry.

    Args:
        db: An open database.
        title: Any text.
        body: Markdown.
        run_id: The one run that it is about; one that no longer exists is left out.
        figure: The figure as plain JSON values.
        view: Where it came from, as plain JSON values.
        token: Any text unique to one press of a button; the same one again makes nothing new.

    Returns:
        The id of the entry, or of the one that this token has made before.
    """
    now = datetime.now(UTC)
    values: dict[str, Any] = {"created_at": now, "updated_at": now, "run_id": run_id, "title": title, "body": body}
    values |= {"figure": None if figure is None else dict(figure), "view": None if view is None else dict(view)}
    with db.transaction() as connection:
        if token is not None:
            if db.dialect == "postgresql":  # SQLite has one writer anyway
                connection.execute(select(func.pg_advisory_xact_lock(_ONE_AT_A_TIME)))
            made = connection.execute(select(Entry.id).where(Entry.view["token"].as_string() == token)).first()
            if made is not None:
                return made.id
            values["view"] = (values["view"] or {}) | {"token": token}
        return _insert(connection, values)


def list_entries(db: Database, *, text: str = "", run_id: str | None = None) -> list[EntryRow]:
    """Which entries are there, newest first?

    Args:
        db: An open database.
        text: Every word of it stands in the title or the body, in any case.
        run_id: Only entries that cite this run, which may have been deleted.
    """
    with db.read() as connection:
        newest = select(*_COLUMNS).order_by(Entry.created_at.desc(), Entry.id.desc())
        rows = [_make_row(row) for row in connection.execute(newest)]
    words = text.casefold().split()  # here and not in SQL: SQLite folds the case of ASCII letters only
    return [row for row in rows if _cites(row, run_id) and _contains(row, words)]


def get_entry(db: Database, entry_id: int) -> EntryRow:
    """Read an entry without its figure.

    Raises:
        EntryNotFoundError: If there is none.
    """
    with db.read() as connection:
        return _make_row(_one(connection, select(*_COLUMNS).where(Entry.id == entry_id), entry_id))


def get_figure(db: Database, entry_id: int) -> dict[str, Any] | None:
    """Read the frozen figure of an entry, None if it has none.

    Raises:
        EntryNotFoundError: If there is no such entry.
    """
    with db.read() as connection:
        return _one(connection, select(Entry.figure).where(Entry.id == entry_id), entry_id).figure


def edit_entry(db: Database, entry_id: int, *, title: str, body: str, known: datetime | None = None) -> datetime:
    """Change title and body.

    Args:
        db: An open database.
        entry_id: The entry.
        title: The new title.
        body: The new body, Markdown.
        known: The `updated_at` that the writer has seen; None overwrites whatever is there.

    Returns:
        The new `updated_at`.

    Raises:
        EntryNotFoundError: If there is no such entry.
        EntryChangedError: If it was changed after `known`; nothing is written then.
    """
    with db.transaction() as connection:
        statement = select(Entry.updated_at).where(Entry.id == entry_id).with_for_update()
        changed_at = _one(connection, statement, entry_id).updated_at
        if known is not None and changed_at != known:
            raise EntryChangedError(
                f"Entry {entry_id} was changed elsewhere at {changed_at:%H:%M:%S} UTC, after you opened it. "
                "Nothing was saved. Compare both and save again.",
                reason="changed",
                subject=entry_id,
            )
        now = max(datetime.now(UTC), changed_at + timedelta(microseconds=1))
        values = {"title": _clean(title), "body": _clean(body), "updated_at": now}
        connection.execute(update(Entry).where(Entry.id == entry_id).values(**values))
    return now


def delete_entry(db: Database, entry_id: int) -> DeletedEntry:
    """Delete an entry and return all of it.

    Raises:
        EntryNotFoundError: If there is no such entry.
    """
    with db.transaction() as connection:
        found = _one(connection, select(*_COLUMNS, Entry.figure).where(Entry.id == entry_id), entry_id)
        connection.execute(delete(Entry).where(Entry.id == entry_id))
    return DeletedEntry(_make_row(found), found.figure)


def restore_entry(db: Database, deleted: DeletedEntry) -> None:
    """Bring a deleted entry back as it was, with its id; done twice, it changes nothing."""
    row = deleted.row
    values = {"id": row.id, "created_at": row.created_at, "updated_at": row.updated_at, "run_id": row.run_id}
    values |= {"title": row.title, "body": row.body, "view": row.view, "figure": deleted.figure}
    with db.transaction() as connection:
        if connection.execute(select(Entry.id).where(Entry.id == row.id)).first() is None:
            _insert(connection, values)


def _insert(connection: Connection, values: dict[str, Any]) -> int:
    known = connection.execute(select(Run.id).where(Run.id == values["run_id"])).scalar_one_or_none()
    present = {name: value for name, value in values.items() if value is not None}  # None would become JSON's null
    written = {**present, "run_id": known, "title": _clean(values["title"]), "body": _clean(values["body"])}
    return connection.execute(insert(Entry).returning(Entry.id), written).scalar_one()


def _clean(text: str) -> str:
    """Leave out the one character that PostgreSQL cannot keep."""
    return text.replace("\0", "")


def _one(connection: Connection, statement: Statement, entry_id: int) -> Any:
    row = connection.execute(statement).one_or_none()
    if row is None:
        raise EntryNotFoundError(
            f"There is no notebook entry {entry_id}. List them with: emtc notebook",
            reason="not_found",
            subject=entry_id,
        )
    return row


def _make_row(row: Any) -> EntryRow:
    return EntryRow(**{name: row._mapping[name] for name in EntryRow.__dataclass_fields__})


def _cites(row: EntryRow, run_id: str | None) -> bool:
    return run_id is None or row.run_id == run_id or any(run.get("id") == run_id for run in row.cited)


def _contains(row: EntryRow, words: list[str]) -> bool:
    held = f"{row.title}\n{row.body}".casefold()
    return all(word in held for word in words)
