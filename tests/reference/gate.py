"""The gate of one episode, step by step as in the paper."""

import math

from emtc_core.config.memory import GateConfig


def looped_gate(
    reward: list[float], h_at: list[float], *, ends: bool, is_empty: bool, config: GateConfig, gamma: float, tau: float
) -> tuple[list[float], list[float], list[float]]:
    """(h_next, delta_mem, beta) from H at s_0 … s_T; NaN is a miss."""
    h_nexts, deltas, betas = [], [], []
    T = len(reward)
    for t in range(T):
        h_next = 0.0 if t == T - 1 and ends and config.terminal_value == "zero" else h_at[t + 1]
        if math.isnan(h_at[t]) or math.isnan(h_next):
            rule = config.on_empty if is_empty else config.on_miss
            delta, beta = math.nan, 1.0 if rule == "pass" else 0.0
        else:
            delta = abs(reward[t] + gamma * h_next - h_at[t])
            beta = math.exp(-((delta * config.delta_scale) ** 2) / (2 * tau**2))
        h_nexts.append(h_next)
        deltas.append(delta)
        betas.append(beta if config.enabled else 1.0)
    return h_nexts, deltas, betas
