"""One step of the recurrent agents as one compiled call on the host.

A training acts with a few rows, one per environment and agent. PyTorch needs about ten calls for a step, and each of
them takes longer than its arithmetic. Here one compiled call computes the action values of all rows, without the
interpreter lock. The equations are those of `recurrence.py`. The one-hot parts of the input, last action and agent id,
select rows of the first layer's weights.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from emtc_core.envs.base import EnvInfo
from emtc_core.learner.backbones.base import Backbone
from emtc_core.learner.backbones.value import ValueBackbone
from emtc_core.learner.networks import DiverseAgent, SharedAgent
from emtc_core.learner.recurrence import FASTMATH_FLAGS, ONE, TWO, ZERO, Floats, _sigmoid, limit_blas_to_one_thread

NO_ACTION = -1
"""Last action at the start of an episode."""


def is_compiled(backbone: Backbone) -> bool:
    """Whether `CompiledAgents` computes the action values of a backbone: VDN, QMIX, QPLEX, CDS, or a plug-in mixer."""
    return type(backbone) is ValueBackbone and type(backbone.agent) in (SharedAgent, DiverseAgent)


class CompiledAgents:
    """The agents of B environments: their weights, and their hidden states and last actions."""

    def __init__(self, backbone: Backbone, info: EnvInfo) -> None:
        """Set the network. Its weights are read at each `start_episodes`.

        Args:
            backbone: A backbone on the host for which `is_compiled` is true.
            info: Sizes of the environment.
        """
        limit_blas_to_one_thread()
        self._agent, self._has_id, self._info = backbone.agent, backbone.agent_id, info

    def start_episodes(self, n_envs: int) -> None:
        """Read the weights and reset the hidden states and the last actions."""
        self._read_weights()
        n_agents = self._info.n_agents
        hidden = np.zeros((n_envs, n_agents, self._agent.rnn.hidden_size), np.float32)
        self.state = np.full((n_envs, n_agents), NO_ACTION), hidden

    def values(self, obs: Floats, rng: np.random.Generator | None) -> Floats:
        """Advance the hidden states one step and compute the action values.

        Source: oxwhirl/pymarl, `RNNAgent`; with private heads, lich14/CDS.

        Args:
            obs: [B, N, O] [observation features].
            rng: Not used.

        Returns:
            [B, N, A] [return].
        """
        last, hidden = self.state
        q = np.empty((*last.shape, self._info.n_actions), np.float32)
        _step(np.ascontiguousarray(obs, np.float32), last, hidden, *self._weights, q)
        return q

    def set_last_action(self, action: NDArray[np.int64]) -> None:
        """Store the actions for the next step.

        Source: oxwhirl/pymarl, `BasicMAC._build_inputs`.

        Args:
            action: [B, N], action indices.
        """
        self.state = action, self.state[1]

    def _read_weights(self) -> None:
        """Copy the weights in the layout of the compiled step."""
        agent, n_agents, obs_dim = self._agent, self._info.n_agents, self._info.obs_dim
        w_ih, w_hh, b_ih, b_hh = (_copy(x) for x in agent.rnn.all_weights[0])
        w_first, w_out = _copy(agent.fc1.weight.T), _copy(agent.fc2.weight.T)
        width, n_actions = w_out.shape
        w_obs, w_action, w_id = np.split(w_first, [obs_dim, obs_dim + n_actions])
        b_first = np.broadcast_to(_copy(agent.fc1.bias), (n_agents, width))
        b_out = np.broadcast_to(_copy(agent.fc2.bias), (n_agents, n_actions))
        w_heads = np.empty((0, width, n_actions), np.float32)
        if isinstance(agent, DiverseAgent):
            w_heads, b_out = _copy(agent.head.weight), b_out + _copy(agent.head.bias)
        self._weights = (
            w_obs,
            w_action,
            b_first + w_id if self._has_id else b_first.copy(),
            _copy_transposed(w_ih),
            _copy_transposed(w_hh),
            np.concatenate([b_ih[: 2 * width] + b_hh[: 2 * width], b_ih[2 * width :], b_hh[2 * width :]]),
            w_out,
            w_heads,
            np.ascontiguousarray(b_out),
        )


def _copy(tensor: Tensor) -> Floats:
    return np.array(tensor.detach().numpy(), np.float32, order="C")


def _copy_transposed(array: Floats) -> Floats:
    return np.ascontiguousarray(array.T)


@njit(cache=True, nogil=True, fastmath=FASTMATH_FLAGS, error_model="numpy", inline="always")
def _apply_first_layer(
    x: NDArray[Any], last: NDArray[Any], w_action: NDArray[Any], b_first: NDArray[Any]
) -> None:  # pragma: no cover  # compiled
    """Add the weights of the last actions and the bias to the products `x` [M, H], then apply ReLU."""
    n_agents, width = b_first.shape
    for i in range(len(x)):
        x_row, b_row, action = x[i], b_first[i % n_agents], last[i // n_agents, i % n_agents]
        if action != NO_ACTION:
            w_row = w_action[action]
            for j in range(width):
                x_row[j] += w_row[j]
        for j in range(width):
            x_row[j] = max(x_row[j] + b_row[j], ZERO)


@njit(cache=True, nogil=True, fastmath=FASTMATH_FLAGS, error_model="numpy", inline="always")
def _apply_gates(
    x_products: NDArray[Any], h_products: NDArray[Any], bias: NDArray[Any], states: NDArray[Any]
) -> None:  # pragma: no cover  # compiled
    """Compute the gates from the products [M, 3H] and overwrite the states [M, H] with the next ones."""
    width = states.shape[1]
    b_rz, b_n, b_u = bias[: 2 * width], bias[2 * width : 3 * width], bias[3 * width :]
    rz = np.empty(2 * width, np.float32)
    r, z = rz[:width], rz[width:]
    for i in range(len(states)):
        from_x, from_h, state = x_products[i], h_products[i], states[i]
        n_x, u_h = from_x[2 * width :], from_h[2 * width :]
        for j in range(2 * width):
            rz[j] = _sigmoid(from_x[j] + from_h[j] + b_rz[j])
        for j in range(width):
            n = TWO * _sigmoid(TWO * (n_x[j] + b_n[j] + r[j] * (u_h[j] + b_u[j]))) - ONE
            state[j] = n + z[j] * (state[j] - n)


@njit(cache=True, nogil=True, fastmath=FASTMATH_FLAGS, error_model="numpy", inline="always")
def _add_head(
    states: NDArray[Any], w_heads: NDArray[Any], values: NDArray[Any]
) -> None:  # pragma: no cover  # compiled
    """Add the products of the states [M, H] with the weights of the agents' private heads to the values [M, A]."""
    n_agents, width, n_actions = w_heads.shape
    for i in range(len(states)):
        value_row, state, w_head = values[i], states[i], w_heads[i % n_agents]
        for k in range(width):
            h, w_row = state[k], w_head[k]
            for j in range(n_actions):
                value_row[j] += h * w_row[j]


@njit(cache=True, nogil=True, fastmath=FASTMATH_FLAGS, error_model="numpy")
def _step(
    obs: NDArray[Any],
    last: NDArray[Any],
    hidden: NDArray[Any],
    w_obs: NDArray[Any],
    w_action: NDArray[Any],
    b_first: NDArray[Any],
    w_x: NDArray[Any],
    w_hidden: NDArray[Any],
    bias: NDArray[Any],
    w_out: NDArray[Any],
    w_heads: NDArray[Any],
    b_out: NDArray[Any],
    q: NDArray[Any],
) -> None:  # pragma: no cover  # compiled
    """Advance `hidden` one step and compute `q`. M = B N rows, one per environment and agent.

    Args:
        obs: [B, N, O] observations.
        last: [B, N] last actions, or NO_ACTION.
        hidden: [B, N, H] hidden states, overwritten with the next ones.
        w_obs: [O, H] weights of the first layer for the observation.
        w_action: [A, H] weights of the first layer for the last action.
        b_first: [N, H] bias of the first layer, with the weights for the agent id.
        w_x: [H, 3H] weights of x for r, z, n.
        w_hidden: [H, 3H] weights of h for r, z, u.
        bias: [4H] biases of r, z, n, u.
        w_out: [H, A] weights of the last layer.
        w_heads: [N, H, A] weights of the private heads, or [0, H, A].
        b_out: [N, A] bias of the last layer, with that of the private heads.
        q: [B, N, A], overwritten with the action values.
    """
    n_envs, n_agents, width = hidden.shape
    n_rows = n_envs * n_agents
    states, values = hidden.reshape(n_rows, width), q.reshape(n_rows, q.shape[2])
    x = np.empty((n_rows, width), np.float32)
    x_products = np.empty((n_rows, 3 * width), np.float32)
    h_products = np.empty((n_rows, 3 * width), np.float32)

    np.dot(obs.reshape(n_rows, obs.shape[2]), w_obs, x)
    _apply_first_layer(x, last, w_action, b_first)
    np.dot(x, w_x, x_products)
    np.dot(states, w_hidden, h_products)
    _apply_gates(x_products, h_products, bias, states)
    np.dot(states, w_out, values)
    for i in range(n_rows):
        value_row, b_row = values[i], b_out[i % n_agents]
        for j in range(len(value_row)):
            value_row[j] += b_row[j]
    if len(w_heads):
        _add_head(states, w_heads, values)
