"""The database. Scripts and notebooks open it with `open_database` (see `storage.api`).

The modules in this folder are used by all sub-packages (`models`, `schema`, `engine`, `frames`, `blobs`, `guards`,
`column_types`, `files`, `private_files`, `retry`), or are small topics (`notebook`, `projections`,
`alerts`, `figures`).

The sub-packages import only those to their left: `runs` < `recording`, `queries` < `maintenance` < `bundles`, `sql`.
Each is one thing that a user does with runs. A division into reading and writing was tried and rejected:
most features then needed three packages instead of two, and code that controls a run both reads and writes.

`storage.api` is imported only when one of its names is used, because recording a run does not need it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from storage.api import OpenDatabase, RecordedRun, open_database

__all__ = ["OpenDatabase", "RecordedRun", "open_database"]


def __getattr__(name: str) -> Any:
    """Import `storage.api` when one of its names is used for the first time."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("storage.api"), name)
