"""Replace a file in one step, so that a reader or a crash never finds half of it."""

import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

TEMPORARY_SUFFIX = ".partial"
"""Suffix of the temporary file. If the process is killed, the file remains."""


@contextmanager
def replace_atomically(path: Path, *, durable: bool = False, private: bool = False) -> Generator[BinaryIO]:
    """Open a temporary file in the folder of `path`; at the end of the block it is renamed to `path`.

    After an exception the temporary file is deleted and `path` is not changed. A link at `path` is replaced, not
    followed.

    Args:
        path: The file to create or replace. Its folder must exist.
        durable: Wait until the content and the new name are on the disk, so that they remain after a power failure.
        private: Only the owner may read the file. Otherwise the process's umask decides.

    Raises:
        OSError: If the file cannot be written.
    """
    temporary = path.with_name(f"{path.stem}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")
    mode = 0o600 if private else 0o666
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_to_disk(path.parent)


def sync_to_disk(path: Path) -> None:
    """Wait until a file, or the list of files in a folder, is written to the disk.

    Raises:
        OSError: If the disk reports an error.
    """
    with suppress(PermissionError):  # some systems cannot open folders
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)  # Windows syncs no read-only file
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
