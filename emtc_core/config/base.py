"""What every configuration model is made of: the frozen pydantic base, and TOML of a user or a stranger as a plain tree."""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from emtc_core.errors import NO_VALUE, ConfigError, Fault, describe_fault
from emtc_core.errors import quote as quote
from emtc_core.errors import shorten as shorten

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


def read_text(path: Path) -> str:
    """Read a small text file.

    Raises:
        ConfigError: If it cannot be read, is no plain file, or is larger than a mebibyte.
    """
    try:
        if path.exists() and not path.is_file():
            raise ConfigError("must be a regular file", key=str(path))
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        return _refuse_long(content.decode("utf-8"), str(path))
    except (OSError, ValueError) as exc:
        reason = "it is not text" if isinstance(exc, ValueError) else exc.strerror or exc
        raise ConfigError(f"cannot be read: {reason}", key=str(path)) from exc


def parse_toml(text: str, what: str) -> dict[str, Any]:
    """Read the text of a TOML file.

    Args:
        text: The file's content.
        what: Its path, or what it is, for the key of a fault.

    Raises:
        ConfigError: If it is not valid, too long, or nested too deeply.
    """
    try:
        return tomllib.loads(_refuse_long(text, what))
    except RecursionError as exc:
        raise ConfigError("is nested too deeply", key=what) from exc
    except ValueError as exc:  # TOMLDecodeError, and a number of thousands of digits
        raise ConfigError(f"is not valid TOML: {shorten(str(exc), 200)}", key=what) from exc


class SettingError(ValueError):
    """What a validator of a model raises, so that pydantic collects its faults with all others."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__(*faults)
        self.faults = faults

    def __str__(self) -> str:
        return "\n".join(map(describe_fault, self.faults))


def read_faults(error: ValidationError, key_of: Callable[[Sequence[str]], str] = ".".join) -> list[Fault]:
    """List the faults that pydantic found; those of one setting that may be of several types are one fault.

    Args:
        error: What pydantic raised.
        key_of: Turns the place of a fault in the tree into the key of the setting.
    """
    faults: list[Fault] = []
    for each in error.errors():
        cause = each.get("ctx", {}).get("error")
        if isinstance(cause, SettingError):
            faults += cause.faults
            continue
        value = NO_VALUE if each["type"] in ("missing", "extra_forbidden") else each["input"]
        key, rule = key_of([str(part) for part in each["loc"]]), rule_of(each)
        last = faults[-1] if faults else Fault()
        if key and last.key == key and last.value is value:
            faults[-1] = replace(last, rule=f"{last.rule}, or {rule}")
        else:
            faults.append(Fault(key, value, rule))
    return faults


def rule_of(details: ErrorDetails) -> str:
    """Write what pydantic found as the rule of a fault."""
    kind = details["type"]
    known = _RULES.get(kind) or next((rule for start, rule in _RULES_OF_TYPES.items() if kind.startswith(start)), None)
    return known.format(**details.get("ctx", {})) if known else f"is not valid: {details['msg']}"


_RULES: Final = {
    "greater_than": "must be > {gt}",
    "greater_than_equal": "must be >= {ge}",
    "less_than": "must be < {lt}",
    "less_than_equal": "must be <= {le}",
    "finite_number": "must be finite",
    "literal_error": "must be {expected}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "missing": "is missing",
    "extra_forbidden": "is not a setting",
}
_RULES_OF_TYPES: Final = {
    "int_": "must be a whole number",
    "float_": "must be a number",
    "bool_": "must be true or false",
    "string_": "must be a text",
    "model_": "must be a table of settings",
    "dict_": "must be a table of settings",
}
"""By how the name of pydantic's error type begins."""


def _refuse_long(text: str, what: str) -> str:
    if len(text) > MOST_BYTES:
        raise ConfigError("must be at most a mebibyte long", key=what)
    return text
