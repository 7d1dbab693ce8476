"""Targets and losses of temporal-difference learning, one equation per function, and `LearnerStats`.

The functions compute masked means, greedy actions, the gated incentive, the quantile loss and the episodic-control
loss. Tensors are time-major [T, B]; `IncentiveInputs` is [B, T], as the replay buffer stores it. `LearnerStats` is the
result of an update of any learner.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import huber_loss

from emtc_core.gate.incentive import incentive
from emtc_core.metrics import CLOSED_BELOW
from emtc_core.packing import send_together

UNAVAILABLE_Q = -9_999_999.0
"""Value of an unavailable action in `greedy`, as in PyMARL."""


@dataclass(frozen=True)
class IncentiveInputs:
    """Values recalled from the memory for the next state s' of every transition of a batch (Eq. 2)."""

    h_next: Tensor  # [B, T] H(s') [return]; 0 at a miss
    rho_next: Tensor  # [B, T] success ratio of s', dimensionless; 0 at a miss, so that r_p is 0
    hit: Tensor  # [B, T] boolean: the memory found a node for s'

    def to(self, device: torch.device) -> "IncentiveInputs":
        """Return the values on a device."""
        return IncentiveInputs(**send_together(vars(self), device))


@dataclass(frozen=True)
class Incentive:
    """Episodic incentive of every transition, before and after the gate (Eq. 2, 9)."""

    r_p: Tensor  # [T, B] [return]
    gated: Tensor  # [T, B] beta * r_p [return]


def make_incentive_inputs(
    h_next: NDArray[np.floating], rho_next: NDArray[np.floating], hit: NDArray[np.bool_]
) -> IncentiveInputs:
    """Make the tensors of `IncentiveInputs` on the host from recalled arrays (Eq. 2).

    Args:
        h_next: [B, T], H(s') [return]; any value, also NaN, at a miss.
        rho_next: [B, T], success ratio of s', dimensionless; any value at a miss.
        hit: [B, T] boolean, whether the memory found a node.

    Returns:
        Float32 tensors [B, T] with 0 at every miss.
    """
    return IncentiveInputs(
        h_next=torch.from_numpy(np.where(hit, h_next, 0.0).astype(np.float32)),
        rho_next=torch.from_numpy(np.where(hit, rho_next, 0.0).astype(np.float32)),
        hit=torch.from_numpy(hit),
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
    """Scalars of one update by registered metric name, in one tensor, so that one copy brings them to the host.

    On a GPU, the next update may overwrite the tensor.

    Source: the metrics registered in `metrics.py`, each with its unit [unit varies].
    """

    numbers: Tensor
    """[K + 2 R + B] of the loss's type: K scalars, R pairs of numerator and denominator, and `episode_error`."""
    names: tuple[str, ...]
    ratio_names: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.names:
            raise KeyError(name)
        return self.numbers[self.names.index(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    @property
    def ratios(self) -> dict[str, tuple[Tensor, Tensor]]:
        """(numerator, denominator) by metric name. Over several updates both are summed before the division.

        Source: the metrics registered in `metrics.py`, each with its unit [unit varies].
        """
        scalars = iter(self.numbers[len(self.names) : self.n_scalars].unbind())
        return {name: (next(scalars), next(scalars)) for name in self.ratio_names}

    @property
    def n_scalars(self) -> int:
        """Number of scalars before `episode_error` in `numbers`."""
        return len(self.names) + 2 * len(self.ratio_names)

    @property
    def episode_error(self) -> Tensor:
        """Mean squared TD error [B] of each episode [return²], used as priority by prioritized replay; empty in MAPPO.

        Source: the prioritized episode replay of lich14/CDS, CDS_GRF.
        """
        return self.numbers[self.n_scalars :]

    def read(self) -> dict[str, float]:
        """Read the scalars by metric name. Waits for a GPU, unless `numbers` is on the host."""
        return dict(zip(self.names, self.numbers[: len(self.names)].tolist(), strict=True))

    def read_ratios(self) -> dict[str, tuple[float, float]]:
        """Read the numerator and the denominator of each ratio, as `read` does."""
        scalars = iter(self.numbers[len(self.names) : self.n_scalars].tolist())
        return {name: (next(scalars), next(scalars)) for name in self.ratio_names}


def pack_stats(
    values: Mapping[str, Tensor],
    *,
    ratios: Mapping[str, tuple[Tensor, Tensor]] | None = None,
    episode_error: Tensor | None = None,
) -> LearnerStats:
    """Put the statistics of an update into one tensor.

    Source: implementation detail.

    Args:
        values: Scalars by metric name, "train/loss" included [unit varies].
        ratios: Numerator and denominator, two scalars of one unit, by metric name [unit varies].
        episode_error: [B], see `LearnerStats` [return²]; None for a learner that does not compute it.
    """
    ratios = ratios or {}
    scalars, dtype = [*values.values(), *(x for pair in ratios.values() for x in pair)], values["train/loss"].dtype
    numbers = torch.stack([x.detach().to(dtype) for x in scalars])
    if episode_error is not None:
        numbers = torch.cat([numbers, episode_error.detach().to(dtype)])
    return LearnerStats(numbers, tuple(values), tuple(ratios))
