"""What must run on a GPU and what it refuses, on the imitated one; as a program it prints what each case raised.

Every case computes with real values, and its results are compared with those of the CPU, whose trunk, predictors and
refit are kernels of our own: those must be equal to PyTorch's layers and autograd, which a GPU uses.
"""

import gc
import json
import logging
import logging.handlers
import os
import sys
import tempfile
import traceback
import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map

from emtc_core.config.memory import EmbedConfig, MemoryConfig
from emtc_core.config.resolve import resolve
from emtc_core.config.run import RunConfig, list_algos
from emtc_core.devices import fetch
from emtc_core.embedder.fit import fit
from emtc_core.embedder.networks import Embedder
from emtc_core.envs.base import EnvInfo
from emtc_core.envs.registry import get_env_info
from emtc_core.errors import NonFiniteLossError
from emtc_core.learner import captured_update
from emtc_core.learner.diversity_predictors import DevicePass, PredictorRows, Predictors
from emtc_core.learner.learner import Learner, ValueLearner, make_learner
from emtc_core.learner.mappo import MappoLearner
from emtc_core.learner.targets import LearnerStats, make_incentive_inputs
from emtc_core.memory.memory import EpisodicMemory, NodeSample
from emtc_core.random_tensors import make_device_generator, rand
from emtc_core.repeated_step import WARM_UP, RepeatedStep
from emtc_core.replay_buffer.buffer import Batch, ReplayBuffer
from emtc_core.threads import configure_threads
from tests.core.imitated_gpu import ACTIVITY, GPU, imitate, refusing_waits
from tests.core.learner_cases import BLOCKS, hard_episodes, make_config, make_episode, make_memory
from tests.core.test_episodic import filled
from tests.core.test_trainer import make_trainer, short_config

CURIOUS = {"curiosity": {"scale": 0.1}}
RESUMED = ("emu-cds", "mappo")
ACTING = ("qplex", "cds", "dmix", "mappo")
SECTIONS: dict[str, dict[str, Any]] = {
    "emc": {"ec": {"enabled": True}, "incentive": {"enabled": False}, **CURIOUS},
    "emu-qplex": CURIOUS,
    "cds": {"cds": {"beta": 0.1, "policy_mixture": "agents"}},
    "emtc-cds": {"cds": {"beta": 0.1, "policy_mixture": "heads", "replay": "episode_per"}},
    "emu-cds": {"cds": {"beta": 0.1, "policy_mixture": "histories"}, **CURIOUS},
    "dmix": {"train": {"optimizer": "adam", "double_q": False}},
}
LENGTHS = [*[60] * WARM_UP, 60, 20, 70, 9, 33, 65]
"""Lengths of batches: the last six updates are replays, of three graphs. The last three batches are shorter."""
CAPTURED: dict[str, dict[str, Any]] = {
    "qmix": {},
    "qplex, adam": {"train": {"optimizer": "adam"}},
    "emc": {"ec": {"enabled": True}, "incentive": {"enabled": False}, "curiosity": {"scale": 0.0}},
}


def update(learner: Learner, config: RunConfig, *, device: torch.device | str, home: str | None) -> LearnerStats:
    """Make one update from the replay buffer; the host must not wait for a GPU."""
    episodes = hard_episodes(BLOCKS)
    if isinstance(learner, MappoLearner):
        with refusing_waits():
            return learner.update_rollout(episodes, env_step=0)
    memory = make_memory(episodes)
    buffer = ReplayBuffer(len(episodes), BLOCKS, device=device, storage_device=home, priority_alpha=0.6)
    for i, episode in enumerate(episodes):
        buffer.add(episode, beta=np.array(memory.beta[i]))
    with refusing_waits():
        batch = buffer.sample(len(episodes), np.random.default_rng(0))
        shape = batch.ends.shape
        numbers = np.random.default_rng(1).normal(size=(2, *shape))
        recalled = make_incentive_inputs(*numbers, np.ones(shape, np.bool_))
        stats = learner.update(batch, recalled if config.uses_memory else None, env_step=0)
        buffer.set_priorities(batch.indices, fetch(stats.numbers).select(stats.n_scalars))
    return stats


def compare_updates(config: RunConfig, *, resumed: bool = False, home: str | None = None) -> None:
    """Make the same update on the CPU and on the GPU.

    Args:
        config: The algorithm.
        resumed: Go on from the state that a learner left on the CPU.
        home: Where the replay buffer lives, if not on the GPU.
    """
    saved = make_learner(config, BLOCKS, device="cpu", seed=2).get_state() if resumed else None
    results, states = [], []
    for device in ("cpu", GPU):
        learner = make_learner(config, BLOCKS, device=device, seed=1)
        if saved is not None:
            learner.set_state(saved)
        stats = update(learner, config, device=device, home=home if device == GPU else None)
        assert {x.device for x in stats.values()} == {torch.device(device)}, stats
        assert stats["train/loss"].dtype is torch.float32, stats["train/loss"].dtype
        results.append(stats.read())
        states.append(learner.get_state())
    on_cpu, on_gpu = results
    assert on_cpu.keys() == on_gpu.keys()
    for name, wanted in on_cpu.items():
        assert abs(on_gpu[name] - wanted) <= 1e-4 * abs(wanted) + 1e-4, (name, wanted, on_gpu[name])
    compare_weights(*states)


LONG = replace(BLOCKS, episode_limit=70)
"""Sizes of a game whose batches have three padded lengths: 32, 64 and 70."""


def make_updates(
    learner: Learner, config: RunConfig, lengths: list[int], *, first: int = 0, info: EnvInfo = LONG
) -> list[dict[str, float]]:
    """Make one update for each length, on three episodes of which the longest has this length."""
    assert not isinstance(learner, MappoLearner)
    device, told = learner._device, []
    for number, length in enumerate(lengths, start=first):
        buffer = ReplayBuffer(3, info, device=device, max_steps=2 * length + 2)
        rng = np.random.default_rng(number)
        for i, steps in enumerate((length, 1 + length // 2, 1)):
            ended = "truncated" if i == 0 else "terminated"
            buffer.add(make_episode(info, steps, 3 * number + i, ended=ended), beta=rng.random(steps))
        batch = buffer.sample(3, rng)
        shape = batch.ends.shape
        recalled = make_incentive_inputs(*rng.normal(size=(2, *shape)), rng.random(shape) < 0.8)
        with refusing_waits():
            stats = learner.update(batch, recalled if config.uses_memory else None, env_step=0)
        numbers = {"error": stats.episode_error, **{n: torch.stack(pair) for n, pair in stats.ratios.items()}}
        lists = {f"{name} {i}": x for name, xs in numbers.items() for i, x in enumerate(xs.tolist())}
        told.append(stats.read() | lists)
    return told


def capture_updates(config: RunConfig, lengths: list[int], *, replays: int) -> None:
    """Make updates past the capture; results, weights and gradients must be those of the CPU."""
    results, states, gradients = [], [], []
    for device in ("cpu", GPU):
        learner = make_learner(config, LONG, device=device, seed=1)
        assert not isinstance(learner, MappoLearner)
        ACTIVITY.clear()
        results.append(make_updates(learner, config, lengths))
        states.append({name: learner.get_state()[name] for name in ("online", "target")})
        gradients.append([x.grad for x in learner.online.parameters() if x.grad is not None])
    assert ACTIVITY.launches["replay"] == replays, ACTIVITY.launches
    for wanted, found in zip(*results, strict=True):
        assert list(wanted) == list(found)
        np.testing.assert_allclose([*found.values()], [*wanted.values()], rtol=1e-3, atol=1e-4)
    compare_weights(*gradients)
    compare_weights(*states)


def update_after_infinite_values() -> None:
    """Make an update after one of a longer batch whose values are infinite: nothing of it is left in the padding."""
    config, results = make_config("emtc-qplex"), []
    for device in ("cpu", GPU):
        learner = make_learner(config, LONG, device=device, seed=1)
        assert isinstance(learner, ValueLearner)
        make_updates(learner, config, [5] * (WARM_UP + 1))
        saved = learner.get_state()
        buffer, episode = ReplayBuffer(3, LONG, device=device), make_episode(LONG, 20, 0)
        infinite = {name: np.full_like(getattr(episode, name), np.inf) for name in ("obs", "state", "reward")}
        for _ in range(3):
            buffer.add(replace(episode, **infinite), beta=np.full(20, np.inf))
        values = np.full((3, 20), np.inf)
        recalled = make_incentive_inputs(values, values, np.ones((3, 20), np.bool_))
        learner.update(buffer.take(np.arange(3)), recalled, env_step=0)
        learner.set_state(saved)
        results.append(make_updates(learner, config, [5] * (WARM_UP + 2), first=20))
    for wanted, found in zip(*results, strict=True):
        assert np.isfinite([*found.values()]).all()
        np.testing.assert_allclose([*found.values()], [*wanted.values()], rtol=1e-3, atol=1e-4)


def grow_captured_updates() -> None:
    """Make updates of a game without a real limit: the fixed tensors grow with the batches, and results are equal."""
    info, config, results = replace(BLOCKS, episode_limit=1_000_000), make_config("qmix"), []
    for device in ("cpu", GPU):
        learner = make_learner(config, info, device=device, seed=1)
        assert isinstance(learner, ValueLearner)
        short, long = (partial(make_updates, learner, config, lengths, info=info) for lengths in ([5, 40], [90, 5]))
        with patch.object(captured_update, "FIRST_CAPACITY", 64):
            results.append(short())
            if learner._captured is not None:
                assert learner._captured._inputs is not None
                assert learner._captured._inputs.capacity == 64
            results[-1] += long()
        if learner._captured is not None:
            assert learner._captured._inputs.capacity == 128
    for wanted, found in zip(*results, strict=True):
        np.testing.assert_allclose([*found.values()], [*wanted.values()], rtol=1e-3, atol=1e-4)


def restore_captured_updates() -> None:
    """Restore an earlier state after a capture, and a state of the CPU; later updates repeat the earlier ones."""
    config, lengths = make_config("emtc-qplex"), [5] * (WARM_UP + 3)
    learner = make_learner(config, LONG, device=GPU, seed=1)
    make_updates(learner, config, lengths)
    saved = learner.get_state()
    wanted = make_updates(learner, config, lengths, first=20)
    after = learner.get_state()
    learner.set_state(saved)
    ACTIVITY.clear()
    assert make_updates(learner, config, lengths, first=20) == wanted
    assert ACTIVITY.launches["replay"] == 3
    compare_weights(after, learner.get_state())
    on_cpu = make_learner(config, LONG, device="cpu", seed=2)
    on_cpu.set_state(tree_map(lambda x: x.cpu() if isinstance(x, torch.Tensor) else x, saved))
    make_updates(on_cpu, config, lengths[:1])
    learner.set_state(on_cpu.get_state())
    for each in (learner, on_cpu):
        make_updates(each, config, lengths)
    compare_weights(on_cpu.get_state()["online"], learner.get_state()["online"])


def compare_weights(one: Any, other: Any) -> None:
    """Compare nested tensors, whatever device they are on."""
    if isinstance(one, torch.Tensor):
        torch.testing.assert_close(other.cpu(), one.cpu(), rtol=1e-3, atol=1e-4)
    elif isinstance(one, dict | list):
        keys = one if isinstance(one, dict) else range(len(one))
        for key in keys:
            compare_weights(one[key], other[key])


def act(algo: str) -> None:
    """Act on the GPU, greedily and at random, in three games; the actions must be those of the CPU."""
    config = make_config(algo)
    learners = [make_learner(config, BLOCKS, device="cpu", seed=1)]
    learners.append(make_learner(config, BLOCKS, device=GPU, seed=1, act_device=GPU))
    rng = np.random.default_rng(0)
    for learner in learners:
        learner.start_episodes(3)
    for epsilon in (0.0, 0.5, 1.0, 0.0):
        obs, state, avail = draw_step(rng)
        one, other = (
            learner.act(obs, avail, epsilon=epsilon, rng=np.random.default_rng(7)).tolist() for learner in learners
        )
        assert one == other
        values = [learner.q_start(obs, state, avail) for learner in learners]
        np.testing.assert_allclose(*values, rtol=1e-3, atol=1e-5)


def draw_step(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw observations and states of three games; all actions are available."""
    obs = rng.normal(size=(3, BLOCKS.n_agents, BLOCKS.obs_dim)).astype(np.float32)
    state = rng.normal(size=(3, BLOCKS.state_dim)).astype(np.float32)
    return obs, state, np.ones((3, BLOCKS.n_agents, BLOCKS.n_actions), np.bool_)


def play(policy: Any) -> list[list]:
    """Play a few greedy steps; the host must not wait for the GPU in them."""
    rng = np.random.default_rng(0)
    policy.start_episodes(3)
    with refusing_waits():
        steps = [draw_step(rng) for _ in range(5)]
        return [policy.act(obs, avail, epsilon=0.0, rng=rng).tolist() for obs, _, avail in steps]


def act_with_new_weights(algo: str) -> None:
    """Play after each change of the weights: with the current ones, of which the host gets one copy for each change."""
    config = make_config(algo, **SECTIONS.get(algo, {}) | {"train": {"lr": 0.1}})
    learner, on_cpu = (make_learner(config, BLOCKS, device=device, seed=1) for device in (GPU, "cpu"))

    def check() -> list[list]:
        on_cpu.set_state(tree_map(lambda x: x.cpu() if isinstance(x, torch.Tensor) else x, learner.get_state()))
        ACTIVITY.clear()
        actions = play(learner)
        assert ACTIVITY.waits.total() == 1, "one copy of the weights"
        assert ACTIVITY.launches.total() == 2, ACTIVITY.launches
        ACTIVITY.clear()
        with learner.temporary_hidden_state():
            play(learner)
        assert play(on_cpu) == actions
        obs, state, avail = draw_step(np.random.default_rng(3))
        np.testing.assert_array_equal(learner.q_start(obs, state, avail), on_cpu.q_start(obs, state, avail))
        assert not ACTIVITY.waits, "the weights have not changed"
        assert not ACTIVITY.launches
        return actions

    before, saved = check(), learner.get_state()
    update(learner, config, device=GPU, home=None)
    after = check()
    update(learner, config, device=GPU, home=None)
    assert len({str(actions) for actions in (before, after, check())}) == 3, "or this shows nothing"
    learner.set_state(saved)
    assert check() == before


def train() -> None:
    """Train a run on the CPU and on the GPU: every action of every episode must be the same."""
    actions, config = [], short_config("gate.on_miss=nearest", "incentive.on_miss=nearest", steps=500)
    for device in ("cpu", "cuda"):
        with tempfile.TemporaryDirectory() as folder:
            trainer, recorder = make_trainer(config, Path(folder), device=device)
            trainer.run()
        assert trainer._updates > 5
        assert trainer.replay_device.type == device
        if device == "cuda":
            values = {name: value for _, row in recorder.metrics for name, value in row.items()}
            assert values.keys() >= {"embedder/fit_ms", "memory/reproject_ms", "machine/gpu_percent"}
            assert values["time/update_ms"] == round(values["time/update_ms"]), "events are a millisecond apart"
        played = [record.action.tolist() for record in recorder.episodes]
        actions.append(played + [p.action.tolist() for record in recorder.evaluations for p in record.playbacks])
    assert actions[0] == actions[1]


def embed(kind: Literal["tcse", "random"]) -> None:
    """Embed states in several batches."""
    sizes = {"state_dim": 5, "episode_limit": 9, "seed": 1}
    embedders = [Embedder(EmbedConfig(type=kind), **sizes, device=device) for device in ("cpu", GPU)]
    rng = np.random.default_rng(0)
    for rows in (1, 151, 5000):
        state, t = rng.normal(size=(rows, 5)).astype(np.float32), rng.integers(0, 9, rows)
        one, other = (each.embed(state, t) for each in embedders)
        assert other.device == GPU
        torch.testing.assert_close(other.cpu(), one, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(*(each.embed_float64(state, t) for each in embedders), rtol=1e-12)
        np.testing.assert_array_equal(embedders[1].embed_to_host(state, t), one.numpy())


def refit(kind: Literal["tcse", "dcae"]) -> None:
    """Train the embedder on a sample; without views, which are drawn on the device, weights are those of the CPU."""
    rng, rows = np.random.default_rng(0), 300
    sample = NodeSample(
        rng.normal(size=(rows, 5)).astype(np.float32),
        rng.integers(0, 9, rows).astype(np.int32),
        rng.normal(size=rows),
    )
    states = []
    for device in ("cpu", GPU):
        embedder = Embedder(EmbedConfig(type=kind, batch=64), state_dim=5, episode_limit=9, device=device, seed=1)
        before = embedder.get_state()["encoder"]
        stats = fit(embedder, sample)
        assert stats.updates == 4
        with refusing_waits():  # the fit has copied the weights to the host
            on_host = embedder.embed_to_host(sample.state, sample.t)
        np.testing.assert_allclose(on_host, embedder.embed(sample.state, sample.t).cpu(), rtol=1e-4, atol=1e-5)
        assert np.isfinite(stats.loss)
        assert not torch.equal(embedder.get_state()["encoder"]["out.weight"].cpu(), before["out.weight"].cpu())
        states.append({name: embedder.get_state()[name] for name in ("encoder", "decoder")})
    if kind == "dcae":
        compare_weights(*states)


def train_predictors() -> None:
    """Train CDS's predictors in chunks of which the last is short, past the capture; weights are those of the CPU."""
    rng, states = torch.Generator().manual_seed(0), []
    z_id, obs_next = torch.randn(600, 10, generator=rng), torch.randn(600, 5, generator=rng)
    orders = [torch.randperm(n, generator=rng) for n in (600, 200, 600)]
    for device in (torch.device("cpu"), GPU):
        torch.manual_seed(1)
        predictors = Predictors(7, 3, 5).to(device)
        adam = torch.optim.Adam(predictors.parameters(), lr=1e-2, fused=True, capturable=device == GPU)
        rows = PredictorRows(z_id.to(device), obs_next.to(device))
        if device == GPU:
            device_pass = DevicePass(predictors, adam, rows=rows, chunks=4)
            ACTIVITY.clear()
            for order in orders:
                device_pass.run(rows, order.to(device))
            assert ACTIVITY.launches["replay"] == 7 - WARM_UP
        else:
            predictors.fit(rows, iter([c for order in orders for c in order.split(256)]), adam)
        states.append(predictors.state_dict())
    compare_weights(*states)


def repeat_what_cannot_be_captured() -> None:
    """Repeat a step that reads a value of the GPU: it is called each time, and the log has one line."""
    value, read, lines = torch.zeros(3, device=GPU), [], logging.handlers.BufferingHandler(100)

    def step() -> None:
        value.add_(1.0)
        read.append(value.sum().item())

    logger = logging.getLogger("emtc_core.repeated_step")
    logger.addHandler(lines)
    stream = torch.cuda.current_stream()
    RepeatedStep(step, GPU, name="step").run(WARM_UP + 3)
    logger.removeHandler(lines)
    assert torch.cuda.current_stream() is stream
    assert read == [3.0 * (i + 1) for i in range(WARM_UP + 3)]
    assert value.tolist() == [float(WARM_UP + 3)] * 3
    assert len(lines.buffer) == 1


def free_captured_steps() -> None:
    """Drop the captured steps of a refit and of updates: they are freed at once, without the garbage collector."""
    rng = np.random.default_rng(0)
    states, t = rng.normal(size=(64, 5)).astype(np.float32), rng.integers(0, 9, 64).astype(np.int32)
    embedder = Embedder(EmbedConfig(batch=8), state_dim=5, episode_limit=9, device=GPU, seed=1)
    config = make_config("emtc-qplex")
    learner = make_learner(config, LONG, device=GPU, seed=1)
    assert isinstance(learner, ValueLearner)
    assert learner._captured is not None
    gc.collect()
    gc.disable()
    fit(embedder, NodeSample(states, t, rng.normal(size=64)))
    make_updates(learner, config, [5] * (WARM_UP + 2))
    references = [weakref.ref(step) for step in (embedder.device_step, *learner._captured._steps.values())]
    embedder.device_step = None
    learner._captured.discard_graphs()
    assert [reference() for reference in references] == [None] * 4
    gc.enable()


def recall() -> None:
    """Recall a batch: with a search after a re-projection, then without any, where the host must not wait."""
    part, buffer = filled("gate.on_miss=nearest", "incentive.on_miss=nearest", device=GPU)
    assert part.refit(buffer)
    batch = buffer.sample(8, np.random.default_rng(0))
    searched, inputs = part.recall(batch, buffer, tau=1.0)
    assert inputs is not None
    part.memory.take_stats()
    with refusing_waits():
        again = buffer.sample(8, np.random.default_rng(0))
        _, without = part.recall(again, buffer, tau=1.0)
    assert part.memory.take_stats().queried == 0
    assert searched.slots.tolist() == again.slots.tolist()
    compare_weights(vars(inputs), vars(without))


def write_without_waits() -> None:
    """Write and gate an episode and recall a batch after a re-projection: the host must not wait."""
    part, buffer = filled(device=GPU)
    info = get_env_info(resolve().env)
    assert info is not None
    with refusing_waits():
        part.write_and_gate(make_episode(info, 9, 0), number=17, tau=1.0)
        part.memory.take_stats()
        searched, _ = part.recall(buffer.sample(16, np.random.default_rng(0)), buffer, tau=1.0)
    assert part.memory.take_stats().queried > 0
    for row, length in enumerate(searched.length):
        state = searched.state[row, : length + 1]
        assert searched.slots[row, : length + 1].tolist() == part.memory.find(state, np.arange(length + 1)).tolist()


def embed_inaccurately() -> None:
    """Let the GPU embed less accurately than the host: the memory must change to float64."""
    memory = make_gpu_memory(1000)
    write_walk(memory, 0)
    memory.reproject()
    assert memory._table.x.dtype == np.float32
    embed = memory.embedder.embed
    memory.embedder.embed = lambda state, t, *, for_write=False: embed(state, t, for_write=for_write) + 1e-3
    memory.reproject()
    assert memory._table.x.dtype == np.float64


def make_gpu_memory(capacity: int) -> EpisodicMemory:
    """Make a memory of states with 50 numbers."""
    embedder = Embedder(EmbedConfig(), state_dim=50, episode_limit=9, device=GPU, seed=1)
    config = MemoryConfig(capacity=capacity, delta=1e-4)
    return EpisodicMemory(config, state_dim=50, gamma=0.9, embedder=embedder, device="cuda", seed=0)


def write_walk(memory: EpisodicMemory, seed: int, *, seen: int | None = None) -> None:
    """Write an episode of 8 random states; the first one is that of an earlier episode `seen`."""
    rng = np.random.default_rng(seed)
    state = rng.normal(size=(9, 50)).astype(np.float32)
    if seen is not None:
        state[0] = np.random.default_rng(seen).normal(size=(9, 50)).astype(np.float32)[0]
    reward = np.zeros(8, np.float32)
    memory.write(state=state, reward=reward, won=False, episode=seed, episode_return=0.0)


def check_states(memory: EpisodicMemory) -> None:
    """Compare the states on the GPU with those of the table."""
    table, kept = memory._table, memory._device_states
    assert kept is not None
    state, t = kept.update(table)
    assert state.cpu().tolist() == table.state[: table.size].tolist()
    assert t.tolist() == table.nodes["t"][: table.size].tolist()
    assert not kept._changed[: table.size].any()


def send_nodes() -> None:
    """Re-project nodes: only the states that changed are sent, and the embeddings are those of the host's states."""
    memory = make_gpu_memory(100_000)
    for seed in range(40):
        write_walk(memory, seed)
    memory.reproject()
    row = 4 * 50 + 4
    for seed, seen in ((40, None), (41, 5), (42, None)):  # the table does not grow here
        write_walk(memory, seed, seen=seen)
        ACTIVITY.clear()
        memory.reproject()
        changed = 8 if seen is not None else 9
        assert sum(ACTIVITY.sent_bytes) == changed * (row + 8), (seed, ACTIVITY.sent_bytes)
    check_states(memory)
    table = memory._table
    wanted = memory.embedder.embed(table.state[: table.size], table.nodes["t"][: table.size])
    assert table.x[: table.size].tolist() == wanted.cpu().tolist()
    ACTIVITY.clear()
    sample = memory.sample(30)
    assert sum(ACTIVITY.sent_bytes) == 30 * 8
    assert isinstance(sample.state, torch.Tensor)
    rows = [table.state.tolist().index(state) for state in sample.state.tolist()]
    assert table.nodes["t"][rows].tolist() == sample.t.tolist()


def keep_states() -> None:
    """Keep states through growth, evictions and a restored checkpoint."""
    memory = make_gpu_memory(1100)
    for seed in range(150):
        write_walk(memory, seed, seen=seed // 2 if seed % 3 == 0 else None)
        if seed % 40 == 0:
            check_states(memory)
    assert memory._evicted > 100
    other = make_gpu_memory(1100)
    for seed in range(300, 340):
        write_walk(other, seed)
    check_states(other)
    other.set_state(memory.get_state())
    check_states(other)


def end_at_infinite_loss() -> None:
    """Train with an infinite reward in the batch of one update: the training ends, and the batch is saved."""
    with tempfile.TemporaryDirectory() as folder:
        trainer, _ = make_trainer(short_config(steps=1500), Path(folder), device="cuda")
        sample = trainer._replay_buffer.sample

        def sample_infinite(n: int, rng: np.random.Generator) -> Batch:
            batch = sample(n, rng)
            if trainer._updates == 7:
                batch.reward[0, 0] = float("inf")
            return batch

        trainer._replay_buffer.sample = sample_infinite  # type: ignore[method-assign]
        with pytest.raises(NonFiniteLossError, match=r"\b8\b"):
            trainer.run()
        assert 8 <= trainer._updates < 8 + 2 * trainer._config.train.n_envs
        with np.load(Path(folder, "non-finite-update-000000008.npz"), allow_pickle=False) as arrays:
            assert np.isinf(arrays["reward"]).sum() == 1
            assert len(arrays["obs"]) == len(arrays["h_next"]) == 4


def share_gpu() -> None:
    """Make the trainer of one of eight runs that share a GPU. It plans with an eighth of its memory."""
    cuda: Any = torch.cuda
    free_memory = cuda.mem_get_info
    try:
        for total, share, expected in ((80, 1 / 8, "cuda"), (4, 1 / 8, "cpu"), (4, 1, "cuda")):
            cuda.mem_get_info = lambda device=None, size=total * 10**9: (size, size)
            config = short_config(f"train.gpu_share={share}")
            with tempfile.TemporaryDirectory() as folder:
                trainer, _ = make_trainer(config, Path(folder), device="cuda")
            assert trainer.replay_device.type == expected
            assert ("replay" in trainer.gpu_sizes) == (expected == "cuda")
            assert trainer.gpu_sizes["update"] > 0
    finally:
        cuda.mem_get_info = free_memory


def check_precision(wanted: Literal["highest", "high"]) -> None:
    """Make a learner on the GPU; every kind of float32 product must have the precision that the run asks for."""
    backends = torch.backends
    kinds = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)
    for kind in kinds:
        kind.fp32_precision = "tf32" if wanted == "highest" else "ieee"
    make_learner(make_config("qplex", train={"matmul_precision": wanted}), BLOCKS, device=GPU, seed=1)
    assert {kind.fp32_precision for kind in kinds} == {"ieee" if wanted == "highest" else "tf32"}


def check_determinism() -> None:
    """Make learners on the GPU; each must leave the process as deterministic as its run asks."""
    for name in ("CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE"):
        os.environ.pop(name, None)
    for wanted in (False, True, False):
        torch.backends.cudnn.benchmark = True
        make_learner(make_config("qplex", train={"deterministic": wanted}), BLOCKS, device=GPU, seed=1)
        found = (torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic)
        assert found == (wanted, wanted)
        assert torch.backends.cudnn.benchmark is False
        assert not wanted or os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
        assert not wanted or os.environ["CUBLASLT_WORKSPACE_SIZE"] == "128", "16 KiB * 8, or PyTorch warns"


def list_cases() -> dict[str, Callable[[], object]]:
    """List by name what must run on the GPU."""
    cases: dict[str, Callable[[], object]] = {
        "determinism": check_determinism,
        "recall": recall,
        "writing": write_without_waits,
        "inaccurate embeddings": embed_inaccurately,
        "eight runs on one GPU": share_gpu,
        "changed nodes": send_nodes,
        "all nodes": keep_states,
        "predictors": train_predictors,
        "repeated step that cannot be captured": repeat_what_cannot_be_captured,
        "freed steps": free_captured_steps,
        "captured updates, three lengths": partial(capture_updates, make_config("emtc-qplex"), LENGTHS, replays=6),
        "captured updates, restored": restore_captured_updates,
        "captured updates, infinite values before": update_after_infinite_values,
        "captured updates, a game without a real limit": grow_captured_updates,
        "a loss that is not finite": end_at_infinite_loss,
        "training": train,
        "replay in host memory": partial(compare_updates, make_config("emtc-qplex"), home="cpu"),
        "a generator of the GPU": lambda: torch.rand(
            3, device=GPU, generator=make_device_generator(torch.Generator(), GPU)
        ),
        "numbers of the host": lambda: rand((3,), generator=torch.Generator(), device=GPU) + torch.tensor(1.0),
    }
    for name, sections in CAPTURED.items():
        config = make_config(name.partition(",")[0], **sections)
        cases[f"captured updates, {name}"] = partial(capture_updates, config, [5] * (WARM_UP + 2), replays=2)
    for algo in ACTING:
        cases[f"acting on the GPU, {algo}"] = partial(act, algo)
        cases[f"acting with new weights, {algo}"] = partial(act_with_new_weights, algo)
    cases |= {f"{precision} precision": partial(check_precision, precision) for precision in ("highest", "high")}
    cases |= {f"embedding, {kind}": partial(embed, kind) for kind in ("tcse", "random")}
    cases |= {f"refit, {kind}": partial(refit, kind) for kind in ("tcse", "dcae")}
    for algo in list_algos():
        config = make_config(algo, **SECTIONS.get(algo, {}))
        cases[algo] = partial(compare_updates, config)
        if algo in RESUMED:
            cases[f"{algo}, resumed"] = partial(compare_updates, config, resumed=True)
    return cases


def list_refused() -> dict[str, Callable[[], object]]:
    """List what the imitation must refuse, so that a case that passes says something."""
    zeros, host = torch.zeros, torch.Generator()

    def capture(work: Callable[[], object]) -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            work()

    def gru(shape: tuple[int, ...], **options: Any) -> object:
        return torch.nn.GRU(4, 4, device=GPU, **options)(zeros(shape, device=GPU, **options))

    return {
        "reading a value": lambda: zeros(3, device=GPU).sum().item(),
        "choosing by a mask": lambda: zeros(3, device=GPU)[zeros(3, device=GPU) > 0],
        "copying to the host": lambda: zeros(3, device=GPU).cpu(),
        "copying from unpinned memory": lambda: zeros(3).to(GPU),
        "mixing devices": lambda: zeros(3, device=GPU) + zeros(3),
        "an array of the GPU": lambda: np.asarray(zeros(3, device=GPU)),
        "an index of the GPU on the host": lambda: zeros(3)[zeros(3, device=GPU, dtype=torch.int64)],
        "a host's generator on the GPU": lambda: torch.rand(3, device=GPU, generator=host),
        "a GPU's generator on the host": lambda: torch.rand(3, generator=make_device_generator(host, GPU)),
        "reading a value in a capture": lambda: capture(lambda: zeros(3, device=GPU).sum().item()),
        "copying from the host in a capture": lambda: capture(lambda: zeros(3).to(GPU, non_blocking=True)),
        "random numbers in a capture": lambda: capture(
            lambda: torch.rand(3, device=GPU, generator=torch.Generator(GPU))
        ),
        "a recurrent layer without rows": lambda: gru((0, 2, 4)),
        "a recurrent layer in half precision": lambda: gru((3, 2, 4), dtype=torch.bfloat16),
    }


def _try(case: Callable[[], object]) -> str:
    try:
        case()
    except Exception as exc:
        place = traceback.extract_tb(exc.__traceback__)[-1]
        return f"{type(exc).__name__} in line {place.lineno} of {Path(place.filename).name}: {exc}"
    return ""


def _refuse(case: Callable[[], object]) -> str:
    def strictly() -> object:
        with refusing_waits():
            return case()

    return _try(strictly)


def run_all() -> Mapping[str, str]:
    """Run every case; return what each raised."""
    with imitate():
        cases = {name: _try(case) for name, case in list_cases().items()}
        return cases | {name: _refuse(case) for name, case in list_refused().items()}


def main() -> None:
    warnings.simplefilter("ignore")
    configure_threads()
    json.dump(run_all(), sys.stdout)


if __name__ == "__main__":
    main()
