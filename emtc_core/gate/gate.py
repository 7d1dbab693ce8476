"""The gate (Eq. 7, 8), the incentive (Eq. 2) and the gate's temperature (Eq. 12).

Gate. `delta_mem` takes arrays of any shape, and beta is computed by a gate law (module `laws`). So a run, the sliders
of a page and the check of a database compute the same values. `gate_transitions` applies the rules for misses;
`evaluate_gate` computes the gate of one episode. Stage before: memory; after: replay buffer.

Incentive. `incentive` takes NumPy arrays or torch tensors; it is differentiable. The caller multiplies it by beta (Eq.
9) and adds the product to the TD target. Stage after: learner.

Temperature. `gate.schedule` is one of

    linear    tau decays from tau_start to tau_end over tau_decay_steps (Eq. 12)
    adaptive  tau is the quantile tau_quantile of delta_mem of the newest transitions, clipped to [tau_end, tau_start]

With `tau_unit = "spread"`, tau_start and tau_end are multiplied by the standard deviation of the discounted returns of
the newest transitions. If all rewards are multiplied by a constant, the gates are then the same.

Proposition 2 needs beta → 1 as delta_mem → 0. Both schedules keep tau ≥ tau_end · unit > 0. Hence
beta ≥ exp(-delta_mem² / (2 (tau_end · unit)²)), which tends to 1 for any value of the quantile (there is a test).

The gate of an episode uses the temperature computed from earlier episodes. The episode updates the temperature
afterwards.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.memory import GateConfig, IncentiveConfig
from emtc_core.gate.laws import GateContext, make_gate_law
from emtc_core.gate_laws import gate_coefficient as gate_coefficient
from emtc_core.metrics import CLOSED_BELOW as CLOSED_BELOW
from emtc_core.rollout.episode import Episode
from emtc_core.schedules import linear_decay

Float64s = NDArray[np.float64]
Slots = NDArray[np.int64]

Floats = NDArray[np.float64]
NO_SPREAD = 1e-9  # if std / max |return| is not above this, the unit of tau stays 1


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
    beta = make_gate_law(config).coefficient(np.where(is_miss, 0.0, delta), tau, context)
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


class Temperature:
    """Temperature tau of a run: a function of the env step and of the observed episodes."""

    def __init__(self, gate: GateConfig, *, t_max: int) -> None:
        self._gate = gate
        self._decay_steps = t_max // 2 if gate.tau_decay_steps is None else gate.tau_decay_steps
        self._delta_mem = _Window(gate.tau_window if gate.schedule == "adaptive" else 0)
        self._returns = _Window(gate.tau_window if gate.tau_unit == "spread" else 0)
        self._quantile: float | None = None
        self._unit: float = 1.0

    def at(self, env_step: int) -> float:
        """Return tau > 0 [return] for an episode whose last transition is `env_step`."""
        gate, unit = self._gate, self._unit
        if gate.schedule == "linear":
            return unit * linear_decay(env_step, start=gate.tau_start, end=gate.tau_end, steps=self._decay_steps)
        if self._quantile is None:
            return unit * gate.tau_start  # no delta_mem yet: start like the linear schedule
        lowest: float = unit * gate.tau_end
        highest: float = unit * gate.tau_start
        return min(max(self._quantile, lowest), highest)

    def observe(self, delta_mem: Floats, returns: Floats) -> None:
        """Update the statistics with one episode.

        Source: own extension of Eq. 12 (`gate.schedule = "adaptive"`, `gate.tau_unit = "spread"`).

        Args:
            delta_mem: [T] [return]; NaN at a miss.
            returns: [T], discounted returns [return].
        """
        self._delta_mem.add(self._gate.delta_scale * delta_mem[np.isfinite(delta_mem)])
        self._returns.add(returns)
        self._measure()

    def _measure(self) -> None:
        errors: Floats = self._delta_mem.values
        returns: Floats = self._returns.values
        self._quantile = float(np.quantile(errors, self._gate.tau_quantile)) if len(errors) else None
        if len(returns):
            spread = float(np.std(returns))
            largest = float(np.max(np.abs(returns)))
            self._unit = spread if spread > NO_SPREAD * largest else 1.0

    def get_state(self) -> dict[str, Any]:
        """Return the observed values of the window, for a checkpoint."""
        return {"delta_mem": self._delta_mem.values.tolist(), "returns": self._returns.values.tolist()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `get_state`."""
        self._delta_mem.values = np.array(state["delta_mem"], np.float64)
        self._returns.values = np.array(state["returns"], np.float64)
        self._measure()


class _Window:
    """The newest `capacity` numbers, oldest first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.values: Floats = np.zeros(0)

    def add(self, values: Floats) -> None:
        if self._capacity:
            self.values = np.concatenate([self.values, values])[-self._capacity :]
