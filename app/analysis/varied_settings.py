"""Groups of runs by the values of settings: the points of a study, and the settings that differ between runs.

A study of settings shows results over the values of one or two varied settings. The runs of such a study must not
differ in other settings; `check_one_study` checks this.
"""

from collections.abc import Callable, Iterable, Sequence

from app.analysis.curves import ComparedRun, Curves
from app.analysis.settings import TASK_KEYS, Settings, is_irrelevant_for_learning, is_read, learning_settings
from emtc_core.config.resolve import Value
from emtc_core.errors import ConfigError

LAMBDAS = ("embed.lambda_rcon", "embed.lambda_cl")
"""Weights of the embedder's losses."""
AUGMENTATION = ("embed.p_mask", "embed.sigma")
"""Augmentation of the states with which the embedder is trained."""
TAUS = ("gate.tau_start", "gate.tau_end")
"""Temperature of the gate at the start and at the end of training."""
DELTA = "memory.delta"
"""Merge radius of the memory."""
EMBEDDER = "embed.type"
_TRAINING_LENGTH = "train.t_max"
_IGNORED_DIFFERENCES = frozenset({"seed", "preset"}) | TASK_KEYS
"""Settings that may always differ between the runs of a study. The values of a preset are compared one by one."""


def check_one_study(name: str, curves: Curves, keys: Iterable[str]) -> None:
    """Check that the runs of a study differ only in the settings that it varies.

    Args:
        name: Name of the study, for the message.
        curves: The runs.
        keys: The varied settings.

    Raises:
        ConfigError: If another setting differs between two runs of a task.
    """
    varied = tuple(keys)
    first_settings: dict[str, Settings] = {}
    for run in curves.runs:
        reference = first_settings.setdefault(run.task, run.settings)
        shared_keys = reference.keys() & run.settings.keys() - _IGNORED_DIFFERENCES - set(varied)
        # the training length is checked first, because the defaults of other settings depend on it
        for key in sorted(shared_keys, key=lambda key: (key != _TRAINING_LENGTH, key)):
            value = run.settings[key]
            if value != reference[key] and not is_irrelevant_for_learning(key):
                rule = f"differs ({reference[key]} and {value}), but {name} needs runs that differ only in "
                hint = "Leave out one of the two groups."
                raise ConfigError(rule + ", ".join(varied), key=key, value=value, hint=hint)


def group_by_settings(curves: Curves, *keys: str) -> dict[tuple[Value, ...], Curves]:
    """Group runs by the values of settings, in ascending order: numbers, then text, then missing values."""
    groups: dict[tuple[Value, ...], list[ComparedRun]] = {}
    for run in curves.runs:
        values = tuple(run.settings.get(key) for key in keys)
        groups.setdefault(values, []).append(run)

    def sort_key(value: Value) -> tuple[bool, bool, float | str]:
        """Sort numbers before text and missing values last; values of different types are never compared."""
        return value is None, isinstance(value, str), 0 if value is None else value

    in_order = sorted(groups.items(), key=lambda group: tuple(map(sort_key, group[0])))
    return {values: curves.keep(runs) for values, runs in in_order}


def find_studies(curves: Curves, keys: Sequence[str], is_candidate: Callable[[ComparedRun], bool]) -> Curves:
    """Select the runs that belong to a study of `keys`.

    Runs that differ only in `keys` and the seed are one study, if they have at least two different values of `keys`.

    Args:
        curves: The runs.
        keys: The varied settings.
        is_candidate: Whether a run can belong to a study.
    """
    studies: dict[tuple[tuple[str, Value], ...], list[ComparedRun]] = {}
    for run in filter(is_candidate, curves.runs):
        shared = {key: value for key, value in learning_settings(run.settings).items() if key not in keys}
        studies.setdefault(tuple(sorted(shared.items())), []).append(run)
    selected: list[ComparedRun] = []
    for runs in studies.values():
        n_values = len({tuple(run.settings.get(key) for key in keys) for run in runs})
        if n_values > 1:
            selected += runs
    return curves.keep(selected)


def list_varied_settings(curves: Curves) -> list[str]:
    """List the settings with at least two different numbers in these runs, those with the most values first.

    Only runs whose algorithm reads a setting count.
    """
    numbers: dict[str, set[float]] = {}
    for run in curves.runs:
        for key in learning_settings(run.settings):
            number = find_number(run, key)
            if key != _TRAINING_LENGTH and number is not None:
                numbers.setdefault(key, set()).add(number)
    varied = [key for key, values in numbers.items() if len(values) > 1]
    return sorted(varied, key=lambda key: (-len(numbers[key]), key))


def find_number(run: ComparedRun, key: str) -> float | None:
    """Return the value of a setting; None if it is not a number, or the algorithm does not read it."""
    value = run.settings.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if is_read(key, str(run.settings.get("algo"))) else None
