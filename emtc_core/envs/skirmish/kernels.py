"""Compilation and caching of the numba kernels, and their random generators.

`kernel` is the decorator for functions that Python calls. A kernel is compiled at its first call, together with the
`inlined` functions that it calls, and cached on disk. Kernels do not allocate or store arrays. Therefore numba's
reference counting is switched off (`_nrt`): it would take three quarters of the time in small functions.

Numba checks whether a cached kernel is up to date by the time stamp of its source file. It does not notice a change of
a function or constant in another file. Here the stamp is a digest of all files of this package. If no cache folder can
be written, every process compiles the kernels again.

Each battle has its own generator, xorshift64* with one 64-bit word, so the random numbers of copy b depend only on
(seed, b). Global random state is not used.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., object])
_njit: Any = numba.njit  # Any: its type overloads lack the private option `_nrt`
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "nogil": True, "_nrt": False}

# Constants of xorshift64* and of the conversion to [0, 1).
_MASK = (1 << 64) - 1
_S12, _S25, _S27, _S11 = np.uint64(12), np.uint64(25), np.uint64(27), np.uint64(11)
_STAR = np.uint64(0x2545F4914F6CDD1D)
_SCALE = 1.0 / 9007199254740992.0


def kernel(function: Function) -> Function:
    """Compile a function that Python calls, and cache it on disk."""
    try:
        compiled = _njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # no cache folder can be written
        return _njit(**_OPTIONS)(function)
    cache_file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if cache_file is not None:
        cache_file._source_stamp = _DIGEST
    return compiled


def inlined(function: Function) -> Function:
    """Compile a function that only kernels call into each of its callers.

    With inlining, 8 game loops of 3m take 32 µs, without it 76 µs.
    """
    return _njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True, **_OPTIONS)(function)


def _digest_sources() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


_DIGEST = _digest_sources()


def make_words(seed: int, n_envs: int) -> NDArray[np.uint64]:
    """Make the initial words of the generators from (seed, b). No word is zero.

    Source: splitmix64.

    Args:
        seed: Seed of all generators.
        n_envs: Number of generators, B.

    Returns:
        [B], random words of 64 bits, dimensionless.
    """
    start = _mix(seed)
    return np.array([_mix(start + _mix(b + 1)) or 1 for b in range(n_envs)], dtype=np.uint64)


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@inlined
def uniform(rng: NDArray[np.uint64], b: int, low: float, high: float) -> float:
    """Return a uniform random number from [low, high), with the generator of battle b.

    Source: xorshift64*.

    Args:
        rng: [B], generator states, dimensionless. State b is changed.
        b: Index of the battle.
        low: Lower bound.
        high: Upper bound.
    """
    word = rng[b]
    word ^= word >> _S12
    word ^= word << _S25
    word ^= word >> _S27
    rng[b] = word
    return low + (high - low) * (float((word * _STAR) >> _S11) * _SCALE)


def uniform_block(rng: NDArray[np.uint64], count: int, low: float, high: float) -> NDArray[np.float64]:
    """Sample uniform random numbers from [low, high). Row b uses generator b.

    Source: xorshift64*.

    Args:
        rng: [B], generator states, dimensionless. They are changed.
        count: Numbers per generator.
        low: Lower bound.
        high: Upper bound.

    Returns:
        [B, count], in the unit of the bounds.
    """
    block = np.empty((len(rng), count))
    for k in range(count):
        for word, shift in ((12, -1), (25, 1), (27, -1)):
            step = np.uint64(word)
            rng ^= rng >> step if shift < 0 else rng << step
        block[:, k] = (rng * _STAR) >> _S11
    return low + (high - low) * block * _SCALE
