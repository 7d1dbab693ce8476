"""Memory, embedder and gate joined: what a replayed episode recalls after the memory was embedded anew."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from emtc_core.config.resolve import resolve
from emtc_core.envs.registry import make_env
from emtc_core.learner.learner import make_learner
from emtc_core.metrics import METRICS
from emtc_core.replay_buffer.buffer import ReplayBuffer
from emtc_core.rollout.collector import Collector
from emtc_core.training.episodic import EpisodicPart

CPU = torch.device("cpu")


def stored(*overrides: str, device: torch.device = CPU) -> tuple[EpisodicPart, ReplayBuffer]:
    """Sixteen random episodes in memory and buffer."""
    config = resolve(overrides=["memory.delta=0.1", "embed.min_entries=64", "embed.batch=64", *overrides])
    env = make_env(config.env, n_envs=8)
    part, buffer = EpisodicPart(config, env.info, device=device), ReplayBuffer(100, env.info, device=device)
    learner = make_learner(config, env.info, device=CPU, seed=1)
    collector = Collector(env, reward_scale=1.0, seed=1, stream="test")
    episodes = [e for r in range(2) for e in collector.collect(learner, epsilon=1.0, round=(r,))]
    for number, episode in enumerate(episodes, start=1):
        kept = part.write_and_gate(episode, number=number, tau=1.0)
        buffer.add(episode, slots=kept.incentive_slots, uids=kept.uids, generation=kept.generation, number=number)
    return part, buffer


def filled(*overrides: str, device: torch.device = CPU) -> tuple[EpisodicPart, ReplayBuffer]:
    """Sixteen random episodes in memory and buffer, then one refit."""
    part, buffer = stored(*overrides, device=device)
    assert part.refit(buffer)
    return part, buffer


def test_a_state_that_stands_in_its_node_is_found_without_a_search() -> None:
    part, buffer = filled()
    batch = buffer.sample(16, np.random.default_rng(0))
    part.memory.take_stats()
    part.recall(batch, buffer, tau=1.0)
    states = int((batch.length + 1).sum())
    assert 0 < part.memory.take_stats().queried < states / 2


def test_what_is_kept_without_a_search_lies_where_a_search_would_find_it() -> None:
    part, buffer = filled()
    batch = buffer.sample(16, np.random.default_rng(0))
    part.recall(batch, buffer, tau=1.0)
    again = buffer.take(batch.indices)
    for row, length in enumerate(batch.length):
        steps = np.arange(length + 1)
        found = part.memory.find(batch.state[row, : length + 1].numpy(), steps)
        np.testing.assert_array_equal(again.slots[row, : length + 1], found)


def test_resolved_episodes_are_not_searched_again_until_the_next_projection() -> None:
    part, buffer = filled()
    batch = buffer.sample(16, np.random.default_rng(0))
    part.recall(batch, buffer, tau=1.0)
    part.memory.take_stats()
    part.recall(buffer.take(batch.indices), buffer, tau=1.0)
    assert part.memory.take_stats().queried == 0


def test_a_recomputed_gate_follows_the_memory() -> None:
    part, buffer = filled("gate.mode=recompute")
    batch = buffer.sample(16, np.random.default_rng(0))
    fresh, _ = part.recall(batch, buffer, tau=1.0)
    tight, _ = part.recall(batch, buffer, tau=0.05)
    real = batch.filled
    assert ((fresh.beta >= 0) & (fresh.beta <= 1)).all()
    assert tight.beta[real].mean() < fresh.beta[real].mean() < 1


def test_the_drift_of_a_gate_is_a_distance_whichever_way_it_went() -> None:
    part, buffer = filled()
    batch = buffer.sample(16, np.random.default_rng(0))
    part.recall(batch, buffer, tau=1.0)
    shut, open_ = (
        part.measure_gate(replace(batch, beta=torch.full_like(batch.beta, value)), tau=1.0)["gate/beta_drift"]
        for value in (0.0, 1.0)
    )
    assert shut > 0
    assert open_ > 0
    assert shut + open_ == pytest.approx(1.0)  # of gates in [0, 1], the distances to both ends make up the range


def find_by_hand(part: EpisodicPart, state: np.ndarray, t: int) -> int:
    """The nearest node within delta in raw embeddings, lowest slot first; -1 without one."""
    x = part.memory.embedder.embed(state[None], np.array([t])).numpy()[0]
    best, best_distance = -1, part.memory.config.delta
    for slot, place in enumerate(part.memory.columns().embedding):
        distance = float(np.sqrt(((place.astype(np.float64) - x.astype(np.float64)) ** 2).sum()))
        if distance < best_distance:
            best, best_distance = slot, distance
    return best


@pytest.mark.parametrize("rule", ["miss", "search"])
def test_an_update_finds_another_node_for_an_evicted_one_only_if_it_searches(rule: str) -> None:
    few = ("memory.capacity=60", "memory.delta_space=raw", "memory.delta=0.6", "embed.type=random")
    part, buffer = stored(*few, f"memory.on_evicted={rule}")
    batch = buffer.sample(16, np.random.default_rng(0))
    nodes = part.memory.columns()
    h = np.zeros(batch.reward.shape)
    hit, is_replaced = np.zeros(h.shape, bool), np.zeros(h.shape, bool)
    n_missing = 0
    for row, length in enumerate(batch.length):
        for step in range(1, length + 1):
            slot, uid = int(batch.slots[row, step]), int(batch.uids[row, step])
            if slot >= 0 and nodes.uid[slot] != uid:
                slot = find_by_hand(part, batch.state[row, step].numpy(), step) if rule == "search" else -1
                is_replaced[row, step - 1] = slot >= 0
                n_missing += slot < 0
            if slot >= 0:
                hit[row, step - 1], h[row, step - 1] = True, nodes.h[slot]
    fresh, inputs = part.recall(batch, buffer, tau=1.0)
    assert inputs is not None
    np.testing.assert_array_equal(inputs.hit.numpy(), hit)
    np.testing.assert_array_equal(inputs.h_next.numpy(), h.astype(np.float32))
    assert n_missing > 0
    assert is_replaced.any() == (rule == "search")
    again = buffer.take(batch.indices)
    np.testing.assert_array_equal(again.slots, fresh.slots)
    np.testing.assert_array_equal(again.uids, fresh.uids)
    kept = part.memory.uids(again.slots[:, 1:]) == again.uids[:, 1:]
    np.testing.assert_array_equal(kept & (again.slots[:, 1:] >= 0), hit)


def test_with_nearest_a_node_at_any_distance_is_a_hit() -> None:
    few = ("memory.capacity=60", "memory.delta=0.000001", "embed.type=random", "memory.on_evicted=search")
    rates = []
    for rule in ("zero", "nearest"):
        part, buffer = stored(*few, f"incentive.on_miss={rule}")
        part.recall(buffer.sample(16, np.random.default_rng(0)), buffer, tau=1.0)
        rates.append(part.metrics()["memory/hit_rate"])
    assert rates[0] < 0.5
    assert rates[1] == 1
    assert "at any distance with incentive.on_miss = nearest" in METRICS["memory/hit_rate"].meaning


def test_without_a_gate_no_beta_is_recorded() -> None:
    for enabled in (True, False):
        part, _ = stored(f"gate.enabled={enabled}".lower())
        statistics, snapshot = part.gate_stats(1000, tau=1.0), part.snapshot(1000, tau=1.0, states=10)
        assert statistics is not None
        assert snapshot is not None
        assert np.isfinite(statistics.delta_mem_mean)
        assert np.isfinite([statistics.beta_mean, *statistics.beta_quantiles]).all() == enabled
        assert np.isfinite(snapshot.beta).any() == enabled
