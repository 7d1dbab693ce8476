"""Algorithms 2 and 3 for one stream of episodes, as any reading of the paper prints them: loops, brute force."""

import math

import numpy as np

from emtc_core.config.run import RunConfig
from emtc_core.rollout.episode import Episode
from tests.reference.memory import Embed, LoopedMemory


class LoopedReading:
    """Writes and judges one episode after the other."""

    def __init__(self, config: RunConfig, embed: Embed) -> None:
        self.config = config
        self.memory = _NumpyDistances(config.memory, config.train.gamma, embed)

    def absorb(self, episode: Episode, number: int, tau: float) -> tuple[list[float], list[float]]:
        """Return (delta_mem, beta), NaN and the rule's value at a miss."""
        if self.config.gate.timing == "before_write":
            judged = self._judge(episode, tau, None)
            self._write(episode, number)
            return judged
        slots = self._write(episode, number)
        return self._judge(episode, tau, slots)

    def _write(self, episode: Episode, number: int) -> list[int]:
        return self.memory.write(episode.state, episode.reward, episode.won, number, episode.episode_return)

    def _judge(self, episode: Episode, tau: float, slots: list[int] | None) -> tuple[list[float], list[float]]:
        gate, gamma = self.config.gate, self.config.train.gamma
        stale = self.config.memory.index == "stale_target_update"
        knows_nothing = not (self.memory.frozen if stale else self.memory.nodes)
        h = [self._h(episode, t, slots) for t in range(episode.length + 1)]
        deltas, betas = [], []
        for t in range(episode.length):
            ahead = 0.0 if t == episode.length - 1 else h[t + 1]
            if h[t] is None or ahead is None:
                rule = gate.on_empty if knows_nothing else gate.on_miss
                deltas.append(math.nan)
                betas.append(1.0 if rule == "pass" else 0.0)
                continue
            delta = abs(float(episode.reward[t]) + gamma * ahead - h[t])
            deltas.append(delta)
            betas.append(math.exp(-((gate.delta_scale * delta) ** 2) / (2 * tau**2)))
        return deltas, betas

    def _h(self, episode: Episode, t: int, slots: list[int] | None) -> float | None:
        """H of the node that the gate reads for s_t; None where it finds none."""
        gate, stale = self.config.gate, self.config.memory.index == "stale_target_update"
        if gate.lookup == "written" and not stale:
            assert slots is not None
            slot = slots[t]
        else:
            slot, distance = self.memory.nearest(self.memory.embed(episode.state[t], t, False))
            if not self.memory.is_near(distance) and gate.on_miss != "nearest":
                slot = -1
        return None if slot < 0 else self.memory.nodes[slot].h


class _NumpyDistances(LoopedMemory):
    """The same search, its inner loop left to NumPy so that streams of a thousand states can be read."""

    def nearest(self, x: np.ndarray) -> tuple[int, float]:
        stale = self.config.index == "stale_target_update"
        if stale:
            nodes, places = [node for node, _ in self.frozen], [place for _, place in self.frozen]
        else:
            nodes = self.nodes
            places = [self.z(np.array([node.x for node in nodes]))] if nodes else []
        if not nodes:
            return -1, float("inf")
        gaps = np.abs(np.reshape(places, (len(nodes), -1)) - self.z(x, self.frozen_scaling if stale else None))
        distances = gaps.max(axis=1) if self.config.delta_metric == "linf" else np.sqrt((gaps**2).sum(axis=1))
        best = int(distances.argmin())
        return self.slot_of(nodes[best]), float(distances[best])
