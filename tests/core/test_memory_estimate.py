"""The memory of a run is estimated before it starts, and decides where its episodes are stored."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from emtc_core.config.resolve import resolve
from emtc_core.devices import choose_replay_device
from emtc_core.envs.base import EnvInfo
from emtc_core.envs.registry import get_env_info
from emtc_core.errors import ConfigError
from emtc_core.memory.nodes import NodeTable
from emtc_core.memory_estimate import (
    count_gpu_bytes,
    count_replay_steps,
    describe_memory,
    estimate_gpu_memory,
    estimate_memory,
)
from emtc_core.replay_buffer import rows as rows_module
from emtc_core.replay_buffer.buffer import ReplayBuffer
from emtc_core.replay_buffer.rows import ReplayRows
from emtc_core.replay_buffer.sizes import count_row_bytes
from tests.core.learner_cases import BLOCKS, make_episode
from tests.errors import raises

CPU, GPU = torch.device("cpu"), torch.device("cuda")
GB = 10**9


def estimate_map(map: str, **keys: object) -> dict[str, int]:
    config = resolve(map=map, algo=str(keys.pop("algo", "emtc-qplex")), overrides=keys)
    return estimate_memory(config, get_env_info(config.env))


@pytest.mark.parametrize(
    ("wanted", "free", "size", "other", "share", "home"),
    [
        ("auto", 21, 10, 0, 1.0, GPU),
        ("auto", 21, 11, 0, 1.0, CPU),  # half of it is left free
        ("auto", 70, 6, 2, 1 / 4, GPU),
        ("auto", 70, 6, 2, 1 / 8, CPU),
        ("auto", 70, 4, 5, 1 / 8, GPU),
        ("auto", 70, 4, 7, 1 / 8, CPU),  # 10 GB are planned with
        ("cuda", 11, 11, 0, 1.0, GPU),
        ("cpu", 11, 1, 0, 1.0, CPU),
    ],
)
def test_replay_is_on_the_gpu_if_it_fits_into_the_runs_share(monkeypatch, wanted, free, size, other, share, home):
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (free * GB, 80 * GB))
    sizes = {"size_bytes": size * GB, "other_bytes": other * GB}
    assert choose_replay_device(wanted, device=GPU, gpu_share=share, **sizes) == home


@pytest.mark.parametrize(
    ("device", "size", "other", "share", "related"),
    [(GPU, 12, 0, 1.0, ("train.replay",)), (GPU, 4, 7, 1 / 8, ("train.replay",)), (CPU, 1, 0, 1.0, ())],
)
def test_replay_on_a_gpu_where_it_does_not_fit_is_refused(monkeypatch, device, size, other, share, related):
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: ((70 if other else 11) * GB, 80 * GB))
    sizes = {"size_bytes": size * GB, "other_bytes": other * GB}
    with raises(ConfigError, key="train.replay_device", value="cuda", related=related):
        choose_replay_device("cuda", device=device, gpu_share=share, **sizes)


def test_a_training_on_the_cpu_has_its_replay_there():
    assert choose_replay_device("auto", device=CPU, size_bytes=1) == CPU
    with raises(ConfigError, key="train.replay_device", value="cuda", related=("train.device",)):
        resolve(overrides={"train.replay_device": "cuda", "train.device": "cpu"})


def test_the_line_names_each_purpose_and_what_is_on_the_gpu():
    sizes = {"trainer": 6 * 10**8, "replay": 10 * GB, "batches": 10**7, "nodes": GB}
    (line,) = describe_memory(sizes, gpu_sizes={}, host_bytes=64 * GB)
    assert line == "memory: up to 11.6 GB (trainer 0.6 GB, replay 10.0 GB, batches 10.0 MB, nodes 1.0 GB)"
    gpu_sizes = {"context": 5 * 10**8, "update": GB, "replay": 10 * GB}
    on_host, on_gpu = describe_memory(sizes, gpu_sizes=gpu_sizes, host_bytes=64 * GB)
    assert "replay" not in on_host
    assert on_gpu == "memory of the GPU: up to 11.5 GB (context 0.5 GB, update 1.0 GB, replay 10.0 GB)"
    warning = describe_memory(sizes, gpu_sizes={}, host_bytes=8 * GB)[-1]
    assert warning.startswith("Warning: the run may need up to 11.6 GB of this machine's 8.0 GB.")


def test_a_short_run_and_one_from_fresh_episodes_reserve_little():
    long = estimate_map("corridor")["replay"]
    assert estimate_map("corridor", **{"train.t_max": 2000})["replay"] < 0.02 * long
    assert estimate_map("corridor", algo="mappo")["replay"] < 1_000_000
    assert "nodes" not in estimate_map("corridor", algo="qplex")


def test_the_estimate_of_replay_is_the_size_of_the_buffer():
    config = resolve(map="3m", overrides={"train.t_max": 3000, "train.replay": 40})
    info = get_env_info(config.env)
    assert info is not None
    buffer = ReplayBuffer(40, info, max_steps=count_replay_steps(config, info))
    tensors = (buffer._rows._packed, *map(torch.from_numpy, buffer._rows._host.values()))
    assert estimate_memory(config, info)["replay"] == sum(x.numel() * x.element_size() for x in tensors)
    assert count_row_bytes(info) == sum(x[0].numel() * x.element_size() for x in tensors)


def test_the_gpu_needs_memory_for_its_context_the_longest_update_and_the_states_of_the_memory():
    config = resolve(map="3s_vs_5z", overrides={"memory.capacity": 1000})
    info = get_env_info(config.env)
    assert info is not None
    sizes = estimate_gpu_memory(config, info)
    assert list(sizes) == ["context", "networks", "batches", "update", "states", "refit"]
    assert sizes["states"] == 1000 * (info.state_dim + 1) * 4
    twice = resolve(map="3s_vs_5z", overrides={"memory.capacity": 1000, "train.batch": 2 * config.train.batch})
    assert estimate_gpu_memory(twice, info)["update"] == 2 * sizes["update"]
    assert "states" not in estimate_gpu_memory(resolve(map="3s_vs_5z", algo="qplex"), info)
    assert count_gpu_bytes(config, info) == sum(sizes.values())
    on_gpu = resolve(map="3s_vs_5z", overrides={"memory.capacity": 1000, "train.replay_device": "cuda"})
    assert count_gpu_bytes(on_gpu, info) == sum(sizes.values()) + estimate_memory(config, info)["replay"]
    assert estimate_gpu_memory(config, None) == {"context": sizes["context"]}


def test_the_estimate_of_nodes_is_the_size_of_a_full_table():
    config = resolve(map="3m", overrides={"memory.capacity": 1000})
    info = get_env_info(config.env)
    assert info is not None
    table = NodeTable(capacity=1000, state_dim=info.state_dim, dim=config.embed.dim)
    columns = (table.nodes, table.state, table.x, table.z, table.order)
    assert estimate_memory(config, info)["nodes"] == sum(column.nbytes for column in columns)


@pytest.mark.parametrize("lengths", [[1] * 60, [12] * 60, [1, 12, 7] * 20, [3, 12, 12, 12]])
def test_nothing_is_reserved_beyond_what_was_planned(lengths):
    buffer = ReplayBuffer(25, BLOCKS, max_steps=sum(lengths))
    planned = len(buffer._rows)
    for i, length in enumerate(lengths):
        buffer.add(make_episode(BLOCKS, length, i))
    assert len(buffer._rows) == planned


def test_a_buffer_that_does_not_fit_into_memory_is_refused():
    with raises(ConfigError, key="train.replay"):
        ReplayRows(EnvInfo("test", "huge", 8, 9, 10**6, 10**6, 400, (0.0, 1.0)), 10**9, storage_device=CPU, device=CPU)


class LargestCopy(TorchDispatchMode):
    """Measures the largest tensor that is read or written by index [bytes]."""

    def __init__(self) -> None:
        super().__init__()
        self.size_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if (name := func.overloadpacket.__name__).startswith("index"):
            moved = args[3] if name == "index_copy_" else result
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
    assert 300 < taken.size_bytes <= 1000
    assert 500 < put.size_bytes <= 1000
    for name in state["rows"]:
        assert torch.equal(getattr(restored.take(np.arange(20)), name), getattr(buffer.take(np.arange(20)), name))
