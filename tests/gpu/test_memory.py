"""The embedder and the search for the nearest node of the memory."""

import numpy as np
import pytest
import torch

from emtc_core.config.resolve import resolve
from emtc_core.embedder.networks import Embedder
from emtc_core.memory.index.base import CKDTreeIndex, Metric
from emtc_core.memory.index.device import BruteIndex
from emtc_core.memory.scaling import measure_scaling
from tests.gpu.cases import CPU, MAP, Sizes, make_episode, map_info

pytestmark = pytest.mark.gpu

SMALL_BATCH = 151
"""Number of states of an episode of 150 steps. They are embedded in one batch when the episode is written."""
EMBEDDING_LIMIT = 1 / 3
"""Maximum distance of two embeddings of a state [delta]."""


def test_embeddings_of_small_and_large_batches_and_of_the_cpu_are_closer_than_delta(
    device: torch.device, sizes: Sizes
) -> None:
    config, info = resolve(map=MAP), map_info()
    rng = np.random.default_rng(0)
    episodes = [make_episode(info, SMALL_BATCH - 1, rng) for _ in range(-(-sizes.states // SMALL_BATCH))]
    state = np.concatenate([episode.state for episode in episodes])[: sizes.states]
    t = np.tile(np.arange(SMALL_BATCH), len(episodes))[: sizes.states]
    on_cpu, on_gpu = (
        Embedder(config.embed, state_dim=info.state_dim, episode_limit=info.episode_limit, device=each, seed=1)
        for each in (CPU, device)
    )
    reference = on_cpu.embed(state, t).numpy()
    large = on_gpu.embed(state, t).cpu().numpy()
    batches = [slice(start, start + SMALL_BATCH) for start in range(0, len(state), SMALL_BATCH)]
    small = torch.cat([on_gpu.embed(state[rows], t[rows]) for rows in batches]).cpu().numpy()
    divisor = measure_scaling(reference).divisor * config.memory.delta
    for actual, expected in ((small, large), (large, reference)):
        assert np.linalg.norm((actual - expected) / divisor, axis=1).max() <= EMBEDDING_LIMIT


@pytest.mark.parametrize("metric", ["l2", "linf"])
def test_the_index_finds_the_slots_of_the_tree_also_among_nodes_at_one_position(
    device: torch.device, sizes: Sizes, metric: Metric
) -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(sizes.nodes, 4))
    tenth, hundredth = sizes.nodes // 10, sizes.nodes // 100
    z[-tenth:] = z[:tenth]  # pairs of nodes at the same position
    z[tenth : tenth + hundredth] = z[-1]  # many nodes at one position
    half = sizes.queries // 2
    q = np.concatenate([z[rng.integers(0, len(z), half)], rng.normal(size=(sizes.queries - half, 4))])
    tree, index = CKDTreeIndex(metric), BruteIndex(metric, device=str(device))
    for each in (tree, index):
        each.build(z)
    assert (index.query(q)[0] != tree.query(q)[0]).sum() == 0
