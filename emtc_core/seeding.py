"""One seed per run becomes an independent generator per part.

Streams are named, so adding a part never shifts the numbers that another part draws.
"""

import zlib

import numpy as np


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
