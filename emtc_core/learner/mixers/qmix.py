"""VDN, QMIX and DMIX: monotonic mixing rules. Q_tot does not decrease when any Q_i increases.

Shapes: R rows (transitions), N agents, W quantile samples, S state size. `DmixMixer` mixes quantile samples instead of
values, so it is not in `MIXERS`; `backbones/dmix.py` creates it.
"""

import torch
from torch import Tensor, nn

from emtc_core.config.backbones import QmixConfig
from emtc_core.learner.mixers.base import Mixed, MixerTable, MixInputs
from emtc_core.learner.networks import mlp


class VdnMixer(nn.Module):
    """Sum over agents; no parameters."""

    def forward(self, inputs: MixInputs) -> Mixed:
        """Mix [R, N] values into [R]."""
        return Mixed(inputs.q_taken.sum(-1))


class QmixMixer(nn.Module):
    """Two layers with weights from hypernetworks of the state; absolute weights ensure dQ_tot/dQ_i >= 0."""

    def __init__(self, config: QmixConfig, *, n_agents: int, state_dim: int) -> None:
        super().__init__()
        embed, hyper = config.mixing_embed, config.hypernet_embed
        self.hyper_w1 = mlp(state_dim, hyper, n_agents * embed)
        self.hyper_b1 = nn.Linear(state_dim, embed)
        self.hyper_w2 = mlp(state_dim, hyper, embed)
        self.hyper_b2 = mlp(state_dim, embed, 1)

    def forward(self, inputs: MixInputs) -> Mixed:
        """Mix [R, N] values into [R]."""
        return Mixed(self.mix(inputs.q_taken, inputs.state))

    def mix(self, q: Tensor, state: Tensor) -> Tensor:
        """Compute Q_tot.

        Source: oxwhirl/pymarl, QMIX.

        Args:
            q: [R, N], Q_i [return].
            state: [R, S] [state features].

        Returns:
            [R] [return].
        """
        w1_RNE = self.hyper_w1(state).abs().view(*q.shape, -1)
        hidden_RE = nn.functional.elu((q.unsqueeze(-1) * w1_RNE).sum(1) + self.hyper_b1(state))
        w2_RE = self.hyper_w2(state).abs()
        return torch.linalg.vecdot(hidden_RE, w2_RE) + self.hyper_b2(state).squeeze(-1)


class DmixMixer(nn.Module):
    """Mean-shape decomposition: QMIX of the mean values, plus the agents' deviations from their means."""

    def __init__(self, config: QmixConfig, *, n_agents: int, state_dim: int) -> None:
        super().__init__()
        self.mean_mixer = QmixMixer(config, n_agents=n_agents, state_dim=state_dim)

    def forward(self, z: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Compute Z_tot by the mean-shape decomposition.

        Source: j3soon/dfac.

        Args:
            z: [R, N, W], quantile samples Z_i [return].
            state: [R, S] [state features].

        Returns:
            Z_tot [R, W] and its mean Q_tot [R], both [return].
        """
        mean_RN = z.mean(-1)
        q_tot_R = self.mean_mixer.mix(mean_RN, state)
        shape_RW = (z - mean_RN.unsqueeze(-1)).sum(1)
        return q_tot_R.unsqueeze(-1) + shape_RW, q_tot_R


MIXERS: MixerTable = {
    "vdn": lambda config, info: VdnMixer(),
    "qmix": lambda config, info: QmixMixer(config.qmix, n_agents=info.n_agents, state_dim=info.state_dim),
}
