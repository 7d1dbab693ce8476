"""The database. Scripts and notebooks open it with `open_database` (see `storage.api`).

<<<<<<< HEAD
The modules in this folder are used by all sub-packages (`models`, `schema`, `engine`, `frames`, `blobs`, `guards`,
`column_types`, `private_files`, `process_id`, `retry`), or are small topics (`notebook`, `projections`, `alerts`,
`figures`).
||||||| 90988a07
The modules in this folder are used by all sub-packages (`models`, `engine`, `frames`, `blobs`, `arrays`, `guards`,
`column_types`, `check_rows`, `private_files`, `process_id`, `retry`), or are small topics (`notebook`, `projections`,
`alerts`, `figures`).
=======
The modules in this folder are used by all sub-packages (`models`, `engine`, `frames`, `blobs`, `arrays`, `guards`,
`column_types`, `check_rows`, `files`, `private_files`, `process_id`, `retry`), or are small topics (`notebook`,
`projections`, `alerts`, `figures`).
>>>>>>> cfb9c43abddf688c5e4fe49457fb3a932260b26c

<<<<<<< HEAD
The sub-packages import only those to their left: `files` < `runs` < `recording`, `queries` < `maintenance` < `bundles`,
`sql`. Each is one thing that a user does with runs. A division into reading and writing was tried and rejected:
||||||| 90988a07
The sub-packages import only those to their left: `files` < `runs` < `recording`, `queries` < `maintenance` < `bundles`,
`sql_console`. Each is one thing that a user does with runs. A division into reading and writing was tried and rejected:
=======
The sub-packages import only those to their left: `runs` < `recording`, `queries` < `maintenance` < `bundles`,
`sql_console`. Each is one thing that a user does with runs. A division into reading and writing was tried and rejected:
>>>>>>> cfb9c43abddf688c5e4fe49457fb3a932260b26c
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
