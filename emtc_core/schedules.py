"""Values and periodic tasks that depend on the number of env steps."""

from emtc_core.checkpoint_file import FIRST_STEP
from emtc_core.config.plugin_settings import PLUGIN_SETTINGS
from emtc_core.config.run import RunConfig
from emtc_core.config.train import TrainConfig
from emtc_core.errors import PluginError
from emtc_core.plugins import get_plugin


def linear_decay(env_step: int, *, start: float, end: float, steps: int) -> float:
    """Interpolate linearly from `start` to `end` over `steps` env steps; `end` after that (Eq. 12 for tau).

    Args:
        env_step: Training env steps so far, >= 0.
        start: Value at step 0.
        end: Value from `steps` on.
        steps: Length of the decay [env steps]; 0 means `end` from the first step.

    Returns:
        The value at `env_step`, in the unit of `start`.
    """
    if env_step >= steps:
        return end
    return start + (end - start) * env_step / steps


def exploration(train: TrainConfig, env_step: int) -> float:
    """Compute the probability of a random action: the linear decay, or the schedule of a plug-in.

    A plug-in schedule is a function `epsilon(env_step, train) -> float`; `train` has the settings `train.*`.

    Raises:
        PluginError: If the plug-in is not installed, or returns a value outside [0, 1].
    """
    kind, builtin = PLUGIN_SETTINGS["train.eps_schedule"]
    if train.eps_schedule in builtin:
        return linear_decay(env_step, start=train.eps_start, end=train.eps_end, steps=train.eps_steps)
    plugin = get_plugin(kind, train.eps_schedule, builtin=builtin)
    epsilon = float(plugin.load()(env_step, train))
    if not 0 <= epsilon <= 1:
        rule = f"must return epsilon in [0, 1], also at env step {env_step:,}"
        raise PluginError(rule, key=f"schedule {plugin.label}", value=epsilon)
    return epsilon


class Every:
    """A periodic task: due when at least `interval` env steps have passed since it was last due (B9)."""

    def __init__(self, interval: int, *, last: int = 0) -> None:
        self.interval = interval
        self.last = last

    def start_if_due(self, env_step: int) -> bool:
        """Return whether the task is due now. If it is, the next interval starts here."""
        if env_step - self.last < self.interval:
            return False
        self.last = env_step
        return True

    def force_due(self) -> None:
        """Make the next call of `start_if_due` return True."""
        self.last = -self.interval


def make_intervals(config: RunConfig) -> dict[str, Every]:
    """Make the interval of each periodic task of a trainer, by name."""
    budget = config.train.t_max
    return {
        "refit": Every(config.embed.interval),
        "evaluation": Every(config.eval.interval, last=-config.eval.interval),
        "gate_stats": Every(min(config.record.gate_interval, max(1, budget // 200))),
        "snapshot": Every(max(1, budget // max(1, config.record.snapshots))),
        "metrics": Every(min(config.record.metrics_interval, max(1, budget // 100))),
        "checkpoint": Every(config.checkpoint.interval, last=min(0, FIRST_STEP - config.checkpoint.interval)),
    }
