"""DMIX: implicit quantile utilities joined by the mean-shape mixture.

Z_i(a; w) = fc2(h * e(w)) with e(w) = ReLU(Linear(cos(pi j w))). fc2 is linear, so the mean over fractions is
fc2(h * mean e), and a chosen action's samples need only its own column of fc2: nothing of size [W, A] is made.
The fractions of one (step, episode) are shared by its agents.
Source: j3soon/dfac, pymarl/src.
"""

from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from emtc_core.config.backbones import DmixConfig
from emtc_core.config.run import RunConfig
from emtc_core.devices import rand, send
from emtc_core.envs.base import EnvInfo
from emtc_core.learner.backbones.base import Backbone, BackboneTable, Evaluation, TdLoss, Unrolled, agent_sizes
from emtc_core.learner.mixers.qmix import DmixMixer
from emtc_core.learner.networks import Sequence, SharedAgent
from emtc_core.learner.targets import greedy, quantile_huber


class QuantileAgent(SharedAgent):
    """The shared recurrent agent with an embedding of quantile fractions."""

    def __init__(self, n_inputs: int, n_actions: int, hidden: int, *, n_cos: int) -> None:
        super().__init__(n_inputs, n_actions, hidden)
        self.phi = nn.Linear(n_cos, hidden)
        self.register_buffer("frequency", torch.pi * torch.arange(n_cos), persistent=False)

    def embed(self, fractions: Tensor) -> Tensor:
        """Embed fractions: [..., W] to [..., W, H]."""
        frequency = self.get_buffer("frequency")
        return torch.relu(self.phi(torch.cos(fractions.unsqueeze(-1) * frequency)))

    def means(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """Average Z_i of every action over the fractions: hidden [..., N, H], embedded [..., W, H]."""
        return self.fc2(hidden * embedded.mean(-2).unsqueeze(-2))

    def samples(self, hidden: Tensor, action: Tensor, embedded: Tensor) -> Tensor:
        """Return Z_i of chosen actions: [R, N, H], [R, N] and [R, W, H] to [R, N, W]."""
        onehot_RNA = hidden.new_zeros(*action.shape, self.fc2.out_features).scatter_(-1, action.unsqueeze(-1), 1.0)
        column_RNH = onehot_RNA @ self.fc2.weight
        bias_RN1 = (onehot_RNA @ self.fc2.bias).unsqueeze(-1)
        return torch.bmm(hidden * column_RNH, embedded.transpose(1, 2)) + bias_RN1


class DmixBackbone(Backbone):
    """Quantile agents and the mean-shape mixer; quantile Huber loss."""

    def __init__(self, agent: QuantileAgent, mixer: DmixMixer, config: DmixConfig) -> None:
        super().__init__()
        self.agent, self.mixer = agent, mixer
        self._n_fractions, self._n_act_fractions = config.n_quantiles, config.n_act_quantiles
        self._n_target_fractions = config.n_target_quantiles

    def become_target(self) -> None:
        """Draw as many fractions as a target copy should."""
        self._n_fractions = self._n_target_fractions

    def unroll(self, seq: Sequence, generator: torch.Generator) -> Unrolled:
        """Run the agents over whole sequences and draw fractions for every step."""
        hidden = self.agent.unroll(seq.inputs, seq.n_steps)
        shape = (*hidden.shape[:2], self._n_fractions)
        fractions = rand(shape, generator=generator, device=hidden.device)
        with torch.no_grad():
            q = self._quantile_agent.means(hidden, self._quantile_agent.embed(fractions))
        best, action = greedy(q, seq.avail)
        return Unrolled(hidden=hidden, q=q, best=best, greedy=action, fractions=fractions)

    def taken(self, unrolled: Unrolled, seq: Sequence) -> Evaluation:
        """Mix the samples of the actions that were taken."""
        assert unrolled.fractions is not None, "a quantile backbone always draws fractions"
        return self._evaluate(unrolled.hidden[:-1], unrolled.fractions[:-1], seq.action, seq.state[:-1])

    def bootstrap(self, unrolled: Unrolled, action: Tensor, seq: Sequence) -> Evaluation:
        """Mix the samples of given actions one step later."""
        assert unrolled.fractions is not None, "a quantile backbone always draws fractions"
        return self._evaluate(unrolled.hidden[1:], unrolled.fractions[1:], action, seq.state[1:])

    def start(self, unrolled: Unrolled, seq: Sequence) -> Tensor:
        """Mix the greedy means at step 0."""
        return self.mixer.mean_mixer.mix(unrolled.best[0], seq.state[0])

    def td_loss(self, taken: Evaluation, shift: Tensor, discount: Tensor, following: Evaluation) -> TdLoss:
        """Regress the quantiles of Z_tot on samples of the shifted target distribution."""
        assert taken.quantiles is not None, "made by this backbone"
        assert taken.fractions is not None, "made by this backbone"
        assert following.quantiles is not None, "made by this backbone"
        target = shift.unsqueeze(-1) + discount.unsqueeze(-1) * following.quantiles
        loss = quantile_huber(taken.quantiles, taken.fractions, target)
        return TdLoss(loss=loss, error=taken.q_tot - (shift + discount * following.q_tot))

    def act_values(self, hidden: Tensor, rng: np.random.Generator | None) -> Tensor:
        """Average over random fractions, or over midpoints where no randomness is asked for."""
        n_envs, count = hidden.shape[0], self._n_act_fractions
        if rng is None:
            fractions = ((torch.arange(count, device=hidden.device) + 0.5) / count).expand(n_envs, count)
        else:
            fractions = send(rng.random((n_envs, count), np.float32), hidden.device)
        return self._quantile_agent.means(hidden, self._quantile_agent.embed(fractions))

    def _evaluate(self, hidden: Tensor, fractions: Tensor, action: Tensor, state: Tensor) -> Evaluation:
        z_RNW = self._quantile_agent.samples(
            hidden.flatten(0, 1), action.flatten(0, 1), self._quantile_agent.embed(fractions.flatten(0, 1))
        )
        z_tot_RW, q_tot_R = self.mixer(z_RNW, state.flatten(0, 1))
        steps = action.shape[:2]
        return Evaluation(q_tot=q_tot_R.view(steps), quantiles=z_tot_RW.view(*steps, -1), fractions=fractions)

    @property
    def _quantile_agent(self) -> QuantileAgent:
        return cast(QuantileAgent, self.agent)  # set in __init__, registered once under the shared name


def make_dmix(config: RunConfig, info: EnvInfo) -> DmixBackbone:
    """Make DMIX for a game's sizes."""
    agent = QuantileAgent(*agent_sizes(config, info), n_cos=config.dmix.n_cos)
    mixer = DmixMixer(config.qmix, n_agents=info.n_agents, state_dim=info.state_dim)
    return DmixBackbone(agent, mixer, config.dmix)


BACKBONES: BackboneTable = {"dmix": make_dmix}
