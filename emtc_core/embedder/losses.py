"""Losses of the semantic embedder: the reconstruction of dCAE (Eq. 5) and InfoNCE (Eq. 6), as functions of tensors."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

NORM_EPS = 1e-12  # smallest norm, as in `torch.nn.functional.normalize`
Reduction = Literal["mean", "sum"]


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
