"""ValueNorm: returns in units of their own running mean and deviation, debiased like Adam's moments."""

import torch
from torch import Tensor

from emtc_core.replay_buffer import StateDict

EPS = 1e-5
MIN_VARIANCE = 1e-2


class ValueNorm:
    """Exponential averages of a scalar and its square, divided by their own accumulated weight."""

    def __init__(self, beta: float, device: torch.device) -> None:
        """Start empty; `beta` is the averaging factor."""
        self._beta = beta
        self._mean, self._square, self._weight = torch.zeros(3, device=device).unbind()

    def update(self, values: Tensor) -> None:
        """Take the mean and mean square of these values into the averages."""
        share = 1.0 - self._beta
        self._mean = self._beta * self._mean + share * values.mean()
        self._square = self._beta * self._square + share * values.square().mean()
        self._weight = self._beta * self._weight + share

    def normalize(self, values: Tensor) -> Tensor:
        """Express values in deviations from the mean."""
        mean, deviation = self._moments()
        return (values - mean) / deviation

    def denormalize(self, values: Tensor) -> Tensor:
        """Express normalised values in return units."""
        mean, deviation = self._moments()
        return values * deviation + mean

    def get_state(self) -> StateDict:
        """Return the three averages."""
        return {"mean": self._mean, "square": self._square, "weight": self._weight}

    def set_state(self, state: StateDict) -> None:
        """Restore what `get_state` returned."""
        names = ("mean", "square", "weight")
        self._mean, self._square, self._weight = (state[name].to(self._mean.device) for name in names)

    def _moments(self) -> tuple[Tensor, Tensor]:
        weight = self._weight.clamp_min(EPS)
        mean = self._mean / weight
        variance = self._square / weight - mean.square()
        return mean, variance.clamp_min(MIN_VARIANCE).sqrt()
