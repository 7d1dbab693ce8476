"""Curves as other programs give them, checked: steps rise, numbers are finite, shares lie in 0 to 1, seeds are told.

What lives here: the checks that every format shares, and how a file is opened. What does not: the formats.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, Final

from emtc_core.errors import ConfigError
from storage.guards import shorten
from storage.runs.imports import ForeignRun, Point

MOST_BYTES: Final = 256 << 20
"""Of one file that is read whole."""
MOST_RUNS: Final = 2_000
MOST_POINTS: Final = 200_000
"""Of one run."""
_LARGEST_STEP: Final = 10**15
_LONGEST: Final = 100
_MOST_SETTINGS: Final = 300
_DEEPEST: Final = 8
_NOT_THEIRS: Final = frozenset({"seed"})
UNTOLD: Final = "other"
"""The environment of a table that names none: its curves stand beside no other task's."""

Curve = Sequence[tuple[object, object]]
"""Env steps and values as a file holds them."""


@dataclass(frozen=True)
class Given:
    """What somebody says about a source, which then counts instead of what the source says."""

    env: str | None = None
    map: str | None = None
    algo: str | None = None
    seed: int | None = None
    label: str | None = None
    win_rate: str | None = None
    """The name of the win rate in the source."""
    score: str | None = None
    """The name of the return in the source."""


@dataclass(frozen=True)
class Told:
    """One run as its source tells it; every field but the curves may be missing."""

    where: str
    """How sentences name it."""
    curves: Mapping[str, Curve]
    """By the column of `evaluations`."""
    env: object = None
    map: object = None
    algo: object = None
    seed: object = None
    target_steps: object = None
    is_whole: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])


def check_run(told: Told, given: Given, format: str) -> ForeignRun:
    """Check a run and fill in what somebody says about it.

    Raises:
        ConfigError: If something is missing or wrong, in one sentence.
    """
    points = join_curves(told.curves, told.where)
    last = points[-1].env_step
    wanted = told.target_steps if isinstance(told.target_steps, int) and told.target_steps > 0 else last
    return ForeignRun(
        env=_word("env", given.env or told.env or UNTOLD, told.where),
        map=_word("map", given.map or told.map, told.where),
        algo=_word("algo", given.algo or told.algo, told.where),
        seed=_seed(told.seed if given.seed is None else given.seed, told.where),
        label=_word("name", given.label or format, told.where),
        format=format,
        source=told.where[:_LONGEST],
        points=points,
        target_steps=min(wanted, _LARGEST_STEP),
        is_whole=told.is_whole,
        settings=told.settings,
    )


def join_curves(curves: Mapping[str, Curve], where: str) -> tuple[Point, ...]:
    """Join the curves of one run by their env steps.

    Args:
        curves: By the column of `evaluations`: env steps and values.
        where: The run, as sentences name it.

    Raises:
        ConfigError: If steps do not rise, a value is none or out of range, or there is no win rate and no return.
    """
    if not any(curves.get(name) for name in ("win_rate", "return_mean")):
        raise ConfigError(
            f"{where} has neither a win rate nor a return. If they have other names there, say --win-rate NAME or "
            "--return NAME."
        )
    found: dict[int, dict[str, Any]] = {}
    for name, curve in curves.items():
        if len(curve) > MOST_POINTS:
            raise ConfigError(f"{where} has {len(curve):,} values of {name}; at most {MOST_POINTS:,} are imported")
        before = -1
        for raw_step, raw_value in curve:
            before = _step(raw_step, before, name, where)
            found.setdefault(before, {})[name] = _value(raw_value, name, f"{where}, {name} at step {before:,}")
    return tuple(Point(step, **found[step]) for step in sorted(found))


def _step(raw: object, before: int, name: str, where: str) -> int:
    number = read_float(raw)
    if number is None or number != int(number) or not 0 <= number <= _LARGEST_STEP:
        raise ConfigError(f"{where}: an env step of {name} must be a whole number from 0 up, got {shorten(raw)}")
    if int(number) <= before:
        raise ConfigError(f"{where}: the env steps of {name} must rise, got {int(number):,} after {before:,}")
    return int(number)


def _value(raw: object, name: str, where: str) -> float | int:
    number = read_float(raw)
    if number is None:
        raise ConfigError(f"{where} must be a finite number, got {shorten(raw)}")
    if name == "win_rate" and not 0 <= number <= 1:
        raise ConfigError(f"{where} must lie in 0 to 1, got {number:g}", hint="Is it in percent?")
    if name in ("return_std", "length_mean", "episodes") and number < 0:
        raise ConfigError(f"{where} must not be negative, got {number:g}")
    return int(number) if name == "episodes" else number


def read_float(raw: object) -> float | None:
    """Read a finite number, also one as jsonpickle writes NumPy's ({"dtype", "value"}); None where it is none."""
    if isinstance(raw, Mapping):
        raw = raw.get("value")
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        return None
    try:
        number = float(raw)
    except (ValueError, OverflowError):
        return None
    return number if isfinite(number) else None


def _word(what: str, raw: object, where: str) -> str:
    text = str(raw).strip() if isinstance(raw, str | int) else ""
    if not text:
        raise ConfigError(f"{where} does not tell its {what}", hint=f"Say it with --{what}.")
    if len(text) > _LONGEST or not text.isprintable():
        raise ConfigError(
            f"The {what} of {where} must be at most {_LONGEST} printable characters, got {shorten(text)}."
        )
    return text


def _seed(raw: object, where: str) -> int:
    """Read a seed; a negative one is the number of a run whose source has none, and is made by readers alone."""
    number = read_float(raw)
    if number is None or number != int(number) or abs(number) >= 2**63:
        raise ConfigError(f"{where} does not tell its seed, and none is made up", hint="Say it with --seed.")
    return int(number)


def keep_settings(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the plain values of another program's settings, under its own dotted keys."""
    flat = dict(_flatten(tree, "", 0))
    return {key: flat[key] for key in sorted(flat)[:_MOST_SETTINGS]}


def _flatten(tree: Mapping[str, Any], head: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        name = f"{head}{key}"[:_LONGEST]
        if isinstance(value, Mapping):
            if depth < _DEEPEST:
                yield from _flatten(value, f"{name}.", depth + 1)
        elif isinstance(value, bool | int | float | str) and name not in _NOT_THEIRS:
            yield name, value[:_LONGEST] if isinstance(value, str) else value


def read_seed(text: str) -> int | None:
    """Find a seed that a name tells: "seed_3", "qmix_seed42_3m", or a bare number."""
    found = re.search(r"(?:^|[^a-z])seed[_=-]?(\d{1,18})(?!\d)", text.lower()) or re.fullmatch(r"(\d{1,18})", text)
    return int(found[1]) if found else None


def read_text(file: Path) -> str:
    """Read a whole text file.

    Raises:
        ConfigError: If it is no plain file, too large, or no UTF-8 text.
    """
    try:
        if not file.is_file():
            raise ConfigError(f"{file} is no file")
        if (size := file.stat().st_size) > MOST_BYTES:
            raise ConfigError(f"{file} has {size / 1e6:,.0f} MB; at most {MOST_BYTES >> 20} MB are read")
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read as text: {error}") from error


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object as plain values: nothing in it is ever made into a Python object.

    Raises:
        ConfigError: If it is none.
    """
    try:
        tree = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is no JSON: {str(error)[:_LONGEST]}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{file} must hold a JSON object")
    return tree
