"""Algorithm 1 as sums over rows and coordinates, and its losses for autograd. Slow and obviously right."""

import math

import torch
from torch import Tensor

from emtc_core.embedder.augmentation import augment
from emtc_core.embedder.losses import info_nce, return_loss, state_loss
from emtc_core.embedder.networks import Embedder
from emtc_core.embedder.random_view import BLOCK_ROWS


def looped_reconstruction(
    h: list[float], h_hat: list[float], state: list[list[float]], state_hat: list[list[float]]
) -> tuple[float, float]:
    """(return loss, state loss): mean over rows, sum over coordinates (Eq. 5)."""
    on_return = on_state = 0.0
    for j in range(len(h)):
        on_return += (h[j] - h_hat[j]) ** 2
        for s, s_hat in zip(state[j], state_hat[j], strict=True):
            on_state += (s - s_hat) ** 2
    return on_return / len(h), on_state / len(h)


def looped_info_nce(anchor: list[list[float]], candidate: list[list[float]], tau_cl: float) -> tuple[float, float]:
    """Mean over anchors of -log softmax at the own view, and fraction of anchors most similar to it (Eq. 6)."""

    def similarity(a: list[float], b: list[float]) -> float:
        dot = sum(p * q for p, q in zip(a, b, strict=True))
        return dot / math.sqrt(sum(p * p for p in a)) / math.sqrt(sum(q * q for q in b))

    loss, hits = 0.0, 0
    for i, a in enumerate(anchor):
        scores = [math.exp(similarity(a, c) / tau_cl) for c in candidate]
        loss -= math.log(scores[i] / sum(scores))
        hits += scores[i] == max(scores)
    return loss / len(anchor), hits / len(anchor)


def looped_refit(embedder: Embedder, state: Tensor, t: Tensor, h: Tensor) -> int:
    """Algorithm 1 without augmentation: row by row, with Adam and the clip written out.

    Changes the embedder and returns the number of updates. Fewer nodes than a batch are one update.
    """
    c = embedder.config
    batch, n_updates = min(c.batch, len(h)), max(1, len(h) // c.batch)
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in embedder.parameters]
    for update in range(n_updates):
        rows = range(update * batch, (update + 1) * batch)
        loss = torch.zeros(())
        anchors = []
        for j in rows:
            time = (t[j] / embedder.episode_limit).reshape(1, 1)
            x = embedder.encoder(state[j : j + 1], time)
            s_hat, h_hat = embedder.decoder(x, time)
            loss = loss + ((h[j] - h_hat[0]) ** 2 + c.lambda_rcon * ((state[j] - s_hat[0]) ** 2).sum()) / batch
            anchors.append(x[0] / x[0].norm())
        for i in range(batch):
            scores = torch.stack([(anchors[i] * anchors[k]).sum() / c.tau_cl for k in range(batch)])
            loss = loss - c.lambda_cl * torch.log_softmax(scores, dim=0)[i] / batch
        gradients = torch.autograd.grad(loss, embedder.parameters)
        norm = math.sqrt(sum(float((g**2).sum()) for g in gradients))
        shrink = min(1.0, c.grad_clip / (norm + 1e-6))
        for parameter, gradient, (m, v) in zip(embedder.parameters, gradients, moments, strict=True):
            g = gradient * shrink
            m.mul_(0.9).add_(0.1 * g)
            v.mul_(0.999).add_(0.001 * g**2)
            m_hat, v_hat = m / (1 - 0.9 ** (update + 1)), v / (1 - 0.999 ** (update + 1))
            parameter.data -= c.lr * m_hat / (v_hat.sqrt() + 1e-8)
    return n_updates


def looped_return_unit(refits: list[list[float]]) -> float:
    """Running standard deviation of H after some refits, each with the returns of its nodes (B15)."""
    variance = None
    for h in refits:
        mean = sum(h) / len(h)
        own = sum((value - mean) ** 2 for value in h) / len(h)
        variance = own if variance is None else 0.9 * variance + 0.1 * own
    assert variance is not None
    return math.sqrt(variance)


def compute_losses(
    embedder: Embedder,
    state_BS: Tensor,
    time_B1: Tensor,
    h_B: Tensor,
    *,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Stack total, return, state and InfoNCE losses and the InfoNCE accuracy of one mini-batch (Eq. 4).

    Only the raw view is decoded. The reported parts are means per row whatever `reduction` minimises. The views are
    drawn by the embedder's generator, or by another one of its device.
    """
    config = embedder.config
    x_BX = embedder.encoder(state_BS, time_B1)
    state_hat_BS, h_hat_B = embedder.decoder(x_BX, time_B1)
    on_return = return_loss(h_B, h_hat_B, reduction=config.reduction)
    on_state = state_loss(state_BS, state_hat_BS, reduction=config.reduction)
    total = on_return + config.lambda_rcon * on_state
    contrast, accuracy = _contrast(embedder, state_BS, time_B1, x_BX, generator or embedder.generator)
    if contrast is not None:
        total = total + config.lambda_cl * contrast
    nan = torch.full((), float("nan"), device=total.device)
    rows = len(h_B) if config.reduction == "sum" else 1
    return torch.stack([total, on_return / rows, on_state / rows, nan if contrast is None else contrast, accuracy])


def _contrast(
    embedder: Embedder, state_BS: Tensor, time_B1: Tensor, x_BX: Tensor, generator: torch.Generator
) -> tuple[Tensor | None, Tensor]:
    """InfoNCE between two views of each row (B4); nothing for dCAE or a weight of 0."""
    config = embedder.config
    if config.type != "tcse" or config.lambda_cl == 0:
        return None, torch.full((), float("nan"), device=x_BX.device)
    if config.cl_views == "aug_aug":
        x_BX = embedder.encoder(augment(state_BS, config, generator), time_B1)
    view_BX = embedder.encoder(augment(state_BS, config, generator), time_B1)
    return info_nce(x_BX, view_BX, tau_cl=config.tau_cl, symmetric=config.cl_symmetric)


def looped_view(
    state_BS: Tensor, *, p_mask: float, sigma: float, noise_on_masked: bool, generator: torch.Generator
) -> Tensor:
    """The compiled random view, number by number in Python."""
    key = torch.randint(2**32, (2,), generator=generator).tolist()
    n_rows, width = state_BS.shape
    noise = [0.0] * (n_rows * width + 1)
    for start in range(0, n_rows, BLOCK_ROWS):
        first, end = start * width, min(start + BLOCK_ROWS, n_rows) * width
        n_pairs = (end - first + 1) // 2
        for i in range(n_pairs):
            word_u, word_angle = (_triple32(2 * first + 2 * i + j, key) for j in range(2))
            radius = math.sqrt(-2 * math.log((word_u // 2) / 2**31 + 2.0**-32))
            signed = word_angle - 2**32 if word_angle >= 2**31 else word_angle
            angle = math.pi / 4 * (1 + signed / 2**31)
            noise[first + i] = radius * math.cos(angle) * (-1) ** (word_u % 2)
            if first + n_pairs + i < end:
                noise[first + n_pairs + i] = radius * math.sin(angle) * (-1) ** (word_angle % 2)
    view_BS = torch.empty(n_rows, width)
    for i, value in enumerate(state_BS.flatten().tolist()):
        keep = _triple32(2**31 + i, key) // 2**8 >= round(p_mask * 2**24)
        has_noise = keep or noise_on_masked
        view_BS[i // width, i % width] = value * keep + sigma * noise[i] * has_noise
    return view_BS


def _triple32(index: int, key: list[int]) -> int:
    x = index ^ key[0]
    x = (x ^ x >> 17) * 0xED5AD4BB % 2**32
    x = ((x ^ x >> 11) + key[1]) * 0xAC4C1B51 % 2**32
    x = (x ^ x >> 15) * 0x31848BAB % 2**32
    return x ^ x >> 14
