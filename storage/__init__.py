"""The database: recorded, queried, kept. `open_database` is the way in for scripts and notebooks (see `storage.api`).

The root holds what every room stands on (`models`, `engine`, `frames`, `blobs`, `guards`, `column_types`,
`private_files`, `retry`) and what is small enough to be one file (`notebook`, `projections`, `alerts`, `figures`).
Above it are the rooms: `files` < `runs` < `recording`, `queries` < `maintenance` < `bundles`; and `sql_console`. They
are cut by what one wants to do with a run. The other drawing, by direction (write, read, keep), was walked through
too: a learning curve passed three rooms of it instead of two, a run's states stood in all, and whoever steers a run
both writes and reads.

The api is imported when it is asked for: who records needs none of what a reader does.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from storage.api import OpenDatabase, RecordedRun, open_database

__all__ = ["OpenDatabase", "RecordedRun", "open_database"]


def __getattr__(name: str) -> Any:
    """Import the door when one of its names is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("storage.api"), name)
