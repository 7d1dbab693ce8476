"""The gate that `gate.type` names: the paper's (Eq. 8), or a function from outside.

Such a function is `beta(delta, tau, context, …)`, with arrays of one shape: delta >= 0 after `gate.delta_scale`, tau
> 0 a number or an array, `context` the rest of each transition, then arguments of its own (`gate.<name>.…`). It returns
beta in [0, 1] and depends on nothing else, so that a run, a check of its rows and the sliders of a page agree. Misses
are settled by `gate.on_miss`, not by it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.memory import GateConfig
from emtc_core.config.outside import PLUGGED, bind_arguments
from emtc_core.errors import PluginError
from emtc_core.plugins import Plugin, get_plugin

Floats = NDArray[np.float64]
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True)
class GateContext:
    """What a gate may read of transitions beside delta and tau; arrays of delta's shape.

    NaN where it is not known: on the sliders of *what if*, and at a miss, whose beta is not the gate's to say.
    """

    reward: Floats  # extrinsic, in the learner's unit
    h: Floats  # recalled return at s [return]
    h_next: Floats  # recalled return at s' [return]; 0 at a terminal step
    gamma: float

    def only(self, keep: NDArray[np.bool_]) -> "GateContext":
        """Keep some of them."""
        return GateContext(self.reward[keep], self.h[keep], self.h_next[keep], self.gamma)


def unknown_context(shape: tuple[int, ...]) -> GateContext:
    """The context where only delta and tau are known."""
    nothing = np.full(shape, np.nan)
    return GateContext(nothing, nothing, nothing, np.nan)


def find_gate(config: GateConfig) -> Plugin | None:
    """The gate from outside that a configuration names; None for the paper's.

    Raises:
        PluginError: If it is not here.
    """
    kind, own = PLUGGED["gate.type"]
    return None if config.type in own else get_plugin(kind, config.type, known=own)


def weigh_outside(
    plugin: Plugin, delta: Floats, tau: Any, context: GateContext, arguments: Mapping[str, Any] = _NONE
) -> Floats:
    """Ask a gate from outside, and hold it to its contract.

    Raises:
        PluginError: If beta has another shape, leaves [0, 1], or is NaN where everything was known.
    """
    beta = np.asarray(plugin.load()(delta, tau, context, **bind_arguments(plugin, arguments)), np.float64)
    if beta.shape != delta.shape:
        raise PluginError(f"The gate {plugin.label} must return beta of shape {delta.shape}, got {beta.shape}.")
    unknown = np.isnan(context.h) | np.isnan(context.h_next) | np.isnan(context.reward)
    wrong = ~((beta >= 0) & (beta <= 1)) & ~(np.isnan(beta) & unknown)
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0])
        raise PluginError(
            f"The gate {plugin.label} must return beta in [0, 1], got {beta[at]:g} at delta = {delta[at]:g}."
        )
    return beta
