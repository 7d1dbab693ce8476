"""A small generator per battle, so that copy b's chance depends on (seed, b) alone.

xorshift64* on one 64-bit word per battle; nothing here touches global randomness.
"""

import numpy as np
from numpy.typing import NDArray

from emtc_core.envs.skirmish.compiled import part

_MASK = (1 << 64) - 1
_S12, _S25, _S27, _S11 = np.uint64(12), np.uint64(25), np.uint64(27), np.uint64(11)
_STAR = np.uint64(0x2545F4914F6CDD1D)
_SCALE = 1.0 / 9007199254740992.0


def make_words(seed: int, n_envs: int) -> NDArray[np.uint64]:
    """Make the words of n_envs generators from (seed, b) by splitmix64; none is zero."""
    start = _mix(seed)
    return np.array([_mix(start + _mix(b + 1)) or 1 for b in range(n_envs)], dtype=np.uint64)


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@part
def uniform(rng: NDArray[np.uint64], b: int, low: float, high: float) -> float:
    """Draw a float64 from [low, high) with the generator of battle b."""
    word = rng[b]
    word ^= word >> _S12
    word ^= word << _S25
    word ^= word >> _S27
    rng[b] = word
    return low + (high - low) * (float((word * _STAR) >> _S11) * _SCALE)


def uniform_block(rng: NDArray[np.uint64], count: int, low: float, high: float) -> NDArray[np.float64]:
    """Draw [B, count] numbers from [low, high), row b with generator b."""
    block = np.empty((len(rng), count))
    for k in range(count):
        for word, shift in ((12, -1), (25, 1), (27, -1)):
            step = np.uint64(word)
            rng ^= rng >> step if shift < 0 else rng << step
        block[:, k] = (rng * _STAR) >> _S11
    return low + (high - low) * block * _SCALE
