"""Temperature of the gate: Eq. 12, and two readings beyond the paper.

    linear    tau = tau_start → tau_end over tau_decay_steps (Eq. 12)
    adaptive  tau = Q_p(delta_mem of the newest transitions), kept in [tau_end, tau_start]

In both, `tau_unit = "spread"` multiplies tau_start and tau_end by the standard deviation of the discounted
returns of the newest transitions: a run whose rewards are c times larger then has the same gates.

Proposition 2 needs beta → 1 as delta_mem → 0. Both schedules keep tau ≥ tau_end · unit > 0, hence
beta ≥ exp(-delta_mem² / (2 (tau_end · unit)²)), which tends to 1 whatever the quantile does (a test).

An episode is judged by the temperature that the episodes before it left, and observed afterwards.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.gate import GateConfig
from emtc_core.schedules import linear_decay

Floats = NDArray[np.float64]
NO_SPREAD = 1e-9  # returns that differ by less than this share of their size tell no scale


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
