"""Losses of the semantic embedder: dCAE reconstruction (Eq. 5) and InfoNCE (Eq. 6).

Pure functions of tensors. Stage before: networks; after: fit.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

NORM_EPS = 1e-12  # of `normalize`
Reduction = Literal["mean", "sum"]


def return_loss(h: Tensor, h_hat: Tensor, *, reduction: Reduction) -> Tensor:
    """Squared error of the decoded return, reduced over the batch [return²]."""
    return _reduce((h - h_hat) ** 2, reduction)


def state_loss(state: Tensor, state_hat: Tensor, *, reduction: Reduction) -> Tensor:
    """Squared error of the decoded state, summed over coordinates, reduced over the batch."""
    return _reduce(((state - state_hat) ** 2).sum(dim=1), reduction)


def info_nce(anchor: Tensor, candidate: Tensor, *, tau_cl: float, symmetric: bool = False) -> tuple[Tensor, Tensor]:
    """Tell each anchor's own view from the other rows' views by cosine similarity (Eq. 6).

    Args:
        anchor: [B, X] embeddings.
        candidate: [B, X] embeddings of the other views, row by row; gradients pass through both.
        tau_cl: Softmax temperature, > 0.
        symmetric: Average with the opposite direction.

    Returns:
        (loss in nats, share of anchors whose own view is the most similar candidate).
    """
    similarity_BB = normalize(anchor, dim=1) @ normalize(candidate, dim=1).T / tau_cl
    own_B = torch.arange(len(anchor), device=anchor.device)
    loss = cross_entropy(similarity_BB, own_B)
    if symmetric:
        loss = 0.5 * (loss + cross_entropy(similarity_BB.T, own_B))
    accuracy = (similarity_BB.detach().argmax(dim=1) == own_B).float().mean()
    return loss, accuracy


def _reduce(per_row_B: Tensor, reduction: Reduction) -> Tensor:
    return per_row_B.mean() if reduction == "mean" else per_row_B.sum()
