"""Room that a trainer keeps on the disk beside its database, for whoever must make room when there is none.

SQLite writes its log before it forgets anything: on a full disk not even a delete can begin. So a few MB are kept as a
file while there is room, and given back to the disk when a thinning or a delete finds it full.
"""

import shutil
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from emtc_core.errors import StorageError
from storage.engine import Database, files_root, is_disk_full
from storage.private_files import append_private

NAME: Final = "reserve"
SIZE_BYTES: Final = 8 << 20
_PLENTY: Final = 20
Result = TypeVar("Result")


def keep_reserve(db: Database) -> None:
    """Set a few MB aside, unless that is done already or the disk is short of room."""
    place = files_root(db) / NAME
    with suppress(OSError):  # what cannot be kept cannot be given back, and nothing else depends on it
        if db.path is None or place.exists() or shutil.disk_usage(place.parent).free < _PLENTY * SIZE_BYTES:
            return
        with append_private(place) as file:
            file.write(bytes(SIZE_BYTES))


def give_reserve_back(db: Database) -> bool:
    """Give what was set aside back to the disk; False if there was nothing."""
    place = files_root(db) / NAME
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
