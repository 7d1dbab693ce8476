"""Quantities that change with the number of environment steps."""


def linear_decay(env_step: int, *, start: float, end: float, steps: int) -> float:
    """Go from `start` to `end` linearly over `steps` env steps, then stay (Eq. 12 for tau).

    Args:
        env_step: Training env steps so far, >= 0.
        start: Value at step 0.
        end: Value from `steps` on.
        steps: Length of the decay [env steps]; 0 means `end` from the first step.
    """
    if env_step >= steps:
        return end
    return start + (end - start) * env_step / steps


class Every:
    """Fires when at least `interval` env steps have passed since it last fired (B9)."""

    def __init__(self, interval: int, *, last: int = 0) -> None:
        self.interval = interval
        self.last = last

    def due(self, env_step: int) -> bool:
        """Tell whether it is time, and if so start counting anew."""
        if env_step - self.last < self.interval:
            return False
        self.last = env_step
        return True

    def hurry(self) -> None:
        """Be due at the next look, whatever the interval says."""
        self.last = -self.interval
