"""Estimate of the memory that a run needs, for the Launch form and the trainer. This module does not import torch.

The sizes are upper bounds from the configuration: a full replay buffer with episodes of maximum length, and a full
episodic memory. A run with shorter episodes needs less.
"""

from collections.abc import Mapping
from typing import Final

from emtc_core.config.run import RunConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.replay_buffer.sizes import PAGE_ROWS, count_max_pages, count_row_bytes, count_state_bytes

TRAINER_BYTES: Final = 600_000_000
"""Memory of a trainer without episodes and nodes: libraries, networks, and temporary data of an update [bytes]."""
_NODE_BYTES: Final = 72
"""Size of `memory.nodes.NODE` and of a node's two links in the eviction order [bytes]."""


def count_replay_steps(config: RunConfig, info: EnvInfo) -> int:
    """Return the maximum number of env steps in the replay buffer; 0 for an on-policy learner."""
    return 0 if config.backbone == "mappo" else config.train.t_max + info.episode_limit


def estimate_memory(config: RunConfig, info: EnvInfo | None) -> dict[str, int]:
    """Estimate the memory of a run by purpose: trainer, replay, batches, target values, and nodes [bytes].

    Args:
        config: Settings of the run.
        info: Sizes of one step. None: unknown, so only the trainer is counted.
    """
    if info is None:
        return {"trainer": TRAINER_BYTES}
    train = config.train
    row_bytes, replay_rows = count_row_bytes(info), _count_replay_rows(config, info)
    # a batch, its copy, and the episodes that are being played
    batch_rows = (2 * train.batch + train.n_envs) * (info.episode_limit + 1)
    sizes = {"trainer": TRAINER_BYTES, "replay": replay_rows * row_bytes, "batches": batch_rows * row_bytes}
    if config.backbone not in ("mappo", "dmix"):
        # float32 action values of the target network, which a CPU caches for each stored state
        sizes["target values"] = replay_rows * 4 * info.n_agents * info.n_actions
    if config.uses_memory:
        # a state, its embedding in float32, and its position in float64
        node_bytes = _NODE_BYTES + 4 * info.state_dim + 12 * config.embed.dim
        max_states = 2 * (train.t_max + info.episode_limit)  # a step may end an episode, which has one state more
        sizes["nodes"] = min(config.memory.capacity, max_states) * node_bytes
    return sizes


def count_replay_states_bytes(config: RunConfig, info: EnvInfo) -> int:
    """Return the size of the host's copy of the states in a replay buffer that is on a GPU [bytes]."""
    return _count_replay_rows(config, info) * count_state_bytes(info)


def _count_replay_rows(config: RunConfig, info: EnvInfo) -> int:
    max_steps = count_replay_steps(config, info)
    return (1 + count_max_pages(config.train.replay, info, max_steps)) * PAGE_ROWS


def describe_memory(sizes: Mapping[str, int], *, replay_device: str, host_bytes: int) -> list[str]:
    """Return a line with the sizes, and a warning if the run may need more than the memory of this machine.

    Args:
        sizes: Result of `estimate_memory`.
        replay_device: Device of the replay buffer: "cpu" or "cuda".
        host_bytes: Memory of this machine [bytes].
    """
    on_host = {name: size for name, size in sizes.items() if name != "replay" or replay_device == "cpu"}
    total = sum(on_host.values())
    parts = ", ".join(f"{name} {_format_size(size)}" for name, size in on_host.items())
    lines = [f"memory: up to {_format_size(total)} ({parts})"]
    if "replay" not in on_host:
        lines.append(f"memory of the GPU: replay up to {_format_size(sizes['replay'])}")
    if total > host_bytes:
        lines.append(
            f"Warning: the run may need up to {_format_size(total)} of this machine's {_format_size(host_bytes)}. "
            "Set a smaller train.replay or memory.capacity if its episodes are long."
        )
    return lines


def _format_size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:,.1f} GB" if n_bytes >= 5e7 else f"{n_bytes / 1e6:,.1f} MB"
