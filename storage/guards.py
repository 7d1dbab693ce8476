"""Check identifiers, make texts for messages about stored values, and remove passwords from messages.

This module does not import SQLAlchemy, because every command needs it before its first output.
"""

import re
from typing import Final

from emtc_core.errors import StorageError

IDENTIFIER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,11}")
"""Ids of runs and sweeps: 1 to 12 letters, digits, - and _. An id is always a single component of a path."""
MAX_NAME_LENGTH: Final = 10_000
"""Maximum length of the name of a run, and of the other texts that a list of runs shows [characters]."""
_MAX_SHOWN = 60
"""Maximum length of a value in a message [characters]."""
_PASSWORD_IN_URL = re.compile(r"([a-zA-Z][\w+.-]*://[^\s:/@'\"]*:)[^\s'\"]*@")
_PASSWORD_IN_SETTING = re.compile(r"((?:password|passwd|pwd)\s*=\s*)('[^']*'|[^\s&'\"]+)", re.IGNORECASE)


def check_identifier(value: object, what: str = "The id of a run") -> str:
    """Return a valid identifier unchanged; `what` is the description of the value in the message.

    Raises:
        StorageError: If it is not 1 to 12 letters, digits, - and _.
    """
    if isinstance(value, str) and IDENTIFIER.fullmatch(value):
        return value
    raise StorageError(f"{what} must be 1 to 12 letters, digits, - and _ (got {shorten(value)}).")


def shorten(value: object) -> str:
    """Return a quoted, shortened form of any value for a message."""
    text = repr(value if len(str(value)) <= _MAX_SHOWN else str(value)[:_MAX_SHOWN])
    return text if len(str(value)) <= _MAX_SHOWN else f"{text} …"


def make_unreadable_error(cause: object) -> StorageError:
    """Make the error for stored data that cannot be read, for example a time that is not a time.

    Args:
        cause: The cause: a clause, or the exception that reading has raised.
    """
    return StorageError(
        f"This data cannot be read: {str(cause).rstrip('.')}.", hint="Check the database with: emtc db check"
    )


def hide_passwords(text: str) -> str:
    """Return a text with every password replaced by ***, in URLs and in settings such as `password=...`."""
    return _PASSWORD_IN_SETTING.sub(r"\1***", _PASSWORD_IN_URL.sub(r"\1***@", text))
