"""Merging stored nodes at a wider delta against loops, and against Algorithm 2 written at that delta."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emtc_core.config.memory import EmbedConfig, MemoryConfig
from emtc_core.embedder.networks import Embedder
from emtc_core.memory.memory import EpisodicMemory
from emtc_core.memory.remerge import MergedNodes, StoredNodes, remerge
from tests.reference.what_if import Stored, looped_remerge, scaled

GAMMA = 0.9
CONFIGS = st.builds(
    MemoryConfig,
    delta_space=st.sampled_from(["normalized", "raw"]),
    delta_metric=st.sampled_from(["l2", "linf"]),
    shift_on_success=st.booleans(),
    reset_counts_on_shift=st.booleans(),
    shift_keep_max=st.booleans(),
    link_update=st.sampled_from(["always", "on_improve"]),
)
SEEDS = st.integers(0, 10_000)
SIZES = st.integers(1, 40)


def made_up(size: int, seed: int) -> StoredNodes:
    """Episodes of some steps whose nodes lie in few places, nearly or exactly, so that they merge, tie and move."""
    rng = np.random.default_rng(seed)
    episode = np.sort(rng.integers(1, 6, size))
    t = np.concatenate([np.arange(n) for n in np.bincount(episode) if n])
    shuffled = rng.permutation(size)
    jitter = rng.choice([0.0, 0.05, 0.5], size=(size, 1)) * rng.normal(size=(size, 4))
    calls = rng.integers(1, 9, size)
    return StoredNodes(
        embedding=(rng.normal(size=(5, 4))[rng.integers(0, 5, size)] + jitter).astype(np.float32),
        episode=episode[shuffled],
        t=t[shuffled].astype(np.int32),
        h=rng.choice([0.0, 1.0, 2.5, -1.0], size) + rng.integers(0, 3, size),
        xi=rng.random(size) < 0.4,
        n_call=calls,
        n_xi=rng.integers(0, calls + 1),
        next=rng.integers(-1, size, size),
    )


def is_remaining(merged: MergedNodes) -> np.ndarray:
    """Whether each row is a node after the merges."""
    return merged.node == np.arange(len(merged.node))


def as_list(nodes: StoredNodes, config: MemoryConfig) -> list[Stored]:
    columns = (nodes.episode, nodes.t, nodes.h, nodes.xi, nodes.n_call, nodes.n_xi)
    rows = zip(scaled(nodes.embedding, config), *(c.tolist() for c in columns), nodes.next.tolist(), strict=True)
    return [
        Stored(z, e, t, h, xi, calls, wins, None if link < 0 else link) for z, e, t, h, xi, calls, wins, link in rows
    ]


@settings(max_examples=150, deadline=None)
@given(config=CONFIGS, size=SIZES, seed=SEEDS, delta=st.sampled_from([1e-3, 0.05, 0.4, 1.5, 9.0]))
def test_merged_nodes_equal_those_of_the_loops(config: MemoryConfig, size: int, seed: int, delta: float) -> None:
    nodes = made_up(size, seed)
    merged = remerge(nodes, delta=delta, config=config)
    holder, found, ended = looped_remerge(as_list(nodes, config), delta, config)
    assert merged.node.tolist() == holder
    assert merged.nearest.tolist() == found
    for row in np.flatnonzero(is_remaining(merged)):
        assert merged.h[row] == ended[row].h
        assert merged.xi[row] == ended[row].xi
        assert (merged.n_call[row], merged.n_xi[row]) == (ended[row].n_call, ended[row].n_xi)
        assert merged.next[row] == (-1 if ended[row].next is None else ended[row].next)


def _written(delta: float, config: MemoryConfig, seed: int) -> EpisodicMemory:
    embed = EmbedConfig(type="random", dim=4)
    embedder = Embedder(embed, state_dim=6, episode_limit=12, device="cpu", seed=seed)
    config = config.model_copy(update={"delta": delta})
    memory = EpisodicMemory(config, state_dim=6, gamma=GAMMA, embedder=embedder, seed=seed)
    rng = np.random.default_rng(seed)
    for episode in range(1, 7):
        steps = int(rng.integers(1, 12))
        memory.write(
            state=rng.normal(size=(steps + 1, 6)).astype(np.float32),
            reward=rng.choice([0.0, 0.5, 1.0], steps).astype(np.float32),
            won=bool(rng.random() < 0.5),
            episode=episode,
            episode_return=0.0,
        )
    return memory


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(config=CONFIGS.map(lambda c: c.model_copy(update={"delta_space": "raw"})), seed=SEEDS, delta=st.floats(0.1, 3.0))
def test_an_unmerged_memory_merges_as_if_it_was_written_with_the_larger_delta(
    config: MemoryConfig, seed: int, delta: float
) -> None:
    stored = _written(1e-9, config, seed).columns()
    nodes = StoredNodes(
        stored.embedding, stored.episode, stored.t, stored.h, stored.xi,
        stored.n_call.astype(np.int64), stored.n_xi.astype(np.int64), stored.idx_next,
    )  # fmt: skip
    merged = remerge(nodes, delta=delta, config=config)
    written = _written(delta, config, seed).columns()
    kept = np.flatnonzero(is_remaining(merged))  # slots are taken in the order in which nodes are written
    np.testing.assert_array_equal(merged.h[kept], written.h)
    np.testing.assert_array_equal(merged.xi[kept], written.xi)
    np.testing.assert_array_equal(merged.n_call[kept], written.n_call)
    np.testing.assert_array_equal(merged.n_xi[kept], written.n_xi)
    slot_of = np.append(np.searchsorted(kept, np.arange(len(stored.h))), -1)
    np.testing.assert_array_equal(slot_of[merged.next[kept]], written.idx_next)


def _standing(*places: tuple[float, float], desirable: int | None = None) -> StoredNodes:
    """Nodes written one after the other at places in a plane, without links."""
    n = len(places)
    embedding = np.zeros((n, 4), np.float32)
    embedding[:, :2] = places
    calls, xi = np.ones(n, np.int64), np.arange(n) == desirable
    return StoredNodes(
        embedding=embedding,
        episode=np.arange(n),
        t=np.zeros(n, np.int32),
        h=np.zeros(n),
        xi=xi,
        n_call=calls,
        n_xi=calls * xi,
        next=np.full(n, -1),
    )


RAW = MemoryConfig(delta_space="raw")


def test_a_state_whose_node_moved_away_is_a_miss_unless_the_nearest_is_used() -> None:
    nodes = _standing((0.0, 0.0), (-0.6, 0.0), (0.9, 0.0), desirable=2)  # the success moves the node away
    merged = remerge(nodes, delta=0.95, config=RAW)
    assert merged.node.tolist() == [0, 0, 0]
    assert merged.nearest.tolist() == [0, -1, 0]
    assert remerge(nodes, delta=0.95, config=RAW, at_any_distance=True).nearest.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("delta", "coordinate", "name"), [(0.0, 1.0, "delta"), (np.nan, 1.0, "delta"), (1.0, np.nan, "embedding")]
)
def test_a_radius_that_is_not_positive_and_an_embedding_that_is_not_finite_are_refused(
    delta: float, coordinate: float, name: str
) -> None:
    nodes = made_up(3, 0)
    nodes.embedding[1, 2] = coordinate
    with pytest.raises(ValueError, match=rf"\b{name}"):
        remerge(nodes, delta=delta, config=MemoryConfig())


def test_a_memory_without_nodes_has_none_after_the_merges() -> None:
    empty = StoredNodes(**{name: values[:0] for name, values in vars(made_up(3, 0)).items()})
    assert len(remerge(empty, delta=1.0, config=MemoryConfig()).node) == 0
