"""Values of settings as text, as a command line, an address or a form field gives them.

`parse_value` is the only place that turns such a text into a value; bounds and choices are checked by the models.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal

from emtc_core.config.base import Value
from emtc_core.errors import ConfigError

_COUNT: Final = re.compile(r"([+-]?)(\d[\d_,]*)(?:\.(\d+))?(?:e([+-]?\d{1,3}))?([km]?)", re.ASCII)
_SCALES: Final = {"": 0, "k": 3, "m": 6}
_MOST_DIGITS = 18
_BOOLS: Final = {
    **dict.fromkeys(("true", "1", "yes", "y", "on", "t"), True),
    **dict.fromkeys(("false", "0", "no", "n", "off", "f"), False),
}


@dataclass(frozen=True)
class FieldInfo:
    """One setting as a form or a help text shows it."""

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
    """True when the minimum itself is not allowed."""
    words: tuple[str, ...] = ()
    """Texts that a number or a switch takes as well, such as auto."""


def parse_value(info: FieldInfo, text: str) -> Value:
    """Read the value of a setting. Quotes around it are dropped; an empty text is "not set" where that is possible.

    Args:
        info: The setting.
        text: Such as "40k", "1e-3", "true" or "nearest".

    Returns:
        The value in the type of the setting. A text of another type stays a text, which the models refuse.
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
    """Drop the quotes around a text, as TOML writes texts."""
    text = text.strip()
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" and text[0] not in text[1:-1]
    return text[1:-1] if quoted else text


def find_count(text: str) -> int | None:
    """Read a whole number as people write it: 40000, 40,000, 40_000, 40k, 1.5M, 1e6; None if it is not one."""
    found = _COUNT.fullmatch(text.strip().lower())
    if found is None:
        return None
    sign, whole, part, power, scale = found.groups(default="")
    digits = whole.replace(",", "").replace("_", "") + part
    zeros = int(power or 0) + _SCALES[scale] - len(part)
    if len(digits) + max(zeros, 0) > _MOST_DIGITS:
        return None
    value, rest = int(digits) * 10 ** max(zeros, 0), 0
    if zeros < 0:
        value, rest = divmod(value, 10 ** min(-zeros, _MOST_DIGITS))
    return None if rest else -value if sign == "-" else value


def parse_count(text: str, key: str = "") -> int:
    """Read a whole number, see `find_count`; `key` names what it is for.

    Raises:
        ConfigError: If it is not one.
    """
    count = find_count(text)
    if count is None:
        raise ConfigError("must be a whole number such as 40000, 40k or 1.5M", key=key, value=text)
    return count


def write_text(value: Value) -> str:
    """Write a value so that `parse_value` returns the same: 1.8e-05, true; an empty text for "not set"."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(value)
