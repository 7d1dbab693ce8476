"""Losses of the semantic embedder, and the augmentation for its contrastive loss.

dCAE reconstruction (Eq. 5) and InfoNCE (Eq. 6) are pure functions of tensors. Augmentation masks the state, adds noise
and shifts it cyclically. It does not change the time index.

`info_nce_gradient` gives the result of `info_nce` with autograd, up to float32 rounding. It is compiled for the CPU and
needs one pass over the pairs. It does not store the [B, B] matrix: the similarities of an anchor stay in the cache from
the softmax to the gradient. `tests/reference` contains a slow loop for comparison. Stage before: networks; after: fit.
"""

import math
from typing import Any, Literal

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from emtc_core.config.memory import EmbedConfig
from emtc_core.exponential import LOG2_E, power_of_two

NORM_EPS = 1e-12  # smallest norm, as in `torch.nn.functional.normalize`
Reduction = Literal["mean", "sum"]

FAST = {"reassoc", "contract", "nsz", "nnan", "ninf"}  # for vectorized sums; the caller excludes non-finite rows
GROUP = 4  # coordinates, or anchors, per iteration
SIGN, BELOW_SIGN, LEAST = np.int32(31), np.int32(2**31 - 1), np.int32(-(2**31))  # sign bit, other bits, smallest int32
LOWEST = np.float32(-60.0)  # smaller exponents are clipped: exp(-60) is negligible, and denormal numbers are slow
ZERO = np.float32(0)


def return_loss(h: Tensor, h_hat: Tensor, *, reduction: Reduction) -> Tensor:
    """Compute the squared error of the decoded return (Eq. 5, first term).

    Args:
        h: [B] [return].
        h_hat: [B] decoded [return].
        reduction: Mean or sum over the batch.

    Returns:
        A scalar [return²].
    """
    return _reduce((h - h_hat) ** 2, reduction)


def state_loss(state: Tensor, state_hat: Tensor, *, reduction: Reduction) -> Tensor:
    """Compute the squared error of the decoded state, summed over S (Eq. 5, second term without lambda_rcon).

    Args:
        state: [B, S] [state features].
        state_hat: [B, S] decoded [state features].
        reduction: Mean or sum over the batch.

    Returns:
        A scalar [state features²].
    """
    return _reduce(((state - state_hat) ** 2).sum(dim=1), reduction)


def info_nce(anchor: Tensor, candidate: Tensor, *, tau_cl: float, symmetric: bool = False) -> tuple[Tensor, Tensor]:
    """Compute InfoNCE with cosine similarity (Eq. 6). The positive of anchor i is candidate i.

    Args:
        anchor: [B, X] [embedding] of one view.
        candidate: [B, X] [embedding] of another view of the same rows. Both arguments get gradients.
        tau_cl: Softmax temperature, > 0, dimensionless.
        symmetric: Average the loss with that of exchanged arguments.

    Returns:
        Two scalars: the loss [nats], and the fraction of anchors whose most similar candidate is the positive.
    """
    similarity_BB = normalize(anchor, dim=1) @ normalize(candidate, dim=1).T / tau_cl
    positive_B = torch.arange(len(anchor), device=anchor.device)
    loss = cross_entropy(similarity_BB, positive_B)
    if symmetric:
        loss = 0.5 * (loss + cross_entropy(similarity_BB.T, positive_B))
    accuracy = (similarity_BB.detach().argmax(dim=1) == positive_B).float().mean()
    return loss, accuracy


def _reduce(per_row_B: Tensor, reduction: Reduction) -> Tensor:
    return per_row_B.mean() if reduction == "mean" else per_row_B.sum()


def count_views(config: EmbedConfig) -> int:
    """Return the number of encoded views per row: the raw view, plus one or two augmented ones for InfoNCE (B4)."""
    if config.type != "tcse" or config.lambda_cl == 0:
        return 1
    return 3 if config.cl_views == "aug_aug" else 2


def augment(state: Tensor, config: EmbedConfig, generator: torch.Generator) -> Tensor:
    """Make one random view of each state, m_d s_d + sigma eps_d: first the mask, then the noise (Algorithm 1, B8).

    Args:
        state: [B, S] [state features].
        config: `p_mask`, `sigma`, `noise_on_masked`, `aug_shift`.
        generator: Source of randomness, on the device of `state`.

    Returns:
        [B, S] [state features], a new tensor; equal to `state` if `p_mask`, `sigma` and `aug_shift` are 0.
    """
    view = _shift(state, config.aug_shift, generator) if config.aug_shift else state
    keep = torch.rand(view.shape, device=view.device, generator=generator) >= config.p_mask
    view = view * keep
    if config.sigma == 0:
        return view
    noise = config.sigma * torch.randn(view.shape, device=view.device, generator=generator)
    return view + (noise if config.noise_on_masked else noise * keep)


def _shift(state_BS: Tensor, largest: int, generator: torch.Generator) -> Tensor:
    """Rotate each row's coordinates by a separate random offset in [-largest, largest]."""
    B, S = state_BS.shape
    offset_B = torch.randint(-largest, largest + 1, (B, 1), device=state_BS.device, generator=generator)
    column_S = torch.arange(S, device=state_BS.device)
    return state_BS.gather(1, (column_S - offset_B) % S)


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
    _through_norm(by_anchor, unit_anchor, anchor_norm, d_anchor)
    _through_norm(by_candidate, unit_candidate, candidate_norm, d_candidate)
    return loss, accuracy


def _normalize(x_BX: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the unit vectors as columns [X', B], with X' = X rounded up to a multiple of GROUP, and the norms [B]."""
    B, X = x_BX.shape
    norm_B = np.maximum(np.sqrt(np.einsum("bx,bx->b", x_BX, x_BX)), np.float32(NORM_EPS))
    unit_XB = np.zeros((X + -X % GROUP, B), np.float32)
    np.divide(x_BX.T, norm_B, out=unit_XB[:X])
    return unit_XB, norm_B


def _through_norm(
    d_XB: NDArray[np.float32], unit_XB: NDArray[np.float32], norm_B: NDArray[np.float32], out_BX: NDArray[np.float32]
) -> None:
    """Convert the gradient with respect to the unit vectors to that of the original vectors, written to `out_BX`."""
    along_B = np.einsum("xb,xb->b", unit_XB, d_XB)
    across_XB = (d_XB - unit_XB * along_B) / norm_B
    out_BX[:] = across_XB[: out_BX.shape[1]].T


@njit(cache=True, nogil=True)
def _largest(s_B: NDArray[Any]) -> np.float32:  # pragma: no cover  # compiled
    """Return the maximum of finite numbers, by comparing integers, because a maximum of floats is not vectorized."""
    bits_B = s_B.view(np.int32)
    top = LEAST
    for j in range(len(bits_B)):
        top = max(top, bits_B[j] ^ ((bits_B[j] >> SIGN) & BELOW_SIGN))
    return np.int32(top ^ ((top >> SIGN) & BELOW_SIGN)).view(np.float32)


@njit(cache=True, nogil=True)
def _first_at(s_B: NDArray[Any], value: np.float32) -> int:  # pragma: no cover  # compiled
    j = 0
    while s_B[j] < value:
        j += 1
    return j


@njit(cache=True, nogil=True, fastmath=FAST)
def _compare(
    u: NDArray[Any], v: NDArray[Any], i: int, sharpness: np.float32, s: NDArray[Any]
) -> None:  # pragma: no cover  # compiled
    """Fill `s` [B] with the similarities of anchor i to all candidates, divided by the temperature."""
    X, B = u.shape
    s[:] = ZERO
    for k in range(0, X, GROUP):
        a0, a1, a2, a3 = u[k, i] * sharpness, u[k + 1, i] * sharpness, u[k + 2, i] * sharpness, u[k + 3, i] * sharpness
        for j in range(B):
            s[j] += (a0 * v[k, j] + a1 * v[k + 1, j]) + (a2 * v[k + 2, j] + a3 * v[k + 3, j])


@njit(cache=True, nogil=True, fastmath=FAST)
def _soften(s: NDArray[Any], top: np.float32) -> np.float32:  # pragma: no cover  # compiled
    """Replace `s` by exp(s - top) and return the sum."""
    total = ZERO
    for j in range(len(s)):
        s[j] = power_of_two(max(s[j] - top, LOWEST) * LOG2_E)
        total += s[j]
    return total


@njit(cache=True, nogil=True, fastmath=FAST)
def _pull(
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


@njit(cache=True, nogil=True, fastmath=FAST)
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
            _compare(u, v, i, sharpness, s[r])
            positive, top = s[r, i], _largest(s[r])
            if positive == top and _first_at(s[r], top) == i:
                hits += 1
            total = _soften(s[r], top)
            loss += math.log(total) + top - positive
            s[r, i] -= total
            share[r] = weight * sharpness / (total * np.float32(B))
        s[n:] = ZERO
        _pull(u, v, du, dv, first, n, s, share)
    return loss / B, hits / B
