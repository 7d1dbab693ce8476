"""A slow reading of DMIX: every quantile sample of every agent by itself, and the loss pair by pair."""

import math

import torch
from torch import Tensor

from tests.reference import mixers
from tests.reference.mixers import Params


def sample(agent: Params, hidden: Tensor, fraction: float) -> Tensor:
    """Return Z(a; w) of every action for one fraction."""
    n_cos = agent["phi.weight"].shape[1]
    cosines = torch.tensor([math.cos(math.pi * j * fraction) for j in range(n_cos)], dtype=hidden.dtype)
    return mixers.linear(agent, "fc2", hidden * torch.relu(mixers.linear(agent, "phi", cosines)))


def mean_values(agent: Params, hidden: Tensor, fractions: list[float]) -> Tensor:
    return sum(sample(agent, hidden, w) for w in fractions) / len(fractions)


def z_tot(
    agent: Params, mixer: Params, hidden: list[Tensor], action: list[int], state: Tensor, fractions: list[float]
) -> list[Tensor]:
    """Mix the samples of one row: QMIX of the means plus the deviations."""
    z = [[sample(agent, h, w)[a] for w in fractions] for h, a in zip(hidden, action, strict=True)]
    means = [sum(row) / len(row) for row in z]
    q_tot = mixers.qmix(mixer, means, state)
    return [q_tot + sum(row[j] - mean for row, mean in zip(z, means, strict=True)) for j in range(len(fractions))]


def huber_loss(quantiles: list[Tensor], fractions: list[float], targets: list[float]) -> Tensor:
    total = torch.zeros((), dtype=quantiles[0].dtype)
    for z, w in zip(quantiles, fractions, strict=True):
        for target in targets:
            u = target - z
            size = u.abs()
            huber = 0.5 * u**2 if size <= 1 else size - 0.5
            total = total + abs(w - (1.0 if u <= 0 else 0.0)) * huber / len(targets)
    return total
