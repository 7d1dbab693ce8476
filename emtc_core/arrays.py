"""Dimension letters of arrays, a shape check, and the random generators of a run.

Letters used as suffixes of local arrays: B environments or episodes, T steps, N agents, A actions,
O observation, S state, X embedding (4), M memory nodes, Q queries, K neighbors, H hidden.

Every part of a run gets an independent generator, derived from the run's seed and the name of the part. So a new part
does not change the random numbers of other parts.
"""

import zlib
from typing import Protocol

import numpy as np

from emtc_core.errors import ShapeError


class HasShape(Protocol):
    """Anything with a shape: a NumPy array or a torch tensor."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each dimension."""
        ...


def check_shape(name: str, array: HasShape, expected: tuple[int | None, ...]) -> None:
    """Raise if the shape of an array is not as expected.

    Args:
        name: Name of the array, for the message.
        array: The array.
        expected: The shape; None means any length.

    Raises:
        ShapeError: If the shape differs.
    """
    shape = tuple(array.shape)
    if len(shape) == len(expected) and all(e is None or e == s for e, s in zip(expected, shape, strict=True)):
        return
    rule = ", ".join("any" if e is None else str(e) for e in expected)
    is_transposed = len(shape) == len(expected) and sorted(shape) == sorted(
        s if e is None else e for e, s in zip(expected, shape, strict=True)
    )
    hint = "Did you transpose it?" if is_transposed else ""
    raise ShapeError(f"{name} must have shape ({rule}), got {shape}.", hint=hint)


def make_generator(seed: int, stream: str, *counters: int) -> np.random.Generator:
    """Make the generator of one named part of a run.

    Args:
        seed: The run's seed, >= 0.
        stream: Name of the part: "rollout", "replay", "memory", "embedder", "evaluation"…
        counters: Indices, such as round or episode. Each combination gives another independent stream.
    """
    return np.random.Generator(np.random.PCG64(_make_seed_sequence(seed, stream, counters)))


def derive_seed(seed: int, stream: str, *counters: int) -> int:
    """Derive a 31-bit seed for a component that needs an integer seed (torch, a game engine).

    Args:
        seed: The run's seed, >= 0.
        stream: Name of the component.
        counters: Indices, such as round or episode. Each combination gives another seed.
    """
    return int(_make_seed_sequence(seed, stream, counters).generate_state(1, np.uint32)[0] >> 1)


def _make_seed_sequence(seed: int, stream: str, counters: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence([seed, zlib.crc32(stream.encode()), *counters])
