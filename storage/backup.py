"""A whole copy of a SQLite database, taken while others write, before something changes all of it."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from emtc_core.errors import StorageError
from storage.files import FILE_MODE

_PAGES_AT_ONCE = 4096


def back_up(path: Path, version: str | None) -> Path:
    """Copy a database beside itself, as `NAME.schema-VERSION.db`; an earlier copy stays.

    Returns:
        Where the copy is.

    Raises:
        StorageError: If it cannot be written; then there is none.
    """
    place = _free_place(path, version)
    try:
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE))
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(place)) as target:
            source.backup(target, pages=_PAGES_AT_ONCE)
            target.execute("PRAGMA journal_mode=DELETE")  # one file, which can be moved
    except (OSError, sqlite3.Error) as error:
        place.unlink(missing_ok=True)
        raise StorageError(
            f"{path} was not upgraded: its backup {place.name} cannot be written ({error}). Make room beside it."
        ) from error
    return place


def _free_place(path: Path, version: str | None) -> Path:
    stem = f"{path.stem}.schema-{version or 'none'}"
    names = [f"{stem}.db", *(f"{stem}-{number}.db" for number in range(2, 1000))]
    return next(place for name in names if not os.path.lexists(place := path.with_name(name)))
