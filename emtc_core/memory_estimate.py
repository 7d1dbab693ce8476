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
CONTEXT_BYTES: Final = 500_000_000
"""GPU memory of a process before its first tensor: CUDA context, code of torch, cuBLAS and cuDNN [bytes].

`nvidia-smi` lists 300 to 600 MB per PyTorch process, more on newer GPUs. With MPS, processes share a part of it.
"""
_NODE_BYTES: Final = 72
"""Size of `memory.nodes.NODE` and of a node's two links in the eviction order [bytes]."""
_FLOAT_BYTES: Final = 4
_RECALLED_BYTES: Final = 16
"""Recalled values of a transition: H, N_xi / N_call and flags, rounded up [bytes]."""
_POOL_FACTOR: Final = 2
"""The graphs of all padded lengths share one pool of memory, in which blocks of short batches may be too small for long
ones."""
_EMBED_CHUNK_ROWS: Final = 65_536
"""Rows that a re-projection embeds at once on a GPU (`embedder.networks.CHUNK_ROWS`)."""


def count_replay_steps(config: RunConfig, info: EnvInfo) -> int:
    """Return the maximum number of env steps in the replay buffer; 0 for an on-policy learner."""
    return 0 if config.backbone == "mappo" else config.train.t_max + info.episode_limit


def count_max_nodes(config: RunConfig, info: EnvInfo) -> int:
    """Return the maximum number of nodes in the memory; 0 for an algorithm without a memory."""
    if not config.uses_memory:
        return 0
    max_states = 2 * (config.train.t_max + info.episode_limit)  # a step may end an episode, which has one state more
    return min(config.memory.capacity, max_states)


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
        sizes["nodes"] = count_max_nodes(config, info) * node_bytes
    return sizes


def count_replay_states_bytes(config: RunConfig, info: EnvInfo) -> int:
    """Return the size of the host's copy of the states in a replay buffer that is on a GPU [bytes]."""
    return _count_replay_rows(config, info) * count_state_bytes(info)


def _count_replay_rows(config: RunConfig, info: EnvInfo) -> int:
    max_steps = count_replay_steps(config, info)
    return (1 + count_max_pages(config.train.replay, info, max_steps)) * PAGE_ROWS


def estimate_gpu_memory(config: RunConfig, info: EnvInfo | None) -> dict[str, int]:
    """Estimate the memory of a run on a GPU by purpose, without the replay buffer [bytes].

    T is the episode limit, B `train.batch`, N the number of agents, A of actions, O of observed numbers, S of state
    features, and H `train.hidden`:

      * context: `CONTEXT_BYTES`.
      * networks: weights of the online and the target networks, gradients, and two moments of the optimizer. A gated
        recurrent unit has 6 H² weights, the other layers of an agent H (O + 2 A + N), the mixing networks fewer than
        1024 (S + 64). CDS has such an agent network and three predictors for each agent.
      * batches: the batch of an update and the fixed inputs of its graphs, (T + 1) B rows each. MAPPO has
        `mappo.rollout_steps` rows instead, and the last episode of each environment.
      * update: the activations of the longest batch, which a graph keeps between updates, times `_POOL_FACTOR`. A row
        of a batch has for each agent 18 H floats of the recurrent unit in both networks and in cuDNN's reserve (DMIX:
        14 H more for its quantiles), 2 (O + A + N) of its input, 12 A of its action values (CDS: 4 O more for its
        predictors), and 8 S + 1024 of the mixing networks.
      * states: the copy of the states and time steps of all nodes, which a re-projection embeds.
      * refit: the sampled states and their views, a chunk of the re-projection, the logits of InfoNCE and their
        gradients.

    A row of the update is 1.8 to 4 times as large as was counted on an imitated GPU, which has no reserve of cuDNN.

    Args:
        config: Settings of the run.
        info: Sizes of one step. None: unknown, so only the context is counted.
    """
    if info is None:
        return {"context": CONTEXT_BYTES}
    train, hidden = config.train, config.train.hidden
    n_agents, n_actions, state_dim = info.n_agents, info.n_actions, info.state_dim
    input_dim = info.obs_dim + n_actions + n_agents
    is_cds = config.backbone == "cds"

    agent_weights = hidden * (6 * hidden + input_dim + n_actions)
    weights = agent_weights * (1 + 4 * n_agents if is_cds else 1) + 1024 * (state_dim + 64)
    networks = 5 * weights * _FLOAT_BYTES

    rows = train.batch * (info.episode_limit + 1)
    if config.backbone == "mappo":
        rows = config.mappo.rollout_steps + train.n_envs * (info.episode_limit + 1)
    batches = 2 * rows * (count_row_bytes(info) + _RECALLED_BYTES)

    agent_floats = 18 * hidden + 2 * input_dim + 12 * n_actions
    if config.backbone == "dmix":
        agent_floats += 14 * hidden
    if is_cds:
        agent_floats += 4 * info.obs_dim
    row_floats = n_agents * agent_floats + 8 * state_dim + 1024
    update = _POOL_FACTOR * rows * row_floats * _FLOAT_BYTES

    sizes = {"context": CONTEXT_BYTES, "networks": networks, "batches": batches, "update": update}
    if config.uses_memory:
        embed, nodes = config.embed, count_max_nodes(config, info)
        samples = min(embed.samples, nodes)
        chunk_floats = min(_EMBED_CHUNK_ROWS, nodes) * 2 * (state_dim + 2 * embed.hidden + embed.dim)
        sample_floats = samples * (4 * state_dim + embed.dim)
        logit_floats = 6 * min(embed.batch, samples) ** 2
        sizes["states"] = nodes * (state_dim + 1) * _FLOAT_BYTES
        sizes["refit"] = (chunk_floats + sample_floats + logit_floats) * _FLOAT_BYTES
    return sizes


def count_gpu_bytes(config: RunConfig, info: EnvInfo | None) -> int:
    """Return the memory that a run must have on a GPU [bytes]; with the replay buffer if `replay_device` is cuda."""
    replay_bytes = estimate_memory(config, info).get("replay", 0) if config.train.replay_device == "cuda" else 0
    return sum(estimate_gpu_memory(config, info).values()) + replay_bytes


def describe_memory(sizes: Mapping[str, int], *, gpu_sizes: Mapping[str, int], host_bytes: int) -> list[str]:
    """Return a line for this machine, one for its GPU, and a warning if a run may need more than there is.

    Args:
        sizes: Result of `estimate_memory`.
        gpu_sizes: Result of `estimate_gpu_memory`, and the replay buffer if it is on the GPU; empty without a GPU.
        host_bytes: Memory of this machine [bytes].
    """
    on_host = {name: size for name, size in sizes.items() if name != "replay" or "replay" not in gpu_sizes}
    total = sum(on_host.values())
    lines = [f"memory: {_describe_sizes(on_host)}"]
    if gpu_sizes:
        lines.append(f"memory of the GPU: {_describe_sizes(gpu_sizes)}")
    if total > host_bytes:
        lines.append(
            f"Warning: the run may need up to {_format_size(total)} of this machine's {_format_size(host_bytes)}. "
            "Set a smaller train.replay or memory.capacity if its episodes are long."
        )
    return lines


def _describe_sizes(sizes: Mapping[str, int]) -> str:
    parts = ", ".join(f"{name} {_format_size(size)}" for name, size in sizes.items())
    return f"up to {_format_size(sum(sizes.values()))} ({parts})"


def _format_size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:,.1f} GB" if n_bytes >= 5e7 else f"{n_bytes / 1e6:,.1f} MB"
