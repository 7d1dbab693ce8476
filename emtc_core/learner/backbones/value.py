"""VDN, QMIX and QPLEX: recurrent agents and a mixer. CDS is the same with private heads for the agents."""

from functools import reduce
from importlib import import_module
from pkgutil import iter_modules

import numpy as np
import torch
from torch import Tensor, nn

from emtc_core.config.run import RunConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.errors import PluginError
from emtc_core.learner import mixers
from emtc_core.learner.backbones.base import Backbone, BackboneTable, JointValues, TdLoss, Unrolled, agent_sizes
from emtc_core.learner.mixers.base import Mixed, MixerTable, MixInputs
from emtc_core.learner.networks import DiverseAgent, SequenceBatch, SharedAgent
from emtc_core.learner.targets import greedy
from emtc_core.plugins import get_plugin

_MODULES = [import_module(f"{mixers.__name__}.{module.name}") for module in iter_modules(mixers.__path__)]
MIXERS: MixerTable = {name: make for m in _MODULES for name, make in getattr(m, "MIXERS", {}).items()}


def make_mixer(rule: str, config: RunConfig, info: EnvInfo) -> nn.Module:
    """Make the mixer of a backbone with scalar values (not distributions).

    Args:
        rule: Name of the mixing rule, which is that of a built-in or plug-in mixer.
        config: Configuration of the run.
        info: Sizes of the environment.

    Raises:
        PluginError: If no built-in or plug-in rule has this name, or if the plug-in does not return a module.
    """
    if rule in MIXERS:
        return MIXERS[rule](config, info)
    mixer = get_plugin("mixer", rule).bind(config.plugin)(config, info)
    if not isinstance(mixer, nn.Module):
        raise PluginError("must make a torch.nn.Module", key=f"mixer {rule}", value=type(mixer).__name__)
    return mixer


class ValueBackbone(Backbone):
    """Agents with scalar values and a mixer, trained with the squared TD error."""

    def __init__(self, agent: SharedAgent, mixer: nn.Module, *, l1: float = 0.0) -> None:
        """Set the agent network and the mixer.

        Args:
            agent: Network shared by all agents.
            mixer: Combines the agents' values into Q_tot. Its input is `MixInputs`, its output `Mixed`.
            l1: Weight of the mean absolute private value (CDS); used only with a `DiverseAgent`.
        """
        super().__init__()
        self.agent, self.mixer, self._l1 = agent, mixer, l1

    def unroll(self, seq: SequenceBatch, generator: torch.Generator) -> Unrolled:
        """Run the agents over whole sequences; `generator` is not used."""
        hidden = self.agent.unroll(seq.inputs, seq.n_steps)
        q = self._values(hidden, seq)
        best, action = greedy(q, seq.avail)
        return Unrolled(hidden=hidden, q=q, best=best, greedy=action)

    def evaluate_actions(self, seq: SequenceBatch) -> Tensor:
        """Run the agents over whole sequences and return only their action values.

        Source: the agent network.

        Returns:
            [T+1, B, N, A] [return].
        """
        return self._values(self.agent.unroll(seq.inputs, seq.n_steps), seq)

    def evaluate_taken(self, unrolled: Unrolled, seq: SequenceBatch) -> JointValues:
        """Mix the values of the actions that were taken."""
        q_taken = unrolled.q[:-1].gather(-1, seq.action.unsqueeze(-1)).squeeze(-1)
        mixed = self._mix(q_taken, unrolled.best[:-1], seq.action, seq.state[:-1], seq.obs[:-1], seq.real_transitions)
        mixer_regularizer = None if mixed.regularizer is None else mixed.regularizer.view(seq.reward.shape)
        regularizers = [term for term in (mixer_regularizer, self._private_l1(unrolled, seq)) if term is not None]
        regularizer = reduce(torch.add, regularizers) if regularizers else None
        return JointValues(q_tot=mixed.q_tot.view(seq.reward.shape), regularizer=regularizer)

    def bootstrap(self, unrolled: Unrolled, action: Tensor, seq: SequenceBatch) -> JointValues:
        """Mix the values of the actions at the next steps (Eq. 10).

        Args:
            unrolled: Forward pass of this network (the target network).
            action: [T, B, N], action indices of the next steps.
            seq: The batch.
        """
        q_taken = unrolled.q[1:].gather(-1, action.unsqueeze(-1)).squeeze(-1)
        mixed = self._mix(q_taken, unrolled.best[1:], action, seq.state[1:], seq.obs[1:], seq.real_transitions)
        return JointValues(q_tot=mixed.q_tot.view(seq.reward.shape))

    def evaluate_first_step(self, unrolled: Unrolled, seq: SequenceBatch) -> Tensor:
        """Mix the greedy values at step 0.

        Source: Q_tot of the mixer.

        Returns:
            [B] [return].
        """
        best, action = unrolled.best[:1], unrolled.greedy[:1]
        return self._mix(best, best, action, seq.state[:1], seq.obs[:1]).q_tot

    def td_loss(self, taken: JointValues, total_reward: Tensor, discount: Tensor, next_values: JointValues) -> TdLoss:
        """Compute the squared TD error (Eq. 10).

        Args:
            taken: Q_tot of the actions that were taken, [T, B].
            total_reward: [T, B] [return], reward plus intrinsic reward plus gated incentive.
            discount: [T, B] dimensionless, gamma, or 0 where the target does not bootstrap.
            next_values: Target values of the next step, [T, B].
        """
        error = taken.q_tot - (total_reward + discount * next_values.q_tot)
        return TdLoss(loss=error.square(), error=error)

    def act_values(self, hidden: Tensor, rng: np.random.Generator | None) -> Tensor:
        """Compute the action values of hidden states.

        Source: the agent network.

        Args:
            hidden: [B, N, H], hidden states, dimensionless.
            rng: Not used.

        Returns:
            [B, N, A] [return].
        """
        return self.agent.values(hidden)

    def _values(self, hidden: Tensor, seq: SequenceBatch) -> Tensor:
        """Compute the action values of all steps. On the CPU the padding may be skipped; its values are then 0.

        `seq.unpadded_states` has the indices of the real steps.
        """
        if seq.unpadded_states is None:
            return self.agent.values(hidden)
        q = self.agent.values(hidden.flatten(0, 1).index_select(0, seq.unpadded_states))
        zeros = q.new_zeros(hidden.shape[0] * hidden.shape[1], *q.shape[1:])
        return zeros.index_copy(0, seq.unpadded_states, q).unflatten(0, hidden.shape[:2])

    def _mix(
        self,
        q: Tensor,
        best: Tensor,
        action: Tensor,
        state: Tensor,
        obs: Tensor,
        real_transitions: tuple[Tensor, Tensor] | None = None,
    ) -> Mixed:
        """Mix all transitions, or only those with the indices `real_transitions`; the others are then 0."""
        inputs = (q, best, action, state, obs)
        if real_transitions is None:
            return self.mixer(MixInputs(*(tensor.flatten(0, 1) for tensor in inputs)))
        mixed = self.mixer(MixInputs(*(tensor[real_transitions] for tensor in inputs)))
        zeros = mixed.q_tot.new_zeros(action.shape[:2])
        regularizer = (
            None if mixed.regularizer is None else zeros.index_put(real_transitions, mixed.regularizer).flatten()
        )
        return Mixed(zeros.index_put(real_transitions, mixed.q_tot).flatten(), regularizer)

    def _private_l1(self, unrolled: Unrolled, seq: SequenceBatch) -> Tensor | None:
        """Compute l1 times the mean absolute private value: [T, B], 0 in skipped padding; None if not used."""
        if not isinstance(self.agent, DiverseAgent) or not self._l1:
            return None
        hidden = unrolled.hidden[:-1] if seq.real_transitions is None else unrolled.hidden[:-1][seq.real_transitions]
        penalty = self._l1 * self.agent.private_values(hidden).abs().mean((-1, -2))
        return (
            penalty
            if seq.real_transitions is None
            else penalty.new_zeros(seq.mask.shape).index_put(seq.real_transitions, penalty)
        )


def make_value_backbone(config: RunConfig, info: EnvInfo) -> ValueBackbone:
    """Make VDN, QMIX, QPLEX or a plug-in, where the name of the backbone is also the name of its mixing rule."""
    return ValueBackbone(SharedAgent(*agent_sizes(config, info)), make_mixer(config.backbone, config, info))


def make_cds(config: RunConfig, info: EnvInfo) -> ValueBackbone:
    """Make CDS. Its agents differ by their private heads, so the input contains no agent id."""
    agent = DiverseAgent(*agent_sizes(config, info, agent_id=False), info.n_agents)
    backbone = ValueBackbone(agent, make_mixer(config.cds.mixer, config, info), l1=config.cds.l1)
    backbone.agent_id = False  # the controller then adds no one-hot id to the inputs
    return backbone


BACKBONES: BackboneTable = {**dict.fromkeys(MIXERS, make_value_backbone), "cds": make_cds}
