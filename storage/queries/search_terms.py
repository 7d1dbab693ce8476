"""Search for runs: parse words and comparisons, and translate them into SQL conditions on the table `runs`.

    corridor "second try"        words; each must occur in the name, id, note, tags, algorithm, environment or map
    gate.enabled=false           a setting by its dotted key; also != < <= > >=
    final_rate>0.8 status=lost   a column of the run, its final win rate (`final_rates`), or its status
    tag=paper map=3m,2s3z        a tag; one of several values

Texts are compared without regard to case, numbers as numbers. `!=` is the negation of `=`, so it also finds the runs
that do not have the value at all. Values are always passed as bound parameters. The search for episodes uses the same
parser (`storage.queries.episodes`).
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from math import isfinite
from typing import Any, Final, Literal, get_args

from sqlalchemy import (
    JSON,
    ColumnElement,
    String,
    and_,
    case,
    cast,
    func,
    literal,
    not_,
    or_,
    select,
    true,
    type_coerce,
)
from sqlalchemy.types import Double

from emtc_core.errors import ConfigError
from storage.column_types import get_use, name_type
from storage.models import RUN_TABLE_COLUMNS, Run
from storage.queries.final_rates import select_final_rate
from storage.queries.gate_state import ACTIVE_SHARE

Sign = Literal["=", "!=", "<", "<=", ">", ">="]
Sql = ColumnElement[Any]

MAX_TERMS = 50
"""Maximum number of terms in one search."""
ORDER_OPERATORS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
"""The signs that need a number on the right."""
_RELATIVE_TOLERANCE = 5e-6
"""Settings are printed with six digits, so a number typed with a fraction matches every value that prints the same."""
_MISSING = ("none", "null")
_TERM_TEXT = re.compile(r'(?:[^\s"]|"[^"]*"?)+')
_COMPARISON = re.compile(r"([A-Za-z_][\w.]*)\s*(!=|<=|>=|==|=|<|>)\s*(.*)", re.DOTALL)
_SIGNS: Final[dict[str, Sign]] = {"==": "=", **{sign: sign for sign in get_args(Sign)}}
_PAPER_NAME = re.compile(r"(emtc|emu)\((\w+)\)", re.IGNORECASE)


@dataclass(frozen=True)
class Term:
    """One condition of a search: a word (empty `key`), or a comparison of `key` with `value`."""

    value: str
    key: str = ""
    sign: Sign = "="


@dataclass(frozen=True)
class SearchContext:
    """The data that conditions depend on: its dialect, and the runs with another status than the stored one."""

    dialect: str
    ids_by_status: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Status → ids of the runs that have it although another one is stored."""

    @property
    def status(self) -> Sql:
        """The status of a run, see `runs.status`."""
        if not self.ids_by_status:
            return type_coerce(Run.status, String)
        return case(*((Run.id.in_(ids), status) for status, ids in self.ids_by_status.items()), else_=Run.status)

    @property
    def config(self) -> Sql:
        """The configuration as JSON; `{}` if a foreign SQLite file has invalid JSON in the column."""
        return _valid_json(Run.config, "{}") if self.dialect == "sqlite" else type_coerce(Run.config, JSON)

    def text_of(self, key: str) -> Sql:
        """Return the text at a dotted key of the configuration that is not a setting, such as `preset`; or NULL."""
        return self.setting(key)[1]

    def tags_table(self) -> Any:
        """Return the tags of a run as a table with the column `value`."""
        if self.dialect == "sqlite":
            return func.json_each(_valid_json(Run.tags, "[]")).table_valued("value")
        return func.json_array_elements_text(Run.tags).table_valued("value").render_derived()

    def seconds_between(self, start: Any, end: Any) -> Sql:
        """Return the time from `start` to `end` [s]."""
        if self.dialect == "sqlite":
            return (func.julianday(end) - func.julianday(start)) * 86_400.0
        return cast(func.extract("epoch", end - start), Double)

    def setting(self, key: str) -> tuple[Sql, Sql, Sql]:
        """Return the JSON type, the text and the number at a dotted key of the configuration.

        All three are NULL for a run that does not store the key. The number is NULL if the value is not a number.
        """
        parts = key.split(".")
        if self.dialect == "sqlite":
            path = "$" + "".join(f'."{part}"' for part in parts)
            kind, value = func.json_type(self.config, path), func.json_extract(self.config, path)
            return kind, cast(value, String), case((kind.in_(("integer", "real")), type_coerce(value, Double)))
        kind = func.json_typeof(func.json_extract_path(self.config, *parts))
        text = func.json_extract_path_text(self.config, *parts)
        return kind, text, case((kind == "number", cast(text, Double)))


@dataclass(frozen=True)
class SearchKey:
    """A property of a run that a search can compare. `make_sql` returns it as an SQL expression for a context."""

    kind: Literal["text", "number", "tag"]
    make_sql: Callable[[SearchContext], Sql]
    make_other_sql: Callable[[SearchContext], Sql] | None = None
    """A second text that `=` may match."""


def _column(column: Any) -> Callable[[SearchContext], Sql]:
    return lambda context: column


_KINDS: Final[dict[str, Literal["text", "number", "tag"]]] = {"integer": "number", "real": "number", "JSON": "tag"}
SEARCH_KEYS: Final[dict[str, SearchKey]] = {
    **{
        get_use(column).search: SearchKey(_KINDS.get(name_type(column), "text"), _column(column))
        for column in RUN_TABLE_COLUMNS
        if get_use(column).search
    },
    "preset": SearchKey("text", lambda context: func.coalesce(context.text_of("preset"), "")),
    "imported": SearchKey(
        "text",
        lambda context: func.coalesce(context.text_of("imported.label"), ""),
        lambda context: func.coalesce(context.text_of("imported.format"), ""),
    ),
    "status": SearchKey("text", lambda context: context.status),
    "final_rate": SearchKey("number", lambda _: select_final_rate()),
    "gate": SearchKey(
        "text",
        lambda context: case(
            (Run.gate_removed >= ACTIVE_SHARE, "active"), (Run.gate_removed.is_not(None), "idle"), else_="none"
        ),
    ),
}
"""The keys that a comparison may use in addition to the settings: columns of `runs`, and values computed from them."""
_WORD_COLUMNS: Final = tuple(column for column in RUN_TABLE_COLUMNS if get_use(column).has_words)


def split_search(text: str) -> list[Term]:
    """Split a search into terms at spaces, or at a comma with a space. Double quotes keep spaces in one term.

    Raises:
        ConfigError: If there are more than MAX_TERMS terms, or a comparison is invalid.
    """
    pieces = [piece.rstrip(",") for piece in _TERM_TEXT.findall(text) if piece.strip('",')]
    if len(pieces) > MAX_TERMS:
        raise ConfigError(f"must have at most {MAX_TERMS} terms, has {len(pieces):,}", key="search")
    return [parse_comparison(piece) or Term(piece.replace('"', "")) for piece in pieces]


def parse_comparison(text: str) -> Term | None:
    """Parse `key=value`, with any sign. Return None if the text is not a comparison.

    Raises:
        ConfigError: If the sign needs a number and the value is not one.
    """
    match = _COMPARISON.fullmatch(text)
    if match is None:
        return None
    key, sign, value = match.groups()
    term = Term(value.replace('"', "").strip(), key, _SIGNS[sign])
    if term.sign in ORDER_OPERATORS and parse_number(term.value) is None:
        raise ConfigError(f"must be compared with a number by {term.sign}", key=term.key, value=term.value)
    return term


def parse_number(text: str) -> float | None:
    """Parse a finite number, or return None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None


def is_whole(text: str) -> bool:
    """Return whether a text is written as a whole number, without a fraction or an exponent."""
    return text.lstrip("+-").isdecimal()


def compare_number(value: Sql, term: Term) -> Sql:
    """Return the SQL comparison of a number with a term, for every sign but `!=`. It is never NULL.

    A whole number must be equal. A number with a fraction or an exponent must be equal to six digits. The values
    `none`, `null` and the empty text match a missing number.
    """
    number = parse_number(term.value)
    if number is None:
        return value.is_(None) if term.value.lower() in ("", *_MISSING) else literal(False)
    # `value` occurs only once in the expression, because some values are slow to compute.
    return func.coalesce(_compare(value, number, term), literal(False))


def _compare(value: Any, number: float, term: Term) -> Any:
    """Compare a Python number or an SQL number with the number of a term."""
    if term.sign in ORDER_OPERATORS:
        return ORDER_OPERATORS[term.sign](value, number)
    if is_whole(term.value):
        return value == number
    difference = value - number
    distance = func.abs(difference) if isinstance(difference, ColumnElement) else abs(difference)
    return distance <= abs(number) * _RELATIVE_TOLERANCE


def parse_text(text: str) -> list[Term]:
    """Parse a search for runs.

    Raises:
        ConfigError: If a comparison is invalid, its key is unknown, or there are too many terms.
    """
    terms = split_search(text)
    for term in terms:
        _check_key(term)
    return terms


def parse_condition(text: str) -> Term:
    """Parse one comparison, such as `gate.enabled=false`.

    Raises:
        ConfigError: If the text is not a comparison, or its key is unknown.
    """
    term = parse_comparison(text.strip())
    if term is None:
        rule = "must be key=value, as in gate.enabled=false or win_rate>0.8"
        raise ConfigError(rule, key="condition", value=text)
    _check_key(term)
    return term


def _check_key(term: Term) -> None:
    search_key = SEARCH_KEYS.get(term.key)
    if term.key and search_key is None and term.key not in _setting_keys():
        close = get_close_matches(term.key[:80], [*SEARCH_KEYS, *_setting_keys()], n=1, cutoff=0.5)
        hint = f'Did you mean "{close[0]}"?' if close else "List the settings with: emtc train --help-keys"
        raise ConfigError("is not a setting or column", key=term.key, hint=hint)
    if term.sign in ORDER_OPERATORS and search_key is not None and search_key.kind != "number":
        raise ConfigError(f"is a text: compare it with = or !=, not with {term.sign}", key=term.key)


@cache
def _setting_keys() -> frozenset[str]:
    from emtc_core.config.resolve import list_keys  # imported late: most searches use no setting

    return frozenset(list_keys()) - SEARCH_KEYS.keys()


def make_condition(term: Term, context: SearchContext) -> Sql:
    """Translate a term into an SQL condition that is true or false for every run, never NULL.

    Raises:
        ConfigError: If the term has more than MAX_TERMS values.
    """
    if not term.key:
        return _contains_word(term.value, context)
    if term.sign == "!=":
        return not_(make_condition(Term(term.value, term.key), context))
    parts = [part for part in map(str.strip, term.value.split(",")) if part]
    if len(parts) > MAX_TERMS:
        raise ConfigError(f"must have at most {MAX_TERMS} values, has {len(parts):,}", key=term.key)
    values = dict.fromkeys((term.value, *parts))  # one stored value may contain commas
    return or_(*(_compare_value(Term(value, term.key, term.sign), context) for value in values))


def _compare_value(term: Term, context: SearchContext) -> Sql:
    """Compare a column or a setting with one value, for every sign but `!=`."""
    search_key = SEARCH_KEYS.get(term.key)
    if search_key is None:
        return _compare_setting(term, context)
    if search_key.kind == "tag":
        tags = context.tags_table()
        return select(tags).where(_lower(tags.c.value) == term.value.lower()).exists()
    value = search_key.make_sql(context)
    if search_key.kind == "text":
        text = (_replace_paper_name(term.value) if term.key == "algo" else term.value).lower()
        others = (search_key.make_other_sql(context),) if search_key.make_other_sql else ()
        return func.coalesce(or_(*(_lower(stored) == text for stored in (value, *others))), literal(False))
    return compare_number(value, term)


def _compare_setting(term: Term, context: SearchContext) -> Sql:
    """Compare the stored value of a setting. False for a run that does not store it."""
    kind, text, number = context.setting(term.key)
    expected = term.value.lower()
    if term.sign in ORDER_OPERATORS or parse_number(expected) is not None:
        condition = compare_number(number, term)
    elif context.dialect == "sqlite" and expected in ("true", "false"):
        condition = or_(kind == expected, and_(kind == "text", _lower(text) == expected))
    elif expected in _MISSING:
        condition = or_(kind == "null", _lower(text) == expected)
    else:  # PostgreSQL returns booleans as the texts true and false, so this branch compares them, too
        condition = _lower(text) == expected
    return func.coalesce(condition, literal(False))


def _contains_word(word: str, context: SearchContext) -> Sql:
    spellings = dict.fromkeys((word.lower(), _replace_paper_name(word).lower()))
    tags = context.tags_table()
    in_tags = [_lower(tags.c.value).contains(spelling, autoescape=True) for spelling in spellings]
    has_tags = type_coerce(Run.tags, String) != "[]" if context.dialect == "sqlite" else true()
    return or_(
        *(_lower(column).contains(spelling, autoescape=True) for column in _WORD_COLUMNS for spelling in spellings),
        and_(has_tags, select(tags).where(or_(*in_tags)).exists()),
    )


def _replace_paper_name(text: str) -> str:
    """Replace the paper's spelling of an algorithm, EMTC(QPLEX), by the one used here, EMTC-QPLEX."""
    return _PAPER_NAME.sub(r"\1-\2", text)


def _valid_json(column: Any, default: str) -> Sql:
    """Return a JSON column of SQLite as text, or `default` if it is not valid JSON."""
    text = type_coerce(column, String)
    return case((func.json_valid(text) == 1, text), else_=default)


def _lower(value: Any) -> Sql:
    return func.lower(type_coerce(value, String))
