"""The random numbers of the compiled augmentation: equality with loops, distribution, independence and seeds."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from emtc_core.embedder.random_view import make_view
from tests.reference.embedder import looped_view

SHAPE = (2400, 1251)
"""About 3 · 10^6 numbers, with an odd number of columns."""
MAX_Z = 5.0
"""Largest deviation in standard errors."""
LAGS = (1, 2, 3, 16, 1251, 8 * 1251, 8 * 1251 + 1)
"""Distances of the compared numbers. The noise of a pair is 8 rows apart."""


def make(state: torch.Tensor, *, p_mask: float = 0.0, sigma: float = 1.0, everywhere: bool = True, seed: int = 7):
    generator = torch.Generator().manual_seed(seed)
    return make_view(state, p_mask=p_mask, sigma=sigma, noise_everywhere=everywhere, generator=generator)


@pytest.fixture(scope="module")
def noise() -> NDArray[np.float64]:
    return make(torch.zeros(SHAPE)).numpy().ravel().astype(np.float64)


@pytest.fixture(scope="module")
def kept(noise: NDArray[np.float64]) -> NDArray[np.bool_]:
    """The mask of a view with the same seed as `noise`."""
    return make(torch.ones(SHAPE), p_mask=0.2, sigma=0.0).numpy().ravel() > 0


def z_of_mean(values: NDArray[np.float64], expected: float) -> float:
    """Compute the deviation of the mean in standard errors."""
    return abs(values.mean() - expected) / (values.std() / math.sqrt(len(values)))


@pytest.mark.parametrize(("power", "moment"), [(1, 0), (2, 1), (3, 0), (4, 3)])
def test_the_noise_has_the_moments_of_a_normal_distribution(noise, power: int, moment: int):
    assert z_of_mean(noise**power, moment) < MAX_Z


@pytest.mark.parametrize("bound", [0.01, 1, 3, 4])
def test_the_noise_has_the_tails_of_a_normal_distribution(noise, bound: float):
    expected = math.erfc(bound / math.sqrt(2)) / 2
    for is_beyond in (noise > bound, noise < -bound):
        assert z_of_mean(is_beyond.astype(np.float64), expected) < MAX_Z


@pytest.mark.parametrize("lag", LAGS)
def test_numbers_and_masks_at_different_coordinates_are_independent(noise, kept, lag: int):
    assert z_of_mean(noise[:-lag] * noise[lag:], 0) < MAX_Z
    square = noise**2 - 1
    assert z_of_mean(square[:-lag] * square[lag:], 0) < MAX_Z
    assert z_of_mean((kept[:-lag] & kept[lag:]).astype(np.float64), 0.8**2) < MAX_Z


def test_a_coordinate_is_masked_with_the_configured_probability_and_independently_of_its_noise(kept, noise):
    assert z_of_mean(kept.astype(np.float64), 0.8) < MAX_Z
    for power in (1, 2):
        values = noise**power
        difference = values[kept].mean() - values[~kept].mean()
        error = math.hypot(values[kept].std() / kept.sum() ** 0.5, values[~kept].std() / (~kept).sum() ** 0.5)
        assert abs(difference) < MAX_Z * error, power


def test_the_views_of_different_seeds_are_uncorrelated():
    views = np.stack([make(torch.zeros(400, 100), seed=seed).numpy().ravel() for seed in range(40)])
    correlations = np.corrcoef(views)[np.triu_indices(40, 1)] * math.sqrt(views.shape[1])
    assert np.abs(correlations).max() < MAX_Z
    assert correlations.std() == pytest.approx(1.0, abs=0.1)


def test_a_view_depends_on_the_state_of_the_generator_only():
    generator, state = torch.Generator().manual_seed(3), torch.randn(40, 9)

    def make_next(state: torch.Tensor) -> torch.Tensor:
        return make_view(state, p_mask=0.2, sigma=0.1, noise_everywhere=True, generator=generator)

    saved = generator.get_state()
    first, second = make_next(state), make_next(state)
    assert not torch.equal(first, second)
    generator.set_state(saved)
    assert torch.equal(make_next(state), first)
    strided = torch.cat([state, state], 1)[:, :9]
    assert torch.equal(make_next(strided), second)


@pytest.mark.parametrize("everywhere", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (20, 7), (16, 3), (33, 1)])
def test_a_view_equals_one_that_is_computed_number_by_number(shape: tuple[int, int], everywhere: bool):
    state, generator = torch.randn(shape), torch.Generator().manual_seed(7)
    expected = looped_view(state, p_mask=0.3, sigma=0.5, noise_on_masked=everywhere, generator=generator)
    actual = make(state, p_mask=0.3, sigma=0.5, everywhere=everywhere)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
