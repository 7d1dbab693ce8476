"""TOML of a user or of a stranger → a plain tree, or one sentence why not."""

import tomllib
from pathlib import Path
from typing import Any

from emtc_core.errors import ConfigError

MOST_BYTES = 1 << 20
_LONGEST_SHOWN = 60


def read_text(path: Path, what: str) -> str:
    """Read a small text file; `what` names its kind in the sentence.

    Raises:
        ConfigError: If it cannot be read, is no plain file, or is larger than a mebibyte.
    """
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"The {what} {shorten(str(path))} is no plain file.")
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        return _refuse_long(content.decode("utf-8"), what)
    except (OSError, ValueError) as exc:
        reason = "it is no text" if isinstance(exc, ValueError) else exc.strerror or exc
        raise ConfigError(f"The {what} {shorten(str(path))} cannot be read: {reason}.") from exc


def parse_toml(text: str, what: str) -> dict[str, Any]:
    """Read the text of a TOML file.

    Raises:
        ConfigError: If it is not valid, too long, or nested too deeply.
    """
    try:
        return tomllib.loads(_refuse_long(text, what))
    except RecursionError as exc:
        raise ConfigError(f"The {what} is nested too deeply.") from exc
    except ValueError as exc:  # TOMLDecodeError, and a number of thousands of digits
        raise ConfigError(f"The {what} is not valid TOML: {shorten(str(exc), 200)}.") from exc


def shorten(text: str, longest: int = _LONGEST_SHOWN) -> str:
    """Cut a long text for a sentence."""
    return text if len(text) <= longest else f"{text[:longest]} …"


def quote(value: object) -> str:
    """Write a value as it was given, short enough for a sentence."""
    try:
        return shorten(repr(value))
    except ValueError:  # an integer of thousands of digits
        return "a number of thousands of digits"


def _refuse_long(text: str, what: str) -> str:
    if len(text) > MOST_BYTES:
        raise ConfigError(f"The {what} must be at most a mebibyte long.")
    return text
