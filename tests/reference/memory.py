"""Algorithm 2 as the paper prints it: Python loops over a list of nodes. Slow and obviously right."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from emtc_core.config.memory import MemoryConfig

Vector = NDArray[np.floating]
Embed = Callable[[Vector, int, bool], Vector]


@dataclass
class Node:
    uid: int
    state: Vector
    t: int
    x: Vector
    h: float
    xi: bool
    n_call: int
    n_xi: int
    episode: int
    reward: float
    next: "Node | None"
    inserted: int
    used: int


@dataclass
class LoopedMemory:
    """Slots are list positions; an evicted node is replaced in its position."""

    config: MemoryConfig
    gamma: float
    embed: Embed
    nodes: list[Node] = field(default_factory=list)
    clock: int = 0
    next_uid: int = 0
    measured: int = 0
    appended: int = 0
    steps: int = 0

    def __post_init__(self) -> None:
        self.scaling: tuple[Vector, Vector] = (np.zeros(1), np.ones(1))
        self.frozen_scaling = self.scaling
        self.frozen: list[tuple[Node, Vector]] = []

    # -- space --

    def z(self, x: Vector, scaling: tuple[Vector, Vector] | None = None) -> Vector:
        mean, divisor = scaling or self.scaling
        return (x.astype(np.float64) - mean) / divisor

    def refresh(self, first: list[Vector]) -> None:
        xs = np.array([node.x for node in self.nodes] or first)
        self.measured, self.appended, self.steps = len(xs), 0, 0
        if self.config.delta_space == "raw":
            return
        mean = xs.mean(axis=0, dtype=np.float64)
        std = np.sqrt(((xs - mean) ** 2).mean(axis=0))
        divisor = np.array([1.0 if s <= 1e-6 * abs(m) else s + 1e-8 for s, m in zip(std, mean, strict=True)])
        self.scaling = (mean, divisor)

    def distance(self, a: Vector, b: Vector) -> float:
        gaps = [abs(float(p) - float(q)) for p, q in zip(a, b, strict=True)]
        if self.config.delta_metric == "linf":
            return max(gaps)
        return float(np.sqrt(sum(g * g for g in gaps)))

    def is_near(self, distance: float) -> bool:
        return distance <= self.config.delta if self.config.delta_metric == "linf" else distance < self.config.delta

    def nearest(self, x: Vector) -> tuple[int, float]:
        """Slot and distance of the nearest node that lookups see; slot -1 where that node is gone, or none is."""
        stale = self.config.index == "stale_target_update"
        places = self.frozen if stale else [(node, self.z(node.x)) for node in self.nodes]
        best, best_distance = None, float("inf")
        for node, place in places:
            d = self.distance(self.z(x, self.frozen_scaling if stale else None), place)
            if d < best_distance:
                best, best_distance = node, d
        return self.slot_of(best), best_distance

    def find(self, state: Vector, t: int) -> int:
        slot, distance = self.nearest(self.embed(state, t, False))
        return slot if self.is_near(distance) else -1

    # -- Algorithm 2 --

    def write(self, states: Vector, rewards: Vector, won: bool, episode: int, episode_return: float) -> list[int]:
        c = self.config
        T = len(rewards)
        xs = [self.embed(states[t], t, True) for t in range(T + 1)]
        due = self.appended >= 0.25 * self.measured or (c.norm_interval == "200_steps" and self.steps >= 200)
        if due and c.delta_space == "normalized":
            self.refresh(xs)
        self.steps += T
        won_here = won if c.success == "flag" else episode_return >= c.success_threshold
        R, nxt, propagated = 0.0, None, False
        written: dict[int, Node] = {}
        for t in range(T if c.store_terminal else T - 1, -1, -1):
            r = float(rewards[t]) if t < T else 0.0
            R = r + self.gamma * R
            xi = (won_here and not (t == T and c.terminal_xi == "zero")) or propagated
            slot, distance = self.nearest(xs[t])
            if slot >= 0 and self.is_near(distance):
                node = self.nodes[slot]
                propagated |= c.backprop_desirability and node.xi
                self.merge(node, states[t], t, xs[t], R, xi, episode, r, nxt)
            else:
                node = Node(
                    self.next_uid, states[t], t, xs[t], R, xi, 1, int(xi and c.init_desirability), episode, r, nxt, 0, 0
                )
                self.append(node)
            self.clock += 1
            node.used = self.clock
            written[t] = node
            nxt = node
        return [self.slot_of(written.get(t)) for t in range(T + 1)]

    def merge(
        self,
        node: Node,
        state: Vector,
        t: int,
        x: Vector,
        R: float,
        xi: bool,
        episode: int,
        r: float,
        nxt: Node | None,
    ) -> None:
        c = self.config
        node.n_call += 1
        if xi:
            node.n_xi += 1
        rewrote = False
        shifts = xi and not node.xi and c.shift_on_success
        node.xi = node.xi or xi
        if shifts:
            node.x, node.state, node.t, node.episode = x, state, t, episode
            node.h = max(node.h, R) if c.shift_keep_max else R
            if c.reset_counts_on_shift:
                node.n_call = node.n_xi = 1
            rewrote = True
        elif node.h < R:
            node.h = R
            rewrote = True
        if rewrote or c.link_update == "always":
            node.next, node.reward = nxt, r

    def append(self, node: Node) -> None:
        self.clock += 1
        self.next_uid += 1
        self.appended += 1
        node.inserted = self.clock
        if len(self.nodes) < self.config.capacity:
            self.nodes.append(node)
            return
        age = [n.used if self.config.evict == "lru" else n.inserted for n in self.nodes]
        self.nodes[age.index(min(age))] = node

    def slot_of(self, node: Node | None) -> int:
        return next((i for i, n in enumerate(self.nodes) if n is node), -1)

    # -- the rest --

    def read(self, slots: list[int]) -> None:
        """A reader's touch."""
        for slot in slots:
            if slot >= 0 and self.config.lru_touch_on_read:
                self.clock += 1
                self.nodes[slot].used = self.clock

    def reproject(self) -> None:
        for node in self.nodes:
            node.x = self.embed(node.state, node.t, False)
        if self.nodes:
            self.refresh([])

    def on_target_update(self) -> None:
        self.frozen_scaling = self.scaling
        self.frozen = [(node, self.z(node.x)) for node in self.nodes]

    def delta_mem(self) -> list[float]:
        errors = []
        for node in self.nodes:
            is_there = node.next is not None and self.slot_of(node.next) >= 0
            errors.append(abs(node.reward + self.gamma * node.next.h - node.h) if is_there else float("nan"))
        return errors
