"""Conversion between values of settings and texts of the command line, of URLs and of form fields.

`parse_value` is the only parser of such texts. Bounds and choices are validated later, by the Pydantic models of the
configuration.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal

from emtc_core.config.base import Value
from emtc_core.errors import ConfigError

_COUNT: Final = re.compile(r"([+-]?)(\d[\d_,]*)(?:\.(\d+))?(?:e([+-]?\d{1,3}))?([km]?)", re.ASCII)
_SCALES: Final = {"": 0, "k": 3, "m": 6}
_MAX_DIGITS = 18
_BOOLS: Final = {
    **dict.fromkeys(("true", "1", "yes", "y", "on", "t"), True),
    **dict.fromkeys(("false", "0", "no", "n", "off", "f"), False),
}


@dataclass(frozen=True)
class FieldInfo:
    """Description of one setting, for forms and help texts."""

    key: str
    type: Literal["int", "float", "bool", "str", "choice"]
    default: Value
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]
    unit: str
    description: str
    optional: bool
    minimum_open: bool = False
    """True if the minimum itself is not allowed."""
    words: tuple[str, ...] = ()
    """Texts that a numeric or boolean setting also accepts, such as auto."""


def parse_value(info: FieldInfo, text: str) -> Value:
    """Parse the value of a setting. Quotes around it are removed. An empty text is None for an optional setting.

    Args:
        info: The setting.
        text: For example "40k", "1e-3", "true" or "nearest".

    Returns:
        The value in the type of the setting. A text that cannot be parsed is returned as it is; Pydantic's
        validation refuses it.
    """
    text = unquote(text)
    if info.optional and text.lower() in ("", "none", "null"):
        return None
    if text in info.words:
        return text
    if info.type == "bool":
        return _BOOLS.get(text.lower(), text)
    if info.type == "int":
        count = find_count(text)
        return text if count is None else count
    if info.type == "float":
        try:
            return float(text)
        except ValueError:
            return text
    return text


def unquote(text: str) -> str:
    """Remove the quotes of a TOML string, and spaces around it."""
    text = text.strip()
    has_quotes = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" and text[0] not in text[1:-1]
    return text[1:-1] if has_quotes else text


def find_count(text: str) -> int | None:
    """Parse a whole number: 40000, 40,000, 40_000, 40k, 1.5M or 1e6. None if the text is not a whole number."""
    match = _COUNT.fullmatch(text.strip().lower())
    if match is None:
        return None
    sign, whole, fraction, exponent, scale = match.groups(default="")
    digits = whole.replace(",", "").replace("_", "") + fraction
    power = int(exponent or 0) + _SCALES[scale] - len(fraction)
    if len(digits) + max(power, 0) > _MAX_DIGITS:
        return None
    value, remainder = int(digits) * 10 ** max(power, 0), 0
    if power < 0:
        value, remainder = divmod(value, 10 ** min(-power, _MAX_DIGITS))
    return None if remainder else -value if sign == "-" else value


def parse_count(text: str, key: str = "") -> int:
    """Parse a whole number with `find_count`; `key` is the name of the setting in the error message.

    Raises:
        ConfigError: If the text is not a whole number.
    """
    count = find_count(text)
    if count is None:
        raise ConfigError("must be a whole number such as 40000, 40k or 1.5M", key=key, value=text)
    return count


def format_argument(value: Value) -> str:
    """Return a value as a short text that `parse_value` converts back: "1.8e-05", "true"; an empty text for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(value)


def format_setting(value: Value) -> str:
    """Return a value as Python writes it, but with lower-case booleans, for reading: "true", "0.0005", "None"."""
    return str(value).lower() if isinstance(value, bool) else str(value)
