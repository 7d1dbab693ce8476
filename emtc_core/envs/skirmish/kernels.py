"""How kernels are compiled and cached, and the chance that they draw from.

`kernel` marks what Python calls: it is compiled at its first call, together with the `part`s that it calls,
and cached on disk as one piece. Kernels neither allocate nor keep arrays, so that reference counting, which
costs three quarters of the time in small functions, is off.

Numba decides whether a cached kernel is fresh by the stamp of its own file, and so misses a change in a
function or constant that it takes from another file. Here the stamp is the digest of the whole package.
Where no cache folder can be written, kernels are compiled anew in each process.

A battle has a small generator of its own, so that copy b's chance depends on (seed, b) alone: xorshift64* on one
64-bit word per battle; nothing here touches global randomness.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., object])
_njit: Any = numba.njit  # its overloads know neither the private option nor functions as results
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "nogil": True, "_nrt": False}

_MASK = (1 << 64) - 1
_S12, _S25, _S27, _S11 = np.uint64(12), np.uint64(25), np.uint64(27), np.uint64(11)
_STAR = np.uint64(0x2545F4914F6CDD1D)
_SCALE = 1.0 / 9007199254740992.0


def kernel(function: Function) -> Function:
    """Compile a function that Python calls, once per machine."""
    try:
        compiled = _njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # no folder for the cache can be written
        return _njit(**_OPTIONS)(function)
    cache_file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if cache_file is not None:
        cache_file._source_stamp = _DIGEST
    return compiled


def part(function: Function) -> Function:
    """Compile a function that only kernels call, into each of them: 3m then takes 32 instead of 76 µs for 8 loops."""
    return _njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True, **_OPTIONS)(function)


def _digest_sources() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


_DIGEST = _digest_sources()


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
