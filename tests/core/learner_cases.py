"""Small games, episodes and recalls that the learner's tests share."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from emtc_core.config.run import RunConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.learner.learner import IncentiveInputs, ValueLearner, make_learner
from emtc_core.replay_buffer.buffer import Batch, BatchSteps, ReplayBuffer
from emtc_core.rollout.episode import Episode
from tests.reference.learner import Memory

BLOCKS = EnvInfo("test", "blocks", 3, 4, 5, 11, 12, (-1.0, 1.0), agent_block=2)
FOOTBALL = EnvInfo("test", "football", 2, 5, 6, 6, 12, (-1.0, 1.0))


def make_config(algo: str, **sections: Any) -> RunConfig:
    train = {"hidden": 8, "lr": 1e-3} | sections.pop("train", {})
    return RunConfig.model_validate({"algo": algo, "train": train, **sections})


def make_episode(info: EnvInfo, length: int, seed: int, *, ended: str = "terminated", dead: bool = False) -> Episode:
    """Play at random; `dead` leaves every agent nothing but action 0."""
    rng = np.random.default_rng(seed)
    n, a = info.n_agents, info.n_actions
    avail = rng.random((length + 1, n, a)) < 0.6
    avail[..., 1] = True
    if dead:
        avail[:] = False
        avail[..., 0] = True
    return Episode(
        obs=rng.normal(size=(length + 1, n, info.obs_dim)).astype(np.float32),
        state=rng.normal(size=(length + 1, info.state_dim)).astype(np.float32),
        avail=avail,
        action=np.where(avail[:-1], rng.random((length, n, a)), -1.0).argmax(-1),
        reward=rng.normal(size=length).astype(np.float32),
        terminated=ended == "terminated",
        truncated=ended == "truncated",
        won=False,
        episode_return=0.0,
    )


def hard_episodes(info: EnvInfo) -> list[Episode]:
    """Length one, all agents dead, terminal, cut by the time limit."""
    return [
        make_episode(info, 5, 1),
        make_episode(info, 1, 2),
        make_episode(info, 4, 3, dead=True),
        make_episode(info, 7, 4, ended="truncated"),
    ]


def make_memory(episodes: list[Episode], seed: int = 0, *, miss: float = 0.3) -> Memory:
    """Recall at random, with misses."""
    rng = np.random.default_rng(seed)
    draw = [rng.random((4, e.length)) for e in episodes]
    return Memory(
        h_next=[[None if x[0, t] < miss else 4.0 * x[1, t] - 2.0 for t in range(x.shape[1])] for x in draw],
        rho_next=[x[2].tolist() for x in draw],
        beta=[np.float32(x[3]).tolist() for x in draw],
    )


def make_batch(episodes: list[Episode], info: EnvInfo, memory: Memory | None = None, **kwargs: Any) -> Batch:
    """Pass the episodes through a real replay buffer."""
    buffer = ReplayBuffer(len(episodes), info, **kwargs)
    for i, e in enumerate(episodes):
        buffer.add(e, beta=None if memory is None else np.array(memory.beta[i]))
    return buffer.take(np.arange(len(episodes)))


def make_inputs(memory: Memory, steps: int) -> IncentiveInputs:
    """Pad the recalls to [B, T]."""
    shape = (len(memory.h_next), steps)
    h, rho, hit = np.zeros(shape), np.zeros(shape), np.zeros(shape, bool)
    for b, row in enumerate(memory.h_next):
        for t, value in enumerate(row):
            hit[b, t] = value is not None
            h[b, t] = value or 0.0
            rho[b, t] = memory.rho_next[b][t] if value is not None else 0.0
    return IncentiveInputs(torch.from_numpy(h), torch.from_numpy(rho), torch.from_numpy(hit))


def to_double(batch: Batch) -> Batch:
    tensors = batch.steps.tensors
    tensors = replace(tensors, obs=tensors.obs.double(), state=tensors.state.double())
    steps = BatchSteps(batch.steps.storage, batch.steps.rows, tensors)
    return replace(batch, steps=steps, reward=batch.reward.double(), beta=batch.beta.double())


def make_double_learner(config: RunConfig, info: EnvInfo, seed: int = 3) -> ValueLearner:
    """Make a float64 learner whose target differs from its online copy."""
    learner = make_learner(config, info, device="cpu", seed=seed)
    assert isinstance(learner, ValueLearner)
    learner.online.double()
    learner.target.double()
    generator = torch.Generator().manual_seed(11)
    for x in learner.target.parameters():
        x.add_(0.3 * torch.randn(x.shape, generator=generator, dtype=torch.float64))
    return learner


def leaves(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copy a module's parameters as float64 leaves."""
    return {k: v.detach().double().clone().requires_grad_() for k, v in module.named_parameters()}
