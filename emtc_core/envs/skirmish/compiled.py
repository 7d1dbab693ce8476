"""How kernels are compiled and cached.

Numba decides whether a cached kernel is fresh by the stamp of its own file, and so misses a change in a
function or constant that it takes from another file. Here the stamp is the digest of the whole package.
Where no cache folder can be written, kernels are compiled anew in each process.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def kernel(function: Kernel) -> Kernel:
    """Compile a function for float64 and int64 arrays at its first call, once per machine."""
    try:
        compiled = numba.njit(cache=True)(function)
    except RuntimeError:
        return numba.njit(function)
    cache_file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if cache_file is not None:
        cache_file._source_stamp = _DIGEST
    return compiled


def _digest_sources() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


_DIGEST = _digest_sources()
