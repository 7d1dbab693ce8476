"""Merging a stored memory anew and judging its links: Python loops over a list of nodes. Slow and obviously right."""

import math
from dataclasses import dataclass

import numpy as np

from emtc_core.config.memory import GateConfig, MemoryConfig


@dataclass
class Stored:
    """One node of a snapshot; `next` and `into` are places in the list of all of them."""

    z: tuple[float, ...]
    episode: int
    t: int
    h: float
    xi: bool
    n_call: int
    n_xi: int
    next: int | None
    reward: float = 0.0


def scaled(embedding: np.ndarray, config: MemoryConfig) -> list[tuple[float, ...]]:
    """Where delta is tested: as embedded, or centred and divided per dimension."""
    columns = []
    for column in np.asarray(embedding, np.float64).T:
        mean = sum(column) / len(column)
        std = math.sqrt(sum((x - mean) ** 2 for x in column) / len(column))
        divisor = 1.0 if std <= 1e-6 * abs(mean) else std + 1e-8
        columns.append([x if config.delta_space == "raw" else (x - mean) / divisor for x in column])
    return [tuple(float(x) for x in row) for row in zip(*columns, strict=True)]


def looped_remerge(
    nodes: list[Stored], delta: float, config: MemoryConfig
) -> tuple[list[int], list[int], list[Stored]]:
    """(node that holds each, node that a lookup of each finds or -1, the nodes as they end)."""
    ended = [Stored(**vars(node)) for node in nodes]
    order = sorted(range(len(nodes)), key=lambda i: (nodes[i].episode, -nodes[i].t))
    kept: list[int] = []
    holder = [-1] * len(nodes)
    for i in order:
        new, into = nodes[i], _nearest(nodes[i].z, kept, ended, delta, config)
        if into < 0:
            kept.append(i)
            holder[i] = i
            continue
        holder[i], old = into, ended[into]
        old.n_call += new.n_call
        old.n_xi += new.n_xi
        rewrote = False
        shifts = new.xi and not old.xi and config.shift_on_success
        old.xi = old.xi or new.xi
        if shifts:
            old.z = new.z
            old.h = max(old.h, new.h) if config.shift_keep_max else new.h
            if config.reset_counts_on_shift:
                old.n_call, old.n_xi = new.n_call, new.n_xi
            rewrote = True
        elif old.h < new.h:
            old.h = new.h
            rewrote = True
        if rewrote or config.link_update == "always":
            old.next = new.next
    for node in ended:
        node.next = None if node.next is None else holder[node.next]
    found = [_nearest(node.z, kept, ended, delta, config) for node in nodes]
    return holder, found, ended


def _nearest(z: tuple[float, ...], kept: list[int], nodes: list[Stored], delta: float, config: MemoryConfig) -> int:
    best, best_distance = -1, math.inf
    for j in kept:  # in the order in which they were written: the earliest wins a tie
        gaps = [abs(a - b) for a, b in zip(z, nodes[j].z, strict=True)]
        distance = max(gaps) if config.delta_metric == "linf" else math.sqrt(sum(gap * gap for gap in gaps))
        if distance < best_distance:
            best, best_distance = j, distance
    near = best_distance <= delta if config.delta_metric == "linf" else best_distance < delta
    return best if near else -1


def looped_links(
    nodes: list[Stored],
    merged: tuple[list[int], list[int], list[Stored]],
    *,
    gate: GateConfig,
    gamma: float,
    tau: float,
) -> list[tuple[float, float]]:
    """(delta_mem, beta) of every stored link, read by the gate's own `lookup` and `successor`; NaN is a miss."""
    holder, found, ended = merged
    reads = holder if gate.lookup == "written" else found
    judged = []
    for i, node in enumerate(nodes):
        if node.next is None:
            continue
        here = reads[i]
        then = (None if here < 0 else ended[here].next) if gate.successor == "link" else reads[node.next]
        h = math.nan if here < 0 else ended[here].h
        h_next = math.nan if then is None or then < 0 else ended[then].h
        ends = nodes[node.next].next is None and nodes[node.next].h == 0
        if ends and gate.terminal_value == "zero":
            h_next = 0.0
        delta = abs(node.reward + gamma * h_next - h)
        if math.isnan(delta):
            judged.append((delta, 1.0 if gate.on_miss == "pass" else 0.0))
        else:
            judged.append((delta, math.exp(-((gate.delta_scale * delta) ** 2) / (2 * tau**2))))
    return judged
