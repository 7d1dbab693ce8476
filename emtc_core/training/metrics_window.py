"""Averages what happened since the last report. Learner statistics stay tensors until they are read."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch

from emtc_core.rollout.episode import Episode

Number = float | torch.Tensor


class MetricsWindow:
    """Collects numbers by metric name and hands over their means."""

    def __init__(self) -> None:
        self._restart()

    def _restart(self) -> None:
        self._values: dict[str, list[Number]] = defaultdict(list)
        self._shares: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = defaultdict(list)
        self._env_steps = 0
        self._rollout_s = 0.0
        self._started = time.monotonic()

    def add(self, values: Mapping[str, Number]) -> None:
        """Add one observation per name."""
        for name, value in values.items():
            self._values[name].append(value)

    def add_shares(self, shares: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Add a part and its whole per name; `take` divides the sums, and gives 0 where the whole is 0."""
        for name, part_and_whole in shares.items():
            self._shares[name].append(part_and_whole)

    def add_episode(self, episode: Episode, *, is_success: bool | None = None) -> None:
        """Add one finished training episode; `is_success` where its return decides that."""
        if is_success is not None:
            self.add({"rollout/success_rate": float(is_success)})
        self._env_steps += episode.length
        self.add(
            {
                "rollout/return": episode.episode_return,
                "rollout/win_rate": float(episode.won),
                "rollout/length": float(episode.length),
                "rollout/epsilon": episode.epsilon,
            }
        )

    def add_rollout_time(self, seconds: float) -> None:
        """Add the wall time of one round of stepping and acting [s]."""
        self._rollout_s += seconds

    def take(self) -> dict[str, float]:
        """Return the mean of every name and start a new window; what lies on a device comes over in one transfer."""
        elapsed = max(time.monotonic() - self._started, 1e-9)
        shares = {name: _share(pairs) for name, pairs in self._shares.items()}
        means = _fetch({name: _mean(values) for name, values in self._values.items()} | shares)
        means["time/env_steps_per_second"] = self._env_steps / elapsed
        means["time/rollout_share"] = self._rollout_s / elapsed
        self._restart()
        return means


def _mean(values: Sequence[Number]) -> Number:
    """Average numbers, or tensors of one device, which stay there."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if len(tensors) == len(values):
        return torch.stack([tensor.double() for tensor in tensors]).mean()
    return sum(float(value) for value in values) / len(values)


def _share(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    part, whole = (torch.stack(sums).double().sum() for sums in zip(*pairs, strict=True))
    return torch.where(whole > 0, part / whole.clamp_min(torch.finfo(torch.float64).tiny), torch.zeros_like(whole))


def _fetch(means: Mapping[str, Number]) -> dict[str, float]:
    tensors = [value for value in means.values() if isinstance(value, torch.Tensor)]
    fetched = iter(torch.stack(tensors).tolist() if tensors else [])
    return {name: next(fetched) if isinstance(value, torch.Tensor) else value for name, value in means.items()}
