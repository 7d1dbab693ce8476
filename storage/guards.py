"""What a database may hold, checked as it is read: a file from a colleague is data, not instructions.

The grammar of identifiers lives here, and the words for what was not accepted; the types that check columns are in
`storage.column_types`. Blobs check themselves (`storage.blobs`); paths that are made of identifiers are made in
`storage.private_files`. Importing this loads no SQLAlchemy: every command needs it before it has printed a line.
"""

import re
from typing import Final

from emtc_core.errors import StorageError

IDENTIFIER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,11}")
"""Runs and sweeps: 1 to 12 letters, digits, - and _. Such a name is one step of a path and nothing else."""
LONGEST_NAME: Final = 10_000
"""Of the texts that stand in every list of runs [characters]."""
_LONGEST_SHOWN = 60
_IN_ADDRESS = re.compile(r"([a-zA-Z][\w+.-]*://[^\s:/@'\"]*:)[^\s'\"]*@")
_IN_SETTINGS = re.compile(r"((?:password|passwd|pwd)\s*=\s*)('[^']*'|[^\s&'\"]+)", re.IGNORECASE)


def check_identifier(value: object, what: str = "The id of a run") -> str:
    """Return an identifier, or refuse what is none.

    Raises:
        StorageError: If it is not 1 to 12 letters, digits, - and _.
    """
    if isinstance(value, str) and IDENTIFIER.fullmatch(value):
        return value
    raise StorageError(
        f"{what} must be 1 to 12 letters, digits, - and _, got {shorten(value)}.",
        reason="not_an_identifier",
        subject=value,
    )


def shorten(value: object) -> str:
    """Quote a value in one short line, whatever it holds."""
    text = repr(value if len(str(value)) <= _LONGEST_SHOWN else str(value)[:_LONGEST_SHOWN])
    return text if len(str(value)) <= _LONGEST_SHOWN else f"{text} …"


def damaged(column: str, value: object, expected: str) -> StorageError:
    """The error about a stored value that is not what its column holds."""
    return StorageError(
        f"The database holds {shorten(value)} in {column}, which must be {expected}.",
        hint="See what else is wrong with it: emtc db check",
        reason="damaged",
        subject=column,
    )


def hide_passwords(text: str) -> str:
    """Put *** in the place of every password of an address or a connection string in a text."""
    return _IN_SETTINGS.sub(r"\1***", _IN_ADDRESS.sub(r"\1***@", text))
