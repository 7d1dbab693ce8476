"""Targets and losses of temporal-difference learning, one equation per function, and `LearnerStats`.

The functions compute masked means, greedy actions, the gated incentive, the quantile loss and the episodic-control
loss. Tensors are time-major [T, B]; `IncentiveInputs` is [B, T], as the replay buffer stores it. `LearnerStats` is the
result of an update of any learner.
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
from emtc_core.gate.incentive import incentive
from emtc_core.metrics import CLOSED_BELOW

UNAVAILABLE_Q = -9_999_999.0
"""Value of an unavailable action in `greedy`, as in PyMARL."""


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


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Compute the mean over real transitions, sum(mask * values) / sum(mask).

    Source: the masked losses of oxwhirl/pymarl.

    Args:
        values: Any shape [unit varies].
        mask: Same shape, 1 on real transitions, dimensionless.

    Returns:
        A scalar in the unit of the values. The divisor is at least 1.
    """
    return (values * mask).sum() / mask.sum().clamp_min(1.0)


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


def gate_ratios(incentive: Incentive, beta: Tensor, mask: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
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
    ratios: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
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
