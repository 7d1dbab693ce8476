"""The type of a run that was read from another program's files, and functions that several formats use.

A reader is the function that reads one format. It yields a `ParsedRun` for each run, or a ConfigError with the reason
why this run cannot be read. The functions of this module read numbers and JSON, and check the values of a `ParsedRun`.
The curves of a run become columns of the database table `evaluations`, such as win_rate and return_mean.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from emtc_core.errors import ConfigError
from storage.guards import shorten

ENV_NAMES: Final = {
    "sc2": "smac",
    "StarCraft2": "smac",
    "SMAC": "smac",
    "sc2_v2": "smacv2",
    "sc2v2": "smacv2",
    "sc2wrapped": "smacv2",
    "StarCraft2v2": "smacv2",
    "SMACv2": "smacv2",
    "gfootball": "grf",
    "football": "grf",
    "Football": "grf",
}
"""Environment in another program → environment in this program."""
_MAX_STEP: Final = 10**15
_MAX_CHARACTERS: Final = 100


@dataclass(frozen=True)
class SourceOverrides:
    """Values of the user that replace those of a source."""

    env: str | None = None
    map: str | None = None
    algo: str | None = None
    seed: int | None = None
    label: str | None = None
    """Name of the import in legends."""
    win_rate: str | None = None
    """Name of the win rate in the source."""
    return_name: str | None = None
    """Name of the return in the source."""
    budget: int | None = None
    """Training length of all runs [env steps]."""

    def list_source_names(self, win_rates: Sequence[str], returns: Sequence[str]) -> dict[str, Sequence[str]]:
        """Return the names that the win rate and the return may have in the source: column → names.

        A name that the user has set replaces the names of the format.

        Args:
            win_rates: Names of the win rate in this format.
            returns: Names of the return in this format.
        """
        return {
            "win_rate": (self.win_rate,) if self.win_rate else win_rates,
            "return_mean": (self.return_name,) if self.return_name else returns,
        }


@dataclass(frozen=True)
class ParsedRun:
    """One run as its source describes it. Every field except `description` and `curves` may be missing."""

    description: str
    """Name of the run for error messages, such as "runs.csv (qmix, 3m, seed 1)"."""
    curves: Mapping[str, pd.Series]
    """Column of the table `evaluations` → values, with the env steps as index. Not checked yet."""
    env: object = None
    map: object = None
    algo: object = None
    seed: object = None
    """Random seed. If the source names no seeds, its n-th run gets the seed -n."""
    budget: object = None
    """Training length that the other program was given [env steps]."""
    eval_interval: object = None
    """Env steps between two evaluations."""
    is_finished: bool = True
    """Whether the other program recorded the end of the training."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Settings of the run that affect learning, under the names that the other program uses."""


def make_series(points: Iterable[tuple[object, object]]) -> pd.Series:
    """Make a curve of a `ParsedRun` from the env steps and values in a file. They are not checked here."""
    pairs = list(points)
    steps = pd.Index([step for step, _ in pairs], dtype=object)
    return pd.Series([value for _, value in pairs], steps, dtype=object)


def find_first(names: Iterable[str], container: Collection[str]) -> str | None:
    """Return the first of these names that is in a container; None if no name is."""
    return next((name for name in names if name in container), None)


def read_number(raw: object) -> float:
    """Read a number; return NaN for any other value."""
    if isinstance(raw, Mapping):  # a NumPy number in the form of jsonpickle: {"dtype": …, "value": …}
        raw = raw.get("value")
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        return np.nan
    try:
        return float(raw)
    except (ValueError, OverflowError):
        return np.nan


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ConfigError: If the file is not a JSON object.
    """
    try:
        tree = json.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not JSON: {str(error)[:_MAX_CHARACTERS]}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{file} must contain a JSON object")
    return tree


def join_curves(run: ParsedRun) -> pd.DataFrame:
    """Check the curves of a run and join them: one row per env step, one column per curve, NaN for a missing value.

    Raises:
        ConfigError: If the run has no win rate and no return, an env step is repeated, or a value is invalid.
    """
    curves = {name: curve for name, curve in run.curves.items() if len(curve)}
    if not curves.keys() & {"win_rate", "return_mean"}:
        raise ConfigError(
            f"{run.description} has neither a win rate nor a return. If they have other names, set --win-rate NAME or "
            "--return NAME."
        )
    checked = [_check_curve(name, curve, run.description) for name, curve in curves.items()]
    return pd.concat(checked, axis=1).sort_index()


def check_text(value_name: str, raw: object, description: str) -> str:
    """Check a text such as the name of a map: it must have 1 to 100 printable characters.

    Args:
        value_name: Name of the value and of its command-line option: "map", "env", "algo" or "name".
        raw: The value in the source.
        description: `ParsedRun.description`, for messages.

    Raises:
        ConfigError: If it is missing or invalid.
    """
    text = str(raw).strip() if isinstance(raw, str | int) else ""
    if not text:
        raise ConfigError(f"{description} has no {value_name}", hint=f"Set it with --{value_name}.")
    if len(text) > _MAX_CHARACTERS or not text.isprintable():
        raise ConfigError(
            f"The {value_name} of {description} must be at most {_MAX_CHARACTERS} printable characters, "
            f"got {shorten(text)}."
        )
    return text


def check_seed(raw: object, description: str) -> int:
    """Check a random seed.

    Raises:
        ConfigError: If it is missing or not a whole number.
    """
    number = read_number(raw)
    if not np.isfinite(number) or number != int(number) or abs(number) >= 2**63:
        raise ConfigError(f"{description} has no seed", hint="Set it with --seed.")
    return int(number)


def _check_curve(name: str, curve: pd.Series, description: str) -> pd.Series:
    """Check a curve, and return it with integer env steps and float values, sorted by env step.

    Raises:
        ConfigError: If an env step or a value is invalid, or an env step is repeated.
    """
    steps = np.array([read_number(step) for step in curve.index])
    values = np.array([read_number(value) for value in curve])
    is_step = np.isfinite(steps) & (steps == np.round(steps)) & (steps >= 0) & (steps <= _MAX_STEP)
    if not is_step.all():
        raw = curve.index[int(np.argmin(is_step))]
        raise ConfigError(f"{description}: an env step of {name} must be a whole number >= 0, got {shorten(raw)}")
    is_finite = np.isfinite(values)
    if not is_finite.all():
        first = int(np.argmin(is_finite))
        place = f"{description}, {name} at step {int(steps[first]):,},"
        raise ConfigError(f"{place} must be a finite number, got {shorten(curve.iloc[first])}")
    is_fraction = (values >= 0) & (values <= 1)
    if name == "win_rate" and not is_fraction.all():
        first = int(np.argmin(is_fraction))
        place = f"{description}, win_rate at step {int(steps[first]):,},"
        raise ConfigError(f"{place} must be from 0 to 1, got {values[first]:g}", hint="Is it in percent?")
    checked = pd.Series(values, index=pd.Index(steps.astype(np.int64)), name=name).sort_index()
    if checked.index.has_duplicates:
        step = checked.index[checked.index.duplicated()][0]
        raise ConfigError(f"{description} has two values of {name} at step {step:,}")
    return checked
