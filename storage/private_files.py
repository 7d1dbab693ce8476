"""Create files and folders that only their owner can read, and write output files in one step."""

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from emtc_core.atomic_file import replace_atomically
from emtc_core.errors import StorageError

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
"""Permissions of new folders and files: only the owner has access."""


def make_private_folder(folder: Path) -> None:
    """Create a folder and its missing parents, with access only for this user."""
    for missing in reversed([place for place in (folder, *folder.parents) if not place.exists()]):
        missing.mkdir(mode=FOLDER_MODE, exist_ok=True)


def open_private_append(path: Path) -> BinaryIO:
    """Open a file for appending. A missing file is created with access only for this user.

    Raises:
        OSError: If the file cannot be opened.
    """
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, FILE_MODE), "ab")


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
        raise StorageError(f"{path} cannot be written: {error.strerror or error}. Choose another --out.") from error


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
    """Read the last `most_bytes` bytes of a file. Returns b"" if it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most_bytes))
            return file.read(most_bytes)
    except OSError:
        return b""
