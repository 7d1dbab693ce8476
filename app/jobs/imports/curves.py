"""Check the curves of runs from other programs, and read files safely. The formats themselves are in `read`.

Env steps must increase, values must be finite, win rates must be in [0, 1], and each run must have a seed.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, Final

from emtc_core.errors import ConfigError
from storage.column_types import get_limits
from storage.guards import shorten
from storage.models import Base
from storage.runs.imports import ForeignRun, Point

MAX_FILE_BYTES: Final = 256 << 20
"""Largest file that is read as a whole."""
MAX_RUNS: Final = 2_000
MAX_POINTS: Final = 200_000
"""Largest number of values of one curve."""
UNKNOWN_ENV: Final = "other"
"""Environment of a run whose source does not name one. Its curves are not compared with those of other tasks."""
_MAX_STEP: Final = 10**15
_EVALUATION_COLUMNS: Final = Base.metadata.tables["evaluations"].columns
_MAX_CHARACTERS: Final = 100
_MAX_SETTINGS: Final = 300
_MAX_DEPTH: Final = 8
_OMITTED_SETTINGS: Final = frozenset({"seed", "env_args.seed"})

Curve = Sequence[tuple[object, object]]
"""Env steps and values as a file contains them, not checked yet."""


@dataclass(frozen=True)
class SourceOverrides:
    """Values of the user that replace those of a source."""

    env: str | None = None
    map: str | None = None
    algo: str | None = None
    seed: int | None = None
    label: str | None = None
    win_rate: str | None = None
    """Name of the win rate in the source."""
    return_name: str | None = None
    """Name of the return in the source."""


@dataclass(frozen=True)
class ParsedRun:
    """One run as its source describes it. Every field except `where` and `curves` may be missing."""

    where: str
    """Description of the run in messages."""
    curves: Mapping[str, Curve]
    """Column of `evaluations` → curve."""
    env: object = None
    map: object = None
    algo: object = None
    seed: object = None
    target_steps: object = None
    is_whole: bool = True
    """Whether the run had finished in the other program."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])


def check_run(run: ParsedRun, overrides: SourceOverrides, format: str) -> ForeignRun:
    """Check a run and complete it with the values of the user.

    Args:
        run: The run from the source.
        overrides: Values of the user, which replace those of the source.
        format: Format of the source.

    Raises:
        ConfigError: If a value is missing or invalid.
    """
    points = join_curves(run.curves, run.where)
    last_step = points[-1].env_step
    target = run.target_steps if isinstance(run.target_steps, int) and run.target_steps > 0 else last_step
    return ForeignRun(
        env=_check_text("env", overrides.env or run.env or UNKNOWN_ENV, run.where),
        map=_check_text("map", overrides.map or run.map, run.where),
        algo=_check_text("algo", overrides.algo or run.algo, run.where),
        seed=_check_seed(run.seed if overrides.seed is None else overrides.seed, run.where),
        label=_check_text("name", overrides.label or format, run.where),
        format=format,
        source=run.where[:_MAX_CHARACTERS],
        points=points,
        target_steps=min(target, _MAX_STEP),
        is_complete=run.is_whole,
        settings=run.settings,
    )


def join_curves(curves: Mapping[str, Curve], where: str) -> tuple[Point, ...]:
    """Check the curves of one run and join them by env step.

    Args:
        curves: Column of `evaluations` → env steps and values.
        where: Description of the run in messages.

    Raises:
        ConfigError: If env steps do not increase, a value is invalid, or the run has no win rate and no return.
    """
    if not any(curves.get(name) for name in ("win_rate", "return_mean")):
        raise ConfigError(
            f"{where} has neither a win rate nor a return. If they have other names, set --win-rate NAME or "
            "--return NAME."
        )
    values_at: dict[int, dict[str, Any]] = {}
    for name, curve in curves.items():
        if len(curve) > MAX_POINTS:
            raise ConfigError(f"{where} has {len(curve):,} values of {name}; at most {MAX_POINTS:,} are imported")
        step = -1
        for raw_step, raw_value in curve:
            step = _check_step(raw_step, step, name, where)
            values_at.setdefault(step, {})[name] = _check_value(raw_value, name, f"{where}, {name} at step {step:,}")
    return tuple(Point(step, **values_at[step]) for step in sorted(values_at))


def read_float(raw: object) -> float | None:
    """Read a finite number, or None. jsonpickle's form of a NumPy number, {"dtype", "value"}, is read too."""
    if isinstance(raw, Mapping):
        raw = raw.get("value")
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        return None
    try:
        number = float(raw)
    except (ValueError, OverflowError):
        return None
    return number if isfinite(number) else None


def flatten_settings(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain values of another program's settings, by dotted key."""
    flat = dict(_flatten(tree, "", 0))
    return {key: flat[key] for key in sorted(flat)[:_MAX_SETTINGS]}


def find_seed(name: str) -> int | None:
    """Find the seed in a name such as "seed_3", "qmix_seed42_3m" or "3"."""
    match = re.search(r"(?:^|[^a-z])seed[_=-]?(\d{1,18})(?!\d)", name.lower()) or re.fullmatch(r"(\d{1,18})", name)
    return int(match[1]) if match else None


def read_text(file: Path) -> str:
    """Read a whole text file.

    Raises:
        ConfigError: If it is not a regular file, is too large, or is not UTF-8 text.
    """
    try:
        if not file.is_file():
            raise ConfigError(f"{file} is not a file")
        if (size := file.stat().st_size) > MAX_FILE_BYTES:
            raise ConfigError(f"{file} has {size / 1e6:,.0f} MB; at most {MAX_FILE_BYTES >> 20} MB are read")
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read as text: {error}") from error


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object as plain values. No Python object is created from it.

    Raises:
        ConfigError: If the file is not a JSON object.
    """
    try:
        tree = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not JSON: {str(error)[:_MAX_CHARACTERS]}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{file} must contain a JSON object")
    return tree


def _check_step(raw: object, previous: int, name: str, where: str) -> int:
    number = read_float(raw)
    if number is None or number != int(number) or not 0 <= number <= _MAX_STEP:
        raise ConfigError(f"{where}: an env step of {name} must be a whole number >= 0, got {shorten(raw)}")
    if int(number) <= previous:
        raise ConfigError(f"{where}: the env steps of {name} must increase, got {int(number):,} after {previous:,}")
    return int(number)


def _check_value(raw: object, name: str, where: str) -> float | int:
    number = read_float(raw)
    if number is None:
        raise ConfigError(f"{where} must be a finite number, got {shorten(raw)}")
    limits = get_limits(_EVALUATION_COLUMNS[name])
    if not limits.allows(number):
        hint = "Is it in percent?" if name == "win_rate" else ""
        raise ConfigError(f"{where} must be a number with {limits.describe(name)}, got {number:g}", hint=hint)
    return int(number) if name == "episodes" else number


def _check_text(what: str, raw: object, where: str) -> str:
    text = str(raw).strip() if isinstance(raw, str | int) else ""
    if not text:
        raise ConfigError(f"{where} has no {what}", hint=f"Set it with --{what}.")
    if len(text) > _MAX_CHARACTERS or not text.isprintable():
        raise ConfigError(
            f"The {what} of {where} must be at most {_MAX_CHARACTERS} printable characters, got {shorten(text)}."
        )
    return text


def _check_seed(raw: object, where: str) -> int:
    """Check a seed. Readers number the runs of a source without seeds with -1, -2, ..."""
    number = read_float(raw)
    if number is None or number != int(number) or abs(number) >= 2**63:
        raise ConfigError(f"{where} has no seed", hint="Set it with --seed.")
    return int(number)


def _flatten(tree: Mapping[str, Any], head: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        name = f"{head}{key}"[:_MAX_CHARACTERS]
        if isinstance(value, Mapping):
            if depth < _MAX_DEPTH:
                yield from _flatten(value, f"{name}.", depth + 1)
        elif isinstance(value, bool | int | float | str) and name not in _OMITTED_SETTINGS:
            is_json = not isinstance(value, float) or isfinite(value)  # JSON has no NaN and no infinity
            yield name, value if is_json and not isinstance(value, str) else str(value)[:_MAX_CHARACTERS]
