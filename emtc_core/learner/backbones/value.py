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
        hidden = self.agent.unroll(seq.inputs, seq.agent_rows)
        q = self.agent.values(hidden)
        best, action = greedy(q, seq.avail)
        return Unrolled(hidden=hidden, q=q, best=best, greedy=action)

    def evaluate_taken(self, unrolled: Unrolled, seq: SequenceBatch) -> JointValues:
        """Mix the values of the actions that were taken."""
        q, best, state, obs = map(seq.rows.select_before, (unrolled.q, unrolled.best, seq.state, seq.obs))
        mixed = self._mix(q, best, seq.action, state, obs)
        regularizers = [term for term in (mixed.regularizer, self._private_l1(unrolled, seq)) if term is not None]
        unpack = seq.rows.transitions.unpack
        regularizer = unpack(reduce(torch.add, regularizers)) if regularizers else None
        return JointValues(q_tot=unpack(mixed.q_tot), regularizer=regularizer)

    def bootstrap(self, unrolled: Unrolled, action: Tensor, seq: SequenceBatch) -> JointValues:
        """Mix the values of the actions at the next steps (Eq. 10).

        Args:
            unrolled: Forward pass of this network (the target network).
            action: [R, N], action indices of the next steps.
            seq: The batch.
        """
        q, best, state, obs = map(seq.rows.select_after, (unrolled.q, unrolled.best, seq.state, seq.obs))
        return JointValues(q_tot=seq.rows.transitions.unpack(self._mix(q, best, action, state, obs).q_tot))

    def evaluate_first_step(self, unrolled: Unrolled, seq: SequenceBatch) -> Tensor:
        """Mix the greedy values at step 0.

        Source: Q_tot of the mixer.

        Returns:
            [B] [return].
        """
        first = slice(seq.rows.n_sequences)
        q, best, action = unrolled.q[first], unrolled.best[first], unrolled.greedy[first]
        return self._mix(q, best, action, seq.state[first], seq.obs[first]).q_tot

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

    def _mix(self, q: Tensor, best: Tensor, action: Tensor, state: Tensor, obs: Tensor) -> Mixed:
        """Mix the values [R, N, A] of the actions [R, N]."""
        q_taken = q.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        return self.mixer(MixInputs(q_taken, best, action, state, obs))

    def _private_l1(self, unrolled: Unrolled, seq: SequenceBatch) -> Tensor | None:
        """Compute l1 times the mean absolute private value of each transition: [R]; None if not used."""
        if not isinstance(self.agent, DiverseAgent) or not self._l1:
            return None
        hidden = seq.rows.select_before(unrolled.hidden)
        return self._l1 * self.agent.private_values(hidden).abs().mean((-1, -2))


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
