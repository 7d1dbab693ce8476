"""The gate law of a run: beta as a function of delta and tau, and the inverse for tau.

`make_gate_law` returns the law of `gate.type` with the settings of a run: a built-in law of `emtc_core.gate_laws`, such
as the Gaussian (Eq. 8), or the law of a plug-in. A run, the check of its rows and the page *What if* compute beta with
this object.

The law of a plug-in is a function `beta(delta, tau, context, …)` over arrays of one shape. Its arguments are delta >= 0
after `gate.delta_scale`, tau > 0 (a number or an array), `context` with the other values of each transition, and typed
settings (`gate.<name>.…`). It returns beta in [0, 1], and beta depends on nothing else. The optional attribute
`temperature_for(beta, delta, …)` of the function is its inverse and takes the same settings. If a lookup found no node,
`gate.on_miss` decides beta.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.memory import GateConfig
from emtc_core.config.plugin_settings import PLUGIN_SETTINGS, bind_arguments
from emtc_core.errors import PluginError
from emtc_core.gate_laws import GATE_LAWS
from emtc_core.plugins import Plugin, get_plugin

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

    def select(self, keep: NDArray[np.bool_]) -> "GateContext":
        """Select transitions.

        Source: bookkeeping.

        Args:
            keep: Boolean mask, the shape of the arrays.
        """
        return GateContext(self.reward[keep], self.h[keep], self.h_next[keep], self.gamma)


def unknown_context(shape: tuple[int, ...]) -> GateContext:
    """Make a context in which all values are unknown (NaN)."""
    unknown = np.full(shape, np.nan)
    return GateContext(unknown, unknown, unknown, np.nan)


@dataclass(frozen=True)
class GateLaw:
    """A gate law with the settings of a run; arrays have any shape. Source: Eq. 8, or a plug-in."""

    label: str
    """Name of the law; for a plug-in with its origin: "cauchy (my-lab 0.1)"."""
    delta_scale: float
    """Factor on delta_mem before the law (`gate.delta_scale`)."""
    function: Callable[[Any, Any, GateContext], Any]
    """(delta, tau, context) → beta, with delta after `delta_scale` and tau [return]; beta is dimensionless."""
    inverse: Callable[[Floats, Floats], Floats] | None = None
    """(beta, delta) → tau [return], arrays of one shape, with delta after `delta_scale`; None: no inverse."""

    def coefficient(self, delta_mem: Any, tau: Any, context: GateContext) -> Any:
        """Compute the gate coefficient beta of transitions.

        Args:
            delta_mem: Temporal-consistency error, any shape, >= 0, no NaN [return].
            tau: Temperature, > 0, a number or an array of that shape [return].
            context: The other values of each transition.

        Returns:
            beta, same shape, in [0, 1]; NaN only if a law reads a context value that is NaN.

        Raises:
            ValueError: If the law is the Gaussian and tau is not positive.
            PluginError: If a plug-in returns another shape, a beta outside [0, 1], or NaN.
        """
        return self.function(self.delta_scale * delta_mem, tau, context)

    @property
    def is_invertible(self) -> bool:
        """Whether tau can be computed from beta."""
        return self.inverse is not None

    def temperature_for(self, beta: Floats, delta_mem: Floats) -> Floats:
        """Compute the temperature tau at which transitions have this beta: the inverse of `coefficient`.

        Source: Eq. 8 solved for tau, or the plug-in.

        Args:
            beta: Gate coefficient, any shape, within `INVERTIBLE`, dimensionless.
            delta_mem: Temporal-consistency error, same shape, > 0 [return].

        Returns:
            tau, same shape [return].

        Raises:
            ValueError: If the law has no inverse.
            PluginError: If a plug-in returns another shape, or a tau that is not finite and positive.
        """
        if self.inverse is None:
            raise ValueError(f"The gate {self.label} has no inverse.")
        return self.inverse(beta, self.delta_scale * delta_mem)


def make_gate_law(config: GateConfig) -> GateLaw:
    """Make the gate law of a configuration (`gate.type`).

    Raises:
        PluginError: If the plug-in is not installed.
    """
    kind, names = PLUGIN_SETTINGS["gate.type"]
    if config.type in names:
        return GateLaw(config.type, config.delta_scale, *GATE_LAWS[config.type])
    plugin = get_plugin(kind, config.type, builtin=names)
    function = plugin.load()
    inverse = getattr(function, "temperature_for", None)
    arguments = bind_arguments(plugin, config.arguments)
    return GateLaw(
        plugin.label,
        config.delta_scale,
        partial(_compute_plugin_beta, plugin, partial(function, **arguments)),
        None if inverse is None else partial(_compute_plugin_tau, plugin, partial(inverse, **arguments)),
    )


def _compute_plugin_beta(
    plugin: Plugin, function: Callable[..., Any], delta: Any, tau: Any, context: GateContext
) -> Floats:
    delta = np.asarray(delta, np.float64)
    beta = np.asarray(function(delta, tau, context), np.float64)
    if beta.shape != delta.shape:
        raise PluginError(f"must return beta of shape {delta.shape}", key=f"gate {plugin.label}", value=beta.shape)
    has_nan = np.isnan(context.h) | np.isnan(context.h_next) | np.isnan(context.reward)
    wrong = ~((beta >= 0) & (beta <= 1)) & ~(np.isnan(beta) & has_nan)
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0])
        rule = f"must return beta in [0, 1], also at delta = {delta[at]:g}"
        raise PluginError(rule, key=f"gate {plugin.label}", value=float(beta[at]))
    return beta


def _compute_plugin_tau(plugin: Plugin, inverse: Callable[..., Any], beta: Floats, delta: Floats) -> Floats:
    tau = np.asarray(inverse(beta, delta), np.float64)
    if tau.shape != beta.shape:
        raise PluginError(f"must return tau of shape {beta.shape}", key=f"gate {plugin.label}: temperature_for")
    wrong = ~(np.isfinite(tau) & (tau > 0))
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0])
        rule = f"must return a finite tau > 0, also at beta = {beta[at]:g} and delta = {delta[at]:g}"
        raise PluginError(rule, key=f"gate {plugin.label}: temperature_for", value=float(tau[at]))
    return tau
