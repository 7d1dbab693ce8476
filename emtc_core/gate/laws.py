"""The gate law of a run: a built-in law or the law of a plug-in, with the settings of the run.

A run, the check of its rows and the page *What if* compute beta with the object that `make_gate_law` returns.

The law of a plug-in is a function `beta(delta, tau, context, …)` over arrays of one shape. Its arguments are delta >= 0
after `gate.delta_scale`, tau > 0 (a number or an array), `context` with the other values of each transition, and typed
settings (`gate.<name>.…`). It returns beta in [0, 1], and beta depends on nothing else. The optional attribute
`temperature_for(beta, delta, …)` of the function is its inverse and takes the same settings. If a lookup found no node,
`gate.on_miss` decides beta.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.memory import GateConfig
from emtc_core.config.plugin_settings import PLUGIN_SETTINGS, bind_arguments
from emtc_core.errors import PluginError
from emtc_core.gate_laws import GATE_LAWS, GateContext, GateLaw
from emtc_core.plugins import Plugin, get_plugin

Floats = NDArray[np.float64]


def make_gate_law(config: GateConfig) -> GateLaw:
    """Make the gate law of a configuration (`gate.type`).

    Raises:
        PluginError: If the plug-in is not installed.
    """
    if config.type in GATE_LAWS:
        return replace(GATE_LAWS[config.type], delta_scale=config.delta_scale)
    kind, builtin_names = PLUGIN_SETTINGS["gate.type"]
    plugin = get_plugin(kind, config.type, builtin=builtin_names)
    function = plugin.load()
    inverse = getattr(function, "temperature_for", None)
    arguments = bind_arguments(plugin, config.arguments)
    return GateLaw(
        plugin.label,
        partial(_compute_plugin_beta, plugin, partial(function, **arguments)),
        None if inverse is None else partial(_compute_plugin_tau, plugin, partial(inverse, **arguments)),
        delta_scale=config.delta_scale,
    )


def _compute_plugin_beta(
    plugin: Plugin, function: Callable[..., Any], delta: Any, tau: Any, context: GateContext
) -> Floats:
    """Call the function of a plug-in and check beta."""
    delta = np.asarray(delta, np.float64)
    beta = np.asarray(function(delta, tau, context), np.float64)
    if beta.shape != delta.shape:
        raise PluginError(f"must return beta of shape {delta.shape}", key=f"gate {plugin.label}", value=beta.shape)
    has_nan = np.isnan(context.h) | np.isnan(context.h_next) | np.isnan(context.reward)
    is_invalid = ~((beta >= 0) & (beta <= 1)) & ~(np.isnan(beta) & has_nan)
    if is_invalid.any():
        index = tuple(np.argwhere(is_invalid)[0])
        rule = f"must return beta in [0, 1], also at delta = {delta[index]:g}"
        raise PluginError(rule, key=f"gate {plugin.label}", value=float(beta[index]))
    return beta


def _compute_plugin_tau(plugin: Plugin, inverse: Callable[..., Any], beta: Floats, delta: Floats) -> Floats:
    """Call the inverse of a plug-in and check tau."""
    tau = np.asarray(inverse(beta, delta), np.float64)
    if tau.shape != beta.shape:
        raise PluginError(f"must return tau of shape {beta.shape}", key=f"gate {plugin.label}: temperature_for")
    is_invalid = ~(np.isfinite(tau) & (tau > 0))
    if is_invalid.any():
        index = tuple(np.argwhere(is_invalid)[0])
        rule = f"must return a finite tau > 0, also at beta = {beta[index]:g} and delta = {delta[index]:g}"
        raise PluginError(rule, key=f"gate {plugin.label}: temperature_for", value=float(tau[index]))
    return tau
