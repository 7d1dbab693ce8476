"""QMIX: a two-layer mixing network whose weights are non-negative functions of the state."""

import torch
from torch import Tensor, nn

from emtc_core.config.backbones import QmixConfig
from emtc_core.learner.mixers.base import Mixed, MixInputs
from emtc_core.learner.networks import mlp


class QmixMixer(nn.Module):
    """Monotone mixing; absolute values keep dQ_tot/dQ_i >= 0."""

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
        """Mix [R, N] values under states [R, S] into [R]."""
        w1_RNE = self.hyper_w1(state).abs().view(*q.shape, -1)
        hidden_RE = nn.functional.elu((q.unsqueeze(-1) * w1_RNE).sum(1) + self.hyper_b1(state))
        w2_RE = self.hyper_w2(state).abs()
        return torch.linalg.vecdot(hidden_RE, w2_RE) + self.hyper_b2(state).squeeze(-1)
