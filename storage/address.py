"""Where a database is: what `--db` may say, and the plain file that a SQLite database is.

A SQLite file is named as it is on the disk: all that follows `sqlite:///` is its path, with every % and ? in it, and
nothing of it is decoded. What such an address means elsewhere (SQLAlchemy's `make_url` decodes it) is never used to
open one; another file would be found. A server's address is an ordinary URL.

Importing this loads no SQLAlchemy: commands need it before they have printed a line.
"""

import os
import re
import sqlite3
import stat
from contextlib import suppress
from errno import EACCES
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import unquote

from emtc_core.errors import StorageError
from storage.guards import hide_passwords, shorten
from storage.private_files import FILE_MODE, make_private_folder

if TYPE_CHECKING:
    from sqlalchemy import URL

DEFAULT_DATABASE: Final = "sqlite:///runs/emtc.db"
"""The database where neither `--db` nor EMTC_DB names one."""
_SQLITE: Final = re.compile(r"sqlite(?:\+\w+)?:///")
_NETWORK_FILESYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "lustre", "fuse.sshfs", "beegfs"}
)
NO_ROOM_TO_SHARE: Final = frozenset({"SQLITE_IOERR_SHMSIZE", "SQLITE_IOERR_SHMMAP", "SQLITE_FULL"})
"""What SQLite says where the disk is too full for the memory that the connections of a file share."""
_BESIDE: Final = ("", "-wal", "-shm", "-journal")


def sqlite_address(path: str | Path) -> str:
    """The address of a SQLite file, as `--db` takes it."""
    return f"sqlite:///{path}"


def absolute(address: str) -> str:
    """The address with a whole path where it is that of a SQLite file: for a process that works in another folder."""
    text = _path_in(address)
    return address if not text or _is_no_file(text) else sqlite_address(Path(text).expanduser().absolute())


def parse(address: str) -> "Path | URL":
    """Read an address: the whole path of a SQLite file, or the URL of a PostgreSQL server.

    Raises:
        StorageError: If it is none, or no file can be there.
    """
    text = _path_in(address)
    if text is not None:
        if not text or _is_no_file(text):
            raise StorageError(
                "The database must be a file: trainer and app meet in it. Write sqlite:///file.db",
                reason="not_a_database",
                subject=address,
            )
        return _find_place(text)
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    try:
        parsed = make_url(address)
        backend = parsed.get_backend_name()
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        shown = shorten(hide_passwords(address))
        raise StorageError(f"{shown} is no database URL. Write sqlite:///file.db or postgresql://…") from error
    if backend == "sqlite":
        raise StorageError(
            "The database must be a file: trainer and app meet in it. Write sqlite:///file.db",
            reason="not_a_database",
            subject=address,
        )
    if backend != "postgresql":
        raise StorageError(f"The database must be SQLite or PostgreSQL, got {backend}.")
    return parsed if "+" in parsed.drivername else parsed.set(drivername="postgresql+psycopg")


class AloneConnection(sqlite3.Connection):
    """One that does without the memory that connections share, for whose file the disk has no room."""


def connect(path: Path, *, wait_s: float, writes: bool, mode: Literal["ro", "rw"] = "rw") -> sqlite3.Connection:
    """Open a SQLite file that is there, for reading on a full disk, too; `mode` is what the system lets it do.

    There a reader looks at the file as it stands, and a writer, or a reader of what is still in the log, has it alone:
    such a connection is an `AloneConnection`, and should be closed soon.
    """
    shared = partial(sqlite3.connect, timeout=wait_s, check_same_thread=False, uri=True)
    connection = shared(f"{path.as_uri()}?mode={mode}")
    try:
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").close()
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorname", "") not in NO_ROOM_TO_SHARE:  # whoever asks next is told
            return connection
        connection.close()
        log = path.with_name(f"{path.name}-wal")
        if not writes and not (log.exists() and log.stat().st_size):  # nobody writes, or could
            return shared(f"{path.as_uri()}?immutable=1", factory=AloneConnection)
        connection = shared(f"{path.as_uri()}?mode={mode}", factory=AloneConnection)
        connection.execute("PRAGMA locking_mode=EXCLUSIVE").close()
    return connection


def refuse_missing(path: Path, what_else: str = "") -> None:
    """Refuse a SQLite file that is not there; one that is there under another reading of the name is named.

    Raises:
        StorageError: If there is none.
    """
    if path.exists():
        return
    decoded = [Path(unquote(str(path))), Path(str(path).partition("?")[0])]
    if meant := next((other for other in decoded if other != path and other.is_file()), None):
        raise StorageError(
            f"There is no database at {path}. A path is read as it stands; is this meant? {meant}",
            reason="not_found",
            subject=path,
        )
    raise StorageError(
        f"There is no database at {path}. Name another with --db{what_else}", reason="not_found", subject=path
    )


def prepare(path: Path) -> list[Path]:
    """Make the folder and the empty file of a SQLite database; return what was made, innermost first.

    Raises:
        StorageError: If it cannot be written; then nothing was made.
    """
    created: list[Path] = []
    try:
        _refuse_network_place(path)
        for folder in reversed([parent for parent in path.parents if not parent.exists()]):
            make_private_folder(folder)
            created.insert(0, folder)
        if _make_file(path):
            created.insert(0, path)
    except OSError as error:
        remove(created)
        reason = (error.strerror or str(error)).lower()
        raise StorageError(
            f"The database {path} cannot be written: {reason}. Choose another with --db.",
            reason="not_writable",
            subject=path,
        ) from error
    return created


def _make_file(path: Path) -> bool:
    """Make an empty file, whose mode those that SQLite adds copy; return whether it was not there before.

    One that is there is not opened: POSIX drops all locks of a process on a file when it closes any descriptor of it,
    and with the locks of this process's connections another process may take the log from under them.

    Raises:
        OSError: If it cannot be made, or not be written.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE))
    except FileExistsError:
        if not os.access(path, os.W_OK):
            raise PermissionError(EACCES, os.strerror(EACCES)) from None
        return False
    return True


def remove(created: list[Path]) -> None:
    """Take back what `prepare` made, unless somebody else has begun to fill it meanwhile."""
    for place in created:
        with suppress(OSError):  # it is filled, or gone
            if place.is_dir():
                place.rmdir()
            elif place.stat().st_size == 0 and not place.with_name(f"{place.name}-wal").exists():
                for suffix in _BESIDE:
                    place.with_name(place.name + suffix).unlink(missing_ok=True)


def _path_in(address: str) -> str | None:
    """What stands behind `sqlite:///`; None in the address of something else."""
    found = _SQLITE.match(address)
    return address[found.end() :] if found else None


def _is_no_file(text: str) -> bool:
    return text == ":memory:" or text.startswith("file:")


def _find_place(text: str) -> Path:
    try:
        path = Path(text).expanduser().absolute()
        with suppress(FileNotFoundError, NotADirectoryError):
            mode = path.stat().st_mode
            if not stat.S_ISREG(mode):
                raise OSError(0, "it is a folder; name a file" if stat.S_ISDIR(mode) else "it is no plain file")
            return path
        if path.is_symlink():  # what it names is gone or not mounted, and would be made where nobody looks for it
            raise OSError(0, f"it is a link to {path.readlink()}, which is not there")
    except (OSError, RuntimeError, ValueError) as error:  # too long, no such user, a zero byte
        reason = str(getattr(error, "strerror", None) or error).rstrip(".").lower()
        raise StorageError(
            f"{shorten(text)} cannot be a database: {reason}. Choose another with --db.",
            reason="not_a_database",
            subject=text,
        ) from error
    return path


def _refuse_network_place(path: Path) -> None:
    """SQLite's write-ahead log needs shared memory, which network file systems do not give."""
    import psutil

    mounts = [part for part in psutil.disk_partitions(all=True) if path.is_relative_to(part.mountpoint)]
    mount = max(mounts, key=lambda part: len(part.mountpoint), default=None)
    if mount is not None and mount.fstype in _NETWORK_FILESYSTEMS:
        raise StorageError(
            f"{path} lies on a network file system ({mount.fstype}), where SQLite is not safe. "
            "Choose a local disk or a PostgreSQL URL with --db."
        )
