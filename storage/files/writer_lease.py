"""The lease that a trainer leaves with a run's files: who wrote there last, and for which database.

A copy of a SQLite database, a backup for instance, names the same files as the original does. Without the lease,
whoever tidied up or trained in the copy would delete or replace the checkpoints of the original.
"""

import json
import secrets
import socket
from pathlib import Path
from typing import Any, Final

from emtc_core.errors import StorageError
from storage.engine import Database
from storage.files.places import Place
from storage.files.remote import RunFiles
from storage.guards import check_identifier, shorten
from storage.private_files import FILE_MODE, find_folder, make_private_folder, read_tail

LEASE: Final = "trainer.json"
_MOST_BYTES: Final = 8_000


def make_lease(db: Database) -> bytes:
    """The lease of this trainer, naming the file of its database."""
    path = str(db.path.resolve()) if db.path else None
    return json.dumps({"host": socket.gethostname(), "session": secrets.token_hex(8), "database": path}).encode()


def write_lease(folder: Path, lease: bytes) -> None:
    """Write a trainer's lease, for this user alone."""
    make_private_folder(folder)
    (folder / LEASE).write_bytes(lease)
    (folder / LEASE).chmod(FILE_MODE)


def read_lease(files: RunFiles) -> bytes:
    """Read the lease of the trainer that wrote last at a URL; nothing where there is none.

    Raises:
        StorageError: If the place does not answer.
    """
    return files.read_tail(LEASE, _MOST_BYTES)


def is_ours(files: RunFiles, folder: Path) -> bool:
    """Whether the trainer that had the run last worked in this folder.

    Raises:
        StorageError: If the place does not answer.
    """
    here = _lease_in(folder)
    return bool(here) and here == read_lease(files)


def check_lease(db: Database, place: Place, run_id: str) -> None:
    """Refuse to touch files that a copy of another database names.

    Raises:
        StorageError: If they are the other's, or the place does not answer.
    """
    if place.recorded is None or db.path is None:
        return
    files = place.files_of(run_id)
    said = _parse(read_lease(files) if files else _lease_in(find_folder(place.root, check_identifier(run_id))))
    path, host = said.get("database"), said.get("host")
    here = str(db.path.resolve())
    if not isinstance(path, str) or path == here:
        return
    if host == socket.gethostname() and not Path(path).exists():  # it was moved
        return
    raise StorageError(
        f"The checkpoints of run {run_id} at {place.show(run_id)} belong to the database {shorten(path)} on "
        f"{shorten(host)}, and this one is a copy of it: nothing there is written or deleted. If it was moved here, "
        f"remove {LEASE} there."
    )


def _lease_in(folder: Path) -> bytes:
    return read_tail(folder / LEASE, _MOST_BYTES)


def _parse(lease: bytes) -> dict[str, Any]:
    try:
        said = json.loads(lease or b"{}")
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
