"""DMIX: implicit quantile networks for the agents, and the mean-shape decomposition for Q_tot.

Z_i(a; w) = fc2(h * e(w)) with e(w) = ReLU(Linear(cos(pi j w))). As fc2 is linear, the mean over fractions is
fc2(h * mean e). The samples of one action need only its row of fc2's weights, so no tensor of size [W, A] is necessary.
All agents use the same fractions in a step of an episode. Source: j3soon/dfac, pymarl/src.
"""

from typing import Final, cast

import numpy as np
import torch
from torch import Tensor, nn

from emtc_core.config.run import RunConfig
from emtc_core.devices import send
from emtc_core.envs.base import EnvInfo
from emtc_core.learner.backbones.base import Backbone, BackboneTable, JointValues, TdLoss, Unrolled, agent_sizes
from emtc_core.learner.mixers.qmix import DmixMixer
from emtc_core.learner.networks import SequenceBatch, SharedAgent
from emtc_core.learner.step_rows import StepRows
from emtc_core.learner.targets import greedy, quantile_huber
from emtc_core.random_tensors import rand

N_FRACTIONS: Final = 8
"""Fractions per online evaluation; n_quantiles in the configurations of DFAC."""
N_TARGET_FRACTIONS: Final = 8
"""Fractions per target evaluation; n_target_quantiles in the same configurations."""
N_ACT_FRACTIONS: Final = 32
"""Fractions averaged when acting; n_approx_quantiles in the same configurations."""
N_COS: Final = 64
"""Cosine features of a fraction; quantile_embed_dim in the same configurations."""


class QuantileAgent(SharedAgent):
    """The shared recurrent agent with an additional embedding of quantile fractions."""

    def __init__(self, n_inputs: int, n_actions: int, hidden: int) -> None:
        super().__init__(n_inputs, n_actions, hidden)
        self.phi = nn.Linear(N_COS, hidden)
        self.register_buffer("frequency", torch.pi * torch.arange(N_COS), persistent=False)

    def embed(self, fractions: Tensor) -> Tensor:
        """Embed quantile fractions.

        Source: j3soon/dfac, e(w).

        Args:
            fractions: [..., W], in (0, 1), dimensionless.

        Returns:
            [..., W, H], dimensionless.
        """
        frequency = self.get_buffer("frequency")
        return torch.relu(self.phi(torch.cos(fractions.unsqueeze(-1) * frequency)))

    def means(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """Compute the mean of Z_i over the fractions.

        Source: j3soon/dfac, with the mean moved before the linear layer.

        Args:
            hidden: [..., N, H], hidden states, dimensionless.
            embedded: [..., W, H], result of `embed`, dimensionless.

        Returns:
            [..., N, A] [return].
        """
        return self.fc2(hidden * embedded.mean(-2).unsqueeze(-2))

    def samples(self, hidden: Tensor, action: Tensor, embedded: Tensor) -> Tensor:
        """Compute Z_i of the actions at the fractions.

        Source: j3soon/dfac, with only the rows of the linear layer that the actions need.

        Args:
            hidden: [R, N, H], hidden states, dimensionless.
            action: [R, N], action indices.
            embedded: [R, W, H], result of `embed`, dimensionless.

        Returns:
            [R, N, W] [return].
        """
        onehot_RNA = hidden.new_zeros(*action.shape, self.fc2.out_features).scatter_(-1, action.unsqueeze(-1), 1.0)
        column_RNH = onehot_RNA @ self.fc2.weight
        bias_RN1 = (onehot_RNA @ self.fc2.bias).unsqueeze(-1)
        return torch.bmm(hidden * column_RNH, embedded.transpose(1, 2)) + bias_RN1


class DmixBackbone(Backbone):
    """Quantile agents and the mean-shape mixer, trained with the quantile Huber loss."""

    def __init__(self, agent: QuantileAgent, mixer: DmixMixer) -> None:
        super().__init__()
        self.agent, self.mixer = agent, mixer
        self._n_fractions = N_FRACTIONS

    def become_target(self) -> None:
        """Use the number of fractions of a target copy."""
        self._n_fractions = N_TARGET_FRACTIONS

    def unroll(self, seq: SequenceBatch, generator: torch.Generator) -> Unrolled:
        """Run the agents over whole sequences and sample fractions for every step."""
        hidden = self.agent.unroll(seq.inputs, seq.agent_rows)
        shape = (seq.rows.n_steps, seq.rows.n_sequences, self._n_fractions)
        fractions = seq.rows.pack(rand(shape, generator=generator, device=hidden.device))
        with torch.no_grad():
            q = self._quantile_agent.means(hidden, self._quantile_agent.embed(fractions))
        best, action = greedy(q, seq.avail)
        return Unrolled(hidden=hidden, q=q, best=best, greedy=action, fractions=fractions)

    def evaluate_taken(self, unrolled: Unrolled, seq: SequenceBatch) -> JointValues:
        """Mix the samples of the actions that were taken."""
        assert unrolled.fractions is not None, "set by unroll of this class"
        hidden, fractions, state = map(seq.rows.select_before, (unrolled.hidden, unrolled.fractions, seq.state))
        return self._evaluate(hidden, fractions, seq.action, state, seq.rows.transitions)

    def bootstrap(self, unrolled: Unrolled, action: Tensor, seq: SequenceBatch) -> JointValues:
        """Mix the samples of the actions at the next steps.

        Source: j3soon/dfac, target of the quantile regression.

        Args:
            unrolled: Forward pass of this copy.
            action: [R, N], action indices of the next steps.
            seq: The batch.
        """
        assert unrolled.fractions is not None, "set by unroll of this class"
        hidden, fractions, state = map(seq.rows.select_after, (unrolled.hidden, unrolled.fractions, seq.state))
        return self._evaluate(hidden, fractions, action, state, seq.rows.transitions)

    def evaluate_first_step(self, unrolled: Unrolled, seq: SequenceBatch) -> Tensor:
        """Mix the means of the greedy actions at step 0.

        Source: j3soon/dfac.

        Returns:
            [B] [return].
        """
        first = slice(seq.rows.n_sequences)
        return self.mixer.mean_mixer.mix(unrolled.best[first], seq.state[first])

    def td_loss(self, taken: JointValues, total_reward: Tensor, discount: Tensor, next_values: JointValues) -> TdLoss:
        """Compute the quantile Huber loss of Z_tot, with samples of the target distribution.

        Source: j3soon/dfac, with the reward sum of Eq. 10.

        Args:
            taken: Q_tot [T, B] and quantiles [T, B, W] of the actions that were taken.
            total_reward: [T, B] [return], reward plus intrinsic reward plus gated incentive.
            discount: [T, B] dimensionless, gamma, or 0 where the target does not bootstrap.
            next_values: Target values of the next step, Q_tot [T, B] and quantiles [T, B, W].
        """
        assert taken.quantiles is not None, "set by this class"
        assert taken.fractions is not None, "set by this class"
        assert next_values.quantiles is not None, "set by this class"
        target = total_reward.unsqueeze(-1) + discount.unsqueeze(-1) * next_values.quantiles
        loss = quantile_huber(taken.quantiles, taken.fractions, target)
        return TdLoss(loss=loss, error=taken.q_tot - (total_reward + discount * next_values.q_tot))

    def act_values(self, hidden: Tensor, rng: np.random.Generator | None) -> Tensor:
        """Compute the means over random fractions, or over equally spaced ones if `rng` is None.

        Source: j3soon/dfac, with `N_ACT_FRACTIONS` fractions.

        Args:
            hidden: [B, N, H], hidden states, dimensionless.
            rng: Generator of the fractions.

        Returns:
            [B, N, A] [return].
        """
        n_envs, count = hidden.shape[0], N_ACT_FRACTIONS
        if rng is None:
            fractions = ((torch.arange(count, device=hidden.device) + 0.5) / count).expand(n_envs, count)
        else:
            fractions = send(rng.random((n_envs, count), np.float32), hidden.device)
        return self._quantile_agent.means(hidden, self._quantile_agent.embed(fractions))

    def _evaluate(
        self, hidden: Tensor, fractions: Tensor, action: Tensor, state: Tensor, rows: StepRows
    ) -> JointValues:
        """Mix the samples of R rows with this layout."""
        z_RNW = self._quantile_agent.samples(hidden, action, self._quantile_agent.embed(fractions))
        z_tot_RW, q_tot_R = self.mixer(z_RNW, state)
        q_tot, quantiles, fractions = map(rows.unpack, (q_tot_R, z_tot_RW, fractions))
        return JointValues(q_tot=q_tot, quantiles=quantiles, fractions=fractions)

    @property
    def _quantile_agent(self) -> QuantileAgent:
        return cast(QuantileAgent, self.agent)  # set in __init__, registered once under the shared name


def make_dmix(config: RunConfig, info: EnvInfo) -> DmixBackbone:
    """Make DMIX for the sizes of an environment."""
    agent = QuantileAgent(*agent_sizes(config, info))
    mixer = DmixMixer(config.qmix, n_agents=info.n_agents, state_dim=info.state_dim)
    return DmixBackbone(agent, mixer)


BACKBONES: BackboneTable = {"dmix": make_dmix}
