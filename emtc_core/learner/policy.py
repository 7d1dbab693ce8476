"""A trained policy for greedy actions, made from the learner's part of a checkpoint, and its export to TorchScript.

`app.jobs.policies` finds the checkpoint. `training.evaluation` plays whole episodes.
"""

import json
import warnings
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from emtc_core.arrays import check_shape
from emtc_core.config.run import RunConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.errors import CheckpointError, ShapeError
from emtc_core.learner.backbones.base import Backbone
from emtc_core.learner.learner import Learner, make_learner
from emtc_core.learner.mappo import MappoLearner

DESCRIPTION_FILE = "emtc.json"
"""Name of the extra file in a TorchScript file that describes the policy."""


class Policy:
    """Greedy actions for observations. The memory of the agents (hidden state, last action) is stored until `reset`."""

    def __init__(
        self, config: RunConfig, info: EnvInfo, state: Mapping[str, Any], *, env_step: int, device: torch.device | str
    ) -> None:
        """Make the networks of a run and load their weights.

        Args:
            config: Configuration of the run.
            info: Sizes of the environment.
            state: The learner's part of a checkpoint.
            env_step: Training env steps of the checkpoint.
            device: Device of the networks.

        Raises:
            CheckpointError: If the weights do not fit the networks.
        """
        self.info, self.env_step = info, env_step
        self.learner: Learner = make_learner(config, info, device=device, seed=0)
        try:
            self.learner.set_state(dict(state))
        except (RuntimeError, KeyError, ValueError, TypeError, AttributeError) as exc:
            reason = str(exc).strip().splitlines()[-1].strip()
            raise CheckpointError(f"The checkpoint's weights do not fit {config.algo} on this game: {reason}") from exc
        self._n_envs = 0
        self._rng = np.random.default_rng(0)  # required by `act`, but not used by a greedy policy

    def reset(self) -> None:
        """Start new episodes and clear the memory. The next `act` sets the number of parallel environments."""
        self._n_envs = 0

    def act(self, obs: NDArray[np.float32], avail: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Select the best available action of every agent.

        Source: the policy of the run.

        Args:
            obs: [N, O] of one environment or [B, N, O] of B environments [observation features].
            avail: [N, A] or [B, N, A] boolean, available actions.

        Returns:
            [N] or [B, N], action indices.

        Raises:
            ShapeError: If the shapes do not fit the environment, or if B has changed since `reset`.
        """
        obs_, avail_ = np.asarray(obs, np.float32), np.asarray(avail, bool)
        if obs_.ndim == 2:
            return self._act(obs_[None], avail_[None])[0]
        return self._act(obs_, avail_)

    def _act(self, obs: NDArray[np.float32], avail: NDArray[np.bool_]) -> NDArray[np.int64]:
        info = self.info
        check_shape("obs", obs, (None, info.n_agents, info.obs_dim))
        check_shape("avail", avail, (len(obs), info.n_agents, info.n_actions))
        if not self._n_envs:
            self._n_envs = len(obs)
            self.learner.start_episodes(self._n_envs)
        if len(obs) != self._n_envs:
            raise ShapeError(
                f"obs must have {self._n_envs} games, as since reset(), got {len(obs)}. Call reset() first."
            )
        return self.learner.act(obs, avail, epsilon=0.0, rng=self._rng)


class ValueStep(nn.Module):
    """One greedy step of a value system. The memory (last action, hidden state) is an argument and a result."""

    def __init__(self, backbone: Backbone, info: EnvInfo) -> None:
        super().__init__()
        self.backbone, self._n_agents, self._n_actions = backbone, info.n_agents, info.n_actions
        ids = torch.eye(info.n_agents) if backbone.agent_id else torch.empty(info.n_agents, 0)
        self.register_buffer("ids", ids)
        self.register_buffer("start", torch.zeros(1, info.n_agents, info.n_actions + backbone.agent.rnn.hidden_size))

    def forward(self, obs: Tensor, avail: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Select greedy actions and update the memory.

        Source: `Controller.act` with epsilon = 0.

        Args:
            obs: [B, N, O] [observation features].
            avail: [B, N, A] boolean, available actions.
            memory: [B, N, A + H], one-hot last actions and hidden states, dimensionless.

        Returns:
            Action indices [B, N] and the next memory [B, N, A + H].
        """
        last, hidden = memory[..., : self._n_actions], memory[..., self._n_actions :]
        ids = self.get_buffer("ids").expand(obs.shape[0], -1, -1)
        inputs = torch.cat([obs, last, ids], -1).flatten(0, 1)
        hidden = self.backbone.agent.step(inputs, hidden.flatten(0, 1)).unflatten(0, (-1, self._n_agents))
        action = _best(self.backbone.act_values(hidden, None), avail)
        return action, torch.cat([torch.zeros_like(last).scatter_(-1, action.unsqueeze(-1), 1.0), hidden], -1)


class FrameStep(nn.Module):
    """One greedy step of MAPPO's actor. The memory (previous frames) is an argument and a result."""

    def __init__(self, learner: MappoLearner, info: EnvInfo, *, frames: int) -> None:
        super().__init__()
        self.actor, self._obs_dim = learner.actor, info.obs_dim
        self.register_buffer("ids", torch.eye(info.n_agents))
        self.register_buffer("start", torch.zeros(1, info.n_agents, (frames - 1) * info.obs_dim))

    def forward(self, obs: Tensor, avail: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Select the most probable actions and update the memory.

        Source: `MappoLearner.act` with epsilon = 0.

        Args:
            obs: [B, N, O] [observation features].
            avail: [B, N, A] boolean, available actions.
            memory: [B, N, M], earlier observations, M = (number of frames - 1) O [observation features].

        Returns:
            Action indices [B, N] and the next memory [B, N, M].
        """
        frames = torch.cat([memory, obs], -1)
        ids = self.get_buffer("ids").expand(obs.shape[0], -1, -1)
        return _best(self.actor(torch.cat([frames, ids], -1)), avail), frames[..., self._obs_dim :]


def _best(values: Tensor, avail: Tensor) -> Tensor:
    return values.masked_fill(~avail, -torch.inf).argmax(-1)


def write_script(policy: Policy, config: RunConfig, out: BinaryIO, *, description: Mapping[str, Any]) -> None:
    """Write one greedy step of a policy as TorchScript. The file needs only torch to run.

    Args:
        policy: Policy on the CPU.
        config: Configuration of its run.
        out: File to write.
        description: Plain values that describe the policy, stored as JSON in the extra file `DESCRIPTION_FILE`.
    """
    info, learner = policy.info, policy.learner
    if isinstance(learner, MappoLearner):
        step: nn.Module = FrameStep(learner, info, frames=config.mappo.stacked_frames)
    else:
        step = ValueStep(learner.online, info)
    obs = torch.zeros(2, info.n_agents, info.obs_dim)
    avail = torch.ones(2, info.n_agents, info.n_actions, dtype=torch.bool)
    with torch.no_grad(), warnings.catch_warnings():
        # TorchScript is deprecated, but every version of torch and libtorch can read it.
        warnings.simplefilter("ignore", DeprecationWarning)
        memory = step.get_buffer("start").expand(2, -1, -1)
        traced = torch.jit.trace(step.eval(), (obs, avail, memory), check_trace=False)
        torch.jit.save(traced, out, _extra_files={DESCRIPTION_FILE: json.dumps(dict(description))})


class ScriptedPolicy:
    """A policy loaded from a TorchScript file, used with torch only."""

    def __init__(self, file: BinaryIO) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self._step = torch.jit.load(file, map_location="cpu")

    def start_episodes(self, n_envs: int) -> None:
        """Start new episodes in `n_envs` environments."""
        self._memory = self._step.start.expand(n_envs, -1, -1)

    @torch.no_grad()
    def act(self, obs: NDArray[np.float32], avail: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Select greedy actions.

        Source: the exported policy.

        Args:
            obs: [B, N, O] [observation features].
            avail: [B, N, A] boolean, available actions.

        Returns:
            [B, N], action indices.
        """
        action, self._memory = self._step(torch.from_numpy(obs), torch.from_numpy(avail), self._memory)
        return action.numpy()
