"""The mark that a trainer leaves with a run's files: who wrote there last, and for which database.

A copy of a SQLite database, a backup for instance, names the same files as the original does. Without the mark,
whoever tidied up or trained in the copy would delete or replace the checkpoints of the original.
"""

import json
import secrets
import socket
from pathlib import Path
from typing import Any, Final

from emtc_core.errors import StorageError
from storage.engine import Database
from storage.files import find_folder, read_tail
from storage.guards import check_identifier, shorten
from storage.places import Place

MARK: Final = "trainer.json"
_MOST_BYTES: Final = 8_000


def make_mark(db: Database) -> bytes:
    """Name this trainer, and the file of its database."""
    path = str(db.path.resolve()) if db.path else None
    return json.dumps({"host": socket.gethostname(), "session": secrets.token_hex(8), "database": path}).encode()


def read_mark(place: Place, run_id: str) -> bytes:
    """Read the mark of the trainer that wrote last; nothing where there is none.

    Raises:
        StorageError: If the place does not answer.
    """
    if files := place.files_of(run_id):
        return files.read_tail(MARK, _MOST_BYTES)
    return read_tail(find_folder(place.root, check_identifier(run_id)) / MARK, _MOST_BYTES)


def check_mark(db: Database, place: Place, run_id: str) -> None:
    """Refuse to touch files that a copy of another database names.

    Raises:
        StorageError: If they are the other's, or the place does not answer.
    """
    if place.recorded is None or db.path is None:
        return
    said = _parse(read_mark(place, run_id))
    path, host = said.get("database"), said.get("host")
    here = str(db.path.resolve())
    if not isinstance(path, str) or path == here:
        return
    if host == socket.gethostname() and not Path(path).exists():  # it was moved
        return
    raise StorageError(
        f"The checkpoints of run {run_id} at {place.show(run_id)} belong to the database {shorten(path)} on "
        f"{shorten(host)}, and this one is a copy of it: nothing there is written or deleted. If it was moved here, "
        f"remove {MARK} there."
    )


def _parse(mark: bytes) -> dict[str, Any]:
    try:
        said = json.loads(mark or b"{}")
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
