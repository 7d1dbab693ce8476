"""The gate laws. A gate law computes beta from delta and tau, and optionally tau from beta.

To add a law, write its functions and add a `GateLaw` to `GATE_LAWS`: `gate.type` then accepts its name.
`emtc_core.gate.gate.make_gate_law` returns the law of a run, which may also be the law of a plug-in.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

INVERTIBLE: Final = (0.05, 0.95)
"""Range of beta in which tau is computed from beta. Outside it, a rounded beta does not determine tau."""


@dataclass(frozen=True)
class GateContext:
    """Values of transitions that a gate law may read in addition to delta and tau; arrays of delta's shape (Eq. 7).

    Unknown values are NaN: on the page *What if*, and where a lookup found no node.
    """

    reward: Floats  # extrinsic, in the learner's unit [reward]
    h: Floats  # recalled return at s [return]
    h_next: Floats  # recalled return at s' [return]; 0 at a terminal step
    gamma: float

    def select(self, mask: NDArray[np.bool_]) -> "GateContext":
        """Select transitions.

        Source: Eq. 7, for some of the transitions.

        Args:
            mask: Boolean mask, the shape of the arrays.
        """
        return GateContext(self.reward[mask], self.h[mask], self.h_next[mask], self.gamma)


def unknown_context(shape: tuple[int, ...]) -> GateContext:
    """Make a context in which all values are unknown (NaN)."""
    unknown = np.full(shape, np.nan)
    return GateContext(unknown, unknown, unknown, np.nan)


@dataclass(frozen=True)
class GateLaw:
    """A gate law. For the law of a run, `delta_scale` is the setting `gate.delta_scale`; otherwise it is 1.

    Source: Eq. 8 for the Gaussian law; other laws are variants of it.
    """

    function: Callable[[Any, Any, GateContext], Any]
    """(delta [return], tau [return], context) → beta in [0, 1], arrays of one shape; tau may be a number."""
    inverse: Callable[[Floats, Floats], Floats] | None = None
    """(beta, delta [return]) → tau [return], arrays of one shape; None if the law has no inverse."""
    delta_scale: float = 1.0
    """Factor on delta_mem (`gate.delta_scale`): both functions are called with delta = delta_scale delta_mem."""

    def weigh(self, delta_mem: Any, tau: Any, context: GateContext) -> Any:
        """Compute the gate coefficient beta of transitions.

        Args:
            delta_mem: Temporal-consistency error, any shape, >= 0, no NaN [return].
            tau: Temperature, > 0, a number or an array of that shape [return].
            context: The other values of each transition.

        Returns:
            beta, same shape, in [0, 1]; NaN only if a law reads a context value that is NaN.

        Raises:
            ValueError: If the law is the Gaussian and tau is not positive.
            PluginError: If the law of a plug-in returns another shape, a beta outside [0, 1], or NaN.
        """
        return self.function(self.delta_scale * delta_mem, tau, context)

    @property
    def is_invertible(self) -> bool:
        """Whether tau can be computed from beta."""
        return self.inverse is not None

    def temperature_for(self, beta: Floats, delta_mem: Floats) -> Floats:
        """Compute the temperature tau at which transitions have this beta: the inverse of `weigh`.

        Source: Eq. 8 solved for tau; the inverse of another law.

        Args:
            beta: Gate coefficient, any shape, within `INVERTIBLE`, dimensionless.
            delta_mem: Temporal-consistency error, same shape, > 0 [return].

        Returns:
            tau, same shape [return].

        Raises:
            ValueError: If the law has no inverse.
        """
        if self.inverse is None:
            raise ValueError("The gate law has no inverse.")
        return self.inverse(beta, self.delta_scale * delta_mem)


def gate_coefficient(delta_mem: Any, *, tau: Any, scale: float = 1.0) -> Any:
    """Compute the Gaussian gate coefficient beta = exp(-(scale delta_mem)^2 / (2 tau^2)) (Eq. 8).

    Args:
        delta_mem: Temporal-consistency error, any shape, >= 0 [return].
        tau: Gate temperature, > 0, a number or an array that broadcasts with `delta_mem` [return].
        scale: Factor on `delta_mem` (`gate.delta_scale`); 1 if `delta_mem` is already scaled, as in `GATE_LAWS`.

    Returns:
        beta, same shape, in [0, 1]; 1 where delta_mem is 0.

    Raises:
        ValueError: If tau is not positive.
    """
    if np.any(np.asarray(tau) <= 0):
        raise ValueError(f"tau must be positive, got {np.min(tau)}")
    return np.exp(-((scale * delta_mem) ** 2) / (2.0 * tau * tau))


def gaussian_temperature(beta: Floats, delta: Floats) -> Floats:
    """Compute tau = delta / sqrt(-2 ln beta), the inverse of `gate_coefficient` (Eq. 8 solved for tau).

    Args:
        beta: Gate coefficient, any shape, in (0, 1), dimensionless.
        delta: Temporal-consistency error after `gate.delta_scale`, same shape, > 0 [return].

    Returns:
        tau, same shape [return].
    """
    return delta / np.sqrt(-2.0 * np.log(beta))


GATE_LAWS: Final = {
    "gaussian": GateLaw(lambda delta, tau, context: gate_coefficient(delta, tau=tau), gaussian_temperature),
}
"""Name of a built-in gate law (`gate.type`) → the law."""
