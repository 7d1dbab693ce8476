"""A whole copy of a SQLite database, taken while others write, before something changes all of it."""

import errno
import os
import re
import socket
import sqlite3
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psutil

from emtc_core.errors import StorageError
from storage.private_files import FILE_MODE

_PAGES_AT_ONCE = 4096
_ASIDE: Final = ".begun-copy."
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS})


def back_up(path: Path, version: str | None) -> Path:
    """Copy a database beside itself, as `NAME.schema-VERSION.db`; an earlier copy stays.

    Returns:
        Where the copy is.

    Raises:
        StorageError: If it cannot be written; then there is none.
    """
    place = _free_place(path, f"schema-{version or 'none'}")
    try:
        _copy(path, place)
    except (OSError, sqlite3.Error) as error:
        raise StorageError(
            f"{path} was not upgraded: its backup {place.name} cannot be written ({error}). Make room beside it."
        ) from error
    return place


def copy_database(path: Path, place: Path | None = None) -> Path:
    """Copy a database as it is now, whoever writes it meanwhile; the folders of its runs are not copied.

    Args:
        path: The SQLite file.
        place: Where the copy shall be, which must not be there; without it beside the file, named by the time.

    Returns:
        Where the copy is.

    Raises:
        StorageError: If it cannot be written; then there is none.
    """
    place = place or _free_place(path, f"backup-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    if os.path.lexists(place):
        raise StorageError(f"{place} is there already, and a backup replaces nothing. Choose another name.")
    try:
        _copy(path, place)
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise StorageError(f"The backup {place} cannot be written: {reason}. Choose another place.") from error
    return place


def _copy(path: Path, place: Path) -> None:
    """Copy page by page from one state of the database: a writer does not make it begin anew.

    The copy is written aside, looked at and on the disk before it gets its name: whatever ends this process leaves
    either the whole copy or none.

    Raises:
        OSError, sqlite3.Error: If it cannot be written; then nothing is left of it.
    """
    _remove_abandoned(place)
    beside = place.with_name(f"{_ASIDE}{socket.gethostname()}.{os.getpid()}.{place.name}")
    try:
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE))
        _copy_pages(path, beside)
        _sync(beside)
        try:
            os.link(beside, place)  # unlike a renaming, it replaces nothing that has come there meanwhile
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            beside.rename(place)
        _sync(place.parent)
    finally:
        beside.unlink(missing_ok=True)


def _copy_pages(path: Path, place: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as source, closing(sqlite3.connect(place)) as target:
        target.execute("PRAGMA journal_mode=OFF")  # nobody reads it before it is whole
        source.execute("BEGIN")
        source.execute("SELECT count(*) FROM sqlite_master").fetchone()
        source.backup(target, pages=_PAGES_AT_ONCE)
        target.execute("PRAGMA journal_mode=DELETE")  # one file, which can be moved
        for (line,) in target.execute("PRAGMA quick_check(1)"):
            if line != "ok":
                raise sqlite3.DatabaseError(f"the copy is damaged: {line}")


def _remove_abandoned(place: Path) -> None:
    """Remove what processes of this machine that are no more have begun beside a place."""
    begun = re.compile(re.escape(f"{_ASIDE}{socket.gethostname()}.") + r"(\d+)\..*")
    for other in place.parent.iterdir():
        if (found := begun.fullmatch(other.name)) and not psutil.pid_exists(int(found[1])):
            other.unlink(missing_ok=True)


def _sync(place: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    with suppress(PermissionError):  # folders cannot be opened everywhere
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _free_place(path: Path, label: str) -> Path:
    stem = f"{path.stem}.{label}"
    names = [f"{stem}.db", *(f"{stem}-{number}.db" for number in range(2, 1000))]
    return next(place for name in names if not os.path.lexists(place := path.with_name(name)))
