"""Acting: the controller computes epsilon-greedy actions for the agents of B environments.

It stores the hidden state and the last action of every agent. It does not train.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray

from emtc_core.arrays import check_shape
from emtc_core.devices import send
from emtc_core.envs.base import EnvInfo
from emtc_core.learner.backbones.base import Backbone
from emtc_core.learner.compiled_agents import CompiledAgents, is_compiled
from emtc_core.learner.networks import SequenceBatch, agent_inputs, input_width
from emtc_core.learner.step_rows import StepRows


class Controller:
    """Action selection with the weights of a backbone, one hidden state per environment and agent.

    The weights are those of the last `start_episodes`. On the host, agents of the project's value systems are one
    compiled step. Other networks (DMIX, plug-ins) have other layers, so PyTorch computes them.
    """

    def __init__(self, backbone: Backbone, info: EnvInfo) -> None:
        """Set the networks.

        Args:
            backbone: The value system, on the device on which it acts.
            info: Sizes of the environment.
        """
        self._backbone, self._info = backbone, info
        self._device = next(backbone.parameters()).device
        self._agents: CompiledAgents | TorchAgents
        if self._device.type == "cpu" and is_compiled(backbone):
            self._agents = CompiledAgents(backbone, info)
        else:
            self._agents = TorchAgents(backbone, info)
        self.start_episodes(1)

    def start_episodes(self, n_envs: int) -> None:
        """Reset hidden states and last actions: every environment starts a new episode."""
        self._n_envs = n_envs
        self._agents.start_episodes(n_envs)

    @contextmanager
    def temporary_hidden_state(self) -> Generator[None]:
        """Save the hidden states, so that other environments can be used inside the context; restore them at exit.

        Call `start_episodes` first inside the context.
        """
        agents: Any = self._agents
        n_envs, state = self._n_envs, agents.state
        try:
            yield
        finally:
            self._n_envs, agents.state = n_envs, state

    def act(
        self,
        obs: NDArray[np.float32],
        avail: NDArray[np.bool_],
        *,
        epsilon: float,
        rng: np.random.Generator,
    ) -> NDArray[np.int64]:
        """Select actions and store them as the last actions.

        Source: the epsilon-greedy action selection of oxwhirl/pymarl.

        Args:
            obs: [B, N, O] [observation features].
            avail: [B, N, A] boolean, available actions.
            epsilon: Probability of a random action.
            rng: Source of randomness; not used if epsilon is 0.

        Returns:
            [B, N], action indices.

        Raises:
            ShapeError: If `obs` has another shape.
        """
        check_shape("obs", obs, (self._n_envs, self._info.n_agents, self._info.obs_dim))
        q = self._agents.values(obs, rng if epsilon > 0 else None)
        action = epsilon_greedy(q, avail, epsilon=epsilon, rng=rng)
        self._agents.set_last_action(action)
        return action

    @torch.no_grad()
    def q_start(
        self, obs: NDArray[np.float32], state: NDArray[np.float32], avail: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """Estimate the greedy Q_tot at the first step of episodes.

        Source: the mixer of the backbone.

        Args:
            obs: [B, N, O] [observation features].
            state: [B, S] [state features].
            avail: [B, N, A] boolean, available actions.

        Returns:
            [B], Q_tot [return].
        """
        seq = self._make_first_step(obs, state, avail)
        unrolled = self._backbone.unroll(seq, torch.Generator().manual_seed(0))
        return self._backbone.evaluate_first_step(unrolled, seq).cpu().numpy()

    def _make_first_step(
        self, obs: NDArray[np.float32], state: NDArray[np.float32], avail: NDArray[np.bool_]
    ) -> SequenceBatch:
        """Make sequences of one step and no transition from B first steps."""
        obs_BNO, state_BS, avail_BNA = (send(x, self._device) for x in (obs, state, avail))
        n_batch, n_agents, n_actions = avail.shape
        action = torch.zeros((0, n_agents), dtype=torch.int64, device=self._device)
        empty = torch.zeros((0, n_batch), device=self._device)
        inputs = agent_inputs(obs_BNO, action, n_actions=n_actions, agent_id=self._backbone.agent_id)
        rows = StepRows(np.ones(n_batch, np.int64), 1)
        return SequenceBatch(rows, inputs, obs_BNO, state_BS, avail_BNA, action, empty, empty, empty, empty, 0)


class TorchAgents:
    """The agents of B environments, computed by PyTorch: their hidden states and last actions."""

    def __init__(self, backbone: Backbone, info: EnvInfo) -> None:
        self._backbone, self._info = backbone, info
        self._device = next(backbone.parameters()).device

    def start_episodes(self, n_envs: int) -> None:
        """Reset the hidden states and the last actions."""
        info, agent = self._info, self._backbone.agent
        has_id = self._backbone.agent_id
        width = input_width(info.obs_dim, info.n_actions, info.n_agents, agent_id=has_id)
        inputs = np.zeros((n_envs, info.n_agents, width), np.float32)
        if has_id:
            inputs[..., info.obs_dim + info.n_actions :] = np.eye(info.n_agents, dtype=np.float32)
        hidden = torch.zeros(n_envs * info.n_agents, agent.rnn.hidden_size, device=self._device)
        self.state = inputs, hidden

    @torch.inference_mode()
    def values(self, obs: NDArray[np.float32], rng: np.random.Generator | None) -> NDArray[np.float32]:
        """Advance the hidden states one step and compute the action values.

        Source: the agent network of the backbone.

        Args:
            obs: [B, N, O] [observation features].
            rng: Random generator of a distributional backbone; None: the result is deterministic.

        Returns:
            [B, N, A] [return].
        """
        inputs, hidden = self.state
        inputs[..., : self._info.obs_dim] = obs
        hidden = self._backbone.agent.step(send(inputs, self._device).flatten(0, 1), hidden)
        self.state = inputs, hidden
        return self._backbone.act_values(hidden.view(*obs.shape[:2], -1), rng).cpu().numpy()

    def set_last_action(self, action: NDArray[np.int64]) -> None:
        """Store the actions for the next step.

        Source: oxwhirl/pymarl, `BasicMAC._build_inputs`.

        Args:
            action: [B, N], action indices.
        """
        start = self._info.obs_dim
        last = self.state[0][..., start : start + self._info.n_actions]
        last[:] = 0.0
        np.put_along_axis(last, action[..., None], 1.0, axis=-1)


def epsilon_greedy(
    q: NDArray[np.float32], avail: NDArray[np.bool_], *, epsilon: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Select the best available action per agent, or with probability epsilon a random available one.

    Source: the epsilon-greedy action selection of oxwhirl/pymarl.

    Args:
        q: [B, N, A], action values [return].
        avail: [B, N, A] boolean, available actions.
        epsilon: Probability of a uniformly random available action.
        rng: Source of randomness. Always draws B * N * (A + 1) numbers, or none if epsilon is 0.

    Returns:
        [B, N], action indices.
    """
    q = np.ascontiguousarray(q, np.float32)
    action = np.empty(q.shape[:2], np.int64)
    scores, is_random = q, np.zeros(q.shape[:2], np.bool_)
    if epsilon > 0.0:
        scores = rng.random(avail.shape, np.float32)
        is_random = rng.random(action.shape) < epsilon
    _select(q, scores, is_random, np.ascontiguousarray(avail, np.bool_), action)
    return action


@njit(cache=True, nogil=True)
def _select(
    q: NDArray[Any], scores: NDArray[Any], is_random: NDArray[Any], avail: NDArray[Any], action: NDArray[Any]
) -> None:  # pragma: no cover  # compiled
    """Set each action [B, N] to the first one with the largest available q [B, N, A], or score if `is_random`.

    The action is 0 if none is available.
    """
    n_envs, n_agents, n_actions = q.shape
    for b in range(n_envs):
        for i in range(n_agents):
            values = scores[b, i] if is_random[b, i] else q[b, i]
            best = -1
            for a in range(n_actions):
                if avail[b, i, a] and (best < 0 or values[a] > values[best]):
                    best = a
            action[b, i] = max(best, 0)
