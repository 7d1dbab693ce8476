"""Targets and losses, one equation per function; what an update reports. Temporal differences first, then PPO.

What lives here: masked means, greedy choice, the gated target, squared and quantile losses, the episodic-control
loss, and `LearnerStats`, whose values stay on the device until somebody reads them; advantages, losses and value
normalisation of PPO. What does not: networks, mixing, or where H and rho come from. All tensors are time-major [T, B].
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


@dataclass(frozen=True)
class IncentiveInputs:
    """What the episodic memory recalls about the successor of every transition of a batch."""

    h_next: Tensor  # [B, T] H(s'); 0 at a miss
    rho_next: Tensor  # [B, T] success ratio of s'; 0 at a miss, which makes r_p 0
    hit: Tensor  # [B, T] bool; a node was found


@dataclass(frozen=True)
class Incentive:
    """Episodic incentive of every transition, before and after the gate."""

    r_p: Tensor  # [T, B]
    gated: Tensor  # [T, B] beta * r_p


def incentive_inputs(
    h_next: NDArray[np.floating], rho_next: NDArray[np.floating], hit: NDArray[np.bool_], *, device: torch.device
) -> IncentiveInputs:
    """Make inputs from recalled arrays [B, T]; NaN at a miss becomes 0."""
    return IncentiveInputs(
        h_next=send(np.where(hit, h_next, 0.0).astype(np.float32), device),
        rho_next=send(np.where(hit, rho_next, 0.0).astype(np.float32), device),
        hit=send(hit, device),
    )


def masked_mean(values: Tensor, mask: Tensor, count: Tensor | None = None) -> Tensor:
    """Average over real transitions: sum(mask * values) / sum(mask), or / `count` of a larger batch."""
    return (values * mask).sum() / (mask.sum() if count is None else count).clamp_min(1.0)


def greedy(q: Tensor, avail: Tensor) -> tuple[Tensor, Tensor]:
    """Find the largest available Q_i and its action; q [..., A] and avail [..., A] to [...] twice."""
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
    """Compute r_p = gamma rho(s') (H(s') - Qbar(s')) and weigh it by the gate (Eq. 2, 9).

    Args:
        recalled: H, rho and hits [B, T] of the successors.
        q_next: [T, B] the very tensor that the target bootstraps, so that H -> V* cancels it (Proposition 2).
        beta: [T, B] gate.
        terminated: [T, B] 1 where nothing is bootstrapped.
        gamma: Discount.
        clamp: Keep only positive incentives, as EMU's code does. C9.
        mask_terminal: No incentive on terminating transitions. C13.
    """
    h_next, rho = recalled.h_next.transpose(0, 1), recalled.rho_next.transpose(0, 1)
    r_p = incentive(h_next, q_next, rho, gamma=gamma, clamp=clamp)
    if mask_terminal:
        r_p = r_p * (1.0 - terminated)
    return Incentive(r_p=r_p, gated=beta * r_p)


def gate_shares(incentive: Incentive, beta: Tensor, mask: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Measure what the gate did to a batch, as part and whole by metric name; all arguments [T, B].

    `gate/incentive_removed` is sum |(1 - beta) r_p| over sum |r_p|; `gate/closed_fraction` counts beta < CLOSED_BELOW.
    """
    removed, offered = ((value.abs() * mask).sum() for value in (incentive.r_p - incentive.gated, incentive.r_p))
    return {
        "gate/incentive_removed": (removed, offered),
        "gate/closed_fraction": (((beta < CLOSED_BELOW) * mask).sum(), mask.sum()),
    }


def episodic_control_error(
    q_tot: Tensor, recalled: IncentiveInputs, *, reward: Tensor, terminated: Tensor, gamma: float
) -> Tensor:
    """Measure Q_EC - Q_tot with Q_EC = r + gamma H(s'); 0 where s' was not found (EMC). [T, B]."""
    h_next = recalled.h_next.transpose(0, 1) * (1.0 - terminated)
    return torch.where(recalled.hit.transpose(0, 1), reward + gamma * h_next - q_tot, torch.zeros_like(q_tot))


def quantile_huber(quantiles: Tensor, fractions: Tensor, target: Tensor) -> Tensor:
    """Regress quantiles at sampled fractions on target samples, kappa = 1 (IQN).

    Args:
        quantiles: [T, B, W] Z_tot(w_j).
        fractions: [T, B, W] w_j.
        target: [T, B, V] samples, detached.

    Returns:
        [T, B] sum over j of the mean over k.
    """
    error = target.unsqueeze(-2) - quantiles.unsqueeze(-1)
    huber = huber_loss(error, torch.zeros_like(error), reduction="none")
    weight = (fractions.unsqueeze(-1) - (error.detach() <= 0).float()).abs()
    return (weight * huber).mean(-1).sum(-1)


@dataclass(frozen=True)
class LearnerStats(Mapping[str, Tensor]):
    """Scalar tensors of one update by their registered metric names; reading one waits for the device."""

    values_by_name: dict[str, Tensor]
    episode_error: Tensor | None = None
    """[B] masked mean squared TD error per episode: the priorities of prioritised replay."""
    shares: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Part and whole by metric name; over several updates a share is the sum of parts over the sum of wholes."""

    def __getitem__(self, name: str) -> Tensor:
        return self.values_by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)

    def read(self) -> dict[str, float]:
        """Fetch every value in one transfer."""
        numbers = torch.stack([v.detach().float() for v in self.values()]).tolist()
        return dict(zip(self, numbers, strict=True))


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
