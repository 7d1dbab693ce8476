"""InfoNCE with a hand-written gradient, compiled for the CPU.

`info_nce_gradient` gives the result of `losses.info_nce` with autograd, up to float32 rounding, in one pass over the
pairs. It does not store the [B, B] matrix: the similarities of an anchor stay in the cache from the softmax to the
gradient. `tests/reference` contains a slow loop for comparison.

The functions that `_contrast` calls are inlined, and its compiler flags apply to them. Otherwise the process that
compiles `_contrast` gets another order of the sums than a process that loads it from disk.
"""

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from emtc_core.embedder.losses import NORM_EPS
from emtc_core.exponential import LOG2_E, power_of_two

FASTMATH_FLAGS = {"reassoc", "contract", "nsz", "nnan", "ninf"}
"""For vectorized sums; the caller excludes rows that are not finite."""
GROUP = 4
"""Coordinates, or anchors, per iteration."""
SIGN_SHIFT, OTHER_BITS, MIN_INT32 = np.int32(31), np.int32(2**31 - 1), np.int32(-(2**31))
"""Position of the sign bit, mask of the other bits, and the smallest int32."""
MIN_EXPONENT = np.float32(-60.0)
"""Smaller exponents are clipped: exp(-60) is negligible, and denormal numbers are slow."""
ZERO = np.float32(0)


def info_nce_gradient(
    anchor: NDArray[np.float32],
    candidate: NDArray[np.float32],
    *,
    tau_cl: float,
    symmetric: bool,
    d_anchor: NDArray[np.float32],
    d_candidate: NDArray[np.float32],
) -> tuple[float, float]:
    """Compute InfoNCE (Eq. 6) and its gradient.

    Args:
        anchor: [B, X] [embedding] of one view.
        candidate: [B, X] [embedding] of another view of the same rows.
        tau_cl: Softmax temperature, > 0, dimensionless.
        symmetric: Average the loss with that of exchanged arguments.
        d_anchor: [B, X], overwritten with the gradient of the loss [nats] with respect to `anchor`.
        d_candidate: [B, X], overwritten with the gradient of the loss [nats] with respect to `candidate`.

    Returns:
        Loss [nats], and the fraction of anchors whose most similar candidate is the positive. Of equally similar
        candidates the first counts. Both are NaN, and the gradients 0, if an embedding is not finite.
    """
    d_anchor[:], d_candidate[:] = 0, 0
    if not (np.isfinite(anchor).all() and np.isfinite(candidate).all()):
        return math.nan, math.nan
    unit_anchor, anchor_norm = _normalize(anchor)
    unit_candidate, candidate_norm = _normalize(candidate)
    by_anchor, by_candidate = np.zeros_like(unit_anchor), np.zeros_like(unit_candidate)
    sharpness, weight = np.float32(1 / tau_cl), np.float32(0.5 if symmetric else 1.0)
    loss, accuracy = _contrast(unit_anchor, unit_candidate, sharpness, weight, by_anchor, by_candidate)
    if symmetric:
        back, _ = _contrast(unit_candidate, unit_anchor, sharpness, weight, by_candidate, by_anchor)
        loss = 0.5 * (loss + back)
    _convert_to_unnormalized(by_anchor, unit_anchor, anchor_norm, d_anchor)
    _convert_to_unnormalized(by_candidate, unit_candidate, candidate_norm, d_candidate)
    return loss, accuracy


def _normalize(x_BX: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the unit vectors as columns [X', B], with X' = X rounded up to a multiple of GROUP, and the norms [B]."""
    B, X = x_BX.shape
    norm_B = np.maximum(np.sqrt(np.einsum("bx,bx->b", x_BX, x_BX)), np.float32(NORM_EPS))
    unit_XB = np.zeros((X + -X % GROUP, B), np.float32)
    np.divide(x_BX.T, norm_B, out=unit_XB[:X])
    return unit_XB, norm_B


def _convert_to_unnormalized(
    d_XB: NDArray[np.float32], unit_XB: NDArray[np.float32], norm_B: NDArray[np.float32], out_BX: NDArray[np.float32]
) -> None:
    """Convert the gradient with respect to the unit vectors to that of the original vectors, written to `out_BX`."""
    along_B = np.einsum("xb,xb->b", unit_XB, d_XB)
    across_XB = (d_XB - unit_XB * along_B) / norm_B
    out_BX[:] = across_XB[: out_BX.shape[1]].T


@njit(cache=True, nogil=True, inline="always")
def _find_max(s_B: NDArray[Any]) -> np.float32:  # pragma: no cover  # compiled
    """Return the maximum of finite numbers, by comparing integers, because a maximum of floats is not vectorized."""
    bits_B = s_B.view(np.int32)
    top = MIN_INT32
    for j in range(len(bits_B)):
        top = max(top, bits_B[j] ^ ((bits_B[j] >> SIGN_SHIFT) & OTHER_BITS))
    return np.int32(top ^ ((top >> SIGN_SHIFT) & OTHER_BITS)).view(np.float32)


@njit(cache=True, nogil=True, inline="always")
def _find_first(s_B: NDArray[Any], value: np.float32) -> int:  # pragma: no cover  # compiled
    j = 0
    while s_B[j] < value:
        j += 1
    return j


@njit(cache=True, nogil=True, inline="always")
def _fill_similarities(
    u: NDArray[Any], v: NDArray[Any], i: int, sharpness: np.float32, s: NDArray[Any]
) -> None:  # pragma: no cover  # compiled
    """Fill `s` [B] with the similarities of anchor i to all candidates, divided by the temperature."""
    X, B = u.shape
    s[:] = ZERO
    for k in range(0, X, GROUP):
        a0, a1, a2, a3 = u[k, i] * sharpness, u[k + 1, i] * sharpness, u[k + 2, i] * sharpness, u[k + 3, i] * sharpness
        for j in range(B):
            s[j] += (a0 * v[k, j] + a1 * v[k + 1, j]) + (a2 * v[k + 2, j] + a3 * v[k + 3, j])


@njit(cache=True, nogil=True, inline="always")
def _exponentiate(s: NDArray[Any], top: np.float32) -> np.float32:  # pragma: no cover  # compiled
    """Replace `s` by exp(s - top) and return the sum."""
    total = ZERO
    for j in range(len(s)):
        s[j] = power_of_two(max(s[j] - top, MIN_EXPONENT) * LOG2_E)
        total += s[j]
    return total


@njit(cache=True, nogil=True, inline="always")
def _add_gradients(
    u: NDArray[Any], v: NDArray[Any], du: NDArray[Any], dv: NDArray[Any], i: int, n: int, s: NDArray[Any],
    share: NDArray[Any],
) -> None:  # pragma: no cover  # compiled  # fmt: skip
    """Add the gradients of anchors i to i + n - 1, n <= 4, to `du` and `dv`.

    Four anchors share one pass over `dv`, because reading and writing it is the largest cost.
    """
    s0, s1, s2, s3 = s[0], s[1], s[2], s[3]
    a, d = np.zeros(GROUP, np.float32), np.zeros(GROUP, np.float32)
    for k in range(len(u)):
        for r in range(n):
            a[r] = u[k, i + r] * share[r]
        a0, a1, a2, a3 = a[0], a[1], a[2], a[3]
        d0, d1, d2, d3 = ZERO, ZERO, ZERO, ZERO
        v_B, dv_B = v[k], dv[k]
        for j in range(len(v_B)):
            x = v_B[j]
            d0 += s0[j] * x
            d1 += s1[j] * x
            d2 += s2[j] * x
            d3 += s3[j] * x
            dv_B[j] += (s0[j] * a0 + s1[j] * a1) + (s2[j] * a2 + s3[j] * a3)
        d[0], d[1], d[2], d[3] = d0, d1, d2, d3
        for r in range(n):
            du[k, i + r] += d[r] * share[r]


@njit(cache=True, nogil=True, fastmath=FASTMATH_FLAGS)
def _contrast(
    u: NDArray[Any], v: NDArray[Any], sharpness: np.float32, weight: np.float32, du: NDArray[Any], dv: NDArray[Any]
) -> tuple[float, float]:  # pragma: no cover  # compiled
    """Compute the cross entropy of the softmax over candidates, and the accuracy.

    Adds `weight` times the gradient with respect to the unit vectors `u` and `v` [X', B] to `du` and `dv`.
    """
    B = u.shape[1]
    s, share = np.zeros((GROUP, B), np.float32), np.zeros(GROUP, np.float32)
    loss, hits = 0.0, 0
    for first in range(0, B, GROUP):
        n = min(GROUP, B - first)
        for r in range(n):
            i = first + r
            _fill_similarities(u, v, i, sharpness, s[r])
            positive, top = s[r, i], _find_max(s[r])
            if positive == top and _find_first(s[r], top) == i:
                hits += 1
            total = _exponentiate(s[r], top)
            loss += math.log(total) + top - positive
            s[r, i] -= total
            share[r] = weight * sharpness / (total * np.float32(B))
        s[n:] = ZERO
        _add_gradients(u, v, du, dv, first, n, s, share)
    return loss / B, hits / B
