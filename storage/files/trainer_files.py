"""The small files that a trainer keeps beside its database: a lease, the reason why it waits, and room for bad times.

The lease says who wrote last to a run's files, and for which database. A copy of a SQLite database, a backup for
instance, names the same files as the original does. Without the lease, whoever tidied up or trained in the copy would
delete or replace the checkpoints of the original.

Why a recorder waits is told in a file because a full disk or a locked database cannot hold the reason. It is made
while there is room and changed in place, which needs no new disk block.

The reserve is for whoever must make room when there is none. SQLite writes its log before it forgets anything: on a
full disk not even a delete can begin. So a few MB are kept as a file while there is room, and given back to the disk
when a thinning or a delete finds it full.
"""

import json
import logging
import secrets
import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from emtc_core.errors import StorageError
from storage.engine import Database, files_root, is_disk_full
from storage.files.places import Place, local_folder
from storage.files.remote import RunFiles
from storage.guards import check_identifier, shorten
from storage.private_files import FILE_MODE, append_private, find_folder, make_private_folder, read_tail

LEASE: Final = "trainer.json"
_MOST_BYTES: Final = 8_000

_log = logging.getLogger(__name__)
_BYTES = 512

RESERVE: Final = "reserve"
RESERVE_BYTES: Final = 8 << 20
_PLENTY: Final = 20
Result = TypeVar("Result")


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
        f"remove {LEASE} there.",
        reason="copied_database",
        subject=run_id,
    )


def _lease_in(folder: Path) -> bytes:
    return read_tail(folder / LEASE, _MOST_BYTES)


def _parse(lease: bytes) -> dict[str, Any]:
    try:
        said = json.loads(lease or b"{}")
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


class StateFile:
    """The file `recorder.state` in a run's folder; blank while all is well."""

    def __init__(self, db: Database, run_id: str) -> None:
        """Choose the file; nothing is created yet."""
        self._db, self._path = db, local_folder(db, run_id) / "recorder.state"

    def prepare(self) -> None:
        """Make the file while there is room.

        Raises:
            StorageError: If the run's folder cannot be written.
        """
        try:
            make_private_folder(self._path.parent)
            keep_reserve(self._db)
            self._path.write_bytes(_padded(""))
        except OSError as error:
            raise StorageError(f"The run's folder {self._path.parent} cannot be written: {error.strerror}.") from error

    def write(self, text: str) -> None:
        """Replace the text; what cannot be written goes to the log."""
        try:
            with self._path.open("r+b") as file:
                file.write(_padded(text))
        except OSError as error:
            _log.warning("cannot write %s: %s", self._path, error)

    def read(self) -> str | None:
        """Read the reason, or None while all is well."""
        return read_tail(self._path, _BYTES).decode(errors="replace").strip() or None

    def remove(self) -> None:
        """Take the file away; idempotent."""
        self._path.unlink(missing_ok=True)


def stall_reason(db: Database, run_id: str) -> str | None:
    """Why a run's recorder waits, as far as this host can see, or None."""
    try:
        return StateFile(db, run_id).read()
    except StorageError:  # a foreign folder that is not read
        return None


def _padded(text: str) -> bytes:
    return text.encode()[: _BYTES - 1].ljust(_BYTES - 1) + b"\n"


def keep_reserve(db: Database) -> None:
    """Set a few MB aside, unless that is done already or the disk is short of room."""
    place = files_root(db) / RESERVE
    with suppress(OSError):  # what cannot be kept cannot be given back, and nothing else depends on it
        if db.path is None or place.exists() or shutil.disk_usage(place.parent).free < _PLENTY * RESERVE_BYTES:
            return
        with append_private(place) as file:
            file.write(bytes(RESERVE_BYTES))


def give_reserve_back(db: Database) -> bool:
    """Give what was set aside back to the disk; False if there was nothing."""
    place = files_root(db) / RESERVE
    if db.path is None or place.is_symlink() or not place.is_file():
        return False
    place.unlink(missing_ok=True)
    return True


def with_reserve(db: Database, act: Callable[[], Result]) -> Result:
    """Do what makes room, on a full disk with the room that was kept for it; `act` may be done again from its start.

    Raises:
        StorageError: What `act` raises, where that is another fault or nothing was kept.
    """
    try:
        return act()
    except StorageError as error:
        if not (is_disk_full(error) and give_reserve_back(db)):
            raise
    return act()
