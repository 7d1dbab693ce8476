"""Advantages, losses and value normalization of PPO, one equation per function.

Shapes differ, so each function documents its own. Advantages are [E, T, N]; losses use flat rows [R].
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import huber_loss

from emtc_core.replay_buffer.buffer import StateDict

MIN_WEIGHT = 1e-5
"""Lower bound of the accumulated weight in `ValueNorm`."""
MIN_VARIANCE = 1e-2
"""Lower bound of the variance in `ValueNorm`."""


def generalized_advantages(
    reward: Tensor, value: Tensor, next_value: Tensor, *, gamma: float, gae_lambda: float
) -> Tensor:
    """Estimate the advantages of E padded episodes for every agent.

    A_t = sum over k >= 0 of (gamma lambda)^k delta_{t+k}, computed as a product with a triangular matrix of powers.

    Source: GAE (Schulman et al. 2016).

    Args:
        reward: [E, T], team reward [reward]; 0 in the padding.
        value: [E, T, N], values of the states [return]; 0 in the padding.
        next_value: [E, T, N], values of the next states [return]; 0 in the padding and where an episode ends without
            bootstrap.
        gamma: Discount factor.
        gae_lambda: lambda of GAE.

    Returns:
        [E, T, N] [return] with A_t = delta_t + gamma lambda A_{t+1}.
    """
    delta_ETN = reward.unsqueeze(-1) + gamma * next_value - value
    steps_T = torch.arange(reward.shape[1], device=reward.device)
    ahead_TK = steps_T - steps_T.unsqueeze(1)
    weight_TK = ((gamma * gae_lambda) ** ahead_TK.clamp_min(0).to(reward.dtype)) * (ahead_TK >= 0)
    return torch.einsum("tk,ekn->etn", weight_TK, delta_ETN)


def normalize_advantages(advantage: Tensor, alive: Tensor) -> Tensor:
    """Subtract the mean and divide by the standard deviation, both over living agents.

    Source: marlbenchmark/on-policy.

    Args:
        advantage: Any shape [return].
        alive: Same shape, 1 for living agents, dimensionless.

    Returns:
        Same shape, dimensionless.
    """
    count = alive.sum().clamp_min(1.0)
    mean = (advantage * alive).sum() / count
    variance = ((advantage - mean).square() * alive).sum() / count
    return (advantage - mean) / (variance.sqrt() + 1e-5)


def policy_loss(log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, alive: Tensor, *, clip: float) -> Tensor:
    """Compute the clipped PPO objective, averaged over living agents.

    Source: PPO (Schulman et al. 2017), as in marlbenchmark/on-policy.

    Args:
        log_prob: [R] [log probability] of the action under the current policy.
        old_log_prob: [R] [log probability] under the policy of the rollout.
        advantage: [R], normalized advantage, dimensionless.
        alive: [R], 1 for living agents, dimensionless.
        clip: Largest change of the probability ratio from 1.

    Returns:
        A scalar [loss], to be minimized.
    """
    ratio = (log_prob - old_log_prob).exp()
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)
    return -(surrogate * alive).sum() / alive.sum().clamp_min(1.0)


def value_loss(value: Tensor, old_value: Tensor, target: Tensor, *, clip: float, delta: float) -> Tensor:
    """Compute the clipped value loss: the larger Huber loss of the value and the clipped value, averaged over rows.

    Source: marlbenchmark/on-policy.

    Args:
        value: [R], value of the current critic, normalized by `ValueNorm`, dimensionless.
        old_value: [R], value of the critic at the rollout, normalized, dimensionless.
        target: [R], return, normalized, dimensionless.
        clip: Largest difference between the clipped value and `old_value`.
        delta: Threshold of the Huber loss.

    Returns:
        A scalar [loss].
    """
    clipped = old_value + (value - old_value).clamp(-clip, clip)
    return torch.maximum(*(huber_loss(v, target, reduction="none", delta=delta) for v in (value, clipped))).mean()


def masked_log_softmax(logits: Tensor, avail: Tensor) -> Tensor:
    """Compute the log probabilities of the available actions.

    The logit of an unavailable action is replaced by the lowest number of the dtype.

    Source: marlbenchmark/on-policy, the action head.

    Args:
        logits: [..., A] [logits].
        avail: [..., A] boolean, available actions.

    Returns:
        [..., A] [log probability].
    """
    return torch.log_softmax(logits.masked_fill(~avail, torch.finfo(logits.dtype).min), -1)


def mean_entropy(log_probs: Tensor, alive: Tensor) -> Tensor:
    """Compute the mean entropy of the policy over living agents.

    Source: marlbenchmark/on-policy.

    Args:
        log_probs: [R, A] [log probability].
        alive: [R], 1 for living agents, dimensionless.

    Returns:
        A scalar [nats].
    """
    entropy_R = -(log_probs.exp() * log_probs.clamp_min(-1e9)).sum(-1)
    return (entropy_R * alive).sum() / alive.sum().clamp_min(1.0)


class ValueNorm(nn.Module):
    """Normalization of values by running moments.

    Mean and mean square are exponential averages, divided by their accumulated weight to remove the bias of the start.
    """

    _mean: Tensor
    _square: Tensor
    _weight: Tensor

    def __init__(self, beta: float, device: torch.device) -> None:
        """Set all averages to 0; `beta` is the weight of the previous average."""
        super().__init__()
        self._beta = beta
        for name in ("_mean", "_square", "_weight"):
            self.register_buffer(name, torch.zeros((), device=device))

    def update(self, values: Tensor) -> None:
        """Update the averages with the mean and the mean square of values.

        Source: marlbenchmark/on-policy, `ValueNorm`.

        Args:
            values: Any shape [return].
        """
        rate = 1.0 - self._beta
        self._mean = self._beta * self._mean + rate * values.mean()
        self._square = self._beta * self._square + rate * values.square().mean()
        self._weight = self._beta * self._weight + rate

    def normalize(self, values: Tensor) -> Tensor:
        """Subtract the mean and divide by the standard deviation.

        Source: marlbenchmark/on-policy, `ValueNorm`.

        Args:
            values: Any shape [return].

        Returns:
            Same shape, dimensionless.
        """
        mean, deviation = self._moments()
        return (values - mean) / deviation

    def denormalize(self, values: Tensor) -> Tensor:
        """Convert normalized values back to the unit of the returns.

        Source: marlbenchmark/on-policy, `ValueNorm`.

        Args:
            values: Any shape, dimensionless.

        Returns:
            Same shape [return].
        """
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
        weight = self._weight.clamp_min(MIN_WEIGHT)
        mean = self._mean / weight
        variance = self._square / weight - mean.square()
        return mean, variance.clamp_min(MIN_VARIANCE).sqrt()
