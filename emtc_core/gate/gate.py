"""Temporal-consistency gate: how far an incentive may be trusted (Eq. 7 and 8).

`delta_mem` and `gate_coefficient` take arrays of any shape, so a run, the sliders of a page and a check of
the database run the same line. `settle` applies the rules for misses and
`evaluate_gate` judges one episode. Stage before: memory; after: replay buffer. tau: `temperature.py`.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.gate import GateConfig
from emtc_core.rollout.episode import Episode

Float64s = NDArray[np.float64]
Slots = NDArray[np.int64]

CLOSED_BELOW = 0.5
"""A gate with a smaller β counts as closed."""


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


def gate_coefficient(delta_mem: Any, *, tau: Any, scale: float = 1.0) -> Any:
    """Weigh an incentive by how well the memory agrees with itself over one step (Eq. 8).

    Args:
        delta_mem: Temporal-consistency error, any shape, >= 0, in return units.
        tau: Gate temperature, > 0, in return units; a number, or an array that broadcasts with `delta_mem`.
        scale: Factor on `delta_mem` first (`gate.delta_scale`).

    Returns:
        beta, same shape, in [0, 1]; 1 where delta_mem is 0.

    Raises:
        ValueError: If tau is not positive.
    """
    if np.any(np.asarray(tau) <= 0):
        raise ValueError(f"tau must be positive, got {np.min(tau)}")
    return np.exp(-((scale * delta_mem) ** 2) / (2.0 * tau * tau))


def beta_of_miss(config: GateConfig, *, is_empty: bool) -> float:
    """Gate of a transition whose lookup found nothing.

    Args:
        config: `on_empty` decides while there is nothing to search, `on_miss` from then on. A caller who wants
            "nearest" has asked the memory for the nearest node already, so what it still misses is blocked.
        is_empty: Whether the searched index held no node at all.
    """
    rule = config.on_empty if is_empty else config.on_miss
    return 1.0 if rule == "pass" else 0.0


def settle(
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
    beta = gate_coefficient(np.where(missed, 0.0, delta), tau=tau, scale=config.delta_scale)
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
    delta, beta = settle(episode.reward, h, h_next, config=config, gamma=gamma, tau=tau, is_empty=is_empty)
    return GateVerdict(h=h, h_next=h_next, delta_mem=delta, beta=beta)
