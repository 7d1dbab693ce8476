"""The compiled trunk against Linear, ReLU and nn.GRU in float64: values, gradients, rows that end early."""

import math
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from emtc_core.learner import recurrence
from emtc_core.learner.recurrence import BLOCK_ROWS, MIN_MATMUL_ROWS, run_linear_gru
from emtc_core.learner.step_rows import StepRows

Layers = tuple[nn.Linear, nn.GRU]


def make_layers(n_in: int, width: int, seed: int = 0) -> Layers:
    torch.manual_seed(seed)
    return nn.Linear(n_in, width), nn.GRU(width, width)


def weights_of(first: nn.Linear, rnn: nn.GRU) -> list[nn.Parameter]:
    return [*first.parameters(), *rnn.all_weights[0]]


def in_float64(layers: Layers) -> Layers:
    """Copy layers; what `run_linear_gru` does with float64 is the library's."""
    first, rnn = layers
    twins = nn.Linear(first.in_features, first.out_features), nn.GRU(rnn.input_size, rnn.hidden_size)
    for twin, layer in zip(twins, layers, strict=True):
        twin.load_state_dict(layer.state_dict())
    return twins[0].double(), twins[1].double()


def run(layers: Layers, inputs: Tensor, lengths: NDArray[np.int64] | None = None) -> Tensor:
    """Run padded sequences [T, M, I] without their padding; None: all are of length T."""
    n_steps, n_rows = inputs.shape[:2]
    rows = StepRows(np.full(n_rows, n_steps) if lengths is None else lengths, n_steps)
    return rows.unpack(run_linear_gru(*layers, rows.pack(inputs), rows))


def answers(layers: Layers, inputs: Tensor, lengths: NDArray[np.int64] | None, weight: Tensor) -> list[Tensor]:
    """Return hidden states where the weight is not 0, then every gradient of their weighted sum."""
    hidden = run(layers, inputs, lengths) * (weight != 0)
    return [hidden.detach(), *torch.autograd.grad((hidden * weight).sum(), weights_of(*layers))]


SIZES = [(1, 1, 3, 5), (9, 6, 4, 7), (40, 17, 21, 16), (2, BLOCK_ROWS + 3, 4, 8), (90, MIN_MATMUL_ROWS, 12, 64)]


@pytest.mark.parametrize(("steps", "rows", "inputs", "width"), SIZES)
@pytest.mark.parametrize("cut", [False, True], ids=["equal lengths", "different lengths"])
def test_values_and_gradients_equal_those_of_the_library(steps: int, rows: int, inputs: int, width: int, cut: bool):
    layers, x = make_layers(inputs, width), torch.randn(steps, rows, inputs)
    lengths = np.random.default_rng(steps).integers(1, steps + 1, rows) if cut else None
    weight = torch.randn(steps, rows, width)
    if lengths is not None:
        weight[torch.from_numpy(np.arange(steps)[:, None] >= lengths)] = 0.0
    expected = answers(in_float64(layers), x.double(), None, weight.double())
    actual = answers(layers, x, lengths, weight)
    for a, b in zip(expected, actual, strict=True):
        assert (b - a).abs().max() <= 1e-5 * a.abs().max()
    with torch.no_grad():
        assert torch.equal(run(layers, x, lengths) * (weight != 0), actual[0])


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=9), padding=st.integers(0, 2))
def test_rows_before_and_after_a_step_equal_those_of_the_padded_array(lengths: list[int], padding: int):
    rows = StepRows(np.array(lengths), max(lengths) + padding)
    padded = torch.arange(1, rows.n_steps * rows.n_sequences + 1).view(rows.n_steps, rows.n_sequences)
    packed, transitions = rows.pack(padded), rows.transitions
    assert len(packed) == sum(lengths)
    for selected, start in ((rows.select_before(packed), 0), (rows.select_after(packed), 1)):
        expected = padded[start : start + rows.n_steps - 1].clone()
        expected[torch.from_numpy(np.arange(rows.n_steps - 1)[:, None] >= transitions.lengths)] = 0
        assert torch.equal(transitions.unpack(selected), expected)


def test_the_same_batch_gives_the_same_bits_on_every_thread():
    layers, x, weight = make_layers(9, 64), torch.randn(60, 24, 9), torch.randn(60, 24, 64)
    lengths = np.random.default_rng(1).integers(1, 61, 24)
    first, several = answers(layers, x, lengths, weight), []
    threads = [threading.Thread(target=lambda: several.append(answers(layers, x, lengths, weight))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(several) == 4
    assert all(torch.equal(a, b) for each in several for a, b in zip(first, each, strict=True))


def test_inputs_that_are_not_finite_give_values_that_are_not_finite():
    layers, x = make_layers(5, 16), torch.randn(4, 3, 5)
    x[1, 2, 0] = torch.nan
    with torch.no_grad():
        hidden = run(layers, x)
    assert hidden[1:, 2].isnan().all()
    assert hidden[:, :2].isfinite().all()


def test_the_sigmoid_equals_the_one_of_python():
    x = np.concatenate([np.linspace(-100, 100, 4001), np.linspace(-2, 2, 4001)]).astype(np.float32)
    expected = [1.0 / (1.0 + math.exp(-float(each))) for each in x]
    np.testing.assert_allclose([recurrence._sigmoid(each) for each in x], expected, rtol=0, atol=3e-7)
