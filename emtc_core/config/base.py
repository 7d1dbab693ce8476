"""What every configuration model is made of: the frozen pydantic base, and TOML of a user or a stranger as a plain tree."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from emtc_core.errors import ConfigError

LARGEST: Final = 10**12
"""No count of steps, episodes or samples is larger: it fits 64 bits, and so does a sum of many of them."""


Value = str | int | float | bool | None
PluginName = Annotated[str, Field(min_length=1, max_length=40)]
"""One of this project's own names, or a plug-in's; `config.outside` knows which there are."""
IMPORTED: Final = "imported"
"""The preset, the device and a section of the stored settings of a run that another program trained."""
WITH_A_MEMORY: Final = ("emtc-", "emu-", "emc")
"""How the names of algorithms begin that write an episodic memory."""

MOST_BYTES = 1 << 20
_LONGEST_SHOWN = 60


@dataclass(frozen=True)
class Before:
    """What a setting was before it existed, and in which runs: of an environment, of algorithms that start so.

    It stands in the setting's annotation where that is not the default of today.
    """

    value: Value
    env: str = ""
    algos: tuple[str, ...] = ()


@dataclass(frozen=True)
class Formerly:
    """The key of a setting in earlier versions, which is still read; it stands in the setting's annotation."""

    key: str


class Section(BaseModel):
    """A frozen group of settings; strangers are refused; the text under a field is its description."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
        serialize_by_alias=True,  # a key that Python reserves is written as the user writes it
        validate_by_name=True,
        validate_by_alias=True,
    )


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
