"""The episodic incentive r_p = gamma rho(s') (H(s') - Q(s')) (Eq. 2) and its inputs from recalled nodes.

`incentive` takes NumPy arrays or torch tensors; it is differentiable. The learner multiplies it by beta (Eq. 9) and
adds the product to the TD target.
"""

from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.memory import IncentiveConfig


def success_ratio(n_xi: Any, n_call: Any, *, eps: float = 0.0) -> Any:
    """Compute the fraction of a node's visits in successful trajectories: rho = N_xi / (N_call + eps) (Eq. 2).

    Args:
        n_xi: Visits in successful trajectories, any shape [visits].
        n_call: All visits, same shape [visits]; 0 at a miss.
        eps: Added to N_call (`incentive.ratio_eps`) [visits].

    Returns:
        rho, same shape, dimensionless; 0 where n_call is 0.
    """
    calls = n_call + eps
    return n_xi / np.where(n_call > 0, calls, np.ones_like(calls))


def incentive(
    h_next: Any, q_next_target: Any, rho: Any, *, gamma: float, clamp: Literal["none", "positive"] = "none"
) -> Any:
    """Compute the episodic incentive r_p = gamma rho (H(s') - Q(s')) (Eq. 2).

    Args:
        h_next: Recalled return at s', any shape [return]. Must be finite: 0 at a miss, where rho is 0.
        q_next_target: The value that the TD target bootstraps, same shape [return]. C12.
        rho: Success ratio at s' in [0, 1]; 0 at a miss or a masked terminal step.
        gamma: Discount in [0, 1].
        clamp: "none" allows a negative r_p; "positive" uses max(H - Q, 0), as in EMU's code. C9.

    Returns:
        The incentive, same shape [return].
    """
    gap = h_next - q_next_target
    if clamp == "positive":
        gap = gap * (gap > 0)
    return gamma * rho * gap


class RecalledNodes(Protocol):
    """The fields of a recall that the incentive reads, arrays of one shape."""

    @property
    def h(self) -> NDArray[np.float64]:
        """H, any shape [return]; NaN at a miss. Source: H of Algorithm 2."""
        ...

    @property
    def n_call(self) -> NDArray[np.int32]:
        """N_call, same shape [visits]; 0 at a miss. Source: N_call of Algorithm 2."""
        ...

    @property
    def n_xi(self) -> NDArray[np.int32]:
        """N_xi, same shape [visits]; 0 at a miss. Source: N_xi of Algorithm 2."""
        ...

    @property
    def xi(self) -> NDArray[np.bool_]:
        """Success flag, same shape, boolean; False at a miss. Source: xi of Algorithm 2."""
        ...

    @property
    def hit(self) -> NDArray[np.bool_]:
        """Whether a node was found, same shape, boolean. Source: the lookup of Algorithm 3."""
        ...


def compute_incentive_inputs(
    recall: RecalledNodes, terminated: NDArray[np.bool_], config: IncentiveConfig
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute the arguments (h_next, rho_next) of `incentive` from the recalled nodes of the successor states (Eq. 2).

    Args:
        recall: Nodes of s', any shape.
        terminated: Boolean, same shape; True where the TD target does not bootstrap.
        config: Type of ratio, its eps, and whether terminal steps are masked (C13).

    Returns:
        h_next [return] and rho_next (dimensionless), same shape, float64, finite; both are 0 at a miss.
    """
    if config.type == "flag":
        rho = recall.xi.astype(np.float64)
    else:
        rho = success_ratio(recall.n_xi.astype(np.float64), recall.n_call.astype(np.float64), eps=config.ratio_eps)
    blocked = ~recall.hit | terminated if config.mask_terminal else ~recall.hit
    return np.where(recall.hit, recall.h, 0.0), np.where(blocked, 0.0, rho)
