"""The exponential of the compiled kernels: without a branch or a call, so that loops around it use vector units.

The library's `exp`, called number by number, would take most of a softmax's or a gate's time. 2^y is 2^floor(y + 1/2),
which is written into the bits of a float32's exponent, times a Taylor polynomial of what is left, |f| <= 1/2.
"""

import math

import numpy as np
from numba import njit

LOG2_E = np.float32(1.4426950408889634)
HALF, ONE = np.float32(0.5), np.float32(1)
C1, C2, C3, C4, C5, C6 = (np.float32(math.log(2) ** k / math.factorial(k)) for k in range(1, 7))


@njit(cache=True, nogil=True, inline="always")
def power_of_two(y: np.float32) -> np.float32:  # pragma: no cover  # compiled
    """2^y to 2e-7 of itself, for y between -126 and 127; the flags are those of the kernel that it is inlined in."""
    whole = np.floor(y + HALF)
    f = y - whole
    p = C6 * f + C5
    p = p * f + C4
    p = p * f + C3
    p = p * f + C2
    p = p * f + C1
    p = p * f + ONE
    return p * np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)
