"""Targets and losses of the learners, one equation per function, and `LearnerStats`, the result of an update.

The first half is for temporal differences: masked means, greedy actions, the gated target, the quantile loss and the
episodic-control loss. The second half is for PPO: advantages, losses and value normalization.

Shapes differ, so each function documents its own. TD tensors are time-major [T, B]; `IncentiveInputs` is [B, T], as
the replay buffer stores it. PPO advantages are [E, T, N] and PPO losses use flat rows [R].
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import huber_loss

from emtc_core.devices import send
from emtc_core.gate.gate import incentive
from emtc_core.metrics import CLOSED_BELOW
from emtc_core.replay_buffer.buffer import StateDict

UNAVAILABLE_Q = -9_999_999.0
"""Value of an unavailable action in `greedy`, as in PyMARL."""
EPS = 1e-5
"""Lower bound of the accumulated weight in `ValueNorm`."""
MIN_VARIANCE = 1e-2
"""Lower bound of the variance in `ValueNorm`."""


@dataclass(frozen=True)
class IncentiveInputs:
    """Values recalled from the memory for the next state s' of every transition of a batch (Eq. 2)."""

    h_next: Tensor  # [B, T] H(s') [return]; 0 at a miss
    rho_next: Tensor  # [B, T] success ratio of s', dimensionless; 0 at a miss, so that r_p is 0
    hit: Tensor  # [B, T] boolean: the memory found a node for s'


@dataclass(frozen=True)
class Incentive:
    """Episodic incentive of every transition, before and after the gate (Eq. 2, 9)."""

    r_p: Tensor  # [T, B] [return]
    gated: Tensor  # [T, B] beta * r_p [return]


def make_incentive_inputs(
    h_next: NDArray[np.floating], rho_next: NDArray[np.floating], hit: NDArray[np.bool_], *, device: torch.device
) -> IncentiveInputs:
    """Make the tensors of `IncentiveInputs` from recalled arrays (Eq. 2).

    Args:
        h_next: [B, T], H(s') [return]; any value, also NaN, at a miss.
        rho_next: [B, T], success ratio of s', dimensionless; any value at a miss.
        hit: [B, T] boolean, whether the memory found a node.
        device: Device of the tensors.

    Returns:
        Float32 tensors [B, T] with 0 at every miss.
    """
    return IncentiveInputs(
        h_next=send(np.where(hit, h_next, 0.0).astype(np.float32), device),
        rho_next=send(np.where(hit, rho_next, 0.0).astype(np.float32), device),
        hit=send(hit, device),
    )


def masked_mean(values: Tensor, mask: Tensor, count: Tensor | None = None) -> Tensor:
    """Compute the mean over real transitions, sum(mask * values) / count.

    Source: the masked losses of oxwhirl/pymarl.

    Args:
        values: Any shape [unit varies].
        mask: Same shape, 1 on real transitions, dimensionless.
        count: Divisor, a scalar [steps]; None means sum(mask). A part of a batch uses the count of the whole batch.

    Returns:
        A scalar in the unit of the values. The divisor is at least 1.
    """
    return (values * mask).sum() / (mask.sum() if count is None else count).clamp_min(1.0)


def greedy(q: Tensor, avail: Tensor) -> tuple[Tensor, Tensor]:
    """Find the largest available Q_i and its action.

    Source: oxwhirl/pymarl, with its value of unavailable actions.

    Args:
        q: [..., A], action values [return].
        avail: [..., A] boolean, available actions.

    Returns:
        Largest value [...] [return], detached, and its action index [...].
    """
    best = q.detach().masked_fill(~avail, UNAVAILABLE_Q).max(-1)
    return best.values, best.indices


def episodic_incentive(
    recalled: IncentiveInputs,
    q_next: Tensor,
    *,
    beta: Tensor,
    terminated: Tensor,
    gamma: float,
    clamp: Literal["none", "positive"],
    mask_terminal: bool,
) -> Incentive:
    """Compute r_p = gamma rho(s') (H(s') - Qbar(s')) and multiply it by the gate (Eq. 2, 9).

    Args:
        recalled: H, rho and hits [B, T] of the next states.
        q_next: [T, B], Qbar(s') [return]. It must be the tensor that the target bootstraps from, so that it cancels as
            H approaches V* (Proposition 2).
        beta: [T, B], gate coefficient, dimensionless.
        terminated: [T, B], 1 where the target does not bootstrap, dimensionless.
        gamma: Discount factor.
        clamp: "positive" keeps only positive incentives, as EMU's code does (C9).
        mask_terminal: Set the incentive of terminating transitions to 0 (C13).

    Returns:
        r_p and beta * r_p, both [T, B] [return].
    """
    h_next, rho = recalled.h_next.transpose(0, 1), recalled.rho_next.transpose(0, 1)
    r_p = incentive(h_next, q_next, rho, gamma=gamma, clamp=clamp)
    if mask_terminal:
        r_p = r_p * (1.0 - terminated)
    return Incentive(r_p=r_p, gated=beta * r_p)


def gate_shares(incentive: Incentive, beta: Tensor, mask: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Compute the effect of the gate on a batch, as (numerator, denominator) by metric name (Eq. 9).

    `gate/incentive_removed` is sum |(1 - beta) r_p| / sum |r_p|. `gate/closed_fraction` is the fraction of transitions
    with beta < CLOSED_BELOW.

    Args:
        incentive: r_p and beta * r_p, [T, B] [return].
        beta: [T, B], gate coefficient, dimensionless.
        mask: [T, B], 1 on real transitions, dimensionless.

    Returns:
        Two scalars by metric name: [return] for the incentive, [steps] for the gate.
    """
    removed, total = ((value.abs() * mask).sum() for value in (incentive.r_p - incentive.gated, incentive.r_p))
    return {
        "gate/incentive_removed": (removed, total),
        "gate/closed_fraction": (((beta < CLOSED_BELOW) * mask).sum(), mask.sum()),
    }


def episodic_control_error(
    q_tot: Tensor, recalled: IncentiveInputs, *, reward: Tensor, terminated: Tensor, gamma: float
) -> Tensor:
    """Compute the episodic-control error Q_EC - Q_tot with Q_EC = r + gamma H(s').

    Source: kikojay/EMC.

    Args:
        q_tot: [T, B] [return].
        recalled: H and hits [B, T] of the next states.
        reward: [T, B] [reward].
        terminated: [T, B], 1 where H(s') is replaced by 0, dimensionless.
        gamma: Discount factor.

    Returns:
        [T, B] [return]; 0 where the memory found no node for s'.
    """
    h_next = recalled.h_next.transpose(0, 1) * (1.0 - terminated)
    return torch.where(recalled.hit.transpose(0, 1), reward + gamma * h_next - q_tot, torch.zeros_like(q_tot))


def quantile_huber(quantiles: Tensor, fractions: Tensor, target: Tensor) -> Tensor:
    """Compute the quantile Huber loss with kappa = 1.

    Source: IQN (Dabney et al. 2018), as in j3soon/dfac.

    Args:
        quantiles: [T, B, W], Z_tot(w_j) [return], j = 1..W.
        fractions: [T, B, W], w_j in (0, 1), dimensionless.
        target: [T, B, V], samples of the target distribution [return], k = 1..V, detached.

    Returns:
        [T, B] [loss], sum over j of the mean over k.
    """
    error = target.unsqueeze(-2) - quantiles.unsqueeze(-1)
    huber = huber_loss(error, torch.zeros_like(error), reduction="none")
    weight = (fractions.unsqueeze(-1) - (error.detach() <= 0).float()).abs()
    return (weight * huber).mean(-1).sum(-1)


@dataclass(frozen=True)
class LearnerStats(Mapping[str, Tensor]):
    """Scalar tensors of one update by registered metric name. They stay on the device until they are read.

    Source: the metrics registered in `metrics.py`, each with its unit [unit varies].
    """

    values_by_name: dict[str, Tensor]
    episode_error: Tensor | None = None
    """[B] mean squared TD error of each episode [return²], used as priority by prioritized replay."""
    shares: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """(numerator, denominator) by metric name. Over several updates both are summed before the division."""

    def __getitem__(self, name: str) -> Tensor:
        return self.values_by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)

    def read(self) -> dict[str, float]:
        """Copy all values to the CPU in one transfer."""
        numbers = torch.stack([v.detach().float() for v in self.values()]).tolist()
        return dict(zip(self, numbers, strict=True))


def generalized_advantages(
    reward: Tensor, value: Tensor, following: Tensor, *, gamma: float, gae_lambda: float
) -> Tensor:
    """Estimate the advantages of E padded episodes for every agent.

    A_t = sum over k >= 0 of (gamma lambda)^k delta_{t+k}, computed as a product with a triangular matrix of powers.

    Source: GAE (Schulman et al. 2016).

    Args:
        reward: [E, T], team reward [reward]; 0 in the padding.
        value: [E, T, N], values of the states [return]; 0 in the padding.
        following: [E, T, N], values of the next states [return]; 0 in the padding and where an episode ends without
            bootstrap.
        gamma: Discount factor.
        gae_lambda: lambda of GAE.

    Returns:
        [E, T, N] [return] with A_t = delta_t + gamma lambda A_{t+1}.
    """
    delta_ETN = reward.unsqueeze(-1) + gamma * following - value
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


class ValueNorm:
    """Normalization of values by running moments.

    Mean and mean square are exponential averages, divided by their accumulated weight to remove the bias of the start.
    """

    def __init__(self, beta: float, device: torch.device) -> None:
        """Set all averages to 0; `beta` is the weight of the previous average."""
        self._beta = beta
        self._mean, self._square, self._weight = torch.zeros(3, device=device).unbind()

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
        weight = self._weight.clamp_min(EPS)
        mean = self._mean / weight
        variance = self._square / weight - mean.square()
        return mean, variance.clamp_min(MIN_VARIANCE).sqrt()
