"""States of replayed episodes that a recall has to search, on the host, so that a search does not wait for a GPU.

After a re-projection a state without an own node is searched: it merged into another node, or its node was evicted or
moved. States that merged are stored when their episode is written. Other ones are copied from the GPU at their first
search. On the host, these are the states of the replay buffer without own node; most states have one.
"""

import numpy as np
from numpy.typing import NDArray

from emtc_core.devices import fetch_all, send
from emtc_core.replay_buffer.buffer import Batch

Steps = NDArray[np.int64]


class SearchedStates:
    """States by episode number and step, for the newest episodes."""

    def __init__(self, n_episodes: int) -> None:
        """Make an empty store for the newest `n_episodes` episodes."""
        self._n_episodes = n_episodes
        self._by_episode: dict[int, tuple[Steps, NDArray[np.float32]]] = {}  # sorted steps [K], states [K, S]

    def add_episode(self, number: int, steps: Steps, state: NDArray[np.float32]) -> None:
        """Store states of a new episode, and drop those of the oldest episode.

        Source: implementation detail.

        Args:
            number: Number of the episode in its run, one more than that of the previous episode.
            steps: [K], sorted steps of the states to store [steps].
            state: [T+1, S] [state features], all states of the episode.
        """
        self._by_episode.pop(number - self._n_episodes, None)
        self._by_episode[number] = steps, state[steps]

    def read(self, batch: Batch, rows: Steps, steps: Steps) -> NDArray[np.float32]:
        """Return states of a batch. Those that are not stored yet are copied from the device, and stored.

        Source: implementation detail.

        Args:
            batch: The sampled batch.
            rows: [K], sorted row indices of the states in the batch.
            steps: [K], steps of the states, sorted in each row [steps].

        Returns:
            [K, S] [state features].
        """
        state = np.empty((len(rows), batch.state.shape[-1]), np.float32)
        is_missing = np.ones(len(rows), np.bool_)
        for row in np.unique(rows):
            known_steps, known_state = self._by_episode.get(int(batch.number[row]), (steps[:0], state[:0]))
            here = np.flatnonzero(rows == row)
            is_known = np.isin(steps[here], known_steps)
            state[here[is_known]] = known_state[np.searchsorted(known_steps, steps[here[is_known]])]
            is_missing[here[is_known]] = False
        missing = np.flatnonzero(is_missing)
        if len(missing):
            device = batch.state.device
            on_device = batch.state[send(rows[missing], device), send(steps[missing], device)]
            (state[missing],) = fetch_all([on_device])
            self._store(batch, rows[missing], steps[missing], state[missing])
        return state

    def _store(self, batch: Batch, rows: Steps, steps: Steps, state: NDArray[np.float32]) -> None:
        for row in np.unique(rows):
            number, here = int(batch.number[row]), rows == row
            old_steps, old_state = self._by_episode.get(number, (steps[:0], state[:0]))
            all_steps, all_state = np.append(old_steps, steps[here]), np.append(old_state, state[here], axis=0)
            order = np.argsort(all_steps)
            self._by_episode[number] = all_steps[order], all_state[order]
