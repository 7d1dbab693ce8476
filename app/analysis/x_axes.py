"""The x axis of curves: env steps, training episodes, or wall time.

Env steps are stored with each point. Episodes and wall time are computed from two metrics that every trainer logs: the
mean length of its episodes and its speed. Imported runs have neither metric, so they have only the axis of env steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from app.analysis.aggregates import MAX_POINTS
from app.analysis.intervals import Values
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.queries.curves import cumulative_progress
from storage.runs.rows import RunRow

XAxisName = Literal["env_steps", "episodes", "minutes", "hours"]
_WALL_TIME_NOTE: Final = (
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
    menu_label: str
    """Name in the list from which the user chooses an axis."""
    metric: str = ""
    """Metric by which env steps are divided: env steps per episode, or env steps per second. Empty for `env_steps`."""
    seconds_per_unit: float = 1.0
    """Number of seconds in one unit of a time axis; 1 for episodes."""
    caption: str = ""
    """Sentences of a figure's caption that explain the axis."""
    missing_reason: str = ""
    """Why a run cannot be drawn on this axis, as the end of the sentence "Run X has …"."""


_SPEED: Final = "time/env_steps_per_second"
_NO_SPEED_REASON: Final = "no wall time, because its speed was not recorded (imported runs have none)"
X_AXES: Final[dict[XAxisName, XAxis]] = {
    "env_steps": XAxis("training env steps", "env step", "env steps"),
    "episodes": XAxis(
        "training episodes", "episode", "episodes", "rollout/length",
        caption="Training episodes are those that have ended, from the recorded mean length.",
        missing_reason=(
            "no number of training episodes, because their length was not recorded (imported runs have none)"
        ),
    ),
    "minutes": XAxis(
        "wall time of the training [min]", "minute", "wall time [min]", _SPEED, 60.0,
        caption=_WALL_TIME_NOTE, missing_reason=_NO_SPEED_REASON,
    ),
    "hours": XAxis(
        "wall time of the training [h]", "hour", "wall time [h]", _SPEED, 3600.0,
        caption=_WALL_TIME_NOTE, missing_reason=_NO_SPEED_REASON,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class XValues:
    """The x axis of a figure, and for each run the values on this axis over its env steps."""

    axis: XAxis = X_AXES["env_steps"]
    curves: Mapping[str, tuple[Values, Values]] | None = None
    """Run id → (logged env steps, x values at these env steps). None for the axis of env steps.

    Runs for which the metric was not logged are absent.
    """

    def convert(self, run_id: str, env_steps: Values) -> Values:
        """Convert env steps [T] of a run to values [T] on the axis, by linear interpolation.

        After the last logged point, the line continues with the slope of the last two points.

        Raises:
            ConfigError: If the run has no values on this axis.
        """
        if self.curves is None:
            return env_steps
        if run_id not in self.curves:
            raise ConfigError(f"Run {run_id} has {self.axis.missing_reason}", hint="Use the x axis env_steps.")
        steps, x = self.curves[run_id]
        slope = (x[-1] - x[-2]) / (steps[-1] - steps[-2])
        return np.interp(env_steps, steps, x) + slope * np.maximum(env_steps - steps[-1], 0.0)


ENV_STEPS: Final = XValues()


def read_x_values(db: Database, rows: Sequence[RunRow], name: XAxisName) -> XValues:
    """Read the values of an x axis for each run."""
    axis = X_AXES[name]
    if not axis.metric:
        return ENV_STEPS
    longest = max((row.env_steps for row in rows), default=0)
    env_steps_per_point = max(1, longest // MAX_POINTS)
    # The column `total` of the result is the number of episodes or seconds since the start of the run.
    frame = cumulative_progress(db, [row.id for row in rows], axis.metric, interval_steps=env_steps_per_point)
    curves: dict[str, tuple[Values, Values]] = {}
    for run_id, run_rows in frame.groupby("run_id", sort=False):
        steps = run_rows["env_step"].to_numpy(np.float64)
        totals = run_rows["total"].to_numpy(np.float64)
        if steps[-1] > 0:
            steps_from_0 = np.concatenate([[0.0], steps])
            x_from_0 = np.concatenate([[0.0], totals / axis.seconds_per_unit])
            curves[str(run_id)] = (steps_from_0, x_from_0)
    return XValues(axis, curves)
