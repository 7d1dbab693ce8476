"""Files beside a database: where they may lie, and who may read them.

A folder that came with a foreign database may hold anything: links that lead out of it, devices, pipes. A path is
made from a checked identifier here and nowhere else, and a folder with a link in it is not used at all. What this
program makes is private to its user.
"""

import os
import re
import shutil
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from emtc_core.errors import StorageError

FOLDER_MODE = 0o700
FILE_MODE = 0o600
_OWN_NAME = re.compile(
    r"(checkpoint|best)-[0-9]+\.[a-z.]+|non-finite-update-[0-9]+\.npz|log\.txt|traceback\.txt|trainer\.json|code-[0-9a-f]+\.diff"
)


def find_folder(root: Path, name: str) -> Path:
    """The folder `name`, a checked identifier, under `root`; it need not exist.

    Raises:
        StorageError: If a link or a special file stands in the way, or in the folder.
    """
    folder = root / name
    strange = next(find_special_files(root, folder), None)
    if strange is not None:
        raise StorageError(
            f"{strange} is a link or a special file, and a run's folder holds none: nothing in it is read, written "
            "or deleted. Remove it if you know what it is.",
            reason="link",
            subject=strange,
        )
    return folder


def find_special_files(root: Path, folder: Path) -> Iterator[Path]:
    """List what is neither a plain file nor a plain folder: the way to `folder`, and all that it holds."""
    for place in (root, folder):
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            yield place
            return
    yield from _special_files_in(folder)


def remove_folder(folder: Path) -> None:
    """Delete a folder that `find_folder` named, if it is there."""
    shutil.rmtree(folder, ignore_errors=True)


def measure_folder(folder: Path) -> tuple[int, int]:
    """Add up a folder's checkpoints and its other files [bytes]; a link counts as itself."""
    checkpoints = others = 0
    for place in folder.rglob("*"):
        with suppress(OSError):  # a trainer has just replaced it
            size = 0 if place.is_dir() and not place.is_symlink() else place.lstat().st_size
            if is_checkpoint(place.name):
                checkpoints += size
            else:
                others += size
    return checkpoints, others


def is_checkpoint(name: str) -> bool:
    """Whether a file's name is that of a checkpoint or a best policy, whole, begun or set aside."""
    return name.startswith(("checkpoint-", "best-"))


def list_own_files(folder: Path) -> list[Path]:
    """List what this program has written into a run's folder that stands among others' files."""
    return [place for place in folder.glob("*") if _OWN_NAME.fullmatch(place.name) and not place.is_dir()]


def remove_own_files(folder: Path) -> None:
    """Delete what `list_own_files` lists, and the folder if nothing else is in it."""
    for place in list_own_files(folder):
        place.unlink(missing_ok=True)
    with suppress(OSError):  # it is not empty, or was never made
        folder.rmdir()


def make_private_folder(folder: Path) -> None:
    """Make a folder and its missing parents, for this user alone."""
    for missing in reversed([place for place in (folder, *folder.parents) if not place.exists()]):
        missing.mkdir(mode=FOLDER_MODE, exist_ok=True)


def append_private(path: Path) -> BinaryIO:
    """Open a file of this user alone for appending, making it where it is missing; a link is refused."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    return os.fdopen(os.open(path, flags, FILE_MODE), "ab")


@contextmanager
def replaced(place: Path) -> Generator[BinaryIO]:
    """Open a file beside `place` that takes its place in the end, and is gone after any exception.

    Raises:
        StorageError: If it cannot be written.
    """
    beside = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        with beside.open("xb") as file:
            yield file
        beside.replace(place)
    except OSError as error:
        raise StorageError(
            f"{place} cannot be written: {error.strerror or error}. Choose another --out.",
            reason="not_writable",
            subject=place,
        ) from error
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def read_tail(path: Path, most_bytes: int) -> bytes:
    """Read the end of a plain file; nothing if it is missing or is something else."""
    try:
        with os.fdopen(_open_plain(path), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most_bytes))
            return file.read(most_bytes)
    except OSError:
        return b""


def _open_plain(path: Path) -> int:
    """Open without following a link and without waiting for a pipe's other end."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is no plain file")
    return descriptor


def _special_files_in(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as listing:
            entries = list(listing)
    except OSError:
        return
    for entry in entries:
        try:
            mode = entry.stat(follow_symlinks=False).st_mode
        except OSError:  # a trainer has just replaced it
            continue
        if stat.S_ISDIR(mode):
            yield from _special_files_in(Path(entry.path))
        elif not stat.S_ISREG(mode):
            yield Path(entry.path)
