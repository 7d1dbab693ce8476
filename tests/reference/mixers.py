"""Slow readings of the mixers: one row, one agent, one head at a time, from the published equations.

Parameters come as a dictionary of a module's state, by name. Everything is float64 torch, so autograd gives the
gradients that the fast modules must reproduce.
"""

import math

import torch
from torch import Tensor

Params = dict[str, Tensor]


def linear(p: Params, name: str, x: Tensor) -> Tensor:
    return p[f"{name}.weight"] @ x + p[f"{name}.bias"]


def two_layers(p: Params, name: str, x: Tensor) -> Tensor:
    return linear(p, f"{name}.2", torch.relu(linear(p, f"{name}.0", x)))


def vdn(q: list[Tensor]) -> Tensor:
    return sum(q[1:], q[0])


def qmix(p: Params, q: list[Tensor], state: Tensor) -> Tensor:
    n, embed = len(q), len(p["hyper_b1.bias"])
    w1 = two_layers(p, "hyper_w1", state).abs()
    b1 = linear(p, "hyper_b1", state)
    w2 = two_layers(p, "hyper_w2", state).abs()
    total = two_layers(p, "hyper_b2", state)[0]
    for e in range(embed):
        pre = b1[e] + sum(q[i] * w1[i * embed + e] for i in range(n))
        hidden = pre if pre > 0 else torch.exp(pre) - 1.0
        total = total + hidden * w2[e]
    return total


def attention(
    p: Params, q: list[Tensor], own: list[Tensor], state: Tensor, *, weighted: bool, nonlinear: bool
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Return w_i, the shared bias C(s) and sum over heads of the mean squared logit."""
    query, key = p["transform.query"], p["transform.key"]
    heads, _, embed = query.shape
    weights = [torch.tensor(1e-10, dtype=state.dtype) for _ in q]
    penalty = torch.zeros((), dtype=state.dtype)
    head_weight = two_layers(p, "transform.head_weight", state).abs() if weighted else torch.ones(heads)
    for h in range(heads):
        first = state @ p["transform.query_hidden.weight"][h] + p["transform.query_hidden.bias"][h, 0]
        query_h = torch.relu(first) @ query[h]
        logits = []
        for i in range(len(q)):
            u = torch.cat([own[i], q[i].view(1)]) if nonlinear else own[i]
            logits.append(query_h @ (u @ key[h]))
        scaled = [torch.exp(x / math.sqrt(embed)) for x in logits]
        total = sum(scaled[1:], scaled[0])
        for i in range(len(q)):
            weights[i] = weights[i] + head_weight[h] * scaled[i] / total
        penalty = penalty + sum(x**2 for x in logits) / len(q)
    return weights, two_layers(p, "transform.bias", state)[0], penalty


def kernel(p: Params, name: str, k: int, kernels: int, x: Tensor) -> Tensor:
    """Evaluate the k-th of K networks; the first layers are stored stacked."""
    weight, bias = p[f"importance.{name}.first.weight"], p[f"importance.{name}.first.bias"]
    width = len(bias) // kernels
    y = weight[k * width : (k + 1) * width] @ x + bias[k * width : (k + 1) * width]
    layer = 0
    while f"importance.{name}.rest.{layer}.weight" in p:
        rest = f"importance.{name}.rest.{layer}"
        y = torch.relu(y) @ p[f"{rest}.weight"][k] + p[f"{rest}.bias"][k]
        layer += 1
    return y


def importance(p: Params, state: Tensor, action: list[int], *, n_actions: int, kernels: int) -> list[Tensor]:
    onehot = torch.zeros(len(action) * n_actions, dtype=state.dtype)
    for i, a in enumerate(action):
        onehot[i * n_actions + a] = 1.0
    both = torch.cat([state, onehot])
    weights = []
    for i in range(len(action)):
        total = torch.zeros((), dtype=state.dtype)
        for k in range(kernels):
            key = kernel(p, "key", k, kernels, state)[0].abs() + 1e-10
            agents = torch.sigmoid(kernel(p, "agents", k, kernels, state)[i])
            total = total + key * agents * torch.sigmoid(kernel(p, "action", k, kernels, both)[i])
        weights.append(total)
    return weights


def qplex(
    p: Params,
    q: list[Tensor],
    q_max: list[Tensor],
    action: list[int],
    state: Tensor,
    own: list[Tensor],
    *,
    config,
    n_actions: int,
) -> tuple[Tensor, Tensor]:
    """Return Q_tot and the weighted attention penalty of one row."""
    n = len(q)
    zero = torch.zeros((), dtype=state.dtype)
    if config.mixer == "dmaq":
        if config.weighted_head:
            w = [x.abs() + 1e-10 for x in two_layers(p, "transform.weight", state)]
            c = list(two_layers(p, "transform.bias", state))
        else:
            w, c = [zero + 1.0] * n, [zero] * n
        penalty = zero
    else:
        w, bias, penalty = attention(p, q, own, state, weighted=config.weighted_head, nonlinear=config.nonlinear)
        c = [bias / n] * n
    lam = importance(p, state, action, n_actions=n_actions, kernels=config.num_kernel)
    v_tot = sum(w[i] * q[i] + c[i] for i in range(n))
    a_tot = sum((lam[i] - 1.0) * (w[i] * q[i] + c[i] - (w[i] * q_max[i] + c[i])).detach() for i in range(n))
    return v_tot + a_tot, config.attend_reg * penalty
