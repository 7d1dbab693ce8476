"""Curiosity of EMC: an intrinsic reward from the prediction error of individual action values.

A separate VDN learner is trained on the extrinsic reward. It has an online, a target and a soft copy, which follows
the online network slowly. A predictor with the same architecture predicts the soft copy's values:

    e_i = || pred_i(tau_{t+1}) - 10 Qsoft_i(tau_{t+1}) ||_2

The reward is a scale times the mean of e_i over agents. Source: kikojay/EMC, pymarl/src.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from emtc_core.config.backbones import CuriosityConfig
from emtc_core.config.train import TrainConfig
from emtc_core.learner.backbones.base import Unrolled
from emtc_core.learner.networks import SequenceBatch, SharedAgent, copy_network
from emtc_core.learner.targets import greedy, masked_mean
from emtc_core.replay_buffer.buffer import StateDict
from emtc_core.threads import run_together

VALUE_FACTOR = 10.0
"""Factor of the soft copy's values in the prediction target."""
SOFT_RATE = 0.005
"""Rate at which the soft copy follows the online network, per update."""
DISTANCE_EPS = 1e-6
"""Added to each difference, so that the norm has a gradient at 0."""


def curiosity_scale(config: CuriosityConfig, env_step: int) -> float:
    """Compute the scale of the curiosity reward after `env_step` training steps.

    Each cycle multiplies the scale by `decay_rate`, down to `decay_stop`. EMU's code has a bug: after the first cycle
    it raises a scale below `decay_stop` to `decay_stop`. `emulate_floor_bug` reproduces it.
    """
    scale, cycles = config.scale, env_step // config.decay_cycle
    if config.emulate_floor_bug:
        for _ in range(cycles):
            scale = scale * config.decay_rate if scale > config.decay_stop else config.decay_stop
        return scale
    if scale <= config.decay_stop:
        return scale
    return max(config.decay_stop, scale * config.decay_rate**cycles)


@dataclass(frozen=True)
class _Pass:
    """Results of one forward pass over a batch."""

    distance: Tensor  # [T, B] mean of e_i over agents, with gradient
    online: Tensor  # [P, N, H] hidden states of the online VDN network, with gradient
    target: Tensor  # [P, N, H] hidden states of the target VDN network


class Curiosity:
    """The intrinsic reward of EMC."""

    def __init__(
        self,
        config: CuriosityConfig,
        train: TrainConfig,
        *,
        n_inputs: int,
        n_actions: int,
        device: torch.device,
    ) -> None:
        self._config, self._train = config, train
        self._online = SharedAgent(n_inputs, n_actions, train.hidden).to(device)
        self._predictor = SharedAgent(n_inputs, n_actions, train.hidden).to(device)
        self._target, self._soft = copy_network(self._online), copy_network(self._online)
        self._value_optimizer = torch.optim.RMSprop(self._online.parameters(), lr=train.lr, alpha=0.99, eps=1e-5)
        self._predictor_optimizer = torch.optim.Adam(self._predictor.parameters(), lr=train.lr)
        self._pass: _Pass | None = None

    def prepare(self, seq: SequenceBatch) -> None:
        """Run all four networks over the batch; `reward` and `train` use the result."""
        # The soft copy and the target need no gradient.
        without_gradient = [torch.no_grad()(agent.unroll) for agent in (self._soft, self._target)]
        unrolls = [*without_gradient, self._predictor.unroll, self._online.unroll]
        soft, target, predictor, online = run_together(
            [partial(unroll, seq.inputs, seq.agent_rows) for unroll in unrolls]
        )
        with torch.no_grad():
            prediction_target = VALUE_FACTOR * self._soft.values(seq.rows.select_after(soft))
        prediction = self._predictor.values(seq.rows.select_after(predictor))
        distance_R = torch.linalg.vector_norm(prediction - prediction_target + DISTANCE_EPS, dim=-1).mean(-1)
        self._pass = _Pass(seq.rows.transitions.unpack(distance_R), online, target)

    def reward(self, seq: SequenceBatch, online: Unrolled, *, env_step: int) -> Tensor:
        """Compute the scale times the mean prediction error at the next step.

        Source: kikojay/EMC.

        Args:
            seq: The batch.
            online: The learner's forward pass over the batch.
            env_step: Training env steps so far, for the decay of the scale.

        Returns:
            [T, B] [reward], detached.
        """
        assert self._pass is not None, "prepare comes before reward"
        return curiosity_scale(self._config, env_step) * self._pass.distance.detach()

    def train(self, seq: SequenceBatch, online: Unrolled, *, env_step: int, generator: torch.Generator) -> None:
        """Train the VDN utilities and the predictor on the batch, then move the soft copy.

        Args:
            seq: The batch.
            online: The learner's forward pass over the batch.
            env_step: Training env steps so far. Not used.
            generator: Source of random numbers. Not used.
        """
        assert self._pass is not None, "prepare comes before train"
        self._value_optimizer.zero_grad(set_to_none=True)
        self._predictor_optimizer.zero_grad(set_to_none=True)
        distance, value = masked_mean(self._pass.distance, seq.mask), self._value_loss(seq, self._pass)
        run_together([distance.backward, value.backward])  # the two losses share no weights
        self._pass = None
        for network, optimizer in ((self._predictor, self._predictor_optimizer), (self._online, self._value_optimizer)):
            nn.utils.clip_grad_norm_(network.parameters(), self._train.grad_clip)
            optimizer.step()
        with torch.no_grad():
            for soft, value in zip(self._soft.parameters(), self._online.parameters(), strict=True):
                soft.lerp_(value, SOFT_RATE)

    def on_episodes(self, episodes: int) -> None:
        """Do nothing: curiosity is trained at every update."""

    def copy_target(self) -> None:
        """Copy the online VDN network to its target."""
        self._target.load_state_dict(self._online.state_dict())

    def get_state(self) -> StateDict:
        """Return the states of the four networks and the two optimizers."""
        return {name: part.state_dict() for name, part in self._parts().items()}

    def set_state(self, state: StateDict) -> None:
        """Restore what `get_state` returned."""
        for name, part in self._parts().items():
            part.load_state_dict(state[name])

    def _parts(self) -> dict[str, nn.Module | torch.optim.Optimizer]:
        return {
            "online": self._online,
            "target": self._target,
            "soft": self._soft,
            "predictor": self._predictor,
            "value_optimizer": self._value_optimizer,
            "predictor_optimizer": self._predictor_optimizer,
        }

    def _value_loss(self, seq: SequenceBatch, hidden: _Pass) -> Tensor:
        """Compute the mean squared TD error of VDN with double Q-learning."""
        q = self._online.values(hidden.online)
        q_taken = seq.rows.select_before(q).gather(-1, seq.action.unsqueeze(-1)).squeeze(-1).sum(-1)
        with torch.no_grad():
            next_values = self._target.values(seq.rows.select_after(hidden.target))
            action = seq.rows.select_after(greedy(q, seq.avail)[1])
            q_next = next_values.gather(-1, action.unsqueeze(-1)).squeeze(-1).sum(-1)
            target = seq.reward + self._train.gamma * (1.0 - seq.terminated) * seq.rows.transitions.unpack(q_next)
        return masked_mean((seq.rows.transitions.unpack(q_taken) - target).square(), seq.mask)
