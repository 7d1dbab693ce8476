"""Common parts of the configuration: the frozen pydantic base class, reading of TOML files, and validation errors."""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from emtc_core.errors import NO_VALUE, ConfigError, Fault, describe_fault, shorten

LARGEST: Final = 10**12
"""Upper bound of all counts of steps, episodes or samples. It fits 64 bits, and so does a sum of many counts."""

Value = str | int | float | bool | None
PluginName = Annotated[str, Field(min_length=1, max_length=40)]
"""A built-in name, or the name of a plug-in. `config.plugin_settings.list_choices` lists them."""
IMPORTED: Final = "imported"
"""Runs of other programs have this text as preset, device and section name in their stored settings."""
MEMORY_ALGO_PREFIXES: Final = ("emtc-", "emu-", "emc")
"""Name prefixes of algorithms that write an episodic memory."""

MAX_BYTES = 1 << 20
"""Maximum size of a text file with settings (1 MiB)."""
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
_TYPE_RULES: Final = {
    "int_": "must be a whole number",
    "float_": "must be a number",
    "bool_": "must be true or false",
    "string_": "must be a text",
    "model_": "must be a table of settings",
    "dict_": "must be a table of settings",
}
"""Prefix of pydantic's error type → rule."""


class ConfigSection(BaseModel):
    """A frozen group of settings. Unknown keys are refused. The docstring under a field is its description."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
        serialize_by_alias=True,  # for keys that are reserved words of Python
        validate_by_name=True,
        validate_by_alias=True,
    )


def read_text(path: Path) -> str:
    """Read a UTF-8 text file of at most `MAX_BYTES`.

    Raises:
        ConfigError: If it cannot be read, is not a regular file, or is too large.
    """
    try:
        if path.exists() and not path.is_file():
            raise ConfigError("must be a regular file", key=str(path))  # not a ValueError, so it is not caught below
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        return _check_length(content.decode("utf-8"), str(path))
    except (OSError, ValueError) as exc:
        reason = "it is not text" if isinstance(exc, ValueError) else exc.strerror or exc
        raise ConfigError(f"cannot be read: {reason}", key=str(path)) from exc


def parse_toml(text: str, what: str) -> dict[str, Any]:
    """Read the text of a TOML file.

    Args:
        text: The file's content.
        what: Path or other name of the file; the key of the fault.

    Raises:
        ConfigError: If it is not valid TOML, too long, or nested too deeply.
    """
    try:
        return tomllib.loads(_check_length(text, what))
    except RecursionError as exc:
        raise ConfigError("is nested too deeply", key=what) from exc
    except ValueError as exc:  # TOMLDecodeError, or a number with thousands of digits
        raise ConfigError(f"is not valid TOML: {shorten(str(exc), 200)}", key=what) from exc


class SettingError(ValueError):
    """Raised by the validator of a model. Pydantic reports these faults together with its own errors."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__(*faults)
        self.faults = faults

    def __str__(self) -> str:
        return "\n".join(map(describe_fault, self.faults))


def convert_errors(error: ValidationError, key_of: Callable[[Sequence[str]], str] = ".".join) -> list[Fault]:
    """Convert the errors of a pydantic ValidationError to faults. A setting with several types gets one fault for all.

    Args:
        error: The error of pydantic.
        key_of: Returns the key of the setting for a location in the tree.
    """
    faults: list[Fault] = []
    for details in error.errors():
        cause = details.get("ctx", {}).get("error")
        if isinstance(cause, SettingError):
            faults += cause.faults
            continue
        value = NO_VALUE if details["type"] in ("missing", "extra_forbidden") else details["input"]
        key, rule = key_of([str(part) for part in details["loc"]]), format_rule(details)
        last = faults[-1] if faults else Fault()
        if key and last.key == key and last.value is value:
            faults[-1] = replace(last, rule=f"{last.rule}, or {rule}")
        else:
            faults.append(Fault(key, value, rule))
    return faults


def format_rule(details: ErrorDetails) -> str:
    """Convert one error of pydantic to the rule of a fault, such as "must be > 0"."""
    kind = details["type"]
    rule = _RULES.get(kind) or next((rule for prefix, rule in _TYPE_RULES.items() if kind.startswith(prefix)), None)
    return rule.format(**details.get("ctx", {})) if rule else f"is not valid: {details['msg']}"


def _check_length(text: str, what: str) -> str:
    if len(text) > MAX_BYTES:
        raise ConfigError("must be at most a mebibyte long", key=what)
    return text
