"""The research notebook: create, search, edit, delete and restore entries.

An entry contains a note, a figure as plain JSON values, and `view`: the page, its URL state and a copy of the cited
runs' data. An entry is kept when a cited run is deleted. `app.notebook` defines the content of figure and view.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from emtc_core.errors import EntryChangedError, EntryNotFoundError
from storage.engine import Database
from storage.frames import Statement
from storage.models import Entry, Run

_COLUMNS = (
    *(Entry.id, Entry.created_at, Entry.updated_at, Entry.run_id, Entry.title, Entry.body, Entry.view),
    Entry.figure.is_not(None).label("has_figure"),
)


@dataclass(frozen=True)
class EntryRow:
    """One entry without its figure, which may be large. `get_figure` reads it."""

    id: int
    created_at: datetime
    updated_at: datetime
    run_id: str | None  # None if it cites no run or several, or the run was deleted
    title: str
    body: str
    view: dict[str, Any] | None
    has_figure: bool

    @property
    def cited_runs(self) -> list[dict[str, Any]]:
        """Data of the cited runs when the entry was created: id, name, algo, map, seed and more."""
        runs = (self.view or {}).get("runs")
        return [run for run in runs if isinstance(run, dict)] if isinstance(runs, list) else []


@dataclass(frozen=True)
class DeletedEntry:
    """A deleted entry with its figure, for `restore_entry`."""

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
    """Create an entry.

    Args:
        db: An open database.
        title: Any text.
        body: Markdown.
        run_id: The cited run, if it is exactly one. It is stored as None if the run does not exist.
        figure: The figure as plain JSON values.
        view: Page, URL state and cited runs, as plain JSON values.
        token: Any text that is unique to one click. A second call with the same token creates nothing.

    Returns:
        The id of the entry, or of the entry that was created with the same token.
    """
    now = datetime.now(UTC)
    values: dict[str, Any] = {"created_at": now, "updated_at": now, "run_id": run_id, "title": title, "body": body}
    values |= {"figure": None if figure is None else dict(figure), "view": None if view is None else dict(view)}
    with db.transaction() as connection:
        if token is not None:
            if db.dialect == "postgresql":  # SQLite allows only one write transaction at a time
                # Not an advisory lock: a role that can only read could take it, too.
                connection.exec_driver_sql("LOCK TABLE entries IN SHARE ROW EXCLUSIVE MODE")
            existing = connection.execute(select(Entry.id).where(Entry.view["token"].as_string() == token)).first()
            if existing is not None:
                return existing.id
            values["view"] = (values["view"] or {}) | {"token": token}
        return _insert(connection, values)


def list_entries(db: Database, *, text: str = "", run_id: str | None = None) -> list[EntryRow]:
    """Which entries match? Newest first.

    Args:
        db: An open database.
        text: Words that must all occur in the title or the body, without regard to case.
        run_id: List only entries that cite this run. It may have been deleted.
    """
    with db.read() as connection:
        newest = select(*_COLUMNS).order_by(Entry.created_at.desc(), Entry.id.desc())
        rows = [_make_row(row) for row in connection.execute(newest)]
    words = text.casefold().split()  # not in SQL, because SQLite ignores the case of ASCII letters only

    def matches(row: EntryRow) -> bool:
        content = f"{row.title}\n{row.body}".casefold()
        is_cited = run_id in (None, row.run_id) or any(run.get("id") == run_id for run in row.cited_runs)
        return is_cited and all(word in content for word in words)

    return [row for row in rows if matches(row)]


def get_entry(db: Database, entry_id: int) -> EntryRow:
    """Get an entry without its figure.

    Raises:
        EntryNotFoundError: If there is no such entry.
    """
    with db.read() as connection:
        return _make_row(_get_row(connection, select(*_COLUMNS).where(Entry.id == entry_id), entry_id))


def get_figure(db: Database, entry_id: int) -> dict[str, Any] | None:
    """Get the figure of an entry, or None if it has no figure.

    Raises:
        EntryNotFoundError: If there is no such entry.
    """
    with db.read() as connection:
        return _get_row(connection, select(Entry.figure).where(Entry.id == entry_id), entry_id).figure


def edit_entry(
    db: Database, entry_id: int, *, title: str, body: str, base_updated_at: datetime | None = None
) -> datetime:
    """Change the title and the body of an entry.

    Args:
        db: An open database.
        entry_id: The entry.
        title: The new title.
        body: The new body, Markdown.
        base_updated_at: `updated_at` of the entry that the user edited; None overwrites any later change.

    Returns:
        The new `updated_at`.

    Raises:
        EntryNotFoundError: If there is no such entry.
        EntryChangedError: If the entry was changed after `base_updated_at`. Nothing is written then.
    """
    with db.transaction() as connection:
        statement = select(Entry.updated_at).where(Entry.id == entry_id).with_for_update()
        changed_at = _get_row(connection, statement, entry_id).updated_at
        if base_updated_at is not None and changed_at != base_updated_at:
            raise EntryChangedError(
                f"Entry {entry_id} was changed at {changed_at:%H:%M:%S} UTC, after you opened it. "
                "Your changes were not saved. Compare both versions and save again."
            )
        now = max(datetime.now(UTC), changed_at + timedelta(microseconds=1))
        values = {"title": _remove_nul(title), "body": _remove_nul(body), "updated_at": now}
        connection.execute(update(Entry).where(Entry.id == entry_id).values(**values))
    return now


def delete_entry(db: Database, entry_id: int) -> DeletedEntry:
    """Delete an entry and return it with its figure.

    Raises:
        EntryNotFoundError: If there is no such entry.
    """
    with db.transaction() as connection:
        row = _get_row(connection, select(*_COLUMNS, Entry.figure).where(Entry.id == entry_id), entry_id)
        connection.execute(delete(Entry).where(Entry.id == entry_id))
    return DeletedEntry(_make_row(row), row.figure)


def restore_entry(db: Database, deleted: DeletedEntry) -> None:
    """Restore a deleted entry with its id. Does nothing if the entry exists."""
    row = deleted.row
    values = {"id": row.id, "created_at": row.created_at, "updated_at": row.updated_at, "run_id": row.run_id}
    values |= {"title": row.title, "body": row.body, "view": row.view, "figure": deleted.figure}
    with db.transaction() as connection:
        if connection.execute(select(Entry.id).where(Entry.id == row.id)).first() is None:
            _insert(connection, values)


def _insert(connection: Connection, values: dict[str, Any]) -> int:
    run_id = connection.execute(select(Run.id).where(Run.id == values["run_id"])).scalar_one_or_none()
    row = {name: value for name, value in values.items() if value is not None}  # None would be stored as JSON null
    row |= {"run_id": run_id, "title": _remove_nul(values["title"]), "body": _remove_nul(values["body"])}
    return connection.execute(insert(Entry).returning(Entry.id), row).scalar_one()


def _remove_nul(text: str) -> str:
    """Remove the NUL character, which PostgreSQL cannot store."""
    return text.replace("\0", "")


def _get_row(connection: Connection, statement: Statement, entry_id: int) -> Any:
    row = connection.execute(statement).one_or_none()
    if row is None:
        raise EntryNotFoundError(f"There is no notebook entry {entry_id}. List them with: emtc notebook")
    return row


def _make_row(row: Any) -> EntryRow:
    return EntryRow(**{name: row._mapping[name] for name in EntryRow.__dataclass_fields__})
