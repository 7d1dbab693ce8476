"""Memory, embedder and gate joined: what a replayed episode recalls after the memory was embedded anew."""

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


def filled(*overrides: str, device: torch.device = CPU) -> tuple[EpisodicPart, ReplayBuffer]:
    """Sixteen random episodes in memory and buffer, then one refit."""
    config = resolve(overrides=["memory.delta=0.1", "embed.min_entries=64", "embed.batch=64", *overrides])
    env = make_env(config.env, n_envs=8)
    part, buffer = EpisodicPart(config, env.info, device=device), ReplayBuffer(100, env.info, device=device)
    learner = make_learner(config, env.info, device=CPU, seed=1)
    collector = Collector(env, reward_scale=1.0, seed=1, stream="test")
    episodes = [e for r in range(2) for e in collector.collect(learner, epsilon=1.0, round=(r,))]
    for number, episode in enumerate(episodes, start=1):
        kept = part.write_and_gate(episode, number=number, tau=1.0)
        buffer.add(episode, slots=kept.incentive_slots, uids=kept.uids, generation=kept.generation, number=number)
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
