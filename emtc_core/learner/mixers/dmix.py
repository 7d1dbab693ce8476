"""DMIX: QMIX of the means plus the agents' deviations from their means (mean-shape decomposition)."""

from torch import Tensor, nn

from emtc_core.config.backbones import QmixConfig
from emtc_core.learner.mixers.qmix import QmixMixer


class DmixMixer(nn.Module):
    """Mixes quantile samples; the mean over the samples of Z_tot is QMIX of the mean utilities."""

    def __init__(self, config: QmixConfig, *, n_agents: int, state_dim: int) -> None:
        super().__init__()
        self.mean_mixer = QmixMixer(config, n_agents=n_agents, state_dim=state_dim)

    def forward(self, z: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Mix samples [R, N, W] under states [R, S].

        Returns:
            Z_tot [R, W] and its mean Q_tot [R].
        """
        mean_RN = z.mean(-1)
        q_tot_R = self.mean_mixer.mix(mean_RN, state)
        shape_RW = (z - mean_RN.unsqueeze(-1)).sum(1)
        return q_tot_R.unsqueeze(-1) + shape_RW, q_tot_R
