"""The grammar of searches: words and comparisons, and how a number is compared; not what they are about."""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, Literal, get_args

from sqlalchemy import ColumnElement, func, literal

from emtc_core.errors import ConfigError

Sign = Literal["=", "!=", "<", "<=", ">", ">="]
Sql = ColumnElement[Any]

MOST_TERMS = 50
_PIECE = re.compile(r'(?:[^\s"]|"[^"]*"?)+')
_TERM = re.compile(r"([A-Za-z_][\w.]*)\s*(!=|<=|>=|==|=|<|>)\s*(.*)", re.DOTALL)
_SPELLED: Final[dict[str, Sign]] = {"==": "=", **{sign: sign for sign in get_args(Sign)}}
ORDERED: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
"""The signs that need a number."""
ROUNDED = 5e-6
"""Settings are printed with six digits; a number that is typed with a fraction finds what is printed like it."""


@dataclass(frozen=True)
class Term:
    """One thing that must hold: a word (no key), or a comparison."""

    value: str
    key: str = ""
    sign: Sign = "="


def split_search(text: str) -> list[Term]:
    """Read words and comparisons, separated by spaces or commas with a space; quotes keep spaces together.

    Raises:
        ConfigError: If there are more than MOST_TERMS.
    """
    pieces = [piece.rstrip(",") for piece in _PIECE.findall(text) if piece.strip('",')]
    if len(pieces) > MOST_TERMS:
        raise ConfigError(f"A search takes at most {MOST_TERMS} words, got {len(pieces):,}.")
    return [read_comparison(piece) or Term(piece.replace('"', "")) for piece in pieces]


def read_comparison(piece: str) -> Term | None:
    """Read `key=value`, with any sign, or None where it is none.

    Raises:
        ConfigError: If its sign needs a number and there is none.
    """
    found = _TERM.fullmatch(piece)
    if found is None:
        return None
    key, sign, value = found.groups()
    term = Term(value.replace('"', "").strip(), key, _SPELLED[sign])
    if term.sign in ORDERED and read_number(term.value) is None:
        raise ConfigError(f'{term.key[:80]}{term.sign} needs a number, got "{term.value[:80]}".')
    return term


def read_number(text: str) -> float | None:
    """Read a finite number, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None


def is_whole(text: str) -> bool:
    """Whether a text is written as a whole number."""
    return text.lstrip("+-").isdecimal()


def compare_number(value: Sql, term: Term) -> Sql:
    """Compare a number of the database, by any sign but `!=`; `none` finds what is missing."""
    number = read_number(term.value)
    if number is None:
        is_missing = term.value.lower() in ("", "none", "null")
        return value.is_(None) if is_missing else literal(False)
    if term.sign in ORDERED:
        found = ORDERED[term.sign](value, number)
    elif is_whole(term.value):
        found = value == number
    else:
        found = func.abs(value - number) <= abs(number) * ROUNDED
    return func.coalesce(found, literal(False))  # the value stands here once: some take long to compute
