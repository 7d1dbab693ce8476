"""The runs that a study reads: what each one set, the curve of its win rate, and whether they are one study."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from app.figures.chart import column
from app.seed_statistics import Curve, Values, mu_w
from emtc_core.config.resolve import Value, flatten_tree
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.queries.compare import evaluation_curves
from storage.runs import RunRow

_NOT_LEARNING = ("record.", "checkpoint.", "eval.", "train.device", "train.threads")
_OWN = frozenset({"seed", "env.map", "env.name", "train.t_max", "gate.tau_decay_steps", "preset"})
"""Settings that may differ between the runs of one study: seed and task, and what follows from the task."""


@dataclass(frozen=True)
class StudyRun:
    """One run of a study, with its greedy win rate over env steps; the curve may be empty."""

    id: str
    task: str
    algo: str
    seed: int
    is_finished: bool
    settings: Mapping[str, Value]
    curve: Curve

    @property
    def final(self) -> float:
        """The last greedy win rate of a finished run, else NaN."""
        return float(self.curve.values[-1]) if self.is_finished and len(self.curve.steps) else np.nan

    @property
    def t_max(self) -> float:
        """The env steps that it was to train."""
        steps = self.settings.get("train.t_max")
        return float(steps) if isinstance(steps, int | float) else 0.0

    def mu_w_at(self, share: float) -> float:
        """The time average of the win rate up to a share of the training length; NaN if it has not come so far."""
        if not len(self.curve.steps):
            return np.nan
        last = float(self.curve.steps[-1])
        t = min(share * self.t_max, last) if self.is_finished else share * self.t_max
        return float(mu_w(self.curve, np.array([t]))[0])


def read_study(db: Database, rows: Sequence[RunRow]) -> list[StudyRun]:
    """Read the settings and win rates of some runs, in their order."""
    frame = evaluation_curves(db, [row.id for row in rows])
    curves = {
        str(run_id): Curve(column(part, "env_step"), column(part, "win_rate"))
        for run_id, part in frame.groupby("run_id", sort=False)
    }
    nothing = Curve(np.empty(0), np.empty(0))
    return [
        StudyRun(
            row.id,
            row.map if row.env == "skirmish" else f"{row.map} [{row.env}]",
            row.algo,
            row.seed,
            row.status == "finished",
            flatten_tree(row.config),
            curves.get(row.id, nothing),
        )
        for row in rows
    ]


def check_one_study(name: str, runs: Sequence[StudyRun], keys: Iterable[str]) -> None:
    """Refuse runs that differ in more than the settings that a study varies.

    Raises:
        ConfigError: Naming the setting and two of its values.
    """
    allowed = {*keys, *_OWN}
    first: dict[str, dict[str, Value]] = {}
    for run in runs:
        usual = first.setdefault(run.task, dict(run.settings))
        for key in sorted(usual.keys() & run.settings.keys() - allowed):
            if run.settings[key] != usual[key] and not key.startswith(_NOT_LEARNING):
                raise ConfigError(
                    f"{name} compares runs that differ in {', '.join(keys)} alone; {key} differs too: "
                    f"{usual[key]} and {run.settings[key]}. Leave one of the two groups out."
                )


def group_runs(runs: Iterable[StudyRun], *keys: str) -> dict[tuple[Value, ...], list[StudyRun]]:
    """Group runs by the values of some settings, in ascending order of the values."""
    groups: dict[tuple[Value, ...], list[StudyRun]] = {}
    for run in runs:
        groups.setdefault(tuple(run.settings.get(key) for key in keys), []).append(run)
    return dict(sorted(groups.items(), key=lambda item: tuple((isinstance(v, str), v) for v in item[0])))


def list_tasks(runs: Iterable[StudyRun]) -> list[str]:
    """List the tasks of some runs in their order."""
    return list(dict.fromkeys(run.task for run in runs))


def known(values: Iterable[float]) -> Values:
    """Keep the finite values."""
    numbers = np.asarray(list(values), np.float64)
    return numbers[np.isfinite(numbers)]


def show_value(value: Value) -> str:
    """Write a setting's value as the paper does: 0.05, 1.8e-3."""
    if isinstance(value, float) and 0 < abs(value) < 0.05 and f"{value:g}" != f"{value:.2f}":
        mantissa, _, exponent = f"{value:.4e}".partition("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def quote(values: Iterable[float], digits: int = 3) -> str:
    """Quote one number over seeds: "0.92 ± 0.01 (n = 5)"; an empty text when there is none."""
    numbers = known(values)
    if not len(numbers):
        return ""
    spread = f" ± {numbers.std(ddof=1):.{digits}f}" if len(numbers) > 1 else ""
    return f"{numbers.mean():.{digits}f}{spread} (n = {len(numbers)})"
