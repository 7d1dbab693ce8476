"""Agent networks with weights shared by all agents, their input sequences, and layers with grouped weights.

Sequences are rows, step by step (step_rows.py).
"""

import copy
import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from emtc_core.learner.recurrence import run_linear_gru
from emtc_core.learner.step_rows import StepRows
from emtc_core.replay_buffer.buffer import Batch

_Network = TypeVar("_Network", bound=nn.Module)


@dataclass(frozen=True)
class SequenceBatch:
    """A batch with the agents' inputs at all T + 1 steps.

    The states and the transitions are rows, step by step: P states and R = P - B transitions (step_rows.py). On the CPU
    there are no rows for the padding. Values of transitions that every update needs are padded.

    Source: the replay buffer's `Batch`.
    """

    rows: StepRows  # layout of the states
    inputs: Tensor  # [P, N, I] result of `agent_inputs`, dimensionless
    obs: Tensor  # [P, N, O] [observation features]
    state: Tensor  # [P, S] [state features]
    avail: Tensor  # [P, N, A] boolean
    action: Tensor  # [R, N] action indices
    reward: Tensor  # [T, B] [reward]
    terminated: Tensor  # [T, B] float, dimensionless: 1 where the target does not bootstrap
    mask: Tensor  # [T, B] float, dimensionless: 1 on real transitions
    beta: Tensor  # [T, B] dimensionless
    n_real: int  # number of real transitions, computed on the host to avoid waiting for the device

    @cached_property
    def agent_rows(self) -> StepRows:
        """Layout of the rows of all agents, P N rows.

        Source: implementation detail.
        """
        return self.rows.repeat(self.obs.shape[1])

    def select_real(self, rows: Tensor) -> Tensor:
        """Select the real transitions.

        Source: implementation detail.

        Args:
            rows: [R, ...], all transitions [unit varies].

        Returns:
            [K, ...] [unit varies].
        """
        return rows if self._real_transitions is None else rows.index_select(0, self._real_transitions)

    def unpack_real(self, rows: Tensor) -> Tensor:
        """Make a padded tensor of the real transitions.

        Source: implementation detail.

        Args:
            rows: [K, ...], the real transitions [unit varies].

        Returns:
            [T, B, ...], 0 in the padding [unit varies].
        """
        if self._real_transitions is not None:
            zeros = rows.new_zeros(len(self.action), *rows.shape[1:])
            rows = zeros.index_copy(0, self._real_transitions, rows)
        return self.rows.transitions.unpack(rows)

    @cached_property
    def _real_transitions(self) -> Tensor | None:
        """Indices of the real transitions; None if all are. The batch has their number, so the host does not wait."""
        if self.n_real == len(self.action):
            return None
        return torch.argsort(self.mask.flatten(), descending=True, stable=True)[: self.n_real]


def make_sequence_batch(batch: Batch, *, agent_id: bool) -> SequenceBatch:
    """Order a batch by steps and make the agents' inputs.

    Args:
        batch: Padded episodes.
        agent_id: Append a one-hot agent id (all backbones except CDS).
    """
    n_steps, lengths = batch.reward.shape[1] + 1, batch.length + 1
    if batch.reward.device.type != "cpu":
        lengths = np.full_like(lengths, n_steps)  # rows for the padding, too
    rows, tensors = StepRows(lengths, n_steps), batch.steps.tensors
    obs, state, avail = (rows.pack(x.transpose(0, 1)) for x in (tensors.obs, tensors.state, tensors.avail))
    state = state.contiguous()  # can be a view of packed rows, and mixers multiply it by matrices
    action = rows.transitions.pack(tensors.action.transpose(0, 1))
    return SequenceBatch(
        rows=rows,
        inputs=agent_inputs(obs, action, n_actions=avail.shape[-1], agent_id=agent_id),
        obs=obs,
        state=state,
        avail=avail,
        action=action,
        reward=batch.reward.transpose(0, 1),
        terminated=batch.terminated.transpose(0, 1).to(batch.reward.dtype),
        mask=batch.filled.transpose(0, 1).to(batch.reward.dtype),
        beta=batch.beta.transpose(0, 1),
        n_real=int(batch.length.sum()),
    )


def agent_inputs(obs: Tensor, action: Tensor, *, n_actions: int, agent_id: bool) -> Tensor:
    """Concatenate observation, one-hot last action (zeros at t = 0) and one-hot agent id.

    Source: oxwhirl/pymarl, `BasicMAC._build_inputs`.

    Args:
        obs: [P, N, O], rows of all states, step by step [observation features].
        action: [R, N], action indices of all transitions in the order of their next states, which are the last R rows.
        n_actions: A.
        agent_id: Append the id.

    Returns:
        [P, N, O + A (+ N)], dimensionless.
    """
    n_agents, obs_dim = obs.shape[-2:]
    inputs = obs.new_zeros(len(obs), n_agents, input_width(obs_dim, n_actions, n_agents, agent_id=agent_id))
    inputs[..., :obs_dim] = obs
    last_action = inputs[len(obs) - len(action) :, :, obs_dim : obs_dim + n_actions]
    last_action.scatter_(-1, action.unsqueeze(-1), 1.0)
    if agent_id:
        inputs[..., obs_dim + n_actions :] = torch.eye(n_agents, device=obs.device)
    return inputs


def input_width(obs_dim: int, n_actions: int, n_agents: int, *, agent_id: bool) -> int:
    """Compute the width of an agent's input.

    Args:
        obs_dim: O.
        n_actions: A.
        n_agents: N.
        agent_id: Whether the input contains the one-hot id.
    """
    return obs_dim + n_actions + (n_agents if agent_id else 0)


class SharedAgent(nn.Module):
    """Linear, ReLU, GRU, Linear: one network for all agents."""

    def __init__(self, n_inputs: int, n_actions: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(n_inputs, hidden)
        self.rnn = nn.GRU(hidden, hidden)
        self.fc2 = nn.Linear(hidden, n_actions)

    def unroll(self, inputs: Tensor, agent_rows: StepRows) -> Tensor:
        """Run whole sequences from a zero hidden state.

        Source: oxwhirl/pymarl, `RNNAgent`.

        Args:
            inputs: [P, N, I], result of `agent_inputs`, dimensionless.
            agent_rows: Layout of the P N rows of all agents.

        Returns:
            [P, N, H], hidden states, dimensionless.
        """
        return run_linear_gru(self.fc1, self.rnn, inputs.flatten(0, 1), agent_rows).unflatten(0, inputs.shape[:2])

    def step(self, inputs: Tensor, hidden: Tensor) -> Tensor:
        """Advance one step.

        Source: oxwhirl/pymarl, `RNNAgent`.

        Args:
            inputs: [M, I], inputs of M agents, dimensionless.
            hidden: [M, H], hidden states, dimensionless.

        Returns:
            [M, H], the next hidden states, dimensionless.
        """
        w_ih, w_hh, b_ih, b_hh = self.rnn.all_weights[0]
        return torch.gru_cell(self.fc1(inputs).relu_(), hidden, w_ih, w_hh, b_ih, b_hh)

    def values(self, hidden: Tensor) -> Tensor:
        """Compute Q_i of every action.

        Source: oxwhirl/pymarl, `RNNAgent`.

        Args:
            hidden: [..., N, H], hidden states, dimensionless.

        Returns:
            [..., N, A] [return].
        """
        return self.fc2(hidden)


class DiverseAgent(SharedAgent):
    """Agent of CDS: the shared network plus one private linear head per agent. The input has no agent id."""

    def __init__(self, n_inputs: int, n_actions: int, hidden: int, n_agents: int) -> None:
        super().__init__(n_inputs, n_actions, hidden)
        self.head = GroupedLinear(n_agents, hidden, n_actions)

    def private_values(self, hidden: Tensor) -> Tensor:
        """Compute the private part of each agent's values.

        Source: lich14/CDS, head_i(h_i).

        Args:
            hidden: [..., N, H], hidden states, dimensionless.

        Returns:
            [..., N, A] [return].
        """
        return self.head(hidden)

    def values(self, hidden: Tensor) -> Tensor:
        """Compute shared plus private values.

        Source: lich14/CDS, Q_i = fc2(h_i) + head_i(h_i).

        Args:
            hidden: [..., N, H], hidden states, dimensionless.

        Returns:
            [..., N, A] [return].
        """
        return self.fc2(hidden) + self.head(hidden)

    def values_by_head(self, hidden: Tensor) -> Tensor:
        """Compute the values of every agent's history with every agent's head.

        Source: lich14/CDS, the values whose policies are averaged over the heads.

        Args:
            hidden: [..., N, H], hidden states, dimensionless.

        Returns:
            [..., N, K, A] [return], K = N heads.
        """
        private = torch.einsum("...nh,kha->...nka", hidden, self.head.weight) + self.head.bias
        return self.fc2(hidden).unsqueeze(-2) + private


class GroupedLinear(nn.Module):
    """G independent linear layers, layer g for row g of [..., G, I], with PyTorch's default initialization."""

    def __init__(self, groups: int, n_in: int, n_out: int) -> None:
        super().__init__()
        bound = n_in**-0.5
        self.weight = nn.Parameter(torch.empty(groups, n_in, n_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(groups, n_out).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """Apply layer g to row g.

        Source: G layers `torch.nn.Linear`.

        Args:
            x: [..., G, I], dimensionless.

        Returns:
            [..., G, O], dimensionless.
        """
        lead = x.shape[:-2]
        x_GRI = x.reshape(-1, *x.shape[-2:]).transpose(0, 1)
        y_GRO = torch.baddbmm(self.bias.unsqueeze(1), x_GRI, self.weight)
        return y_GRO.transpose(0, 1).reshape(*lead, *self.bias.shape)


class ColumnLinear(nn.Linear):
    """A linear layer on columns: [I, R] to [O, R].

    With R last in memory, later operations over short dimensions (agents, heads) are vectorized over R.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Apply the layer to every column.

        Source: `torch.nn.Linear`.

        Args:
            input: [I, R], dimensionless.

        Returns:
            [O, R], dimensionless.
        """
        return torch.addmm(self.bias.unsqueeze(1), self.weight, input)


class ColumnGroupedLinear(GroupedLinear):
    """G independent linear layers on columns, layer g for [I, R] of group g."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply layer g to the columns of group g.

        Source: G layers `torch.nn.Linear`.

        Args:
            x: [G, I, R], dimensionless.

        Returns:
            [G, O, R], dimensionless.
        """
        return torch.baddbmm(self.bias.unsqueeze(2), self.weight.mT, x)


class StackedLinear(nn.Module):
    """G independent linear layers with the same columns as input, with PyTorch's default initialization."""

    def __init__(self, groups: int, n_in: int, n_out: int) -> None:
        super().__init__()
        bound = n_in**-0.5
        self.weight = nn.Parameter(torch.empty(groups, n_in, n_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(groups, 1, n_out).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """Apply all layers to all columns.

        Source: G layers `torch.nn.Linear`.

        Args:
            x: [I, R], dimensionless.

        Returns:
            [G, O, R], dimensionless.
        """
        return torch.baddbmm(self.bias.mT, self.weight.mT, x.expand(len(self.weight), -1, -1))


def copy_network(network: _Network) -> _Network:
    """Copy a network without gradients; the weights of each RNN are in one block of memory, as cuDNN requires."""
    copied = copy.deepcopy(network).requires_grad_(False)  # deepcopy splits the block of an RNN's weights
    for module in copied.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()
    return copied


def mlp(*widths: int, layer: type[nn.Linear] = nn.Linear) -> nn.Sequential:
    """Make linear layers of these widths with ReLU between them.

    Args:
        *widths: Width of the input, of each hidden layer and of the output [units].
        layer: Class of the layers: `nn.Linear` for rows or `ColumnLinear` for columns.
    """
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(widths):
        layers += [layer(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
