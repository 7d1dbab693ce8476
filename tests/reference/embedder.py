"""Losses of Algorithm 1 as sums over rows and coordinates in Python floats."""

import math


def looped_reconstruction(
    h: list[float], h_hat: list[float], state: list[list[float]], state_hat: list[list[float]]
) -> tuple[float, float]:
    """(return loss, state loss): mean over rows, sum over coordinates (Eq. 5)."""
    on_return = on_state = 0.0
    for j in range(len(h)):
        on_return += (h[j] - h_hat[j]) ** 2
        for s, s_hat in zip(state[j], state_hat[j], strict=True):
            on_state += (s - s_hat) ** 2
    return on_return / len(h), on_state / len(h)


def looped_info_nce(anchor: list[list[float]], candidate: list[list[float]], tau_cl: float) -> float:
    """Mean over anchors of -log softmax at the own view (Eq. 6)."""

    def similarity(a: list[float], b: list[float]) -> float:
        dot = sum(p * q for p, q in zip(a, b, strict=True))
        return dot / math.sqrt(sum(p * p for p in a)) / math.sqrt(sum(q * q for q in b))

    loss = 0.0
    for i, a in enumerate(anchor):
        scores = [math.exp(similarity(a, c) / tau_cl) for c in candidate]
        loss -= math.log(scores[i] / sum(scores))
    return loss / len(anchor)
