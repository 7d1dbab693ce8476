"""The x axis of curves: env steps, training episodes, or wall time.

Env steps are stored. Episodes and wall time follow from two metrics that every trainer logs: the mean length of its
episodes and its speed. Imported runs have neither, so they have env steps only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from app.analysis.aggregates import MAX_POINTS, Curve
from app.analysis.intervals import Values
from app.analysis.series import Comparison, ExcludedRun, Group, SeedRun, split_by_run
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.queries.curves import cumulative_progress
from storage.runs.rows import RunRow

XAxisName = Literal["env_steps", "episodes", "minutes", "hours"]
_WALL_TIME: Final = (
    "Wall time is the time in which the trainer was active, from the recorded speed. Pauses, the time between a stop "
    "and a resume, and env steps that a resume replaced are not counted. It depends on the machine and its other work."
)


@dataclass(frozen=True)
class XAxis:
    """One x axis. Its values are computed from the env steps of a run and a metric of the run."""

    label: str
    """Label of the axis, with the unit."""
    short_name: str
    """Name in the tooltip of a chart."""
    choice: str
    """Name in the list of axes."""
    metric: str = ""
    """Metric in env steps per episode or per second; empty for the axis of env steps."""
    per_unit: float = 1.0
    """Seconds in one unit of the axis; 1 for episodes."""
    meaning: str = ""
    """Sentences for the caption."""
    missing: str = ""
    """Reason why a run cannot be drawn on this axis."""


_SPEED: Final = "time/env_steps_per_second"
_NO_SPEED: Final = "no wall time, because its speed was not recorded (imported runs have none)"
X_AXES: Final[dict[XAxisName, XAxis]] = {
    "env_steps": XAxis("training env steps", "env step", "env steps"),
    "episodes": XAxis(
        "training episodes", "episode", "episodes", "rollout/length",
        meaning="Training episodes are those that have ended, from the recorded mean length.",
        missing="no number of training episodes, because their length was not recorded (imported runs have none)",
    ),
    "minutes": XAxis(
        "wall time of the training [min]", "minute", "wall time [min]", _SPEED, 60.0,
        meaning=_WALL_TIME, missing=_NO_SPEED,
    ),
    "hours": XAxis(
        "wall time of the training [h]", "hour", "wall time [h]", _SPEED, 3600.0, meaning=_WALL_TIME, missing=_NO_SPEED
    ),
}  # fmt: skip


@dataclass(frozen=True)
class XValues:
    """The x axis of a figure, and for each run the values on this axis over its env steps."""

    axis: XAxis = X_AXES["env_steps"]
    curves: Mapping[str, Curve] | None = None
    """Run id → curve of x over env steps, without the runs that have none; None for the axis of env steps."""

    def convert(self, run_id: str, env_steps: Values) -> Values:
        """Convert env steps [T] of a run to values [T] on the axis. The last speed continues after the last report.

        Raises:
            ConfigError: If the run has no values on this axis.
        """
        if self.curves is None:
            return env_steps
        if run_id not in self.curves:
            raise ConfigError(f"Run {run_id} has {self.axis.missing}", hint="Use the x axis env_steps.")
        steps, x = self.curves[run_id]
        slope = (x[-1] - x[-2]) / (steps[-1] - steps[-2])
        return np.interp(env_steps, steps, x) + slope * np.maximum(env_steps - steps[-1], 0.0)

    def convert_comparison(self, comparison: Comparison) -> Comparison:
        """Convert the curve of each seed. Seeds without values on this axis are excluded, with the reason.

        Raises:
            ConfigError: If no seed has values on this axis.
        """
        if self.curves is None:
            return comparison
        drawn_ids = {seed.id for seed in comparison.seeds if seed.id in self.curves}
        groups, excluded = [], []
        for group in comparison.groups:  # if no seed has values, the conversion of the first one raises
            seeds = tuple(self._convert_seed(seed) for seed in group.seeds if seed.id in drawn_ids or not drawn_ids)
            excluded += [
                ExcludedRun(seed.id, f"{group.variant.label}; seed {seed.seed_text}", self.axis.missing)
                for seed in group.seeds
                if seed.id not in drawn_ids
            ]
            if seeds:
                groups.append(Group(replace(group.variant, run_ids=tuple(seed.id for seed in seeds)), seeds))
        return replace(comparison, groups=tuple(groups), excluded_runs=(*comparison.excluded_runs, *excluded))

    def describe(self, comparison: Comparison) -> str:
        """Describe the axis, and how the seeds are aligned on it, for a caption; empty for the axis of env steps."""
        if self.curves is None:
            return ""
        if max(comparison.seed_counts, default=0) < 2:
            return self.axis.meaning
        unit = f"{self.axis.short_name}s"
        return (
            f"{self.axis.meaning} Seeds are interpolated linearly to the same {unit}; a line ends where its first seed "
            f"ends."
        )

    def _convert_seed(self, seed: SeedRun) -> SeedRun:
        return replace(seed, curve=Curve(self.convert(seed.id, seed.curve.steps), seed.curve.values))


ENV_STEPS: Final = XValues()


def read_x_values(db: Database, rows: Sequence[RunRow], name: XAxisName) -> XValues:
    """Read the values of an x axis for each run."""
    axis = X_AXES[name]
    if not axis.metric:
        return ENV_STEPS
    longest = max((row.env_steps for row in rows), default=0)
    stretch = max(1, longest // MAX_POINTS)
    frame = cumulative_progress(db, [row.id for row in rows], axis.metric, stretch=stretch)
    curves = {
        run_id: Curve(*(np.concatenate([[0.0], part]) for part in (steps, totals / axis.per_unit)))
        for run_id, (steps, totals) in split_by_run(frame, ("env_step", "total")).items()
        if steps[-1] > 0
    }
    return XValues(axis, curves)
