"""What the exports write: entries with their figures read back, and the addresses of their views."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.analysis.format import clock
from app.notebook.frozen import Figure, note_of, thaw
from app.notebook.view import View, describe_cited, read_view
from emtc_core.errors import EmtcError
from storage.engine import Database
from storage.notebook import EntryRow, get_entry, get_figure


@dataclass(frozen=True)
class Gathered:
    """One entry, complete."""

    row: EntryRow
    frozen: dict[str, Any] | None
    figure: Figure | None  # None too when this version cannot read it
    view: View | None

    @property
    def title(self) -> str:
        """The title in one line."""
        return " ".join(self.row.title.split()) or "Untitled"

    @property
    def dates(self) -> str:
        """When it was written and last changed."""
        made = f"Entry {self.row.id}, {clock(self.row.created_at)}"
        return made if self.row.updated_at == self.row.created_at else f"{made}, edited {clock(self.row.updated_at)}"

    @property
    def caption(self) -> str:
        """The figure's caption and what was left out of it."""
        parts = (self.figure.caption if self.figure else "", note_of(self.frozen or {}))
        return " ".join(part for part in parts if part)

    @property
    def origins(self) -> list[str]:
        """One line for every run that it cites."""
        return [describe_cited(run) for run in self.row.cited]


def gather(db: Database, ids: Sequence[int]) -> list[Gathered]:
    """Read entries in the given order.

    Raises:
        EntryNotFoundError: If one does not exist.
    """
    return [_gather(db, entry_id) for entry_id in ids]


def view_link(view: View, address: str | None) -> str | None:
    """Write the full address of a view, if the address of the app is known."""
    if address is None or not address.startswith(("http://", "https://")):
        return None
    return address.rstrip("/") + view.address


def _gather(db: Database, entry_id: int) -> Gathered:
    row = get_entry(db, entry_id)
    frozen = get_figure(db, entry_id)
    try:
        figure = thaw(frozen) if frozen else None
    except EmtcError:  # the text is worth exporting without its figure
        figure = None
    return Gathered(row, frozen, figure, read_view(row.view))
