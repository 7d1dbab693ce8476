"""The gate (Eq. 7, 8), the incentive that it weighs (Eq. 2) and its temperature (Eq. 12).

`delta_mem` takes arrays of any shape, and beta comes from a gate law (`laws`), so a run, the sliders of a page and a
check of the database compute the same. `gate_transitions` applies the rules for misses and `evaluate_gate` judges one
episode.
Stage before: memory; after: replay buffer.

`incentive` takes NumPy arrays and torch tensors, through which gradients flow. The caller multiplies
by beta (Eq. 9) and adds the result to the TD target. Stage after: learner.

    linear    tau = tau_start → tau_end over tau_decay_steps (Eq. 12)
    adaptive  tau = Q_p(delta_mem of the newest transitions), kept in [tau_end, tau_start]

In both, `tau_unit = "spread"` multiplies tau_start and tau_end by the standard deviation of the discounted
returns of the newest transitions: a run whose rewards are c times larger then has the same gates.

Proposition 2 needs beta → 1 as delta_mem → 0. Both schedules keep tau ≥ tau_end · unit > 0, hence
beta ≥ exp(-delta_mem² / (2 (tau_end · unit)²)), which tends to 1 whatever the quantile does (a test).

An episode is judged by the temperature that the episodes before it left, and observed afterwards.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.memory import GateConfig, IncentiveConfig
from emtc_core.gate.laws import GateContext, make_gate_law
from emtc_core.gate.laws import gate_coefficient as gate_coefficient
from emtc_core.metrics import CLOSED_BELOW as CLOSED_BELOW
from emtc_core.rollout.episode import Episode
from emtc_core.schedules import linear_decay

Float64s = NDArray[np.float64]
Slots = NDArray[np.int64]

Floats = NDArray[np.float64]
NO_SPREAD = 1e-9  # returns that differ by less than this share of their size tell no scale


def delta_mem(reward: Any, h: Any, h_next: Any, *, gamma: float) -> Any:
    """Measure how much the memory contradicts itself over one step: |r + gamma H(s') - H(s)| (Eq. 7).

    Args:
        reward: Extrinsic reward in the learner's unit, any shape.
        h: Recalled return at s, same shape and unit.
        h_next: Recalled return at s', 0 at a terminal step.
        gamma: Discount in [0, 1].

    Returns:
        The temporal-consistency error, same shape, >= 0; NaN where an input is NaN.
    """
    return abs(reward + gamma * h_next - h)


def beta_of_miss(config: GateConfig, *, is_empty: bool) -> float:
    """Gate of a transition whose lookup found nothing.

    Args:
        config: `on_empty` decides while there is nothing to search, `on_miss` from then on. A caller who wants
            "nearest" has asked the memory for the nearest node already, so what it still misses is blocked.
        is_empty: Whether the searched index held no node at all.
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
    """Compute delta_mem and beta where a NaN value means that the lookup found nothing.

    Any common shape. A miss leaves NaN in delta_mem; `beta_of_miss` says its beta. A gate that is off gives 1.

    Returns:
        (delta_mem, beta), float64.
    """
    delta = delta_mem(reward.astype(np.float64), h, h_next, gamma=gamma)
    if not config.enabled:
        return delta, np.ones_like(delta)
    missed = np.isnan(delta)
    context = GateContext(reward.astype(np.float64), h, h_next, gamma)
    beta = make_gate_law(config).coefficient(np.where(missed, 0.0, delta), tau, context)
    return delta, np.where(missed, beta_of_miss(config, is_empty=is_empty), beta)


class RecalledReturns(Protocol):
    """What the gate needs of a recall."""

    @property
    def h(self) -> Float64s: ...


class Memory(Protocol):
    """What the gate needs of the episodic memory."""

    def recall(self, slots: Slots) -> RecalledReturns: ...

    def successors(self, slots: Slots) -> Slots: ...


@dataclass(frozen=True)
class GateVerdict:
    """Judgement of one episode's T transitions, float64; NaN where a lookup found nothing."""

    h: Float64s  # [T] return units
    h_next: Float64s  # [T] return units; 0 at a terminal step
    delta_mem: Float64s  # [T] return units
    beta: Float64s  # [T] in [0, 1], never NaN


def evaluate_gate(
    episode: Episode,
    slots: Slots,
    memory: Memory,
    config: GateConfig,
    *,
    gamma: float,
    tau: float,
    bootstrap_on_timeout: bool,
    is_empty: bool,
) -> GateVerdict:
    """Judge every transition of an episode by the memory as it is now.

    Args:
        episode: The episode.
        slots: [T+1] node that the lookup found for each of its states; -1 where it found none.
        memory: Read for H at those nodes and, for `successor = "link"`, for their links.
        config: Rules for successors, misses and terminal steps.
        gamma: Discount.
        tau: Temperature now.
        bootstrap_on_timeout: Whether an episode cut by its time limit goes on in the target.
        is_empty: Whether there was no node to search.
    """
    h_all = memory.recall(slots).h
    h = h_all[:-1]
    h_next = memory.recall(memory.successors(slots[:-1])).h if config.successor == "link" else h_all[1:].copy()
    ends = episode.terminated or (episode.truncated and not bootstrap_on_timeout)
    if ends and config.terminal_value == "zero":
        h_next[-1] = 0.0
    delta, beta = gate_transitions(episode.reward, h, h_next, config=config, gamma=gamma, tau=tau, is_empty=is_empty)
    return GateVerdict(h=h, h_next=h_next, delta_mem=delta, beta=beta)


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


class Temperature:
    """tau of a run, by env step and by what was observed."""

    def __init__(self, gate: GateConfig, *, t_max: int) -> None:
        self._gate = gate
        self._decay_steps = t_max // 2 if gate.tau_decay_steps is None else gate.tau_decay_steps
        self._delta_mem = _Newest(gate.tau_window if gate.schedule == "adaptive" else 0)
        self._returns = _Newest(gate.tau_window if gate.tau_unit == "spread" else 0)
        self._quantile: float | None = None
        self._unit: float = 1.0

    def at(self, env_step: int) -> float:
        """Return tau > 0 [return units] for an episode whose last transition is `env_step`."""
        gate, unit = self._gate, self._unit
        if gate.schedule == "linear":
            return unit * linear_decay(env_step, start=gate.tau_start, end=gate.tau_end, steps=self._decay_steps)
        if self._quantile is None:
            return unit * gate.tau_start  # nothing was measured yet: as lenient as the paper begins
        coldest: float = unit * gate.tau_end
        warmest: float = unit * gate.tau_start
        return min(max(self._quantile, coldest), warmest)

    def observe(self, delta_mem: Floats, returns: Floats) -> None:
        """Learn from one judged episode: delta_mem [T] (NaN at a miss) and discounted returns [T]."""
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
        """Collect what was observed."""
        return {"delta_mem": self._delta_mem.values.tolist(), "returns": self._returns.values.tolist()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` collected."""
        self._delta_mem.values = np.array(state["delta_mem"], np.float64)
        self._returns.values = np.array(state["returns"], np.float64)
        self._measure()


class _Newest:
    """The newest `capacity` numbers, oldest first; none are kept for a capacity of 0."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.values: Floats = np.zeros(0)

    def add(self, values: Floats) -> None:
        if self._capacity:
            self.values = np.concatenate([self.values, values])[-self._capacity :]
