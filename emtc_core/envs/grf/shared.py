"""The board: arrays that the environment and its engine processes share.

What lives here: the layout of one block of memory. What does not: who writes when; the pipes in `team.py`
see to it that one side at a time touches the board.
"""

import mmap
import os
import tempfile
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from emtc_core.envs.grf.engine import Squad
from emtc_core.envs.grf.layout import Layout


@dataclass(frozen=True)
class Board:
    """Commands on the way in, the engines' numbers on the way out."""

    state: NDArray[np.float64]  # [B, S]
    seed: NDArray[np.int64]  # [B]
    action: NDArray[np.int64]  # [B, N]
    goal: NDArray[np.int64]  # [B] goals for minus goals against
    running: NDArray[np.bool_]  # [B]
    ended: NDArray[np.bool_]  # [B] by the engine's own rules


def memory_file(n_envs: int, squad: Squad) -> int:
    """Open an anonymous file as large as the board; it vanishes with its last user."""
    size = sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in _fields(n_envs, squad))
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("emtc-football")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def make_board(memory: int | None, n_envs: int, squad: Squad) -> Board:
    """Lay the board over a memory file, or over private memory when `memory` is None."""
    fields = _fields(n_envs, squad)
    if memory is None:
        return Board(*(np.zeros(shape, dtype) for shape, dtype in fields))
    buffer = mmap.mmap(memory, 0)
    arrays, offset = [], 0
    for shape, dtype in fields:
        count = int(np.prod(shape))
        arrays.append(np.frombuffer(buffer, dtype, count, offset).reshape(shape))
        offset += count * dtype.itemsize
    return Board(*arrays)


def _fields(n_envs: int, squad: Squad) -> list[tuple[tuple[int, ...], np.dtype]]:
    """Shapes in the order of Board's fields, the widest types first so that all stay aligned."""
    dim = Layout(squad.n_agents, squad.n_opponents).dim
    wide, flag = np.dtype(np.int64), np.dtype(np.bool_)
    return [
        ((n_envs, dim), np.dtype(np.float64)),
        ((n_envs,), wide),
        ((n_envs, squad.n_agents), wide),
        ((n_envs,), wide),
        ((n_envs,), flag),
        ((n_envs,), flag),
    ]
