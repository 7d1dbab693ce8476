"""MAPPO: the on-policy learner, with the same interface as the value learner.

Actor and critic are separate networks, each shared by all agents: LayerNorm, twice (Linear, ReLU, LayerNorm), Linear.
The input of the critic is the agent-specific global state [state; obs_i]. Both inputs contain a one-hot agent id.
Source: marlbenchmark/on-policy, the feed-forward SMAC runs.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from emtc_core.config.run import RunConfig
from emtc_core.devices import copy_state, send
from emtc_core.envs.base import EnvInfo
from emtc_core.learner.host_network import HostNetwork
from emtc_core.learner.mappo_controller import ActorCritic, MappoController, append_id, make_critic_inputs
from emtc_core.learner.ppo import (
    ValueNorm,
    generalized_advantages,
    masked_log_softmax,
    mean_entropy,
    normalize_advantages,
    policy_loss,
    value_loss,
)
from emtc_core.learner.targets import LearnerStats, pack_stats
from emtc_core.random_tensors import permutation
from emtc_core.rollout.episode import Episode

HUBER_DELTA: Final = 10.0
"""Delta of the Huber value loss; huber_delta in on-policy."""
VALUE_NORM_BETA: Final = 0.99999
"""Decay of the running mean and variance of the value normalization; beta in on-policy."""


@dataclass(frozen=True)
class Samples:
    """R (transition, agent) pairs of one rollout.

    Source: marlbenchmark/on-policy.
    """

    actor_in: Tensor  # [R, I] inputs of the actor, dimensionless
    critic_in: Tensor  # [R, J] inputs of the critic, dimensionless
    avail: Tensor  # [R, A] boolean
    action: Tensor  # [R] action indices
    alive: Tensor  # [R] float, dimensionless; 0 where only no-op is available
    old_log_prob: Tensor  # [R] [log probability]
    old_value: Tensor  # [R] normalized, dimensionless
    advantage: Tensor  # [R] normalized over living agents, dimensionless
    returns: Tensor  # [R] [return], not normalized

    def select(self, rows: Tensor) -> "Samples":
        """Return some of the pairs.

        Source: implementation detail.

        Args:
            rows: [K], row indices.
        """
        return Samples(**{name: values[rows] for name, values in vars(self).items()})


@dataclass(frozen=True)
class EpisodeLayout:
    """Row indices of E episodes that are concatenated along one axis of length M.

    Episode e has T_e transitions and T_e + 1 steps, so it has T_e + 1 rows; M is the sum over the episodes.

    Source: implementation detail.
    """

    rows: NDArray[np.int64]  # [E, T] index in M of the step before each transition; 0 in the padding
    inside: NDArray[np.bool_]  # [E, T] boolean, true on real transitions


def make_layout(lengths: Sequence[int]) -> EpisodeLayout:
    """Compute the row indices of concatenated episodes from their numbers of transitions [E]."""
    length = np.asarray(lengths)
    start = np.cumsum(length + 1) - (length + 1)
    steps = np.arange(length.max())
    inside = steps < length[:, None]
    return EpisodeLayout(np.where(inside, start[:, None] + steps, 0), inside)


class MappoLearner:
    """Trains on whole rollouts of the current policy, without a replay buffer."""

    on_policy: Literal[True] = True

    def __init__(
        self,
        config: RunConfig,
        info: EnvInfo,
        *,
        device: torch.device | str,
        seed: int,
        act_device: torch.device | str = "cpu",
    ) -> None:
        """Make actor and critic from a seed. The state of the global generators does not change.

        Args:
            config: Configuration of the run.
            info: Sizes of the environment.
            device: Device of networks and updates.
            seed: Random seed of the weights and of the learner's generator.
            act_device: Device that computes actions: the host, or that of the learner.
        """
        self._config, self._info, self._device = config, info, torch.device(device)
        self._frames = config.mappo.stacked_frames
        self._generator = torch.Generator().manual_seed(seed)
        actor_in = self._frames * info.obs_dim + info.n_agents
        critic_in = self._frames * (info.state_dim + info.obs_dim) + info.n_agents
        hidden = config.train.hidden
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor = _network(actor_in, hidden, info.n_actions, gain=config.mappo.head_gain)
            self.critic = _network(critic_in, hidden, 1, gain=1.0)
        self.actor.to(self._device)
        self.critic.to(self._device)
        self._actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=config.train.lr, eps=1e-5)
        self._critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=config.train.lr, eps=1e-5)
        self._value_norm = ValueNorm(VALUE_NORM_BETA, self._device)
        networks = ActorCritic(self.actor, self.critic, self._value_norm)
        self._host = HostNetwork(networks)
        acting = networks if torch.device(act_device).type == self._device.type else self._host.network
        self._controller = MappoController(acting, info, frames=self._frames)

    # ---- acting ----

    def start_episodes(self, n_envs: int) -> None:
        """Clear the stacked frames: every environment starts a new episode. It is played with the current weights."""
        self._host.refresh()
        self._controller.start_episodes(n_envs)

    def temporary_hidden_state(self) -> AbstractContextManager[None]:
        """Save the stacked frames, so that other environments can be used inside the context; restore them at exit.

        Call `start_episodes` first inside the context.
        """
        return self._controller.temporary_hidden_state()

    def act(
        self, obs: NDArray[np.float32], avail: NDArray[np.bool_], *, epsilon: float, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Sample actions from the policy.

        Source: marlbenchmark/on-policy.

        Args:
            obs: [B, N, O] [observation features].
            avail: [B, N, A] boolean, available actions.
            epsilon: MAPPO reads it only as a switch: if it is 0, return the most probable action, otherwise a sample.
            rng: Source of randomness; not used if epsilon is 0.

        Returns:
            [B, N], action indices.
        """
        return self._controller.act(obs, avail, epsilon=epsilon, rng=rng)

    def q_start(
        self, obs: NDArray[np.float32], state: NDArray[np.float32], avail: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """Estimate the value V of the first step of episodes, averaged over agents.

        Source: the critic of marlbenchmark/on-policy.

        Args:
            obs: [B, N, O] [observation features].
            state: [B, S] [state features].
            avail: [B, N, A] boolean. Not used.

        Returns:
            [B], value [return].
        """
        self._host.refresh()
        return self._controller.q_start(obs, state, avail)

    # ---- learning ----

    def update_rollout(self, episodes: Sequence[Episode], *, env_step: int = 0) -> LearnerStats:
        """Train for `mappo.epochs` passes over the episodes of a rollout, each in `mappo.minibatches` gradient steps.

        Args:
            episodes: Finished episodes. The trainer passes the first ones that have at least `mappo.rollout_steps`
                transitions together. At most `train.n_envs` - 1 of them ended in the round of the previous update and
                were played with the weights before it. The old action probabilities of all are computed here, with the
                current weights.
            env_step: Not used.

        Returns:
            Means by metric name: over all gradient steps, and of `train/target` and `train/q_taken` over the
            transitions and agents, before the first step.
        """
        self._host.mark_stale()
        samples = self._samples(episodes)
        settings, reports = self._config.mappo, []
        for _ in range(settings.epochs):
            order = permutation(len(samples.action), generator=self._generator, device=self._device)
            for rows in order.chunk(settings.minibatches):
                whole = settings.minibatches == 1
                reports.append(self._step(samples if whole else samples.select(rows)))
        means = {name: torch.stack([r[name] for r in reports]).mean() for name in reports[0]}
        means["train/target"] = samples.returns.mean()
        # The mean value V before the update. The metric has the same name as Q_tot of the value learner.
        means["train/q_taken"] = self._value_norm.denormalize(samples.old_value).mean()
        return pack_stats(means)

    def on_episodes(self, episodes_total: int) -> bool:
        """Return False without an update of target networks, because MAPPO has none."""
        return False

    # ---- state ----

    def get_state(self) -> dict[str, Any]:
        """Return a copy of networks, optimizers, value normalization and generator."""
        return {
            "actor": copy_state(self.actor.state_dict()),
            "critic": copy_state(self.critic.state_dict()),
            "actor_optimizer": copy_state(self._actor_optimizer.state_dict()),
            "critic_optimizer": copy_state(self._critic_optimizer.state_dict()),
            "value_norm": copy_state(self._value_norm.get_state()),
            "generator": self._generator.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned; later updates equal those of the saved learner."""
        self.actor.load_state_dict(state["actor"])
        self.critic.load_state_dict(state["critic"])
        self._actor_optimizer.load_state_dict(state["actor_optimizer"])
        self._critic_optimizer.load_state_dict(state["critic_optimizer"])
        self._value_norm.set_state(state["value_norm"])
        self._generator.set_state(state["generator"])
        self._host.mark_stale()

    # ---- parts of an update ----

    def _step(self, samples: Samples) -> dict[str, Tensor]:
        settings, clip = self._config.mappo, self._config.train.grad_clip
        log_probs_RA = masked_log_softmax(self.actor(samples.actor_in), samples.avail)
        log_prob = _log_prob(log_probs_RA, samples.action)
        policy_term = policy_loss(log_prob, samples.old_log_prob, samples.advantage, samples.alive, clip=settings.clip)
        entropy = mean_entropy(log_probs_RA, samples.alive)
        self._value_norm.update(samples.returns)
        value_term = value_loss(
            self.critic(samples.critic_in).squeeze(-1),
            samples.old_value,
            self._value_norm.normalize(samples.returns),
            clip=settings.clip,
            delta=HUBER_DELTA,
        )
        norm = _take_gradient_step(self._actor_optimizer, self.actor, policy_term - settings.entropy * entropy, clip)
        _take_gradient_step(self._critic_optimizer, self.critic, value_term, clip)
        report = {"policy_loss": policy_term, "value_loss": value_term, "entropy": entropy, "grad_norm": norm}
        report["loss"] = policy_term + value_term - settings.entropy * entropy
        report["regularizer"] = -settings.entropy * entropy
        return {f"train/{name}": number.detach() for name, number in report.items()}

    @torch.no_grad()
    def _samples(self, episodes: Sequence[Episode]) -> Samples:
        """Compute values, log probabilities and advantages of a whole rollout; episodes are concatenated."""
        layout = make_layout([episode.length for episode in episodes])
        obs_MKNO = self._tensor(np.concatenate([_stack_frames(e.obs, self._frames) for e in episodes]))
        state_MKS = self._tensor(np.concatenate([_stack_frames(e.state, self._frames) for e in episodes]))
        avail = self._tensor(np.concatenate([e.avail[:-1] for e in episodes]))
        action = self._tensor(np.concatenate([e.action for e in episodes]))
        real_rows = self._tensor(layout.rows[layout.inside])  # indices in M of the steps before the transitions
        critic_in = make_critic_inputs(obs_MKNO, state_MKS)
        actor_in = append_id(obs_MKNO[real_rows].transpose(1, 2).flatten(2))
        old_value = self.critic(critic_in).squeeze(-1)
        value = self._value_norm.denormalize(old_value)
        advantage = self._advantages(episodes, layout, value)
        alive = avail[..., 1:].any(-1).float()
        fields = {
            "actor_in": actor_in,
            "critic_in": critic_in[real_rows],
            "avail": avail,
            "action": action,
            "alive": alive,
            "old_log_prob": _log_prob(masked_log_softmax(self.actor(actor_in), avail), action),
            "old_value": old_value[real_rows],
            "advantage": normalize_advantages(advantage, alive),
            "returns": advantage + value[real_rows],
        }
        return Samples(**{name: values.flatten(0, 1) for name, values in fields.items()})

    def _advantages(self, episodes: Sequence[Episode], layout: EpisodeLayout, value_MN: Tensor) -> Tensor:
        """Estimate the advantages [R, N] of all transitions from the values of all steps."""
        bootstraps_ET = layout.inside.copy()  # whether the value of the next step is added to the reward
        reward_ET = np.zeros(layout.inside.shape)
        for e, episode in enumerate(episodes):
            reward_ET[e, : episode.length] = episode.reward
            bootstraps_at_end = self._config.train.bootstrap_on_timeout if episode.truncated else not episode.terminated
            bootstraps_ET[e, episode.length - 1] = bootstraps_at_end
        rows, inside, bootstraps = (self._tensor(x) for x in (layout.rows, layout.inside, bootstraps_ET))
        value_MN = value_MN.double()
        advantage_ETN = generalized_advantages(
            self._tensor(reward_ET),
            value_MN[rows] * inside.unsqueeze(-1),
            value_MN[rows + 1] * bootstraps.unsqueeze(-1),
            gamma=self._config.train.gamma,
            gae_lambda=self._config.mappo.gae_lambda,
        )
        real_cells = self._tensor(np.flatnonzero(layout.inside))  # indices of the transitions in [E · T]
        return advantage_ETN.flatten(0, 1)[real_cells].float()

    def _tensor(self, array: NDArray[np.generic]) -> Tensor:
        return send(array, self._device)


def _network(n_in: int, hidden: int, n_out: int, *, gain: float) -> nn.Sequential:
    relu_gain = nn.init.calculate_gain("relu")
    layers = [nn.Linear(n_in, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, n_out)]
    for layer, layer_gain in zip(layers, (relu_gain, relu_gain, gain), strict=True):
        nn.init.orthogonal_(layer.weight, layer_gain)
        nn.init.zeros_(layer.bias)
    first, second, head = layers
    blocks = [nn.LayerNorm(n_in), first, nn.ReLU(), nn.LayerNorm(hidden), second, nn.ReLU(), nn.LayerNorm(hidden)]
    return nn.Sequential(*blocks, head)


def _log_prob(log_probs: Tensor, action: Tensor) -> Tensor:
    """Return the log probabilities of the actions: [..., A] and [...] to [...]."""
    return log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)


def _stack_frames(steps: NDArray[np.float32], frames: int) -> NDArray[np.float32]:
    """Stack each step with the frames - 1 previous steps, padded with zeros: [T, ...] to [T, K, ...]."""
    padded = np.concatenate([np.zeros((frames - 1, *steps.shape[1:]), steps.dtype), steps])
    return np.stack([padded[k : k + len(steps)] for k in range(frames)], axis=1)


def _take_gradient_step(optimizer: torch.optim.Optimizer, network: nn.Module, loss: Tensor, clip: float) -> Tensor:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(network.parameters(), clip)
    optimizer.step()
    return norm
