"""The compiled memory against the looped one after the same operations. `test_memory_options` tests each option."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emtc_core.config.memory import EmbedConfig, MemoryConfig
from emtc_core.embedder.networks import Embedder
from emtc_core.memory.memory import EpisodicMemory
from tests.reference.memory import LoopedMemory

S, T_LIM = 6, 12

CONFIGS = st.builds(
    MemoryConfig,
    capacity=st.sampled_from([2, 7, 25, 1000]),
    delta=st.sampled_from([0.02, 0.4, 1.5]),
    delta_space=st.sampled_from(["normalized", "raw"]),
    delta_metric=st.sampled_from(["l2", "linf"]),
    index=st.sampled_from(["live", "stale_target_update"]),
    norm_interval=st.sampled_from(["rebuild", "200_steps"]),
    store_terminal=st.booleans(),
    terminal_xi=st.sampled_from(["trajectory", "zero"]),
    success=st.sampled_from(["flag", "return_threshold"]),
    success_threshold=st.just(1.0),
    backprop_desirability=st.booleans(),
    init_desirability=st.booleans(),
    shift_on_success=st.booleans(),
    reset_counts_on_shift=st.booleans(),
    shift_keep_max=st.booleans(),
    link_update=st.sampled_from(["always", "on_improve"]),
    evict=st.sampled_from(["lru", "fifo"]),
    lru_touch_on_read=st.booleans(),
)
EMBEDDERS = st.builds(
    EmbedConfig,
    type=st.sampled_from(["tcse", "random"]),
    dim=st.sampled_from([1, 2, 4, 5]),
    hidden=st.just(8),
    time_norm=st.sampled_from(["T_lim", "write_T_lim+1"]),
)
OPERATIONS = st.lists(st.sampled_from(["write", "write", "write", "read", "embed again", "target"]), max_size=14)


def _states(rng: np.random.Generator, n: int, jitter: tuple[float, ...]) -> np.ndarray:
    """States at or near few places, so that they merge, tie and move nodes."""
    places = np.random.default_rng(0).normal(size=(5, S))
    offsets = rng.choice(jitter, size=(n, 1)) * rng.normal(size=(n, S))
    return (places[rng.integers(0, 5, n)] + offsets).astype(np.float32)


class MemoryPair:
    """Both memories on one embedder."""

    def __init__(self, config: MemoryConfig, embed: EmbedConfig, seed: int) -> None:
        self.embedder: Embedder = Embedder(embed, state_dim=S, episode_limit=T_LIM, device="cpu", seed=seed)
        self.fast = EpisodicMemory(config, state_dim=S, gamma=0.9, embedder=self.embedder, seed=seed)
        self.slow = LoopedMemory(config, 0.9, self._embed_one)
        self.rng = np.random.default_rng(seed)
        self.slots = np.zeros(0, np.int64)
        self.states = _states(self.rng, 1, (0.0,))  # of the last episode
        self.episode = 0

    def _embed_one(self, state: np.ndarray, t: int, for_write: bool) -> np.ndarray:
        return self.embedder.embed(state[None], np.array([t]), for_write=for_write).numpy()[0]

    def do(self, operation: str) -> None:
        if operation == "write":
            self._write()
        elif operation == "read":
            slots = np.where(self.rng.random(len(self.slots)) < 0.5, self.slots, -1)
            self.fast.recall(slots)
            self.slow.read(slots.tolist())
        elif operation == "target":
            self.fast.on_target_update()
            self.slow.on_target_update()
        else:
            if self.embedder.is_trainable:
                self.embedder.initialize()
            self.fast.reproject()
            self.slow.reproject()

    def _write(self) -> None:
        T = int(self.rng.integers(1, T_LIM + 1))
        self.states = state = _states(self.rng, T + 1, (0.0, 0.01, 0.3))
        reward = self.rng.choice([0.0, 0.5, -1.0, 1.0], T).astype(np.float32)
        won, self.episode = bool(self.rng.random() < 0.4), self.episode + 1
        episode_return = float(reward.sum())
        self.slots = self.fast.write(
            state=state, reward=reward, won=won, episode=self.episode, episode_return=episode_return
        )
        assert self.slots.tolist() == self.slow.write(state, reward, won, self.episode, episode_return)

    def _compare_lookups(self) -> None:
        """Look up the last episode, and other states at other times."""
        state = np.concatenate([self.states, _states(self.rng, 3, (0.1, 0.3, 3.0))])
        steps = np.append(np.arange(len(self.states)), self.rng.integers(0, T_LIM, 3))
        assert self.fast.find(state, steps).tolist() == [
            self.slow.find(s, t) for s, t in zip(state, steps, strict=True)
        ]
        anywhere = [self.slow.nearest(self._embed_one(s, t, False))[0] for s, t in zip(state, steps, strict=True)]
        assert self.fast.find(state, steps, nearest=True).tolist() == anywhere

    def compare(self) -> None:
        columns, nodes = self.fast.columns(), self.slow.nodes
        assert self.fast.size == len(nodes)
        assert self.fast.desirable_fraction == (np.mean([n.xi for n in nodes]) if nodes else 0.0)
        assert columns.uid.tolist() == [n.uid for n in nodes]
        assert columns.h.tolist() == [n.h for n in nodes]
        assert columns.xi.tolist() == [n.xi for n in nodes]
        assert columns.n_call.tolist() == [n.n_call for n in nodes]
        assert columns.n_xi.tolist() == [n.n_xi for n in nodes]
        assert columns.t.tolist() == [n.t for n in nodes]
        assert columns.episode.tolist() == [n.episode for n in nodes]
        assert columns.reward.tolist() == [n.reward for n in nodes]
        assert columns.idx_next.tolist() == [self.slow.slot_of(n.next) for n in nodes]
        if nodes:
            np.testing.assert_array_equal(self.fast.states(columns.slot), np.array([n.state for n in nodes]))
            np.testing.assert_array_equal(columns.embedding, np.array([n.x for n in nodes]))
        np.testing.assert_array_equal(self.fast.delta_mem(), self.slow.delta_mem())
        mean, divisor = self.slow.scaling
        np.testing.assert_allclose(
            self.fast._positions.scaling.mean, np.broadcast_to(mean, self.embedder.dim), atol=1e-9
        )
        np.testing.assert_allclose(self.fast._positions.scaling.divisor, np.broadcast_to(divisor, self.embedder.dim))
        self._compare_lookups()
        assert self.fast.list_faults() == []


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(config=CONFIGS, embed=EMBEDDERS, operations=OPERATIONS, seed=st.integers(0, 2**20))
def test_the_compiled_memory_equals_the_looped_one_after_any_operations(
    config: MemoryConfig, embed: EmbedConfig, operations: list[str], seed: int
) -> None:
    pair = MemoryPair(config, embed, seed)
    pair.compare()
    for operation in operations:
        pair.do(operation)
        pair.compare()
