"""VDN: Q_tot is the sum of the agents' values."""

from torch import nn

from emtc_core.learner.mixers.base import Mixed, MixInputs


class VdnMixer(nn.Module):
    """Sum over agents; no parameters."""

    def forward(self, inputs: MixInputs) -> Mixed:
        """Mix [R, N] values into [R]."""
        return Mixed(inputs.q_taken.sum(-1))
