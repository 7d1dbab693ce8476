"""Memory, embedder and gate together: recalls of replayed episodes after a reprojection or an eviction."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from emtc_core.config.resolve import resolve
from emtc_core.envs.registry import make_env
from emtc_core.learner.learner import make_learner
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
        assert kept.gate is not None
        buffer.add(
            episode,
            slots=kept.incentive_slots,
            uids=kept.uids,
            generation=kept.generation,
            number=number,
            beta=kept.gate.beta,
        )
    return part, buffer


def filled(*overrides: str, device: torch.device = CPU) -> tuple[EpisodicPart, ReplayBuffer]:
    """Sixteen random episodes in memory and buffer, then one refit."""
    part, buffer = stored(*overrides, device=device)
    assert part.refit(buffer)
    return part, buffer


def test_after_a_reprojection_an_update_searches_once_and_only_states_that_their_node_does_not_have() -> None:
    part, buffer = filled()
    batch = buffer.sample(16, np.random.default_rng(0))
    part.memory.take_stats()
    part.recall(batch, buffer, tau=1.0)
    assert 0 < part.memory.take_stats().queried < int((batch.length + 1).sum()) / 2
    again = buffer.take(batch.indices)
    for row, length in enumerate(batch.length):
        found = part.memory.find(batch.state[row, : length + 1].numpy(), np.arange(length + 1))
        np.testing.assert_array_equal(again.slots[row, : length + 1], found)
    part.memory.take_stats()
    part.recall(again, buffer, tau=1.0)
    assert part.memory.take_stats().queried == 0


@pytest.mark.parametrize("mode", ["stored", "recompute"])
def test_only_a_recomputed_gate_follows_the_temperature_and_it_equals_the_stored_gate_otherwise(mode: str) -> None:
    part, buffer = stored(f"gate.mode={mode}", "memory.store_terminal=false")
    last = buffer.take(np.array([len(buffer) - 1]))  # the memory has not changed since its gate was stored
    same, cooler = (part.recall(last, buffer, tau=tau)[0] for tau in (1.0, 0.5))
    torch.testing.assert_close(same.beta, last.beta)
    assert torch.equal(cooler.beta, last.beta) == (mode == "stored")


def test_the_drift_of_a_gate_is_its_mean_distance_from_the_present_gate() -> None:
    part, buffer = filled()
    batch = buffer.sample(16, np.random.default_rng(0))
    part.recall(batch, buffer, tau=1.0)
    closed, open_ = (
        part.measure_gate(replace(batch, beta=torch.full_like(batch.beta, value)), tau=1.0)["gate/beta_drift"]
        for value in (0.0, 1.0)
    )
    assert 0 < closed < 1
    assert closed + open_ == pytest.approx(1.0)  # the distances to both ends of [0, 1]


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
def test_an_update_replaces_an_evicted_node_only_if_it_searches(rule: str) -> None:
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


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_without_a_gate_no_beta_is_recorded(enabled: str) -> None:
    part, _ = stored(f"gate.enabled={enabled}")
    statistics, snapshot = part.gate_stats(1000, tau=1.0), part.snapshot(1000, tau=1.0, states=10)
    assert statistics is not None
    assert snapshot is not None
    assert np.isfinite(statistics.delta_mem_mean)
    assert np.isfinite([statistics.beta_mean, *statistics.beta_quantiles]).all() == (enabled == "true")
    assert np.isfinite(snapshot.beta).any() == (enabled == "true")
