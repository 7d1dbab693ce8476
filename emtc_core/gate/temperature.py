"""The temperature tau of the gate during a run (Eq. 12).

`gate.schedule` is one of

    linear    tau decays from tau_start to tau_end over tau_decay_steps (Eq. 12)
    adaptive  tau is the quantile QUANTILE of delta_mem of the newest transitions, clipped to [tau_end, tau_start]

With `tau_unit = "spread"`, tau_start and tau_end are multiplied by the standard deviation of the discounted returns of
the newest transitions. If all rewards are multiplied by a constant, the gates are then the same.

Proposition 2 needs beta → 1 as delta_mem → 0. Both schedules keep tau ≥ tau_end · unit > 0. Hence
beta ≥ exp(-delta_mem² / (2 (tau_end · unit)²)), which tends to 1 for any value of the quantile (there is a test).

The gate of an episode uses the temperature computed from earlier episodes. The episode updates the temperature
afterwards.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.memory import GateConfig
from emtc_core.schedules import linear_decay

Floats = NDArray[np.float64]

QUANTILE: Final = 0.9
"""Quantile of delta_mem that the adaptive schedule uses as tau. Our choice: the paper has no adaptive schedule (C7)."""
WINDOW: Final = 10_000
"""Number of newest transitions for the adaptive schedule and the spread [transitions]. Our choice, as above."""
MIN_RELATIVE_SPREAD = 1e-9
"""If the standard deviation of the returns divided by the largest |return| is not above this, the unit of tau is 1."""


class Temperature:
    """Temperature tau of a run: a function of the env step and of the observed episodes."""

    def __init__(self, gate: GateConfig, *, t_max: int) -> None:
        self._gate = gate
        self._decay_steps = t_max // 2 if gate.tau_decay_steps is None else gate.tau_decay_steps
        self._delta_mem = _Window(WINDOW if gate.schedule == "adaptive" else 0)
        self._returns = _Window(WINDOW if gate.tau_unit == "spread" else 0)
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
        self._quantile = float(np.quantile(errors, QUANTILE)) if len(errors) else None
        if len(returns):
            spread = float(np.std(returns))
            largest = float(np.max(np.abs(returns)))
            self._unit = spread if spread > MIN_RELATIVE_SPREAD * largest else 1.0

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
