"""Which alerts were read: a small private file beside the database, for everybody who shares it.

It holds keys and nothing else; one that is missing, damaged or somebody else's is an empty one.
"""

import json
import os
from collections.abc import Collection

from emtc_core.errors import StorageError
from storage.engine import Database, files_root, refuse_when_read_only
from storage.files import FILE_MODE, make_private_folder, read_tail

NAME = "alerts-read.json"
_MOST_BYTES = 1 << 20
_MOST_KEYS = 2000


def read_keys(db: Database) -> frozenset[str]:
    """List the keys of the alerts that were read."""
    try:
        stored = json.loads(read_tail(files_root(db) / NAME, _MOST_BYTES) or b"[]")
    except (ValueError, RecursionError):
        return frozenset()
    return frozenset(key for key in stored if isinstance(key, str)) if isinstance(stored, list) else frozenset()


def mark_read(db: Database, keys: Collection[str], *, known: Collection[str]) -> None:
    """Mark alerts as read; of the marks that are there, those of the `known` alerts stay.

    Raises:
        StorageError: If EMTC_READ_ONLY=1 forbids it, or the folder leads elsewhere.
        OSError: If the file cannot be written.
    """
    refuse_when_read_only("mark an alert as read")
    root = files_root(db)
    if root.is_symlink():
        raise StorageError(f"{root} is a link: nothing is written into it. Remove it if you know what it is.")
    make_private_folder(root)
    kept = sorted((read_keys(db) & set(known)) | set(keys))[:_MOST_KEYS]
    begun = root / f"{NAME}.{os.getpid()}.partial"
    with os.fdopen(os.open(begun, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE), "w") as file:
        json.dump(kept, file)
    begun.replace(root / NAME)  # a link in its place is replaced, not followed
