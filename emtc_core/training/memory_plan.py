"""Estimate of the memory that a run needs, before it starts, and the choice of the replay buffer's device.

The sizes are upper bounds from the configuration: a full replay buffer with episodes of maximum length, and a full
episodic memory. A run with shorter episodes needs less. Temporary data of an update (activations, gradients of inputs)
are not included. On a GPU, CUDA graphs keep the memory of this data between updates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from emtc_core.config.run import RunConfig
from emtc_core.embedder.device_step import count_step_bytes
from emtc_core.envs.base import EnvInfo
from emtc_core.errors import ConfigError, Fault
from emtc_core.learner.diversity_predictors import count_pass_bytes
from emtc_core.memory.device_states import count_state_bytes
from emtc_core.memory.index.incremental import SCRATCH_BYTES, can_use_faiss
from emtc_core.memory.nodes import NODE
from emtc_core.replay_buffer.rows import COPY_BYTES, PAGE_ROWS, count_max_pages, row_bytes

REPLAY_SHARE = 0.5
"""Maximum fraction of the GPU's free memory for the replay buffer with `train.replay_device=auto`."""
UPDATE_COPIES = 2
"""Extra copies of the weights that training needs: gradient and moments."""


@dataclass(frozen=True)
class MemoryPlan:
    """Estimated memory by purpose, on device and host [bytes]."""

    device: torch.device
    replay_device: torch.device
    on_device: Mapping[str, int]  # empty if the run trains on the CPU
    on_host: Mapping[str, int]
    host_bytes: int
    max_replay: int
    """Maximum number of replay episodes for the host's memory."""

    def describe(self) -> list[str]:
        """Return one line for the device and one for the host, and a warning if the host may be too small."""
        lines = [_format_sizes("device memory", self.on_device)] if self.on_device else []
        lines.append(_format_sizes("memory", self.on_host))
        if (total := sum(self.on_host.values())) > self.host_bytes:
            lines.append(
                f"Warning: the run may need up to {_format_size(total)} of this machine's "
                f"{_format_size(self.host_bytes)}. "
                f"Set train.replay={self.max_replay} or a smaller memory.capacity if its episodes are long."
            )
        return lines


def count_replay_steps(config: RunConfig, info: EnvInfo) -> int:
    """Return the maximum number of env steps in the replay buffer; 0 for an on-policy learner."""
    return 0 if config.backbone == "mappo" else config.train.t_max + info.episode_limit


def plan_memory(
    config: RunConfig,
    info: EnvInfo,
    *,
    device: torch.device,
    networks: int,
    free_bytes: int,
    host_bytes: int,
) -> MemoryPlan:
    """Choose the device of the replay buffer, and estimate the memory of a run.

    Args:
        config: Settings of the run.
        info: Sizes of one step.
        device: Device of the learner.
        networks: Size of all weights and optimizer states [bytes].
        free_bytes: Free memory of the device [bytes]; ignored on the CPU.
        host_bytes: Memory of this machine [bytes].

    Raises:
        ConfigError: If `train.replay_device=cuda` is not possible.
    """
    train, steps = config.train, count_replay_steps(config, info)
    replay = (1 + count_max_pages(train.replay, info, steps)) * PAGE_ROWS * row_bytes(info)
    replay_device = choose_replay_device(config, device, replay, free_bytes)
    nodes = min(config.memory.capacity, 2 * steps) if config.uses_memory else 0  # a step may end an episode: one more
    replay_sizes, network_sizes = {"replay": replay}, {"networks": networks}
    on_device: dict[str, int] = {}
    if device.type != "cpu":
        # the sampled batch, and its copy that the CUDA graphs of an update read
        batch = {"batch": 2 * train.batch * (info.episode_limit + 1) * row_bytes(info)}
        search = _count_search_bytes(config, info, nodes, device)
        on_device = (replay_sizes if replay_device == device else {}) | batch | network_sizes | search
        if config.backbone == "cds" and config.cds.beta > 0:
            sizes = {"hidden": train.hidden, "episodes": train.batch}
            on_device["rows of CDS's predictors"] = count_pass_bytes(info, **sizes)
        copied = networks // (1 + UPDATE_COPIES) + (COPY_BYTES if replay_device == device else 0)
        on_device["copies of a checkpoint"] = copied
    on_host = {} if "replay" in on_device else replay_sizes
    on_host = on_host | ({} if on_device else network_sizes)
    on_host = on_host | {"nodes": nodes * (NODE.itemsize + 4 * info.state_dim + 12 * config.embed.dim + 8)}
    free_for_replay = host_bytes - sum(size for name, size in on_host.items() if name != "replay")
    max_replay = max(1, int(train.replay * free_for_replay / max(replay, 1)))
    return MemoryPlan(device, replay_device, _drop_zeros(on_device), _drop_zeros(on_host), host_bytes, max_replay)


def choose_replay_device(config: RunConfig, device: torch.device, replay: int, free_bytes: int) -> torch.device:
    """Choose the device of the replay buffer (`train.replay_device`).

    Args:
        config: Settings of the run.
        device: Device of the learner.
        replay: Size of the replay buffer [bytes].
        free_bytes: Free memory of the device [bytes].

    Raises:
        ConfigError: If the buffer is configured for a GPU that is not used or has not enough memory.
    """
    host, setting = torch.device("cpu"), config.train.replay_device
    if setting == "cuda" and device.type == "cpu":
        rule = "must be auto or cpu, because the run trains on the CPU"
        raise ConfigError(rule, key="train.replay_device", value="cuda")
    if device.type == "cpu" or setting == "cpu":
        return host
    if setting == "auto":
        return device if replay <= REPLAY_SHARE * free_bytes else host
    if replay + COPY_BYTES > free_bytes:
        rule = (
            f"must be auto or cpu, because train.replay = {config.train.replay:,} episodes need up to "
            f"{_format_size(replay)}, and the GPU has {_format_size(free_bytes)} free"
        )
        hint = "Or set a smaller train.replay."
        raise ConfigError(Fault("train.replay_device", "cuda", rule, hint, related=("train.replay",)))
    return device


def free_bytes(device: torch.device) -> int:
    """Return the free memory of a GPU [bytes]; 0 for the CPU."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0


def count_networks(state: object) -> int:
    """Estimate the size of a learner's weights, gradients and moments from its state [bytes]."""
    return (1 + UPDATE_COPIES) * sum(x.numel() * x.element_size() for x in _list_tensors(state))


def _list_tensors(state: object) -> Sequence[Tensor]:
    if isinstance(state, Tensor):
        return [state]
    parts: Any = state.values() if isinstance(state, Mapping) else state if isinstance(state, list | tuple) else ()
    return [x for part in parts for x in _list_tensors(part)]


def _count_search_bytes(config: RunConfig, info: EnvInfo, nodes: int, device: torch.device) -> dict[str, int]:
    """Estimate the GPU memory of a search at any distance, of the nodes' states, and of a refit [bytes]."""
    if not nodes:
        return {}
    sizes: dict[str, int] = {}
    if config.embed.type != "random":
        capacity, state_dim = config.memory.capacity, info.state_dim
        sizes["node states"] = count_state_bytes(nodes, capacity=capacity, state_dim=state_dim)
        sizes["refit"] = count_step_bytes(config.embed, state_dim)
    if "nearest" in (config.gate.on_miss, config.incentive.on_miss):
        sizes["memory keys"] = nodes * config.embed.dim * (8 + 4) + (SCRATCH_BYTES if can_use_faiss(str(device)) else 0)
    return sizes


def _drop_zeros(sizes: Mapping[str, int]) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if size}


def _format_sizes(title: str, sizes: Mapping[str, int]) -> str:
    parts = ", ".join(f"{name} {_format_size(size)}" for name, size in sizes.items())
    return f"{title}: up to {_format_size(sum(sizes.values()))} ({parts})"


def _format_size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:,.1f} GB" if n_bytes >= 5e7 else f"{n_bytes / 1e6:,.1f} MB"
