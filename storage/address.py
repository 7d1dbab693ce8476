"""Parse the address of a database (`--db`), and create and open the file of a SQLite database.

Everything after `sqlite:///` is the path of the file, including every % and ?. It is not decoded. SQLAlchemy's
`make_url` decodes such a URL and would open another file, so it is used only for the URLs of servers.

This module does not import SQLAlchemy at the top, because commands need it before their first output.
"""

import os
import re
import sqlite3
import stat
from contextlib import suppress
from errno import EACCES, EROFS
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import unquote

from emtc_core.atomic_file import sync_to_disk
from emtc_core.errors import StorageError
from storage.guards import hide_passwords, shorten
from storage.private_files import FILE_MODE, make_private_folder

if TYPE_CHECKING:
    from sqlalchemy import URL

DEFAULT_DATABASE: Final = "sqlite:///runs/emtc.db"
"""The database that is used if neither `--db` nor EMTC_DB is set."""
_SQLITE: Final = re.compile(r"sqlite(?:\+\w+)?:///")
_URL: Final = re.compile(r"[a-z]+(?:\+\w+)?://|(?:sqlite|postgres\w*)(?:\+\w+)?:")
_NETWORK_FILESYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "lustre", "fuse.sshfs", "beegfs"}
)
_NOT_A_FILE: Final = "A SQLite database must be a file, because trainer and app share it. Write sqlite:///file.db"
_FILE_SUFFIXES: Final = ("", "-wal", "-shm", "-journal")
"""Suffixes of a SQLite file and of the files that SQLite creates next to it."""


def sqlite_address(path: str | Path) -> str:
    """Return the address of a SQLite file, as `--db` takes it."""
    return f"sqlite:///{path}"


def as_address(text: str) -> str:
    """Return the address of a SQLite file that is given as a path. Any other text is returned unchanged.

    A word without a slash or a dot is not a path, so that a typing error creates no database.
    """
    is_path = ("/" in text or "." in text) and not _URL.match(text)
    return sqlite_address(text) if is_path else text


def make_absolute(address: str) -> str:
    """Return an address whose path is absolute if it is a SQLite file, for processes with another working directory."""
    text = _find_path(as_address(address))
    return address if not text or _is_in_memory(text) else sqlite_address(Path(text).expanduser().absolute())


def parse_address(address: str) -> "Path | URL":
    """Parse an address into the absolute path of a SQLite file or the URL of a PostgreSQL server.

    A path is the address of a SQLite file.

    Raises:
        StorageError: If the address is invalid, or its path cannot be a database file.
    """
    text = _find_path(as_address(address))
    if text is not None:
        if not text or _is_in_memory(text):
            raise StorageError(_NOT_A_FILE)
        return _resolve_path(text)
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    try:
        parsed = make_url(address)
        backend = parsed.get_backend_name()
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        text = shorten(hide_passwords(address))
        raise StorageError(
            f"{text} is not a database URL. Write a path such as runs/emtc.db, or postgresql://…"
        ) from error
    if backend == "sqlite":
        raise StorageError(_NOT_A_FILE)
    if backend != "postgresql":
        raise StorageError(f"The database must be SQLite or PostgreSQL (got {backend}).")
    return parsed if "+" in parsed.drivername else parsed.set(drivername="postgresql+psycopg")


class ImmutableConnection(sqlite3.Connection):
    """A connection to a file in a read-only folder. It does not see the writes of other processes."""


def connect(path: Path, *, wait_s: float, writes: bool, mode: Literal["ro", "rw"] = "rw") -> sqlite3.Connection:
    """Open an existing SQLite file. In a read-only folder, a reader gets an `ImmutableConnection`.

    Args:
        path: The file.
        wait_s: Maximum time to wait for a lock [s].
        writes: Whether the caller writes.
        mode: Access mode of SQLite: `ro` or `rw`.

    Raises:
        sqlite3.Error: If the file cannot be opened.
        StorageError: If the folder is read-only and the last records are not in the file yet.
    """
    connect_uri = partial(sqlite3.connect, timeout=wait_s, check_same_thread=False, uri=True)
    connection = connect_uri(f"{path.as_uri()}?mode={mode}")
    try:
        connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").close()
    except sqlite3.Error as error:  # the next statement raises an error that is not handled here again
        name = getattr(error, "sqlite_errorname", "")
        if name == "SQLITE_CANTOPEN" and not writes and not os.access(path.parent, os.W_OK):
            connection.close()
            log = get_log_path(path)
            if log.exists() and log.stat().st_size:
                raise StorageError(
                    f"The folder {path.parent} is read-only, and the last records are still in {log.name}. Make the "
                    "folder writable, or copy both files to another one."
                ) from error
            return connect_uri(f"{path.as_uri()}?immutable=1", factory=ImmutableConnection)
    return connection


def check_exists(path: Path, what_else: str = "") -> None:
    """Raise if a SQLite file does not exist. The message names a file that exists under the decoded path.

    Raises:
        StorageError: If the file does not exist. `what_else` continues its last sentence.
    """
    if path.exists():
        return
    decoded = [Path(unquote(str(path))), Path(str(path).partition("?")[0])]
    if other := next((other for other in decoded if other != path and other.is_file()), None):
        raise StorageError(f"There is no database at {path}. The path is not decoded. Did you mean {other}?")
    raise StorageError(f"There is no database at {path}. Choose another with --db{what_else}")


def get_log_path(path: Path) -> Path:
    """Return the path of the write-ahead log of a SQLite file. SQLite resolves links before it appends the suffix."""
    file = path.resolve()
    return file.with_name(f"{file.name}-wal")


def create_file(path: Path) -> list[Path]:
    """Create the folders and the empty file of a SQLite database, if they do not exist.

    Returns:
        The created file and folders, innermost first, for `remove`.

    Raises:
        StorageError: If the file cannot be written. Then nothing is created.
    """
    created: list[Path] = []
    try:
        _refuse_network_filesystem(path)
        for folder in reversed([parent for parent in path.parents if not parent.exists()]):
            make_private_folder(folder)
            created.insert(0, folder)
        if _create_file(path):
            created.insert(0, path)
        for place in created:
            sync_to_disk(place.parent)
    except OSError as error:
        remove_created(created)
        reason = (error.strerror or str(error)).lower()
        raise StorageError(f"The database {path} cannot be written: {reason}. Choose another with --db.") from error
    return created


def _create_file(path: Path) -> bool:
    """Create an empty file and return whether it did not exist. SQLite creates its other files with the same mode.

    An existing file is not opened. When a process closes any descriptor of a file, POSIX releases all its locks on the
    file. Without the locks of this process's connections, another process could delete the write-ahead log.

    Raises:
        OSError: If the file cannot be created or written.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE))
    except FileExistsError:
        if not os.access(path, os.W_OK):
            code = EROFS if os.statvfs(path).f_flag & os.ST_RDONLY else EACCES
            raise OSError(code, os.strerror(code)) from None
        return False
    return True


def remove_created(created: list[Path]) -> None:
    """Delete what `prepare` has created, unless another process has written to it in the meantime."""
    for place in created:
        with suppress(OSError):  # the folder is not empty, or was deleted
            if place.is_dir():
                place.rmdir()
            elif place.stat().st_size == 0 and not get_log_path(place).exists():
                for suffix in _FILE_SUFFIXES:
                    place.with_name(place.name + suffix).unlink(missing_ok=True)


def _find_path(address: str) -> str | None:
    """Return the text after `sqlite:///`, or None if the address does not start with it."""
    match = _SQLITE.match(address)
    return address[match.end() :] if match else None


def _is_in_memory(text: str) -> bool:
    return text == ":memory:" or text.startswith("file:")


def _resolve_path(text: str) -> Path:
    try:
        path = Path(text).expanduser().absolute()
        with suppress(FileNotFoundError, NotADirectoryError):
            mode = path.stat().st_mode
            if not stat.S_ISREG(mode):
                raise OSError(0, "it is a folder; name a file" if stat.S_ISDIR(mode) else "it is not a regular file")
            return path
        if path.is_symlink():  # the target is missing or not mounted; SQLite would create it there
            raise OSError(0, f"it is a link to {path.readlink()}, which does not exist")
    except (OSError, RuntimeError, ValueError) as error:  # path too long, unknown user, or a zero byte
        reason = str(getattr(error, "strerror", None) or error).rstrip(".").lower()
        raise StorageError(f"{shorten(text)} cannot be a database: {reason}. Choose another with --db.") from error
    return path


def _refuse_network_filesystem(path: Path) -> None:
    """Raise if a file is on a network file system: SQLite's write-ahead log needs shared memory, which they lack."""
    import psutil

    mounts = [part for part in psutil.disk_partitions(all=True) if path.is_relative_to(part.mountpoint)]
    mount = max(mounts, key=lambda part: len(part.mountpoint), default=None)
    if mount is not None and mount.fstype in _NETWORK_FILESYSTEMS:
        raise StorageError(
            f"{path} is on a network file system ({mount.fstype}), where SQLite can damage the file. "
            "Choose a local disk or a PostgreSQL URL with --db."
        )
