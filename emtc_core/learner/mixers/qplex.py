"""QPLEX: duplex dueling mixing. The transformation uses attention (dmaq_qatten) or only the state (dmaq).

Both use Qh_i = w_i Q_i + c_i and A_i = stop_grad(w_i (Q_i - m_i)) <= 0, with m_i the largest available Q_i.
Q_tot = sum_i Qh_i + sum_i (lambda_i - 1) A_i. The gradient of w_i comes only from the first sum.

Inside this module R is the last dimension in memory: products and sums over the short dimensions (N agents, U features
of an agent) are then computed for many transitions at once. With R first, the mixer takes 1.5 times as long on a CPU.
Source: wjh720/QPLEX, pymarl-master/src/modules/mixers/dmaq_general.py and dmaq_qatten.py.
"""

import itertools
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from emtc_core.config.backbones import QplexConfig
from emtc_core.config.run import RunConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.learner.mixers.base import Mixed, MixerTable, MixInputs
from emtc_core.learner.networks import ColumnGroupedLinear, ColumnLinear, StackedLinear, mlp

FLOOR = 1e-10  # added to weights, so that they are > 0
KERNEL_WIDTH: Final = 64
"""Hidden width of the kernel networks [units]; adv_hypernet_embed in every configuration of QPLEX, CDS, EMC and EMU."""
TRANSFORM_WIDTH: Final = 64
"""Hidden width of the transformation networks [units]; hypernet_embed in the same configurations."""
N_HEADS: Final = 4
"""Attention heads; n_head in the same configurations."""
ATTENTION_WIDTH: Final = 32
"""Width of queries and keys [units]; mixing_embed_dim in the same configurations."""
BIAS_WIDTH: Final = 32
"""Hidden width of the bias of the state [units]; mixing_embed_dim in the same configurations."""


class Transform(NamedTuple):
    """w and c of Qh_i = w_i Q_i + c_i.

    Source: wjh720/QPLEX.
    """

    weight: Tensor  # [N, R] w > 0, dimensionless
    bias: Tensor  # [N, R] c [return], or [1, R] if all agents share it
    regularizer: Tensor | None  # [R] additional [loss]


class QplexMixer(nn.Module):
    """Computes Q_tot from transformed values and weighted advantages."""

    def __init__(
        self,
        config: QplexConfig,
        *,
        n_agents: int,
        n_actions: int,
        state_dim: int,
        obs_dim: int,
        agent_block: int,
    ) -> None:
        super().__init__()
        if config.mixer == "dmaq":
            self.transform: nn.Module = StateTransform(config, n_agents=n_agents, state_dim=state_dim)
        else:
            self.transform = AttentionTransform(
                config, n_agents=n_agents, state_dim=state_dim, obs_dim=obs_dim, agent_block=agent_block
            )
        self.importance = Importance(config, n_agents=n_agents, n_actions=n_actions, state_dim=state_dim)

    def forward(self, inputs: MixInputs) -> Mixed:
        """Mix [R, N] values into [R]."""
        transform: Transform = self.transform(inputs)
        lambda_NR = self.importance(inputs.state, inputs.action)
        weight_NR, q_taken_NR, q_max_NR = transform.weight, inputs.q_taken.t(), inputs.q_max.t()
        advantage_NR = (weight_NR * (q_taken_NR - q_max_NR)).detach()
        terms_NR = weight_NR * q_taken_NR + transform.bias + (lambda_NR - 1.0) * advantage_NR
        return Mixed(terms_NR.sum(0), transform.regularizer)


class Importance(nn.Module):
    """Weights lambda_i(s, a) > 0 of the advantages: a sum over K kernels of key x agent x action factors."""

    def __init__(self, config: QplexConfig, *, n_agents: int, n_actions: int, state_dim: int) -> None:
        super().__init__()
        self._n_actions, self._kernels = n_actions, config.num_kernel
        layers = config.adv_hypernet_layers
        self.key = KernelMlp(config.num_kernel, state_dim, 1, layers=layers)
        self.agents = KernelMlp(config.num_kernel, state_dim, n_agents, layers=layers)
        self.action = KernelMlp(config.num_kernel, state_dim + n_agents * n_actions, n_agents, layers=layers)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        """Compute the importance weights lambda.

        Source: wjh720/QPLEX, `DMAQ_SI_Weight`.

        Args:
            state: [R, S] [state features].
            action: [R, N], action indices.

        Returns:
            [N, R], lambda > 0, dimensionless.
        """
        state_SR = state.t()
        onehot_RNA = state.new_zeros(*action.shape, self._n_actions).scatter_(-1, action.unsqueeze(-1), 1.0)
        key_K1R = self.key(state_SR).abs() + FLOOR
        agents_KNR = torch.sigmoid(self.agents(state_SR))
        action_KNR = torch.sigmoid(self.action(state_SR, onehot_RNA.flatten(1).t()))
        return (key_K1R * agents_KNR * action_KNR).sum(0)


class KernelMlp(nn.Module):
    """K separate networks of 1 to 3 layers with the same inputs, computed together: [I, R] to [K, O, R]."""

    def __init__(self, kernels: int, n_in: int, n_out: int, *, layers: int) -> None:
        super().__init__()
        self._kernels = kernels
        # The first layers of the K networks have the same input, so they are computed as one layer.
        self.first = nn.Linear(n_in, kernels * (KERNEL_WIDTH if layers > 1 else n_out))
        widths = [*[KERNEL_WIDTH] * (layers - 1), n_out]
        self.rest = nn.ModuleList(ColumnGroupedLinear(kernels, a, b) for a, b in itertools.pairwise(widths))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Compute all K networks.

        Source: wjh720/QPLEX, one network per kernel.

        Args:
            *inputs: [I_j, R], parts of the input with the sum I of all I_j, dimensionless.

        Returns:
            [K, O, R], outputs, dimensionless.
        """
        y = self.first.bias.unsqueeze(1)
        weights = self.first.weight.split([len(x) for x in inputs], dim=1)
        for weight, x in zip(weights, inputs, strict=True):
            y = torch.addmm(y, weight, x)  # a product per part is cheaper than joining the parts
        y = y.view(self._kernels, -1, y.shape[1])
        for layer in self.rest:
            y = layer(torch.relu(y))
        return y


class StateTransform(nn.Module):
    """dmaq: w and c are functions of the state; without `weighted_head`, w = 1 and c = 0."""

    def __init__(self, config: QplexConfig, *, n_agents: int, state_dim: int) -> None:
        super().__init__()
        weighted = config.weighted_head
        self.weight = mlp(state_dim, TRANSFORM_WIDTH, n_agents, layer=ColumnLinear) if weighted else None
        self.bias = mlp(state_dim, TRANSFORM_WIDTH, n_agents, layer=ColumnLinear) if weighted else None

    def forward(self, inputs: MixInputs) -> Transform:
        """Return w [N, R] and c [N, R]."""
        if self.weight is None or self.bias is None:
            ones_NR = torch.ones_like(inputs.q_taken.t())
            return Transform(ones_NR, torch.zeros_like(ones_NR), None)
        state_SR = inputs.state.t()
        return Transform(self.weight(state_SR).abs() + FLOOR, self.bias(state_SR), None)


class AttentionTransform(nn.Module):
    """dmaq_qatten: w from attention of the state (query) over agent features (keys); c is the same for all agents."""

    def __init__(self, config: QplexConfig, *, n_agents: int, state_dim: int, obs_dim: int, agent_block: int) -> None:
        super().__init__()
        self._n_agents, self._block, self._config = n_agents, agent_block, config
        heads, embed, hidden = N_HEADS, ATTENTION_WIDTH, TRANSFORM_WIDTH
        width = (agent_block or obs_dim) + (1 if config.nonlinear else 0)
        self.query_hidden = StackedLinear(heads, state_dim, hidden)
        self.query = nn.Parameter(torch.empty(heads, hidden, embed).uniform_(-(hidden**-0.5), hidden**-0.5))
        self.key = nn.Parameter(torch.empty(heads, width, embed).uniform_(-(width**-0.5), width**-0.5))
        self.bias = mlp(state_dim, BIAS_WIDTH, 1, layer=ColumnLinear)
        weighted = config.weighted_head
        self.head_weight = mlp(state_dim, hidden, heads, layer=ColumnLinear) if weighted else None

    def forward(self, inputs: MixInputs) -> Transform:
        """Return w [N, R], c [1, R] and the penalty of squared logits [R]."""
        logits_HNR = self._logits(inputs)
        attention_HNR = torch.softmax(logits_HNR * ATTENTION_WIDTH**-0.5, dim=1)
        if self.head_weight is not None:
            attention_HNR = attention_HNR * self.head_weight(inputs.state.t()).abs().unsqueeze(1)
        penalty_R = logits_HNR.square().sum((0, 1)) * (self._config.attend_reg / self._n_agents)
        return Transform(attention_HNR.sum(0) + FLOOR, self.bias(inputs.state.t()) / self._n_agents, penalty_R)

    def _logits(self, inputs: MixInputs) -> Tensor:
        hidden_HDR = self.query_hidden(inputs.state.t()).relu_()
        # (hidden Wq) . (u Wk) = (hidden Wq Wk^T) . u, so the features u of the agents need no projection.
        query_HUR = torch.bmm(torch.bmm(self.key, self.query.mT), hidden_HDR)
        return (query_HUR.unsqueeze(1) * self._features(inputs)).sum(2)

    def _features(self, inputs: MixInputs) -> Tensor:
        """Return each agent's block of the state, or its observation if the state has no blocks: [N, U, R].

        With `nonlinear`, Q_i is appended.
        """
        block = self._block
        if block:
            features_NUR = _columns(inputs.state[:, : self._n_agents * block]).unflatten(0, (-1, block))
        else:
            features_NUR = inputs.obs.permute(1, 2, 0).contiguous()
        if self._config.nonlinear:
            features_NUR = torch.cat([features_NUR, inputs.q_taken.t().unsqueeze(1)], dim=1)
        return features_NUR


def _columns(rows: Tensor) -> Tensor:
    """Transpose [R, I] to [I, R], contiguous in memory."""
    return rows.t().contiguous()


def make_qplex(config: RunConfig, info: EnvInfo) -> QplexMixer:
    """Make the mixer for the sizes of an environment."""
    return QplexMixer(
        config.qplex,
        n_agents=info.n_agents,
        n_actions=info.n_actions,
        state_dim=info.state_dim,
        obs_dim=info.obs_dim,
        agent_block=info.agent_block,
    )


MIXERS: MixerTable = {"qplex": make_qplex}
