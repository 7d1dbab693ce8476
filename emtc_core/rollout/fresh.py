"""Episodes that an on-policy learner has not learned from yet."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch

from emtc_core.rollout.episode import Episode

ARRAYS = ("obs", "state", "avail", "action", "reward")


class FreshEpisodes:
    """Gathers whole episodes until they hold a rollout's worth of transitions."""

    def __init__(self, rollout_steps: int) -> None:
        self._rollout_steps = rollout_steps
        self._episodes: list[Episode] = []

    def add(self, episode: Episode) -> None:
        """Keep one episode."""
        self._episodes.append(episode)

    def take_when_full(self) -> list[Episode]:
        """Hand over everything once the rollout is full, else nothing."""
        if sum(e.length for e in self._episodes) < self._rollout_steps:
            return []
        taken, self._episodes = self._episodes, []
        return taken

    def get_state(self) -> list[dict[str, Any]]:
        """Collect the episodes as tensors and plain values."""
        return pack_episodes(self._episodes)

    def set_state(self, state: list[dict[str, Any]]) -> None:
        """Restore what `get_state` collected."""
        self._episodes = unpack_episodes(state)


def pack_episodes(episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    """Turn episodes into tensors and plain values, for a checkpoint."""
    return [{f.name: _plain(getattr(episode, f.name)) for f in fields(episode)} for episode in episodes]


def unpack_episodes(state: Sequence[dict[str, Any]]) -> list[Episode]:
    """Turn back what `pack_episodes` returned."""
    return [
        Episode(**{name: value.numpy() if name in ARRAYS else value for name, value in saved.items()})
        for saved in state
    ]


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | float | int) else torch.from_numpy(value)
