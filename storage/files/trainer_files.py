"""Small files that a trainer writes next to its database: a lease, the state of its recorder, and a disk reserve.

The lease names the trainer and the database that last wrote to a run's files: the path of a SQLite file, or the
identity of a database on a server. A copy of a database, for instance a backup, refers to the same files as the
original. The lease prevents that a cleanup or a training in the copy deletes or replaces checkpoints of the original.

The state file contains the reason why a recorder waits. The database cannot store it, because it is locked or its disk
is full. The file is created while there is free space and is changed in place, which needs no new disk block. It is
written again regularly while the recorder waits, so an old file shows that the trainer has ended.

The reserve is a file of a few MB that is created while there is free space. On a full disk SQLite cannot even delete
rows, because it writes its log first. Then thinning or deleting removes the reserve and tries again.
"""

import json
import logging
import os
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from emtc_core.errors import StorageError
from storage.engine import Database, files_root, files_root_of, is_disk_full
from storage.files.places import FilesPlace, local_folder
from storage.files.remote import RunFiles
from storage.guards import check_identifier, shorten
from storage.private_files import FILE_MODE, find_folder, make_private_folder, open_private_append, read_tail

LEASE: Final = "trainer.json"
RESERVE: Final = "reserve"
RESERVE_BYTES: Final = 8 << 20
STATE_FILE: Final = "recorder.state"
REWRITE_S: Final = 2.0
"""Interval at which the state file is written again while the recorder waits."""
_MAX_LEASE_BYTES: Final = 8_000
_STATE_BYTES: Final = 512
_MIN_FREE_RESERVES: Final = 20
"""The reserve is only created if the disk has free space for this many reserves."""

Result = TypeVar("Result")

_log = logging.getLogger(__name__)


def make_lease(db: Database) -> bytes:
    """Make a new lease of this trainer for a database."""
    lease = {"host": socket.gethostname(), "session": secrets.token_hex(8), "database": _get_identity(db)}
    return json.dumps(lease | ({} if db.path else {"name": db.reader.url.database})).encode()


def write_lease(folder: Path, lease: bytes) -> None:
    """Write a trainer's lease to a run's folder. Only this user can read it."""
    make_private_folder(folder)
    (folder / LEASE).write_bytes(lease)
    (folder / LEASE).chmod(FILE_MODE)


def read_lease(files: RunFiles) -> bytes:
    """Read the lease at a URL; empty if there is none.

    Raises:
        StorageError: If the URL does not respond.
    """
    return files.read_tail(LEASE, _MAX_LEASE_BYTES)


def is_own_lease(files: RunFiles, folder: Path) -> bool:
    """Whether the trainer that last wrote to a URL worked in this folder.

    Raises:
        StorageError: If the URL does not respond.
    """
    local = read_local_lease(folder)
    return bool(local) and local == read_lease(files)


def check_lease(db: Database, place: FilesPlace, run_id: str) -> None:
    """Check that the lease of a run's files does not name another database.

    Args:
        db: The database that is used.
        place: The folder or URL of the files.
        run_id: The run.

    Raises:
        StorageError: If it names another database, or the place does not respond.
    """
    files = place.files_of(run_id)
    lease = read_lease(files) if files else read_local_lease(find_folder(place.root, check_identifier(run_id)))
    if (other := find_other_owner(db, lease, is_local=place.recorded is None)) is not None:
        raise StorageError(
            f"The checkpoints of run {run_id} at {place.show(run_id)} belong to the database {other}. This database "
            "is a copy of it, so these files are not written or deleted. If the database was moved here, delete "
            f"{LEASE} there.",
            reason="copied_database",
            subject=run_id,
        )


def read_local_lease(folder: Path) -> bytes:
    """Read the lease in a folder; empty if there is none."""
    return read_tail(folder / LEASE, _MAX_LEASE_BYTES)


def find_other_owner(db: Database, lease: bytes, *, is_local: bool) -> str | None:
    """Return the database that a lease names, as text for users; None if it names this database or none.

    A SQLite file that does not exist any more was renamed to this one.

    Args:
        db: The database that is used.
        lease: Content of the lease.
        is_local: Whether the lease is in the folder of the database, not at a recorded place.
    """
    owner, host, name = _parse_lease(lease)
    if owner is None or owner == _get_identity(db):
        return None
    if db.path is None or not Path(owner).is_absolute():  # a database on a server is never renamed to another one
        return f"{shorten(name)} ({shorten(owner)})" if name else shorten(owner)
    is_here = is_local or host == socket.gethostname()
    if is_here and not os.path.exists(owner):  # noqa: PTH110 - false for a text that is not a path
        return None
    if is_local and files_root_of(Path(owner)) != files_root(db):  # the folder was copied together with its database
        return None
    return f"{shorten(owner)} on {shorten(host)}"


def is_own(db: Database, lease: bytes) -> bool:
    """Return whether a lease names this database."""
    return _parse_lease(lease)[0] == _get_identity(db)


def _parse_lease(content: bytes) -> tuple[str | None, object, object]:
    """Read the database, the host and the name of the database from a lease; None if it does not name a database."""
    try:
        lease = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        lease = None
    if not isinstance(lease, dict) or not isinstance(lease.get("database"), str):
        return None, None, None
    return lease["database"], lease.get("host"), lease.get("name")


def _get_identity(db: Database) -> str | None:
    """Return the text that identifies a database in leases."""
    return str(db.path.resolve()) if db.path else db.server_id


class StateFile:
    """The file STATE_FILE in a run's folder. It is blank unless the recorder waits."""

    def __init__(self, db: Database, run_id: str) -> None:
        """Determine the path. Nothing is created."""
        self._db, self._path = db, local_folder(db, run_id) / STATE_FILE
        self._text = ""
        self._changed, self._is_removed = threading.Condition(), False

    def prepare(self) -> None:
        """Create the file and the disk reserve while there is free space, and start the thread that rewrites the file.

        Raises:
            StorageError: If the run's folder cannot be written.
        """
        try:
            make_private_folder(self._path.parent)
            keep_reserve(self._db)
            self._path.write_bytes(_pad(""))
        except OSError as error:
            raise StorageError(f"The run's folder {self._path.parent} cannot be written: {error.strerror}.") from error
        threading.Thread(target=self._rewrite, name="recorder-state", daemon=True).start()

    def write(self, text: str) -> None:
        """Replace the text. An error is only logged."""
        with self._changed:
            self._text = text
            self._write()
            self._changed.notify()

    def remove(self) -> None:
        """Delete the file if it exists, and end the thread."""
        with self._changed:
            self._is_removed = True
            self._changed.notify()
            self._path.unlink(missing_ok=True)

    def _rewrite(self) -> None:
        """Write the file again every REWRITE_S while the recorder waits. Its own writes may block for longer."""
        with self._changed:
            while not self._is_removed:
                self._changed.wait(REWRITE_S if self._text else None)
                if self._text and not self._is_removed:
                    self._write()

    def _write(self) -> None:
        try:
            with self._path.open("r+b") as file:
                file.write(_pad(self._text))
        except OSError as error:
            _log.warning("cannot write %s: %s", self._path, error)


def read_stall_reason(db: Database, run_id: str, *, max_age_s: float) -> str | None:
    """Read why a run's recorder waits; None if it does not wait or its folder is not on this machine.

    Args:
        db: The database.
        run_id: The run.
        max_age_s: A file that was not written for this time does not count, because its trainer has ended [s].
    """
    try:
        path = local_folder(db, run_id) / STATE_FILE
        if time.time() - path.stat().st_mtime > max_age_s:
            return None
        return read_tail(path, _STATE_BYTES).decode(errors="replace").strip() or None
    except (OSError, StorageError):  # there is no file, or the folder is or contains a link
        return None


def keep_reserve(db: Database) -> None:
    """Create the disk reserve, unless it exists or the disk has little free space. Errors are ignored."""
    path = files_root(db) / RESERVE
    with suppress(OSError):
        min_free_bytes = _MIN_FREE_RESERVES * RESERVE_BYTES
        if db.path is None or path.exists() or shutil.disk_usage(path.parent).free < min_free_bytes:
            return
        with open_private_append(path) as file:
            file.write(bytes(RESERVE_BYTES))


def with_reserve(db: Database, act: Callable[[], Result]) -> Result:
    """Run a function that frees disk space. If the disk is full, delete the reserve and run the function again.

    Args:
        db: The database.
        act: The function. It must be possible to run it twice.

    Raises:
        StorageError: If the function fails for another reason, there is no reserve, or the second attempt fails.
    """
    try:
        return act()
    except StorageError as error:
        path = files_root(db) / RESERVE
        has_reserve = db.path is not None and path.is_file() and not path.is_symlink()
        if not (is_disk_full(error) and has_reserve):
            raise
        path.unlink(missing_ok=True)
    return act()


def _pad(text: str) -> bytes:
    """Encode a text with a fixed length, so that a change needs no new disk block."""
    return text.encode()[: _STATE_BYTES - 1].ljust(_STATE_BYTES - 1) + b"\n"
