"""Slow decoders of SMAC's observation and state, written from the published description alone.

They share nothing with the simulator: map facts are stated again here, and every entry is read with its own
running index.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class MapFacts:
    """Published facts of one map: counts, shields, type bits, published sizes, limit."""

    n: int
    e: int
    ally_shield: bool
    enemy_shield: bool
    bits: int
    obs_dim: int
    state_dim: int
    n_actions: int
    limit: int
    max_reward: float


FACTS = {
    "3m": MapFacts(3, 3, False, False, 0, 30, 48, 9, 60, 365),
    "8m": MapFacts(8, 8, False, False, 0, 80, 168, 14, 120, 640),
    "2s3z": MapFacts(5, 5, True, True, 2, 80, 120, 11, 120, 1020),
    "1c3s5z": MapFacts(9, 9, True, True, 3, 162, 270, 15, 180, 1870),
    "3s5z": MapFacts(8, 8, True, True, 2, 128, 216, 14, 150, 1510),
    "3s_vs_5z": MapFacts(3, 5, True, True, 0, 48, 68, 11, 250, 1000),
    "5m_vs_6m": MapFacts(5, 6, False, False, 0, 55, 98, 12, 70, 530),
    "MMM2": MapFacts(10, 12, False, False, 3, 176, 322, 18, 180, 1205),
    "6h_vs_8z": MapFacts(6, 8, False, True, 0, 78, 140, 14, 150, 1480),
    "3s5z_vs_3s6z": MapFacts(8, 9, True, True, 2, 136, 230, 15, 170, 1670),
    "corridor": MapFacts(6, 24, True, False, 0, 156, 282, 30, 400, 1280),
}


@dataclass(frozen=True)
class Row:
    """One unit as a row shows it; None where the row has no such entry."""

    health: float
    x: float
    y: float
    shield: float | None
    kind: int | None
    clock: float | None = None
    flag: float | None = None
    distance: float | None = None


class _Reader:
    def __init__(self, values: NDArray[np.float32]) -> None:
        self._values = values.tolist()
        self._at = 0

    def one(self) -> float:
        self._at += 1
        return self._values[self._at - 1]

    def bits(self, count: int) -> int | None:
        ones = [k for k in range(count) if self.one() == 1.0]
        assert len(ones) <= 1
        return ones[0] if ones else None

    def finish(self) -> None:
        assert self._at == len(self._values), "the vector is longer than its description"


def decode_state(facts: MapFacts, state: NDArray[np.float32]) -> tuple[list[Row], list[Row], list[int | None]]:
    """Read allies, enemies and last actions from a state vector; positions in cells."""
    reader = _Reader(state)
    allies = [_state_row(reader, facts.ally_shield, facts.bits, clocked=True) for _ in range(facts.n)]
    enemies = [_state_row(reader, facts.enemy_shield, facts.bits, clocked=False) for _ in range(facts.e)]
    actions = [reader.bits(facts.n_actions) for _ in range(facts.n)]
    reader.finish()
    return allies, enemies, actions


def _state_row(reader: _Reader, shield: bool, bits: int, *, clocked: bool) -> Row:
    health = reader.one()
    clock = reader.one() if clocked else None
    x, y = 16 + 32 * reader.one(), 16 + 32 * reader.one()
    return Row(health, x, y, reader.one() if shield else None, reader.bits(bits), clock=clock)


def decode_obs(
    facts: MapFacts, obs: NDArray[np.float32]
) -> tuple[list[float], list[Row], list[Row], tuple[float, float | None, int | None]]:
    """Read moves, enemy rows, ally rows (self skipped) and own features; offsets in cells."""
    reader = _Reader(obs)
    moves = [reader.one() for _ in range(4)]
    enemies = [_obs_row(reader, facts.enemy_shield, facts.bits) for _ in range(facts.e)]
    allies = [_obs_row(reader, facts.ally_shield, facts.bits) for _ in range(facts.n - 1)]
    own = (reader.one(), reader.one() if facts.ally_shield else None, reader.bits(facts.bits))
    reader.finish()
    return moves, enemies, allies, own


def _obs_row(reader: _Reader, shield: bool, bits: int) -> Row:
    flag, distance, dx, dy, health = (reader.one() for _ in range(5))
    spare = reader.one() if shield else None
    return Row(health, 9 * dx, 9 * dy, spare, reader.bits(bits), flag=flag, distance=9 * distance)
