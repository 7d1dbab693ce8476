"""The periodic tasks of a trainer: refits, evaluations, records and checkpoints."""

from emtc_core.checkpoint_file import FIRST_STEP
from emtc_core.config.run import RunConfig


class Interval:
    """Env steps between two times of a periodic task: due when at least `length` env steps have passed (B9)."""

    def __init__(self, length: int, *, last: int = 0) -> None:
        self.length = length
        self.last = last

    def start_if_due(self, env_step: int) -> bool:
        """Return whether the task is due now. If it is, the next interval starts here."""
        if env_step - self.last < self.length:
            return False
        self.last = env_step
        return True

    def force_due(self) -> None:
        """Make the next call of `start_if_due` return True."""
        self.last = -self.length


def make_intervals(config: RunConfig) -> dict[str, Interval]:
    """Make the interval of each periodic task, by name."""
    budget = config.train.t_max
    return {
        "refit": Interval(config.embed.interval),
        "evaluation": Interval(config.eval.interval, last=-config.eval.interval),
        "gate_stats": Interval(min(config.record.gate_interval, max(1, budget // 200))),
        "snapshot": Interval(max(1, budget // max(1, config.record.snapshots))),
        "metrics": Interval(min(config.record.metrics_interval, max(1, budget // 100))),
        "checkpoint": Interval(config.checkpoint.interval, last=min(0, FIRST_STEP - config.checkpoint.interval)),
    }
