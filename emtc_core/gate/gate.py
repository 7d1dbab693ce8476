"""The gate: the temporal-consistency error delta_mem (Eq. 7) and the gate coefficient beta (Eq. 8) of transitions.

`delta_mem` takes arrays of any shape, and beta is computed by the gate law that `make_gate_law` returns. So a run, the
sliders of a page and the check of a database compute the same values. `gate_transitions` applies the rules for misses;
`evaluate_gate` computes the gate of one episode. Stage before: memory; after: replay buffer.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.memory import GateConfig
from emtc_core.errors import PluginError
from emtc_core.gate_laws import GATE_LAWS, GateContext, GateLaw
from emtc_core.plugins import get_plugin
from emtc_core.rollout.episode import Episode

Float64s = NDArray[np.float64]
Slots = NDArray[np.int64]


def delta_mem(reward: Any, h: Any, h_next: Any, *, gamma: float) -> Any:
    """Compute the temporal-consistency error |r + gamma H(s') - H(s)| of transitions (Eq. 7).

    Args:
        reward: Extrinsic reward in the learner's unit, any shape [reward].
        h: Recalled return at s, same shape [return].
        h_next: Recalled return at s', same shape [return]; 0 at a terminal step.
        gamma: Discount in [0, 1].

    Returns:
        The error, same shape [return], >= 0; NaN where an input is NaN.
    """
    return abs(reward + gamma * h_next - h)


def make_gate_law(config: GateConfig) -> GateLaw:
    """Make the gate law of a configuration (`gate.type`): a built-in law, or the law that a plug-in returns.

    Raises:
        PluginError: If the plug-in is not installed, or does not return a `GateLaw`.
    """
    if config.type in GATE_LAWS:
        return replace(GATE_LAWS[config.type], delta_scale=config.delta_scale)
    law = get_plugin("gate", config.type).bind(config.plugin)()
    if not isinstance(law, GateLaw):
        raise PluginError("must return a GateLaw", key=f"gate {config.type}", value=type(law).__name__)
    return replace(
        law, function=partial(_compute_plugin_beta, config.type, law.function), delta_scale=config.delta_scale
    )


def _compute_plugin_beta(
    name: str, function: Callable[[Any, Any, GateContext], Any], delta: Any, tau: Any, context: GateContext
) -> Float64s:
    """Call the function of a plug-in and check beta."""
    delta = np.asarray(delta, np.float64)
    beta = np.asarray(function(delta, tau, context), np.float64)
    if beta.shape != delta.shape:
        raise PluginError(f"must return beta of shape {delta.shape}", key=f"gate {name}", value=beta.shape)
    has_nan = np.isnan(context.h) | np.isnan(context.h_next) | np.isnan(context.reward)
    is_invalid = ~((beta >= 0) & (beta <= 1)) & ~(np.isnan(beta) & has_nan)
    if is_invalid.any():
        index = tuple(np.argwhere(is_invalid)[0])
        rule = f"must return beta in [0, 1], also at delta = {delta[index]:g}"
        raise PluginError(rule, key=f"gate {name}", value=float(beta[index]))
    return beta


def get_miss_beta(config: GateConfig, *, is_empty: bool) -> float:
    """Return beta of a transition whose lookup found no node.

    Args:
        config: `on_empty` decides if the index had no node, `on_miss` otherwise. For `on_miss = "nearest"` the lookup
            already searched at any distance, so a remaining miss is blocked (beta = 0).
        is_empty: Whether the searched index had no node.

    Returns:
        0 or 1.
    """
    rule = config.on_empty if is_empty else config.on_miss
    return 1.0 if rule == "pass" else 0.0


def gate_transitions(
    reward: NDArray[Any],
    h: Float64s,
    h_next: Float64s,
    *,
    config: GateConfig,
    gamma: float,
    tau: float,
    is_empty: bool,
) -> tuple[Float64s, Float64s]:
    """Compute delta_mem and beta of transitions (Eq. 7, 8). NaN in h or h_next marks a lookup that found no node.

    Args:
        reward: Extrinsic reward in the learner's unit, any shape [reward].
        h: Recalled return at s, same shape [return].
        h_next: Recalled return at s', same shape [return]; 0 at a terminal step.
        config: Gate law and rules for misses.
        gamma: Discount in [0, 1].
        tau: Temperature, > 0 [return].
        is_empty: Whether the searched index had no node.

    Returns:
        delta_mem [return] and beta (dimensionless), same shape, float64. At a miss delta_mem is NaN and beta is
        `get_miss_beta`. If the gate is disabled, beta is 1.
    """
    delta = delta_mem(reward.astype(np.float64), h, h_next, gamma=gamma)
    if not config.enabled:
        return delta, np.ones_like(delta)
    is_miss = np.isnan(delta)
    context = GateContext(reward.astype(np.float64), h, h_next, gamma)
    beta = make_gate_law(config).weigh(np.where(is_miss, 0.0, delta), tau, context)
    return delta, np.where(is_miss, get_miss_beta(config, is_empty=is_empty), beta)


class RecalledReturns(Protocol):
    """The fields of a recall that the gate reads."""

    @property
    def h(self) -> Float64s:
        """Recalled returns, any shape [return]; NaN at a miss. Source: H of Algorithm 2."""
        ...


class ReadableMemory(Protocol):
    """The methods of the episodic memory that the gate calls."""

    def recall(self, slots: Slots) -> RecalledReturns:
        """Read the nodes in slots.

        Source: H of Algorithm 2.

        Args:
            slots: Slot indices, any shape; -1 is a miss.
        """
        ...

    def successors(self, slots: Slots) -> Slots:
        """Follow idx_next of Algorithm 2.

        Args:
            slots: Slot indices, any shape.

        Returns:
            Slot indices, same shape; -1 without a successor.
        """
        ...


@dataclass(frozen=True)
class GateValues:
    """Gate values of one episode's T transitions, float64; NaN where a lookup found no node (Eq. 7, 8)."""

    h: Float64s  # [T] [return]
    h_next: Float64s  # [T] [return]; 0 at a terminal step
    delta_mem: Float64s  # [T] [return]
    beta: Float64s  # [T] in [0, 1], dimensionless, never NaN


def evaluate_gate(
    episode: Episode,
    slots: Slots,
    memory: ReadableMemory,
    config: GateConfig,
    *,
    gamma: float,
    tau: float,
    bootstrap_on_timeout: bool,
    is_empty: bool,
) -> GateValues:
    """Compute delta_mem and beta of every transition of an episode from the current memory (Algorithm 3).

    Args:
        episode: The episode.
        slots: [T+1], slot index of the node found for each state; -1 if none was found.
        memory: Returns H of these nodes and, for `successor = "link"`, their links.
        config: Rules for successors, misses and terminal steps.
        gamma: Discount in [0, 1].
        tau: Current temperature, > 0 [return].
        bootstrap_on_timeout: Whether the TD target bootstraps after an episode that the time limit ended.
        is_empty: Whether the searched index had no node.

    Returns:
        Values of the T transitions.
    """
    h_all = memory.recall(slots).h
    h = h_all[:-1]
    h_next = memory.recall(memory.successors(slots[:-1])).h if config.successor == "link" else h_all[1:].copy()
    ends = episode.terminated or (episode.truncated and not bootstrap_on_timeout)
    if ends and config.terminal_value == "zero":
        h_next[-1] = 0.0
    delta, beta = gate_transitions(episode.reward, h, h_next, config=config, gamma=gamma, tau=tau, is_empty=is_empty)
    return GateValues(h=h, h_next=h_next, delta_mem=delta, beta=beta)
