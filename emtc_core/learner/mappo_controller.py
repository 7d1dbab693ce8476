"""Acting of MAPPO: the networks, their inputs, and the controller that samples actions for B environments."""

from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from emtc_core.arrays import check_shape
from emtc_core.devices import send
from emtc_core.envs.base import EnvInfo
from emtc_core.learner.ppo import ValueNorm


class ActorCritic(nn.Module):
    """Actor, critic and the normalization of the critic's values."""

    def __init__(self, actor: nn.Module, critic: nn.Module, value_norm: ValueNorm) -> None:
        super().__init__()
        self.actor, self.critic, self.value_norm = actor, critic, value_norm


class MappoController:
    """Action selection with the current weights of an actor; stacked frames of every environment and agent."""

    def __init__(self, networks: ActorCritic, info: EnvInfo, *, frames: int) -> None:
        """Set the networks.

        Args:
            networks: Actor and critic, on the device on which they act.
            info: Sizes of the environment.
            frames: Number of stacked frames.
        """
        self._networks, self._info, self._frames = networks, info, frames
        self._device = next(networks.parameters()).device
        self.start_episodes(1)

    def start_episodes(self, n_envs: int) -> None:
        """Clear the stacked frames: every environment starts a new episode."""
        info = self._info
        self._stack = np.zeros((n_envs, info.n_agents, self._frames, info.obs_dim), np.float32)

    @contextmanager
    def temporary_hidden_state(self) -> Generator[None]:
        """Save the stacked frames, so that other environments can be used inside the context; restore them at exit.

        The name is that of the value learner's method. MAPPO has no recurrent network, so the frames are all its state.

        Call `start_episodes` first inside the context.
        """
        saved = self._stack
        try:
            yield
        finally:
            self._stack = saved

    def act(
        self, obs: NDArray[np.float32], avail: NDArray[np.bool_], *, epsilon: float, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Sample actions from the policy.

        Source: marlbenchmark/on-policy.

        Args:
            obs: [B, N, O] [observation features].
            avail: [B, N, A] boolean, available actions.
            epsilon: MAPPO reads it only as a switch: if it is 0, return the most probable action, otherwise a sample.
            rng: Source of randomness; not used if epsilon is 0.

        Returns:
            [B, N], action indices.
        """
        n_envs, n_agents = len(self._stack), self._info.n_agents
        check_shape("obs", obs, (n_envs, n_agents, self._info.obs_dim))
        self._stack[:, :, :-1] = self._stack[:, :, 1:]
        self._stack[:, :, -1] = obs
        with torch.inference_mode():
            frames = send(self._stack, self._device).flatten(2)
            logits_BNA = self._networks.actor(append_id(frames)).float().cpu().numpy()
        logits_BNA = np.where(avail, logits_BNA, -np.inf)
        if epsilon > 0:
            # Gumbel-max trick: the argmax of logits plus Gumbel noise is a sample of the softmax.
            logits_BNA += rng.gumbel(size=avail.shape).astype(np.float32)
        return logits_BNA.argmax(-1)

    @torch.no_grad()
    def q_start(
        self, obs: NDArray[np.float32], state: NDArray[np.float32], avail: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """Estimate the value V of the first step of episodes, averaged over agents.

        The name is that of the value learner's method, which returns Q_tot.

        Source: the critic of marlbenchmark/on-policy.

        Args:
            obs: [B, N, O] [observation features].
            state: [B, S] [state features].
            avail: [B, N, A] boolean. Not used.

        Returns:
            [B], value [return].
        """
        obs_BKNO = np.zeros((len(obs), self._frames, *obs.shape[1:]), np.float32)
        state_BKS = np.zeros((len(obs), self._frames, state.shape[1]), np.float32)
        obs_BKNO[:, -1], state_BKS[:, -1] = obs, state
        inputs = make_critic_inputs(send(obs_BKNO, self._device), send(state_BKS, self._device))
        value_BN = self._networks.critic(inputs).squeeze(-1)
        return self._networks.value_norm.denormalize(value_BN).mean(-1).cpu().numpy()


def make_critic_inputs(obs: Tensor, state: Tensor) -> Tensor:
    """Make the agent-specific global states [state; obs_i; id].

    Source: marlbenchmark/on-policy.

    Args:
        obs: [R, K, N, O], K stacked frames of R steps [observation features].
        state: [R, K, S] [state features].

    Returns:
        [R, N, K (S + O) + N], dimensionless.
    """
    obs_RNI = obs.transpose(1, 2).flatten(2)
    state_RNI = state.flatten(1).unsqueeze(1).expand(-1, obs_RNI.shape[1], -1)
    return append_id(torch.cat([state_RNI, obs_RNI], -1))


def append_id(x: Tensor) -> Tensor:
    """Append the one-hot agent id.

    Source: marlbenchmark/on-policy.

    Args:
        x: [R, N, I], dimensionless.

    Returns:
        [R, N, I + N], dimensionless.
    """
    ids = torch.eye(x.shape[1], device=x.device).expand(len(x), -1, -1)
    return torch.cat([x, ids], -1)
