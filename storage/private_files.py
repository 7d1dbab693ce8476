"""Create, read and delete the files that belong to a database.

The folder of a foreign database may contain links to other places, devices or pipes. So paths are made from validated
identifiers only in this module, and a folder that contains a link is not used. New files and folders are readable only
by their owner.
"""

import os
import re
import shutil
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from emtc_core.atomic_file import replace_atomically
from emtc_core.errors import StorageError

FOLDER_MODE = 0o700
FILE_MODE = 0o600
"""Permissions of new folders and files: only the owner has access."""
_TRAINER_FILE = re.compile(
    r"(checkpoint|best)-[0-9]+\.[a-z0-9.]+|non-finite-update-[0-9]+\.npz|log\.txt|traceback\.txt|trainer\.json|code-[0-9a-f]+\.diff"
)


def find_folder(root: Path, name: str) -> Path:
    """Return the folder `name`, a validated identifier, in `root`. It may not exist.

    Raises:
        StorageError: If `root`, the folder or an entry of it is a link or a special file.
    """
    folder = root / name
    special = next(find_special_files(root, folder), None)
    if special is not None:
        raise StorageError(
            f"{special} is a link or a special file. A run's folder with such a file is not read, written or deleted. "
            "Remove the file if you know what it is.",
            reason="link",
            subject=special,
        )
    return folder


def find_special_files(root: Path, folder: Path) -> Iterator[Path]:
    """List what is neither a regular file nor a folder: `root`, `folder` and the entries of `folder`."""
    for place in (root, folder):
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            yield place
            return
    yield from _find_special_entries(folder)


def remove_folder(folder: Path) -> None:
    """Delete a folder that `find_folder` returned, if it exists."""
    shutil.rmtree(folder, ignore_errors=True)


def measure_folder(folder: Path) -> tuple[int, int]:
    """Return the size of a folder's checkpoints and of its other files [bytes]. Links are not followed."""
    checkpoints = others = 0
    for place in folder.rglob("*"):
        with suppress(OSError):  # the trainer has replaced the file
            size = 0 if place.is_dir() and not place.is_symlink() else place.lstat().st_size
            if is_checkpoint(place.name):
                checkpoints += size
            else:
                others += size
    return checkpoints, others


def is_checkpoint(name: str) -> bool:
    """Return whether a file name is that of a checkpoint or best policy, complete, partial or renamed."""
    return name.startswith(("checkpoint-", "best-"))


def list_trainer_files(folder: Path) -> list[Path]:
    """List the files that a trainer of this program writes, in a folder that may contain other files."""
    return [place for place in folder.glob("*") if _TRAINER_FILE.fullmatch(place.name) and not place.is_dir()]


def remove_own_files(folder: Path) -> None:
    """Delete the files of `list_trainer_files`, and the folder if it is empty then."""
    for place in list_trainer_files(folder):
        place.unlink(missing_ok=True)
    with suppress(OSError):  # the folder is not empty or does not exist
        folder.rmdir()


def make_private_folder(folder: Path) -> None:
    """Create a folder and its missing parents, with access only for this user."""
    for missing in reversed([place for place in (folder, *folder.parents) if not place.exists()]):
        missing.mkdir(mode=FOLDER_MODE, exist_ok=True)


def open_private_append(path: Path) -> BinaryIO:
    """Open a file for appending. A missing file is created with access only for this user.

    Raises:
        OSError: If the path is a link, or the file cannot be opened.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    return os.fdopen(os.open(path, flags, FILE_MODE), "ab")


@contextmanager
def open_output(path: Path) -> Generator[BinaryIO]:
    """Open a file that is replaced at the end of the block, as `replace_atomically` does. Its folder is created.

    Raises:
        StorageError: If the file cannot be written.
    """
    try:
        with parent_folder(path), replace_atomically(path) as file:
            yield file
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror or error}. Choose another --out.",
            reason="not_writable",
            subject=path,
        ) from error


@contextmanager
def parent_folder(path: Path) -> Generator[None]:
    """Create the folder of a file. If the block leaves the folder empty, it is removed again.

    Raises:
        OSError: If the folder cannot be created.
    """
    missing_folders: list[Path] = []
    try:
        missing_folders += [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for folder in missing_folders:
            with suppress(OSError):  # the folder contains the file
                folder.rmdir()


def read_tail(path: Path, most_bytes: int) -> bytes:
    """Read the last `most_bytes` bytes of a regular file. Returns b"" if there is no such file."""
    try:
        with os.fdopen(_open_regular(path), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most_bytes))
            return file.read(most_bytes)
    except OSError:
        return b""


def _open_regular(path: Path) -> int:
    """Open a regular file for reading. Links are not followed, and a pipe does not block."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a regular file")
    return descriptor


def _find_special_entries(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as listing:
            entries = list(listing)
    except OSError:
        return
    for entry in entries:
        try:
            mode = entry.stat(follow_symlinks=False).st_mode
        except OSError:  # the trainer has replaced the file
            continue
        if stat.S_ISDIR(mode):
            yield from _find_special_entries(Path(entry.path))
        elif not stat.S_ISREG(mode):
            yield Path(entry.path)
