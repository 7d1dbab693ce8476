"""The gradient step of a refit on a GPU: the equations of `fit.GradientStep`, as operations of a CUDA graph.

Before a refit, all data of its mini-batches is copied to the device: the sample, the random views of all rows, the
weights of the embedder and the moments of Adam. A step selects its rows by an index on the device and increments it, so
the host launches the same graph for all steps. After the last step, weights and moments are copied back. The buffers
are separate from the embedder's tensors and are reused by later refits. The graph, too: it is captured in the first
full-size refit of a run.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from emtc_core.config.memory import EmbedConfig
from emtc_core.embedder.augmentation import augment, count_views
from emtc_core.embedder.linear_stack import LinearStack, group_layers, list_parameters, split_vector, view_layers
from emtc_core.embedder.losses import NORM_EPS
from emtc_core.embedder.networks import Embedder
from emtc_core.random_tensors import make_device_generator
from emtc_core.repeated_step import RepeatedStep

VIEW_BYTES = 16 * 2**20
"""Size of the states that are augmented together [bytes]: few launches with little temporary memory."""


def get_device_step(embedder: Embedder, *, rows: int, batches: int) -> "DeviceStep":
    """Return the embedder's step if it fits the sizes, or make a new one.

    Args:
        embedder: The embedder to train.
        rows: Rows of a mini-batch.
        batches: Number of mini-batches in the refit.
    """
    step = embedder.device_step
    if not isinstance(step, DeviceStep) or step.rows != rows or step.batches < batches:
        config = embedder.config
        embedder.device_step = None  # free its memory before the new step allocates
        step = DeviceStep(embedder, rows=rows, batches=max(batches, config.samples // config.batch))
        embedder.device_step = step
    return step


def _copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy tensors in one operation."""
    torch._foreach_copy_(targets, sources)  # pyright: ignore[reportPrivateImportUsage]


@dataclass(frozen=True)
class Weights:
    """All P parameters of an embedder as one vector, with their gradient and the moments of Adam, dimensionless.

    Source: `torch.optim.Adam`.
    """

    values: Tensor  # [P]
    gradient: Tensor  # [P]
    first: Tensor  # [P] first moment
    second: Tensor  # [P] second moment
    updates: Tensor  # scalar float32, number of optimizer steps

    def load(self, embedder: Embedder, parameters: list[nn.Parameter]) -> None:
        """Copy weights and moments from the embedder. Before the first update all moments are 0."""
        _copy_all(split_vector(self.values, parameters), [p.data for p in parameters])
        states = [embedder.optimizer.state.get(p) for p in parameters]
        if not all(states):
            for vector in (self.first, self.second, self.updates):
                vector.zero_()
            return
        for vector, name in ((self.first, "exp_avg"), (self.second, "exp_avg_sq")):
            _copy_all(split_vector(vector, parameters), [state[name] for state in states if state])
        self.updates.copy_(embedder.optimizer.state[parameters[0]]["step"])

    def store(self, embedder: Embedder, parameters: list[nn.Parameter]) -> None:
        """Copy weights and moments to the embedder."""
        _copy_all([p.data for p in parameters], split_vector(self.values, parameters))
        moments = [split_vector(vector, parameters) for vector in (self.first.clone(), self.second.clone())]
        updates = self.updates.repeat(len(parameters)).unbind()
        for parameter, step, first, second in zip(parameters, updates, *moments, strict=True):
            embedder.optimizer.state[parameter] = {"step": step, "exp_avg": first, "exp_avg_sq": second}


class DeviceStep:
    """The gradient step on a GPU with its buffers, shared by all refits of the same size."""

    def __init__(self, embedder: Embedder, *, rows: int, batches: int) -> None:
        """Allocate the buffers.

        Args:
            embedder: Embedder with the sizes, configuration and device; its tensors are not used.
            rows: Rows of a mini-batch.
            batches: Largest number of mini-batches in a refit.
        """
        self.rows, self.batches = rows, batches
        self._config, device, S = embedder.config, embedder.device, embedder.state_dim
        config, self._views = embedder.config, count_views(embedder.config)
        n = sum(parameter.numel() for parameter in embedder.parameters)
        values, gradient, first, second = torch.zeros(4, n, device=device).unbind()
        self._weights = Weights(values, gradient, first, second, torch.zeros((), device=device))
        self._optimizer = _make_adam(self._weights, lr=config.lr)
        encoder, decoder = group_layers(embedder)
        layers = view_layers([*encoder, *decoder], self._weights.values, self._weights.gradient)
        self._encoder = LinearStack(layers[: len(encoder)], self._views * rows)
        self._decoder = LinearStack(layers[len(encoder) :], rows)
        # All rows of a refit: state and time of each view, and the return.
        self._all_inputs = torch.zeros(self._views, rows * batches, S + 1, device=device)
        self._all_returns = torch.zeros(rows * batches, device=device)
        # The current mini-batch; `_next` contains the indices of its rows.
        self._first_rows = torch.arange(rows, device=device)
        self._next = torch.zeros(rows, dtype=torch.int64, device=device)
        self._input = torch.zeros(self._views, rows, S + 1, device=device)
        self._code, self._d_code = torch.zeros(2, rows, config.dim + 1, device=device).unbind()
        per_row = 1.0 if config.reduction == "sum" else 1.0 / rows
        weight = torch.tensor([config.lambda_rcon] * S + [1.0])
        self._weight = (2 * per_row * weight).to(device)
        self._terms_of_squares, self._terms_of_contrast = (x.to(device) for x in _make_terms(config, weight, rows))
        self._sum_5 = torch.zeros(5, dtype=torch.float64, device=device)
        self._repeated = RepeatedStep(self._take, device, name="refit's step")

    def fit(self, embedder: Embedder, state_MS: Tensor, time_M1: Tensor, h_M: Tensor) -> Tensor:
        """Train the embedder for one pass over the rows of whole mini-batches (Algorithm 1).

        Args:
            embedder: Embedder to train, with the sizes of this step.
            state_MS: [M, S] [state features], on the device.
            time_M1: [M, 1], time steps divided by the episode limit, dimensionless.
            h_M: [M], returns divided by the embedder's return unit, dimensionless.

        Returns:
            [5] float64 [loss]: means of total, return, state and InfoNCE loss, and the InfoNCE accuracy. The last two
            are NaN without InfoNCE.
        """
        encoder, decoder = group_layers(embedder)
        steps, parameters = len(h_M) // self.rows, list_parameters([*encoder, *decoder])
        self._load_rows(embedder, state_MS, time_M1, h_M, steps * self.rows)
        self._weights.load(embedder, parameters)
        self._next.copy_(self._first_rows)
        self._sum_5.zero_()
        self._repeated.run(steps)
        self._weights.store(embedder, parameters)
        means_5 = self._sum_5 / steps
        if self._views == 1:
            means_5[3:] = float("nan")
        return means_5

    @torch.no_grad()
    def compute_gradient(self) -> Tensor:
        """Compute the gradient of the total loss of the next mini-batch (Eq. 4).

        Returns:
            [5] float64 [loss]: the terms of `fit`.
        """
        torch.index_select(self._all_inputs, 1, self._next, out=self._input)
        self._code[:, -1] = self._input[0, :, -1]
        x_VBX = self._encoder.forward(self._input.flatten(0, 1)).unflatten(0, (self._views, self.rows))
        self._code[:, :-1] = x_VBX[0]
        residual = self._decoder.forward(self._code)
        residual[:, :-1] -= self._input[0, :, :-1]
        residual[:, -1] -= self._all_returns.index_select(0, self._next)
        terms_5 = residual.square().sum(0, dtype=torch.float64) @ self._terms_of_squares
        torch.mul(residual, self._weight, out=self._decoder.d_output)
        self._decoder.backward(self._d_code)
        d_x_VBX = self._encoder.d_output.unflatten(0, (self._views, self.rows))
        if self._views == 1:
            d_x_VBX[0] = self._d_code[:, :-1]
        else:
            terms_5 = terms_5 + self._contrast(x_VBX[-2:], d_x_VBX[-2:]) @ self._terms_of_contrast
            if self._views == 2:
                d_x_VBX[0] += self._d_code[:, :-1]
            else:
                d_x_VBX[0] = self._d_code[:, :-1]
        self._encoder.backward()
        return terms_5

    @torch.no_grad()
    def _take(self) -> None:
        """Take one gradient step and increment the indices to the next mini-batch."""
        self._sum_5 += self.compute_gradient()
        gradient = self._weights.gradient
        gradient *= (self._config.grad_clip / (torch.linalg.vector_norm(gradient) + 1e-6)).clamp_(max=1.0)
        self._optimizer.step()
        self._next += self.rows

    def _load_rows(self, embedder: Embedder, state_MS: Tensor, time_M1: Tensor, h_M: Tensor, n: int) -> None:
        """Copy n rows of the sample to the buffers and augment them with a generator on the device."""
        generator = make_device_generator(embedder.generator, embedder.device)
        self._all_returns[:n] = h_M[:n]
        self._all_inputs[:, :n, -1:] = time_M1[:n]
        self._all_inputs[0, :n, :-1] = state_MS[:n]
        chunk = max(1, VIEW_BYTES // (4 * embedder.state_dim))
        for view in self._all_inputs[1:]:
            for start in range(0, n, chunk):
                part = slice(start, min(start + chunk, n))
                view[part, :-1] = augment(state_MS[part], self._config, generator)

    def _contrast(self, x_2BX: Tensor, d_2BX: Tensor) -> Tensor:
        """Compute InfoNCE (B4) and its gradient.

        Args:
            x_2BX: [2, B, X] embeddings of the two views.
            d_2BX: [2, B, X], overwritten with lambda_cl times the gradient with respect to `x_2BX`.

        Returns:
            [2] float64: loss [nats] and accuracy.
        """
        config, B = self._config, self.rows
        norm_2B1 = torch.linalg.vector_norm(x_2BX, dim=2, keepdim=True).clamp_min_(NORM_EPS)
        unit_2BX = x_2BX / norm_2B1
        similarity_BB = (unit_2BX[0] @ unit_2BX[1].t()).div_(config.tau_cl)
        by_row_BB = torch.log_softmax(similarity_BB, 1)
        positive_B, d_BB = by_row_BB.diagonal(), by_row_BB.exp()
        if config.cl_symmetric:
            by_column_BB = torch.log_softmax(similarity_BB, 0)
            positive_B = 0.5 * (positive_B + by_column_BB.diagonal())
            d_BB = 0.5 * (d_BB + by_column_BB.exp())
        loss = -positive_B.mean(dtype=torch.float64)
        accuracy = (similarity_BB.argmax(1) == self._first_rows).mean(dtype=torch.float64)
        d_BB.diagonal().sub_(1.0)
        d_unit_2BX = torch.stack([d_BB @ unit_2BX[1], d_BB.t() @ unit_2BX[0]])
        along_2B1 = (d_unit_2BX * unit_2BX).sum(2, keepdim=True)
        scale = config.lambda_cl / (config.tau_cl * B)
        torch.mul(d_unit_2BX.addcmul_(unit_2BX, along_2B1, value=-1.0), scale / norm_2B1, out=d_2BX)
        return torch.stack([loss, accuracy])


def _make_adam(weights: Weights, *, lr: float) -> torch.optim.Adam:
    """Make Adam with the settings of `Embedder` for one vector, with a state that a CUDA graph can update in place."""
    parameter = nn.Parameter(weights.values)
    parameter.grad = weights.gradient
    adam = torch.optim.Adam([parameter], lr=lr, fused=True, capturable=weights.values.device.type == "cuda")
    adam.state[parameter] = {"step": weights.updates, "exp_avg": weights.first, "exp_avg_sq": weights.second}
    return adam


def _make_terms(config: EmbedConfig, weight: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Make the matrices that convert sums of squares per column [S+1] and InfoNCE terms [2] to loss terms [5]."""
    columns = len(weight)
    of_squares = torch.zeros(columns, 5, dtype=torch.float64)
    of_squares[:, 0] = weight / (1 if config.reduction == "sum" else rows)
    of_squares[-1, 1] = 1 / rows
    of_squares[:-1, 2] = 1 / rows
    of_contrast = torch.zeros(2, 5, dtype=torch.float64)
    of_contrast[0, 0], of_contrast[0, 3], of_contrast[1, 4] = config.lambda_cl, 1.0, 1.0
    return of_squares, of_contrast
