"""Dimension letters, the shape check that public functions call on entry, and a generator for each part of a run.

Letters used as suffixes of local arrays: B environments or episodes, T steps, N agents, A actions,
O observation, S state, X embedding (4), M memory nodes, Q queries, K neighbors, H hidden.

One seed per run becomes an independent generator per part. Streams are named, so adding a part never shifts the
numbers that another part draws.
"""

import zlib
from typing import Protocol

import numpy as np

from emtc_core.errors import ShapeError


class HasShape(Protocol):
    """Anything with a shape: a NumPy array or a torch tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...


def check_shape(name: str, array: HasShape, expected: tuple[int | None, ...]) -> None:
    """Refuse an array whose shape differs from `expected`; None stands for any length.

    Raises:
        ShapeError: With the name, the rule and the shape that came.
    """
    shape = tuple(array.shape)
    if len(shape) == len(expected) and all(e is None or e == s for e, s in zip(expected, shape, strict=True)):
        return
    wanted = ", ".join("any" if e is None else str(e) for e in expected)
    hint = (
        "Did you transpose it?"
        if len(shape) == len(expected)
        and sorted(shape) == sorted(s if e is None else e for e, s in zip(expected, shape, strict=True))
        else ""
    )
    raise ShapeError(f"{name} must have shape ({wanted}), got {shape}.", hint=hint, reason="shape", subject=name)


def make_generator(seed: int, stream: str, *counters: int) -> np.random.Generator:
    """Make the generator of one named part of a run.

    Args:
        seed: The run's seed, >= 0.
        stream: Name of the part: "rollout", "replay", "memory", "embedder", "evaluation"…
        counters: Further numbers (round, episode) that select a fresh stream each.
    """
    return np.random.Generator(np.random.PCG64(_sequence(seed, stream, counters)))


def derive_seed(seed: int, stream: str, *counters: int) -> int:
    """Derive a 31-bit seed for a component that wants an integer (torch, an engine)."""
    return int(_sequence(seed, stream, counters).generate_state(1, np.uint32)[0] >> 1)


def _sequence(seed: int, stream: str, counters: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence([seed, zlib.crc32(stream.encode()), *counters])
