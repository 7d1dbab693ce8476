"""Advantages and losses of PPO, one equation per function; networks and sampling live in mappo.py."""

import torch
from torch import Tensor


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
    return torch.maximum(huber(target - value, delta), huber(target - clipped, delta)).mean()


def huber(error: Tensor, delta: float) -> Tensor:
    """Square small errors (halved), grow linearly past `delta`."""
    size = error.abs()
    return torch.where(size <= delta, 0.5 * error.square(), delta * (size - 0.5 * delta))


def masked_log_softmax(logits: Tensor, avail: Tensor) -> Tensor:
    """Normalise over the available actions; unavailable ones get the dtype's lowest value: [..., A]."""
    return torch.log_softmax(logits.masked_fill(~avail, torch.finfo(logits.dtype).min), -1)


def mean_entropy(log_probs: Tensor, alive: Tensor) -> Tensor:
    """Average the policy's entropy over living agents: [R, A] and [R]."""
    entropy_R = -(log_probs.exp() * log_probs.clamp_min(-1e9)).sum(-1)
    return (entropy_R * alive).sum() / alive.sum().clamp_min(1.0)
