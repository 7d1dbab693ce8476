"""The type of a run that was read from another program's files, and functions that several formats use.

A reader (the function of one format) yields a `ParsedRun` for each run, or a ConfigError with the reason why this run
cannot be read. The functions parse names of runs, read numbers and JSON, and check the values of a `ParsedRun`.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from emtc_core.envs.smac.maps import SMAC_MAPS, SMACV2_MAPS
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
_MAPS_LONGEST_FIRST: Final = sorted((*SMAC_MAPS, *SMACV2_MAPS), key=len, reverse=True)
"""Maps that are searched in names of runs. A longer name is found first: 3s5z_vs_3s6z, not 3s5z."""
MAPS_BY_LOWER_NAME: Final = {name.lower(): name for name in _MAPS_LONGEST_FIRST}
"""Name of a map in lower case → map, for example mmm2 → MMM2. Some programs write all names in lower case."""
_MAX_STEP: Final = 10**15
_MAX_CHARACTERS: Final = 100
_DATE: Final = re.compile(r"[ _]*\d{4}-\d\d-\d\d.*$")
_SEED: Final = re.compile(r"(?:(?<=[^a-z])|^)seed[ _=-]?(\d{1,18})(?!\d)", re.IGNORECASE)
"""The word "seed" that does not follow a letter, and its number."""
_SEPARATORS: Final = " _/-"
_MEANINGLESS_FOLDERS: Final = re.compile(r"(?:run[_-]?\d+|logs|tb|tb_logs|tensorboard|summaries)", re.IGNORECASE)
"""Names of folders that do not describe a run."""


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
        """Return column of `evaluations` → its possible names in the source: the user's, or those of the format."""
        return {
            "win_rate": (self.win_rate,) if self.win_rate else win_rates,
            "return_mean": (self.return_name,) if self.return_name else returns,
        }


@dataclass(frozen=True)
class ParsedRun:
    """One run as its source describes it. Every field except `where` and `curves` may be missing."""

    where: str
    """Description of the run in messages."""
    curves: Mapping[str, pd.Series]
    """Column of `evaluations` → values, with the env steps as index. Not checked yet."""
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
    """Its settings that affect learning, by the keys of the other program."""


class RunName(NamedTuple):
    """The parts of the name of a run; None if the name does not contain the part."""

    algo: str | None
    map: str | None
    seed: int | None


def parse_run_name(name: str, overrides: SourceOverrides) -> RunName:
    """Find seed, map and algorithm in a name or path such as "qmix_3m_seed1" or "3m/qmix/seed_1/logs".

    The words that remain are the algorithm. A map is found if it is the user's map, a map of SMAC or SMACv2, or a
    scenario of football.
    """
    # Example: "qmix_3m_seed1" → rest "qmix_3m_" → rest "qmix__" → algorithm "qmix".
    folders = [folder for folder in name.split("/") if not _MEANINGLESS_FOLDERS.fullmatch(folder)]
    rest = _DATE.sub("", "/".join(folders))
    seed_match = _SEED.search(rest)
    rest = _SEED.sub("", rest, count=1)
    maps = [overrides.map] if overrides.map else _MAPS_LONGEST_FIRST
    pattern = "|".join([*map(re.escape, maps), r"academy_\w+?"])
    map_match = re.search(rf"(?:(?<=[{_SEPARATORS}])|^)(?:{pattern})(?=[{_SEPARATORS}]|$)", rest)
    if map_match:
        rest = rest[: map_match.start()] + rest[map_match.end() :]
    # Two adjacent separators show where the seed or the map was removed. A single one belongs to the algorithm.
    words = [word for word in re.split(rf"[{_SEPARATORS}]{{2,}}", rest) if word.strip(_SEPARATORS)]
    algo = "_".join(word.strip(_SEPARATORS) for word in words)
    return RunName(
        algo=algo or None,
        map=map_match[0] if map_match else None,
        seed=int(seed_match[1]) if seed_match else None,
    )


def find_seed(name: str) -> int | None:
    """Find the seed in a name such as "seed_3", "qmix_seed42_3m" or "3"."""
    match = _SEED.search(name) or re.fullmatch(r"(\d{1,18})", name)
    return int(match[1]) if match else None


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
            f"{run.where} has neither a win rate nor a return. If they have other names, set --win-rate NAME or "
            "--return NAME."
        )
    checked = [_check_curve(name, curve, run.where) for name, curve in curves.items()]
    return pd.concat(checked, axis=1).sort_index()


def check_text(option: str, raw: object, where: str) -> str:
    """Check a name: at most 100 printable characters.

    Args:
        option: Name of the value, which is also the name of its command-line option: "map", "env", "algo" or "name".
        raw: The value in the source.
        where: Description of the run in messages.

    Raises:
        ConfigError: If it is missing or invalid.
    """
    text = str(raw).strip() if isinstance(raw, str | int) else ""
    if not text:
        raise ConfigError(f"{where} has no {option}", hint=f"Set it with --{option}.")
    if len(text) > _MAX_CHARACTERS or not text.isprintable():
        raise ConfigError(
            f"The {option} of {where} must be at most {_MAX_CHARACTERS} printable characters, got {shorten(text)}."
        )
    return text


def check_seed(raw: object, where: str) -> int:
    """Check a random seed.

    Raises:
        ConfigError: If it is missing or not a whole number.
    """
    number = read_number(raw)
    if not np.isfinite(number) or number != int(number) or abs(number) >= 2**63:
        raise ConfigError(f"{where} has no seed", hint="Set it with --seed.")
    return int(number)


def _check_curve(name: str, curve: pd.Series, where: str) -> pd.Series:
    """Check a curve, and return it with integer env steps and float values, sorted by env step.

    Raises:
        ConfigError: If an env step or a value is invalid, or an env step is repeated.
    """
    steps = np.array([read_number(step) for step in curve.index])
    values = np.array([read_number(value) for value in curve])
    is_step = np.isfinite(steps) & (steps == np.round(steps)) & (steps >= 0) & (steps <= _MAX_STEP)
    if not is_step.all():
        raw = curve.index[int(np.argmin(is_step))]
        raise ConfigError(f"{where}: an env step of {name} must be a whole number >= 0, got {shorten(raw)}")
    is_finite = np.isfinite(values)
    if not is_finite.all():
        first = int(np.argmin(is_finite))
        place = f"{where}, {name} at step {int(steps[first]):,},"
        raise ConfigError(f"{place} must be a finite number, got {shorten(curve.iloc[first])}")
    is_fraction = (values >= 0) & (values <= 1)
    if name == "win_rate" and not is_fraction.all():
        first = int(np.argmin(is_fraction))
        place = f"{where}, win_rate at step {int(steps[first]):,},"
        raise ConfigError(f"{place} must be from 0 to 1, got {values[first]:g}", hint="Is it in percent?")
    checked = pd.Series(values, index=pd.Index(steps.astype(np.int64)), name=name).sort_index()
    if checked.index.has_duplicates:
        step = checked.index[checked.index.duplicated()][0]
        raise ConfigError(f"{where} has two values of {name} at step {step:,}")
    return checked
