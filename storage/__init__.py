"""The database: recorded, asked, kept. `open_database` is the way in for scripts and notebooks (see `storage.door`).

It is loaded when it is asked for: who records needs none of what a reader does.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from storage.door import OpenDatabase, RecordedRun, open_database

__all__ = ["OpenDatabase", "RecordedRun", "open_database"]


def __getattr__(name: str) -> Any:
    """Import the door when one of its names is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("storage.door"), name)
