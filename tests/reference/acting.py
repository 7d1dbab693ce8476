"""One step of the agents in float64, as the equations say, and the epsilon-greedy choice one agent at a time."""

from collections.abc import Mapping

import numpy as np

Weights = Mapping[str, np.ndarray]


def step(
    weights: Weights, obs: np.ndarray, last: np.ndarray | None, hidden: np.ndarray, *, has_id: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the values [B, N, A] and the next hidden states [B, N, H]."""
    n_envs, n_agents = hidden.shape[:2]
    n_actions = len(weights["fc2.bias"])
    q, after = np.zeros((n_envs, n_agents, n_actions)), np.zeros_like(hidden)
    for b in range(n_envs):
        for i in range(n_agents):
            parts = [obs[b, i], np.zeros(n_actions) if last is None else np.eye(n_actions)[last[b, i]]]
            if has_id:
                parts.append(np.eye(n_agents)[i])
            x = np.maximum(weights["fc1.weight"] @ np.concatenate(parts) + weights["fc1.bias"], 0.0)
            x_r, x_z, x_n = np.split(weights["rnn.weight_ih_l0"] @ x + weights["rnn.bias_ih_l0"], 3)
            h_r, h_z, h_n = np.split(weights["rnn.weight_hh_l0"] @ hidden[b, i] + weights["rnn.bias_hh_l0"], 3)
            r, z = (1.0 / (1.0 + np.exp(-y)) for y in (x_r + h_r, x_z + h_z))
            n = np.tanh(x_n + r * h_n)
            after[b, i] = (1.0 - z) * n + z * hidden[b, i]
            q[b, i] = weights["fc2.weight"] @ after[b, i] + weights["fc2.bias"]
            if "head.weight" in weights:
                q[b, i] += after[b, i] @ weights["head.weight"][i] + weights["head.bias"][i]
    return q, after


def choose(q: np.ndarray, avail: np.ndarray, epsilon: float, rng: np.random.Generator) -> np.ndarray:
    """Return the actions [B, N]; draw nothing if epsilon is 0."""
    greedy = np.where(avail, q, -np.inf).argmax(-1)
    if epsilon <= 0.0:
        return greedy
    random = np.where(avail, rng.random(avail.shape, np.float32), -1.0).argmax(-1)
    return np.where(rng.random(greedy.shape) < epsilon, random, greedy)


def gap(q: np.ndarray, avail: np.ndarray) -> np.ndarray:
    """Return how much better the best available action is than the second one, [B, N]."""
    ordered = np.sort(np.where(avail, q, -np.inf), axis=-1)
    best, second = ordered[..., -1], ordered[..., -2]
    return np.where(np.isfinite(second), best - np.where(np.isfinite(second), second, 0.0), np.inf)
