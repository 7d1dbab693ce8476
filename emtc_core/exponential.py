"""An exponential function for compiled kernels, without branches and calls, so that the compiler vectorizes the loop.

The library function `exp`, called once per number, would take most of the time of a softmax or an LSTM gate.
2^y = 2^k · 2^f with k = floor(y + 1/2) and |f| <= 1/2. The factor 2^k is made by writing k into the exponent bits of a
float32; 2^f is a Taylor polynomial of degree 6.
"""

import math

import numpy as np
from numba import njit

LOG2_E = np.float32(1.4426950408889634)
HALF, ONE = np.float32(0.5), np.float32(1)
C1, C2, C3, C4, C5, C6 = (np.float32(math.log(2) ** k / math.factorial(k)) for k in range(1, 7))


@njit(cache=True, nogil=True, inline="always")
def power_of_two(y: np.float32) -> np.float32:  # pragma: no cover  # compiled
    """Compute 2^y with a relative error of 2e-7, for y in [-126, 127]. The calling kernel sets the compiler flags."""
    whole = np.floor(y + HALF)
    f = y - whole
    p = C6 * f + C5
    p = p * f + C4
    p = p * f + C3
    p = p * f + C2
    p = p * f + C1
    p = p * f + ONE
    return p * np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)
