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
