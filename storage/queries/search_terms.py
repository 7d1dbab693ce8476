"""What somebody types to find runs or episodes: the grammar of words and comparisons, and runs' conditions in SQL.

    corridor "second try"        words, all of them, in name, id, note, tags, algorithm, environment or map
    gate.enabled=false           a setting by its dotted key; also != < <= > >=
    win_rate>0.8 status=lost     a column, or what is known of a run
    tag=paper                    a tag

Texts are compared without regard to case, numbers as numbers. `!=` is what `=` is not: it also finds the runs that
have no such value. Values always travel as parameters.
"""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from storage.models import Run
from storage.queries.gate import ACTIVE_SHARE

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

_PAPER_NAME = re.compile(r"(emtc|emu)\((\w+)\)", re.IGNORECASE)


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
        raise ConfigError(f"must have at most {MOST_TERMS} words, has {len(pieces):,}", key="search")
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
        raise ConfigError(f"must be compared with a number by {term.sign}", key=term.key, value=term.value)
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


def parse_text(text: str) -> list[Term]:
    """Read a search.

    Raises:
        ConfigError: If it compares something unknown, or is too long.
    """
    terms = split_search(text)
    for term in terms:
        _check(term)
    return terms


def parse_condition(text: str) -> Term:
    """Read one comparison, as `gate.enabled=false`.

    Raises:
        ConfigError: If it is none, or of something unknown.
    """
    term = read_comparison(text.strip())
    if term is None:
        raise ConfigError("must be key=value, as in gate.enabled=false or win_rate>0.8", key="condition", value=text)
    _check(term)
    return term


def _check(term: Term) -> None:
    column = COLUMNS.get(term.key)
    if term.key and column is None and term.key not in _settings():
        close = get_close_matches(term.key[:80], [*COLUMNS, *_settings()], n=1, cutoff=0.5)
        hint = f'Did you mean "{close[0]}"?' if close else "List all settings with: emtc train --help-keys"
        raise ConfigError("is not a setting or column", key=term.key, hint=hint)
    if term.sign in ORDERED and column is not None and column.kind != "number":
        raise ConfigError(f"is a text: compare it with = or !=, not with {term.sign}", key=term.key)


@cache
def _settings() -> frozenset[str]:
    from emtc_core.config.resolve import describe_fields, stored_keys  # most lists of runs ask for no setting

    return frozenset(key for info in describe_fields() for key in stored_keys(info.key)) - COLUMNS.keys()


@dataclass(frozen=True)
class SearchKey:
    """Something known of every run: its SQL by dialect and by the ids of lost runs, and how it is compared."""

    kind: Literal["text", "number", "tag"]
    make: Callable[["Dialect"], Sql]


@dataclass(frozen=True)
class Dialect:
    """What conditions depend on: the database's dialect, and which runs are lost now."""

    name: str
    lost: Sequence[str] = ()

    @property
    def status(self) -> Sql:
        """The live status of a run."""
        return case((Run.id.in_(self.lost), "lost"), else_=Run.status) if self.lost else type_coerce(Run.status, String)

    @property
    def config(self) -> Sql:
        """The configuration as the database's own JSON; a foreign file may hold what is none."""
        return self._json(Run.config, "{}") if self.name == "sqlite" else type_coerce(Run.config, JSON)

    def _json(self, column: Any, otherwise: str) -> Sql:
        raw = type_coerce(column, String)
        return case((func.json_valid(raw) == 1, raw), else_=otherwise)

    def setting(self, key: str) -> tuple[Sql, Sql, Sql]:
        """The kind, the text and the number of a setting; its kind is NULL where a run has no such setting."""
        from emtc_core.config.resolve import stored_keys

        found = [self._setting(each.split(".")) for each in stored_keys(key)]
        kind, text, number = (func.coalesce(*same) if len(found) > 1 else same[0] for same in zip(*found, strict=True))
        return kind, text, number

    def text_of(self, key: str) -> Sql:
        """The text of what stands beside the settings under a key that has never changed, as `preset`; else NULL."""
        return self._setting(key.split("."))[1]

    def _setting(self, parts: list[str]) -> tuple[Sql, Sql, Sql]:
        if self.name == "sqlite":
            path = "$" + "".join(f'."{part}"' for part in parts)
            kind, value = func.json_type(self.config, path), func.json_extract(self.config, path)
            return kind, cast(value, String), case((kind.in_(("integer", "real")), type_coerce(value, Double)))
        place = func.json_extract_path(self.config, *parts)
        kind, text = func.json_typeof(place), func.json_extract_path_text(self.config, *parts)
        return kind, text, case((kind == "number", cast(text, Double)))

    def each_tag(self) -> Any:
        """The tags of a run as a table with the column `value`."""
        if self.name == "sqlite":
            return func.json_each(self._json(Run.tags, "[]")).table_valued("value")
        return func.json_array_elements_text(Run.tags).table_valued("value").render_derived()

    def seconds_between(self, first: Any, last: Any) -> Sql:
        """How long it is from one time to another [s]."""
        if self.name == "sqlite":
            return (func.julianday(last) - func.julianday(first)) * 86_400.0
        return cast(func.extract("epoch", last - first), Double)


def _gate(_: Dialect) -> Sql:
    return case((Run.gate_removed >= ACTIVE_SHARE, "active"), (Run.gate_removed.is_not(None), "idle"), else_="none")


def _column(column: Any) -> Callable[[Dialect], Sql]:
    return lambda dialect: column


COLUMNS: Final[dict[str, SearchKey]] = {
    "id": SearchKey("text", _column(Run.id)),
    "name": SearchKey("text", _column(Run.name)),
    "note": SearchKey("text", _column(Run.notes)),
    "tag": SearchKey("tag", _column(Run.tags)),
    "env": SearchKey("text", _column(Run.env)),
    "map": SearchKey("text", _column(Run.map)),
    "algo": SearchKey("text", _column(Run.algo)),
    "preset": SearchKey("text", lambda dialect: func.coalesce(dialect.text_of("preset"), "")),
    "imported": SearchKey("text", lambda dialect: func.coalesce(dialect.text_of("imported.label"), "")),
    "status": SearchKey("text", lambda dialect: dialect.status),
    "gate": SearchKey("text", _gate),
    "host": SearchKey("text", _column(Run.host)),
    "device": SearchKey("text", _column(Run.device)),
    "sweep": SearchKey("text", _column(Run.sweep_id)),
    "parent": SearchKey("text", _column(Run.parent_id)),
    "seed": SearchKey("number", _column(Run.seed)),
    "env_steps": SearchKey("number", _column(Run.env_steps)),
    "target_steps": SearchKey("number", _column(Run.target_steps)),
    "win_rate": SearchKey("number", _column(Run.win_rate)),
    "return": SearchKey("number", _column(Run.return_mean)),
    "mu_w": SearchKey("number", _column(Run.mu_w)),
}
"""What may be compared beside the settings."""


def make_condition(term: Term, dialect: Dialect) -> Sql:
    """Turn a term into SQL that is true or false for every run, never NULL."""
    if not term.key:
        return _holds_word(term.value, dialect)
    known = COLUMNS.get(term.key)
    if term.sign == "!=":
        return not_(make_condition(Term(term.value, term.key), dialect))
    if known is None:
        return _compare_setting(term, dialect)
    if known.kind == "tag":
        each = dialect.each_tag()
        return select(each).where(_lower(each.c.value) == term.value.lower()).exists()
    value = known.make(dialect)
    if known.kind == "text":
        wanted = _plain_algo(term.value) if term.key == "algo" else term.value
        return func.coalesce(_lower(value) == wanted.lower(), literal(False))
    return func.coalesce(compare_number(value, term), literal(False))


def _compare_setting(term: Term, dialect: Dialect) -> Sql:
    kind, text, number = dialect.setting(term.key)
    wanted = term.value.lower()
    if term.sign in ORDERED:
        found = func.coalesce(compare_number(number, term), literal(False))
    elif dialect.name == "sqlite" and wanted in ("true", "false"):
        found = or_(kind == wanted, and_(kind == "text", _lower(text) == wanted))
    elif wanted in ("none", "null"):
        found = or_(kind == "null", _lower(text) == wanted)
    elif read_number(wanted) is not None:
        found = compare_number(number, term)
    else:  # true and false too, which a server writes so
        found = _lower(text) == wanted
    found = func.coalesce(found, literal(False))
    return or_(found, before) if (before := _as_it_was(term, kind)) is not None else found


def _as_it_was(term: Term, kind: Sql) -> Sql | None:
    """Find the runs of earlier versions, which did so before the setting existed."""
    from emtc_core.config.resolve import value_before

    then = value_before(term.key)
    if then is None or not _is_so(then.value, term):
        return None
    starts = [Run.algo.startswith(start) for start in then.algos]
    return and_(kind.is_(None), Run.env == then.env if then.env else true(), or_(*starts) if starts else true())


def _is_so(value: Any, term: Term) -> bool:
    number = read_number(term.value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return term.sign == "=" and str(value).lower() == term.value.lower()
    if number is None:
        return False
    return ORDERED[term.sign](value, number) if term.sign in ORDERED else abs(value - number) <= abs(number) * ROUNDED


def _holds_word(word: str, dialect: Dialect) -> Sql:
    places = (Run.name, Run.id, Run.notes, Run.algo, Run.env, Run.map)
    wanted = dict.fromkeys((word.lower(), _plain_algo(word).lower()))
    each = dialect.each_tag()
    in_tags = [_lower(each.c.value).contains(text, autoescape=True) for text in wanted]
    has_tags = type_coerce(Run.tags, String) != "[]" if dialect.name == "sqlite" else true()
    return or_(
        *(_lower(place).contains(text, autoescape=True) for place in places for text in wanted),
        and_(has_tags, select(each).where(or_(*in_tags)).exists()),
    )


def _plain_algo(text: str) -> str:
    """Read an algorithm as the paper writes it, EMTC(QPLEX), as its name here."""
    return _PAPER_NAME.sub(r"\1-\2", text)


def _lower(value: Any) -> Sql:
    return func.lower(type_coerce(value, String))
