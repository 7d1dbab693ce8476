"""Episodic incentive r_p and the success ratio that weighs it (Eq. 2).

`incentive` takes NumPy arrays and torch tensors, through which gradients flow. The caller multiplies
by beta (Eq. 9) and adds the result to the TD target. Stage before: memory and gate; after: learner.
"""

from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.gate import IncentiveConfig


def success_ratio(n_xi: Any, n_call: Any, *, eps: float = 0.0) -> Any:
    """Share of a node's visits that belonged to successful trajectories: N_xi / (N_call + eps).

    0 where the node was never called, which is how a miss arrives here.
    """
    calls = n_call + eps
    return n_xi / np.where(n_call > 0, calls, np.ones_like(calls))


def incentive(
    h_next: Any, q_next_target: Any, rho: Any, *, gamma: float, clamp: Literal["none", "positive"] = "none"
) -> Any:
    """Move the bootstrap value towards the memory value: r_p = gamma rho (H(s') - Q(s')) (Eq. 2).

    Args:
        h_next: Recalled return at s', any shape, return units; must be finite (0 at a miss, where rho is 0).
        q_next_target: Exactly the value bootstrapped in the TD target, same shape. C12.
        rho: Success ratio at s' in [0, 1]; 0 at a miss or a masked terminal step.
        gamma: Discount.
        clamp: "none" lets r_p be negative; "positive" takes max(H - Q, 0), as EMU's code does. C9.

    Returns:
        The incentive in return units, same shape.
    """
    gap = h_next - q_next_target
    if clamp == "positive":
        gap = gap * (gap > 0)
    return gamma * rho * gap


class RecalledNodes(Protocol):
    """What the incentive needs of a recall, arrays of one shape."""

    @property
    def h(self) -> NDArray[np.float64]: ...
    @property
    def n_call(self) -> NDArray[np.int32]: ...
    @property
    def n_xi(self) -> NDArray[np.int32]: ...
    @property
    def xi(self) -> NDArray[np.bool_]: ...
    @property
    def hit(self) -> NDArray[np.bool_]: ...


def weigh_successors(
    recall: RecalledNodes, terminated: NDArray[np.bool_], config: IncentiveConfig
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Turn a recall of successors into the finite (h_next, rho_next) that `incentive` takes.

    Args:
        recall: Nodes of s', any shape.
        terminated: Same shape; True where the TD target does not bootstrap.
        config: Kind of ratio, its eps, and whether terminal steps are masked (C13).
    """
    if config.type == "flag":
        rho = recall.xi.astype(np.float64)
    else:
        rho = success_ratio(recall.n_xi.astype(np.float64), recall.n_call.astype(np.float64), eps=config.ratio_eps)
    blocked = ~recall.hit | terminated if config.mask_terminal else ~recall.hit
    return np.where(recall.hit, recall.h, 0.0), np.where(blocked, 0.0, rho)
