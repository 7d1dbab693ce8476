"""A restored memory continues bit by bit, and its checkpoint executes nothing."""

from pathlib import Path

import numpy as np
import pytest
import torch

from emtc_core.config.memory import EmbedConfig, MemoryConfig
from emtc_core.embedder.fit import fit
from emtc_core.embedder.networks import Embedder
from emtc_core.errors import CheckpointError
from emtc_core.memory.memory import EpisodicMemory

S, T_LIM = 5, 20


class _Run:
    """Memory and embedder fed from numbered episodes."""

    def __init__(self, seed: int = 1, **options: object) -> None:
        config = MemoryConfig(**{"capacity": 150, "delta": 0.2, **options})  # type: ignore[arg-type]
        embed = EmbedConfig(hidden=16, batch=64)
        self.embedder = Embedder(embed, state_dim=S, episode_limit=T_LIM, device="cpu", seed=seed)
        self.memory = EpisodicMemory(config, state_dim=S, gamma=0.9, embedder=self.embedder, seed=seed)

    def advance(self, first: int, last: int) -> list[list[int]]:
        answers = []
        for episode in range(first, last):
            rng = np.random.default_rng(episode)
            state = (rng.integers(0, 4, (16, S)) + rng.normal(size=(16, S)) * 0.05).astype(np.float32)
            reward = rng.random(15).astype(np.float32)
            won = episode % 4 == 0
            slots = self.memory.write(state=state, reward=reward, won=won, episode=episode, episode_return=1.0)
            self.memory.recall(rng.integers(0, self.memory.size, 10))
            answers += [slots.tolist(), self.memory.find(state[::-1], np.arange(16), nearest=True).tolist()]
            if episode % 7 == 6:
                fit(self.embedder, self.memory.sample(128))
                self.memory.reproject()
            if episode % 5 == 4:
                self.memory.on_target_update()
        return answers


def _assert_same(one: object, two: object) -> None:
    if isinstance(one, dict):
        assert isinstance(two, dict)
        assert one.keys() == two.keys()
        for key in one:
            _assert_same(one[key], two[key])
    elif isinstance(one, torch.Tensor):
        assert isinstance(two, torch.Tensor)
        assert one.dtype == two.dtype
        assert torch.equal(one, two)
    else:
        assert one == two


@pytest.mark.parametrize(("index", "evict"), [("live", "lru"), ("stale_target_update", "fifo")])
def test_a_restored_memory_continues_bit_by_bit(index: str, evict: str, tmp_path: Path) -> None:
    whole = _Run(index=index, evict=evict)
    whole.advance(0, 18)
    torch.save({"m": whole.memory.get_state(), "e": whole.embedder.get_state()}, tmp_path / "state.pt")
    later = whole.advance(18, 40)
    assert whole.memory.take_stats().evicted_total > 0

    state = torch.load(tmp_path / "state.pt", weights_only=True)
    resumed = _Run(seed=1, index=index, evict=evict)
    resumed.embedder.set_state(state["e"])
    resumed.memory.set_state(state["m"])
    assert resumed.memory.list_faults() == []
    assert resumed.advance(18, 40) == later
    resumed.memory.take_stats()
    _assert_same(whole.memory.get_state(), resumed.memory.get_state())
    _assert_same(whole.embedder.get_state(), resumed.embedder.get_state())


def test_a_checkpoint_of_another_shape_is_refused() -> None:
    run = _Run()
    run.advance(0, 10)
    with pytest.raises(CheckpointError, match="nodes"):
        _Run(capacity=3).memory.set_state(run.memory.get_state())


def test_broken_invariants_are_listed() -> None:
    run = _Run()
    run.advance(0, 5)
    assert run.memory.list_faults() == []
    table = run.memory._table
    table.nodes["n_xi"][0] = 100
    table.nodes["uid"][1] = table.nodes["uid"][2]
    table.x[3] += 1
    faults = " ".join(run.memory.list_faults())
    assert "more successful visits than visits" in faults
    assert "share a uid" in faults
    assert "differs from its scaled embedding" in faults
