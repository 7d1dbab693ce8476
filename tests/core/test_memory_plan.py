"""What a run will hold in memory is counted before it starts, and decides where its episodes live."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import psutil
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from app.jobs.launch import estimate
from emtc_core.config.resolve import resolve
from emtc_core.envs.base import EnvInfo
from emtc_core.envs.registry import get_env_info
from emtc_core.errors import ConfigError
from emtc_core.install import memory_bytes
from emtc_core.replay_buffer import rows as rows_module
from emtc_core.replay_buffer.buffer import ReplayBuffer
from emtc_core.replay_buffer.rows import COPY_BYTES, FIELDS, ReplayRows, row_bytes
from emtc_core.training.memory_plan import MemoryPlan, count_networks, count_replay_steps, plan_memory
from emtc_core.training.memory_plan import free_bytes as ask_free
from tests.core.learner_cases import BLOCKS, make_episode
from tests.errors import raises

CPU, GPU = torch.device("cpu"), torch.device("cuda")
GB = 10**9


def plan(
    map: str, device: torch.device, *, free: int = 0, host: int = 64 * GB, algo="emtc-qplex", **keys
) -> MemoryPlan:
    overrides = {name.replace("__", "."): value for name, value in keys.items()}
    config = resolve(map=map, algo=algo, overrides=overrides)
    info = get_env_info(config.env)
    assert info is not None
    return plan_memory(config, info, device=device, networks=5_000_000, free_bytes=free, host_bytes=host)


def shares(sizes: Mapping[str, int]) -> dict[str, float]:
    return {name: round(size / 1e9, 1) for name, size in sizes.items() if size >= 5e7 and name != "memory keys"}


def test_on_a_gpu_with_room_replay_lives_there():
    made = plan("corridor", GPU, free=24 * GB, gate__on_miss="nearest")
    assert made.replay_device == GPU
    assert shares(made.on_device) == {"replay": 10.6, "batch": 0.1, "node states": 1.2, "refit": 0.4}
    assert made.on_device["memory keys"] >= 1_000_000 * 4 * 12  # with faiss, what it keeps to compute in, too
    line = made.describe()[0]
    assert line.startswith("device memory: up to 12.")
    assert "(replay 10.6 GB, batch 0.1 GB, networks 5.0 MB, node states 1.2 GB, refit 0.4 GB, memory keys " in line
    assert made.on_device["copies of a checkpoint"] == COPY_BYTES + 5_000_000 // 3
    assert plan("corridor", GPU).on_device["copies of a checkpoint"] == 5_000_000 // 3, "replay is on the host"


@pytest.mark.parametrize(("free", "home"), [(22 * GB, GPU), (21 * GB, CPU)])
def test_auto_leaves_the_gpu_half_of_what_is_free(free, home):
    made = plan("corridor", GPU, free=free)
    assert made.replay_device == home
    assert ("replay" in made.on_host) == (home == CPU)


def test_whoever_wants_the_gpu_gets_it_as_far_as_it_reaches():
    assert plan("corridor", GPU, free=11 * GB, train__replay_device="cuda").replay_device == GPU
    needed = plan("corridor", GPU, free=11 * GB, train__replay_device="cuda").on_device["replay"]
    with pytest.raises(ConfigError):
        plan("corridor", GPU, free=needed + COPY_BYTES - 1, train__replay_device="cuda")
    with raises(ConfigError, key="train.replay_device", value="cuda", related=("train.replay",)):
        plan("corridor", GPU, free=10 * GB, train__replay_device="cuda")
    assert plan("corridor", GPU, free=80 * GB, train__replay_device="cpu").replay_device == CPU


def test_on_a_cpu_there_is_nothing_to_choose():
    assert plan("corridor", CPU).replay_device == CPU
    assert plan("corridor", CPU).describe() == ["memory: up to 11.9 GB (replay 10.6 GB, networks 5.0 MB, nodes 1.2 GB)"]
    with raises(ConfigError, key="train.replay_device", value="cuda", related=()):
        plan("corridor", CPU, train__replay_device="cuda")
    with raises(ConfigError, key="train.replay_device", value="cuda", related=("train.device",)):
        resolve(overrides={"train.replay_device": "cuda", "train.device": "cpu"})


def test_a_host_that_may_be_too_small_is_warned_of_and_the_advice_fits():
    made = plan("corridor", CPU, host=8 * GB)
    warning = made.describe()[-1]
    assert warning.startswith("Warning: the run may need up to 11.9 GB of this machine's 8.0 GB. Set train.replay=")
    assert sum(plan("corridor", CPU, host=8 * GB, train__replay=made.max_replay).on_host.values()) <= 8 * GB


def test_a_short_run_and_one_from_fresh_episodes_reserve_little():
    assert plan("corridor", CPU, train__t_max=2000).on_host["replay"] < 0.02 * plan("corridor", CPU).on_host["replay"]
    assert plan("corridor", CPU, algo="mappo").on_host["replay"] < 1_000_000
    assert "nodes" not in plan("corridor", CPU, algo="qplex").on_host


def test_what_is_counted_is_what_the_buffer_takes():
    config = resolve(map="3m", overrides={"train.t_max": 3000, "train.replay": 40})
    info = get_env_info(config.env)
    made = plan_memory(config, info, device=CPU, networks=0, free_bytes=0, host_bytes=GB)
    buffer = ReplayBuffer(40, info, max_steps=count_replay_steps(config, info))
    tensors = buffer._rows._fields.values()
    assert made.on_host["replay"] == sum(x.numel() * x.element_size() for x in tensors)
    assert row_bytes(info) == sum(x.shape[1] * x.element_size() for x in tensors)


@pytest.mark.parametrize("lengths", [[1] * 60, [12] * 60, [1, 12, 7] * 20, [3, 12, 12, 12]])
def test_nothing_is_reserved_beyond_what_was_planned(lengths):
    buffer = ReplayBuffer(25, BLOCKS, max_steps=sum(lengths))
    planned = len(buffer._rows)
    for i, length in enumerate(lengths):
        buffer.add(make_episode(BLOCKS, length, i))
    assert len(buffer._rows) == planned


def test_more_than_was_planned_is_kept_too():
    buffer = ReplayBuffer(25, BLOCKS, max_steps=10)
    episodes = [make_episode(BLOCKS, 12, i) for i in range(25)]
    for episode in episodes:
        buffer.add(episode)
    batch = buffer.take(np.arange(25))
    for row, episode in enumerate(episodes):
        np.testing.assert_array_equal(batch.obs[row], episode.obs)


def test_what_is_reserved_costs_nothing_until_it_is_written():
    big = replace(BLOCKS, obs_dim=1000, episode_limit=1000)
    before = psutil.Process().memory_info().rss
    buffer = ReplayBuffer(200, big)
    buffer.add(make_episode(big, 20, 0))
    reserved = len(buffer._rows) * row_bytes(big)
    assert reserved > 2 * GB
    assert psutil.Process().memory_info().rss - before < reserved / 10


def test_memory_that_is_not_there_is_refused_in_a_sentence():
    with raises(ConfigError, key="train.replay"):
        ReplayRows(EnvInfo("test", "huge", 8, 9, 10**6, 10**6, 400, (0.0, 1.0)), 10**9, storage_device=CPU, device=CPU)


def test_batches_reach_the_device_from_rows_that_live_on_the_host():
    nowhere = torch.device("meta")
    buffer = ReplayBuffer(4, BLOCKS, device=nowhere, storage_device="cpu")
    for i in range(4):
        buffer.add(make_episode(BLOCKS, 5, i))
    batch = buffer.take(np.arange(4))
    assert {x.device for x in vars(batch).values() if isinstance(x, torch.Tensor)} == {nowhere}
    assert buffer.read(2).state.tolist() == make_episode(BLOCKS, 5, 2).state.tolist()


def test_a_buffer_saved_from_a_host_is_restored_on_a_device_and_back():
    buffer = ReplayBuffer(4, BLOCKS)
    for i in range(4):
        buffer.add(make_episode(BLOCKS, 5, i))
    saved = buffer.get_state()
    elsewhere = ReplayBuffer(4, BLOCKS, device="meta")
    elsewhere.set_state(saved)
    assert elsewhere.take(np.arange(4)).obs.shape == buffer.take(np.arange(4)).obs.shape
    back = ReplayBuffer(4, BLOCKS)
    back.set_state(saved)
    assert torch.equal(back.take(np.arange(4)).obs, buffer.take(np.arange(4)).obs)


class LargestCopy(TorchDispatchMode):
    """Measures the largest tensor that is read or written by index [bytes]."""

    def __init__(self) -> None:
        super().__init__()
        self.size_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if (name := func.overloadpacket.__name__).startswith("index"):
            moved = args[2] if name == "index_put_" else result
            self.size_bytes = max(self.size_bytes, moved.numel() * moved.element_size())
        return result


def test_a_checkpoint_copies_the_buffer_in_small_parts(monkeypatch):
    monkeypatch.setattr(rows_module, "COPY_BYTES", 1000)
    buffer, restored = ReplayBuffer(20, BLOCKS), ReplayBuffer(20, BLOCKS)
    for i in range(20):
        buffer.add(make_episode(BLOCKS, 12, i))
    with LargestCopy() as taken:
        state = buffer.get_state()
    with LargestCopy() as put:
        restored.set_state(state)
    assert 500 < taken.size_bytes <= 1000
    assert 500 < put.size_bytes <= 1000
    for name in FIELDS:
        assert torch.equal(getattr(restored.take(np.arange(20)), name), getattr(buffer.take(np.arange(20)), name))


def test_networks_count_with_what_their_updates_keep():
    state = {"online": {"w": torch.zeros(10, 10)}, "intrinsic": [{"w": torch.zeros(5, dtype=torch.float64)}], "n": 3}
    assert count_networks(state) == 3 * (400 + 40)


def test_this_machine_has_memory_and_the_cpu_is_not_asked_for_its_own():
    assert memory_bytes() > GB / 2
    assert ask_free(CPU) == 0


@pytest.mark.parametrize("algo", ["emtc-qplex", "qplex", "mappo"])
def test_what_launch_expects_is_what_a_run_says_when_it_starts(algo: str) -> None:
    config = resolve(algo=algo, map="corridor", steps=2_000_000)
    info = get_env_info(config.env)
    assert info is not None
    planned = plan_memory(
        config, info, device=torch.device("cpu"), networks=0, free_bytes=0, host_bytes=10**12
    ).on_host  # fmt: skip
    expected = estimate(None, config).memory_bytes - estimate(None, resolve(algo="mappo")).memory_bytes
    assert expected == pytest.approx(sum(planned.values()), rel=0.02, abs=1e6)
