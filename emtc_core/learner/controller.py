"""Acting: the controller computes epsilon-greedy actions for the agents of B environments.

It stores the hidden state and the last action of every agent. It does not train.
"""

from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from emtc_core.arrays import check_shape
from emtc_core.devices import send
from emtc_core.envs.base import EnvInfo
from emtc_core.learner.backbones.base import Backbone
from emtc_core.learner.networks import input_width


class Controller:
    """Action selection with the current weights of a backbone, one hidden state per environment and agent."""

    def __init__(self, backbone: Backbone, info: EnvInfo, *, agent_id: bool, device: torch.device) -> None:
        self._backbone, self._info, self._device = backbone, info, device
        self._agent_id = agent_id
        self.start_episodes(1)

    def start_episodes(self, n_envs: int) -> None:
        """Reset hidden states and last actions: every environment starts a new episode."""
        info = self._info
        width = input_width(info.obs_dim, info.n_actions, info.n_agents, agent_id=self._agent_id)
        self._inputs = np.zeros((n_envs, info.n_agents, width), np.float32)
        if self._agent_id:
            self._inputs[..., info.obs_dim + info.n_actions :] = np.eye(info.n_agents, dtype=np.float32)
        hidden = self._backbone.agent.rnn.hidden_size
        self._hidden = torch.zeros(n_envs * info.n_agents, hidden, device=self._device)

    @contextmanager
    def temporary_hidden_state(self) -> Generator[None]:
        """Save the hidden states, so that other environments can be used inside the context; restore them at exit."""
        saved = self._inputs, self._hidden
        try:
            yield
        finally:
            self._inputs, self._hidden = saved

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
        check_shape("obs", obs, (len(self._inputs), self._info.n_agents, self._info.obs_dim))
        q = self._values(obs, epsilon, rng)
        action = epsilon_greedy(q, avail, epsilon=epsilon, rng=rng)
        start = self._info.obs_dim
        last = self._inputs[..., start : start + self._info.n_actions]
        last[:] = 0.0
        np.put_along_axis(last, action[..., None], 1.0, axis=-1)
        return action

    @torch.inference_mode()
    def _values(self, obs: NDArray[np.float32], epsilon: float, rng: np.random.Generator) -> NDArray[np.float32]:
        self._inputs[..., : self._info.obs_dim] = obs
        inputs = send(self._inputs, self._device).flatten(0, 1)
        self._hidden = self._backbone.agent.step(inputs, self._hidden)
        hidden_BNH = self._hidden.view(*obs.shape[:2], -1)
        return self._backbone.act_values(hidden_BNH, rng if epsilon > 0 else None).cpu().numpy()


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
    greedy = np.where(avail, q, -np.inf).argmax(-1)
    if epsilon <= 0.0:
        return greedy
    random_action = np.where(avail, rng.random(avail.shape, np.float32), -1.0).argmax(-1)
    return np.where(rng.random(greedy.shape) < epsilon, random_action, greedy)
