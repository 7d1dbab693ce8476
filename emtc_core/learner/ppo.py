"""Advantages, losses and value normalisation of PPO, one equation per function; networks live in mappo.py."""

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from emtc_core.replay_buffer.buffer import StateDict

EPS = 1e-5
MIN_VARIANCE = 1e-2


def generalized_advantages(
    reward: Tensor, value: Tensor, following: Tensor, *, gamma: float, gae_lambda: float
) -> Tensor:
    """Estimate advantages of E padded episodes for every agent (GAE).

    A_t = sum over k >= 0 of (gamma lambda)^k delta_{t+k}, as one product with a triangular matrix of the powers.

    Args:
        reward: [E, T] team reward; 0 in the padding.
        value: [E, T, N] values of the states; 0 in the padding.
        following: [E, T, N] values of their successors; 0 in the padding and after an episode that ended.
        gamma: Discount.
        gae_lambda: lambda of GAE.

    Returns:
        [E, T, N] with A_t = delta_t + gamma lambda A_{t+1}.
    """
    delta_ETN = reward.unsqueeze(-1) + gamma * following - value
    steps_T = torch.arange(reward.shape[1], device=reward.device)
    ahead_TK = steps_T - steps_T.unsqueeze(1)
    weight_TK = ((gamma * gae_lambda) ** ahead_TK.clamp_min(0).to(reward.dtype)) * (ahead_TK >= 0)
    return torch.einsum("tk,ekn->etn", weight_TK, delta_ETN)


def normalize_advantages(advantage: Tensor, alive: Tensor) -> Tensor:
    """Centre and scale advantages by the mean and deviation over living agents; any shape."""
    count = alive.sum().clamp_min(1.0)
    mean = (advantage * alive).sum() / count
    variance = ((advantage - mean).square() * alive).sum() / count
    return (advantage - mean) / (variance.sqrt() + 1e-5)


def policy_loss(log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, alive: Tensor, *, clip: float) -> Tensor:
    """Clip the probability ratio and average over living agents; all [R]."""
    ratio = (log_prob - old_log_prob).exp()
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)
    return -(surrogate * alive).sum() / alive.sum().clamp_min(1.0)


def value_loss(value: Tensor, old_value: Tensor, target: Tensor, *, clip: float, delta: float) -> Tensor:
    """Take the larger Huber loss of the value and its clipped change; normalised units, [R]."""
    clipped = old_value + (value - old_value).clamp(-clip, clip)
    return torch.maximum(*(huber_loss(v, target, reduction="none", delta=delta) for v in (value, clipped))).mean()


def masked_log_softmax(logits: Tensor, avail: Tensor) -> Tensor:
    """Normalise over the available actions; unavailable ones get the dtype's lowest value: [..., A]."""
    return torch.log_softmax(logits.masked_fill(~avail, torch.finfo(logits.dtype).min), -1)


def mean_entropy(log_probs: Tensor, alive: Tensor) -> Tensor:
    """Average the policy's entropy over living agents: [R, A] and [R]."""
    entropy_R = -(log_probs.exp() * log_probs.clamp_min(-1e9)).sum(-1)
    return (entropy_R * alive).sum() / alive.sum().clamp_min(1.0)


class ValueNorm:
    """Exponential averages of a scalar and its square, divided by their own accumulated weight."""

    def __init__(self, beta: float, device: torch.device) -> None:
        """Start empty; `beta` is the averaging factor."""
        self._beta = beta
        self._mean, self._square, self._weight = torch.zeros(3, device=device).unbind()

    def update(self, values: Tensor) -> None:
        """Take the mean and mean square of these values into the averages."""
        share = 1.0 - self._beta
        self._mean = self._beta * self._mean + share * values.mean()
        self._square = self._beta * self._square + share * values.square().mean()
        self._weight = self._beta * self._weight + share

    def normalize(self, values: Tensor) -> Tensor:
        """Express values in deviations from the mean."""
        mean, deviation = self._moments()
        return (values - mean) / deviation

    def denormalize(self, values: Tensor) -> Tensor:
        """Express normalised values in return units."""
        mean, deviation = self._moments()
        return values * deviation + mean

    def get_state(self) -> StateDict:
        """Return the three averages."""
        return {"mean": self._mean, "square": self._square, "weight": self._weight}

    def set_state(self, state: StateDict) -> None:
        """Restore what `get_state` returned."""
        names = ("mean", "square", "weight")
        self._mean, self._square, self._weight = (state[name].to(self._mean.device) for name in names)

    def _moments(self) -> tuple[Tensor, Tensor]:
        weight = self._weight.clamp_min(EPS)
        mean = self._mean / weight
        variance = self._square / weight - mean.square()
        return mean, variance.clamp_min(MIN_VARIANCE).sqrt()
