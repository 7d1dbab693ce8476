"""Values that depend on the number of env steps: the linear decay of epsilon and tau, and epsilon of a plug-in."""

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


def compute_epsilon(train: TrainConfig, env_step: int) -> float:
    """Compute the probability of a random action: the linear decay, or the schedule of a plug-in.

    A plug-in schedule is a function `epsilon(env_step, train) -> float`; `train` has the settings `train.*`.

    Raises:
        PluginError: If the plug-in is not installed, or returns a value outside [0, 1].
    """
    if train.eps_schedule == "linear":
        return linear_decay(env_step, start=train.eps_start, end=train.eps_end, steps=train.eps_steps)
    schedule = get_plugin("schedule", train.eps_schedule).bind(train.plugin)
    epsilon = float(schedule(env_step, train))
    if not 0 <= epsilon <= 1:
        rule = f"must return epsilon in [0, 1], also at env step {env_step:,}"
        raise PluginError(rule, key=f"schedule {train.eps_schedule}", value=epsilon)
    return epsilon
