"""The value learner: one class for all value systems.

    Q_tot      backbone of the configuration                    (backbones/, mixers/)
    target     reward + intrinsic + beta * r_p + gamma Qbar      (targets.py)
    intrinsic  curiosity (EMC), diversity (CDS)                  (curiosity.py, diversity.py)

Inputs are batches from the replay buffer and values recalled from the memory. The recorder gets the `LearnerStats`.
MAPPO is the other learner with the same interface (mappo.py).

On a CPU, the recurrent layer computes the two parts of a batch in two threads if the run has them (recurrence.py), and
intrinsic rewards are computed and trained in the second one.

On a CPU, the action values of the target copy are cached until its next change (target_values.py).

On a GPU, an update with a built-in mixing rule and without an intrinsic reward is a CUDA graph (captured_update.py).
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from emtc_core.config.run import RunConfig
from emtc_core.devices import copy_state, set_determinism, set_matmul_precision
from emtc_core.envs.base import EnvInfo
from emtc_core.learner.backbones.base import JointValues, Unrolled
from emtc_core.learner.backbones.value import MIXERS, ValueBackbone
from emtc_core.learner.captured_update import CapturedUpdates
from emtc_core.learner.controller import Controller
from emtc_core.learner.factory import IntrinsicReward, make_backbone, make_intrinsic, make_optimizer, make_target
from emtc_core.learner.host_network import HostNetwork
from emtc_core.learner.mappo import MappoLearner
from emtc_core.learner.networks import SequenceBatch, make_sequence_batch
from emtc_core.learner.optimizer_state import get_optimizer_state, set_optimizer_state
from emtc_core.learner.target_values import TargetValues, can_cache
from emtc_core.learner.targets import (
    Incentive,
    IncentiveInputs,
    LearnerStats,
    episodic_control_error,
    episodic_incentive,
    gate_ratios,
    masked_mean,
    pack_stats,
)
from emtc_core.replay_buffer.buffer import Batch
from emtc_core.threads import start_task


@dataclass(frozen=True)
class Losses:
    """Losses of a batch and its TD error (Eq. 10)."""

    values: dict[str, Tensor]  # scalars by metric name [loss], with gradient
    error: Tensor  # [T, B] TD error [return], 0 in the padding, detached


class ValueLearner:
    """Online and target copies of a backbone, an optimizer and the gated TD loss."""

    on_policy: Literal[False] = False

    def __init__(
        self,
        config: RunConfig,
        info: EnvInfo,
        *,
        device: torch.device | str,
        seed: int,
        act_device: torch.device | str = "cpu",
        target_values: TargetValues | None = None,
    ) -> None:
        """Build the networks from a seed. The state of the global generators does not change.

        Args:
            config: Configuration of the run.
            info: Sizes of the environment.
            device: Device of networks and updates.
            seed: Random seed of the weights and of the learner's generator.
            act_device: Device that computes actions: the host, or that of the learner.
            target_values: Cache of the target network's values on a CPU; None computes them at every update.
        """
        self._config, self._device = config, torch.device(device)
        self._uses_incentive = config.uses_incentive
        self._generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.online = make_backbone(config, info).to(self._device)
            self._intrinsic = make_intrinsic(config, info, self.online, device=self._device)
        self._agent_id = self.online.agent_id
        self.target = make_target(self.online)
        self._parameters = list(self.online.parameters())
        is_captured = self._device.type == "cuda" and config.backbone in MIXERS and not self._intrinsic
        self._optimizer = make_optimizer(config.train, self._parameters, capturable=is_captured)
        self._captured = (
            CapturedUpdates(self._update_as_one, self._parameters, self._optimizer, episode_limit=info.episode_limit)
            if is_captured
            else None
        )
        self._host = HostNetwork(self.online)
        acting = self.online if torch.device(act_device).type == self._device.type else self._host.network
        self._controller = Controller(acting, info)
        self._target_values = target_values
        self._caches_target = target_values is not None and self._device.type == "cpu" and can_cache(self.target)
        self._last_copy = 0

    # ---- acting ----

    def start_episodes(self, n_envs: int) -> None:
        """Reset the hidden states: every environment starts a new episode. It is played with the current weights."""
        self._host.refresh()
        self._controller.start_episodes(n_envs)

    def temporary_hidden_state(self) -> contextlib.AbstractContextManager[None]:
        """Save the hidden states, so that other environments can be used inside the context; restore them at exit.

        Call `start_episodes` first inside the context.
        """
        return self._controller.temporary_hidden_state()

    def act(
        self, obs: NDArray[np.float32], avail: NDArray[np.bool_], *, epsilon: float, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Select epsilon-greedy actions.

        Source: the epsilon-greedy action selection of oxwhirl/pymarl.

        Args:
            obs: [B, N, O] [observation features].
            avail: [B, N, A] boolean, available actions.
            epsilon: Probability of a random action. With 0 the action is greedy and `rng` is not used.
            rng: Source of randomness.

        Returns:
            [B, N], action indices.
        """
        return self._controller.act(obs, avail, epsilon=epsilon, rng=rng)

    def q_start(
        self, obs: NDArray[np.float32], state: NDArray[np.float32], avail: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """Estimate the greedy Q_tot at the first step of episodes.

        Source: the mixer of the backbone.

        Args:
            obs: [B, N, O] [observation features].
            state: [B, S] [state features].
            avail: [B, N, A] boolean, available actions.

        Returns:
            [B], Q_tot [return].
        """
        self._host.refresh()
        return self._controller.q_start(obs, state, avail)

    # ---- learning ----

    def update(self, batch: Batch, recalled: IncentiveInputs | None, *, env_step: int) -> LearnerStats:
        """Make one gradient step on a batch of episodes.

        Args:
            batch: Padded episodes.
            recalled: Values recalled from the memory for the next states; None without a memory.
            env_step: Training env steps so far, for annealed weights.

        Returns:
            Losses and means of the update by metric name.
        """
        self._host.mark_stale()
        if self._captured is not None:
            return self._captured.run(batch, recalled)
        batch = batch.to(self._device)
        recalled = None if recalled is None else recalled.to(self._device)
        return self._update_as_one(batch, recalled, env_step)

    def _update_as_one(self, batch: Batch, recalled: IncentiveInputs | None, env_step: int = 0) -> LearnerStats:
        """Update on the whole batch. Only intrinsic rewards, which no CUDA graph contains, read `env_step`."""
        seq = make_sequence_batch(batch, agent_id=self._agent_id)
        preparations = [start_task(partial(reward.prepare, seq)) for reward in self._intrinsic]
        online = self.online.unroll(seq, self._generator)
        rewards = [
            start_task(partial(_compute_reward, reward, wait, seq, online, env_step))
            for reward, wait in zip(self._intrinsic, preparations, strict=True)
        ]
        taken = self.online.evaluate_taken(online, seq)
        next_values = self._evaluate_next(online, seq, batch.indices)
        incentive = self._compute_incentive(seq, next_values, recalled)
        intrinsic = torch.stack([wait() for wait in rewards]).sum(0) if rewards else None
        # Safe in the second thread: the rest of the update does not use the generator and does not change their inputs.
        trainings = [
            start_task(partial(reward.train, seq, online, env_step=env_step, generator=self._generator))
            for reward in self._intrinsic
        ]
        total_reward = seq.reward + (0.0 if incentive is None else incentive.gated)
        total_reward = total_reward + (0.0 if intrinsic is None else intrinsic)
        losses = self._compute_losses(seq, taken, next_values, recalled, total_reward)
        self._optimizer.zero_grad(set_to_none=True)
        losses.values["train/loss"].backward()
        losses.values["train/grad_norm"] = self._clip_and_step()
        for wait in trainings:
            wait()
        if intrinsic is not None:
            losses.values["train/intrinsic_reward"] = masked_mean(intrinsic, seq.mask)
        return self._make_stats(seq.mask, seq.beta, taken.q_tot.detach(), losses, incentive, recalled)

    def on_episodes(self, episodes_total: int) -> bool:
        """Copy the online networks to the target networks every `train.target_interval` episodes.

        Args:
            episodes_total: Collected episodes times updates per episode, as PyMARL counts.

        Returns:
            Whether the target networks were updated.
        """
        for reward in self._intrinsic:
            reward.on_episodes(episodes_total)
        if episodes_total - self._last_copy < self._config.train.target_interval:
            return False
        self._last_copy = episodes_total
        self.target.load_state_dict(self.online.state_dict())
        if self._target_values is not None:
            self._target_values.clear()
        for reward in self._intrinsic:
            reward.copy_target()
        return True

    # ---- state ----

    def get_state(self) -> dict[str, Any]:
        """Return a copy of networks, optimizer, generator and counters as tensors and plain values."""
        return {
            "online": copy_state(self.online.state_dict()),
            "target": copy_state(self.target.state_dict()),
            "optimizer": copy_state(get_optimizer_state(self._optimizer)),
            "generator": self._generator.get_state(),
            "last_copy": self._last_copy,
            "intrinsic": [copy_state(reward.get_state()) for reward in self._intrinsic],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned; later updates equal those of the saved learner."""
        self.online.load_state_dict(state["online"])
        self._host.mark_stale()
        self.target.load_state_dict(state["target"])
        set_optimizer_state(self._optimizer, state["optimizer"], capturable=self._captured is not None)
        if self._captured is not None:
            self._captured.discard_graphs()
        self._generator.set_state(state["generator"])
        self._last_copy = state["last_copy"]
        for reward, saved in zip(self._intrinsic, state["intrinsic"], strict=True):
            reward.set_state(saved)

    # ---- parts of an update ----

    @torch.no_grad()
    def _evaluate_next(self, online: Unrolled, seq: SequenceBatch, indices: NDArray[np.int64]) -> JointValues:
        """Evaluate the next step with the target copy, at the greedy action of the online copy (double Q-learning).

        Args:
            online: Forward pass of the online copy.
            seq: The batch.
            indices: [B], indices of its episodes in the replay buffer.
        """
        if self._target_values is not None and self._caches_target:
            assert isinstance(self.target, ValueBackbone), "checked by can_cache"
            target = self._target_values.unroll(self.target, seq, indices)
        else:
            target = self.target.unroll(seq, self._generator)
        selector = online if self._config.train.double_q else target
        return self.target.bootstrap(target, seq.rows.select_after(selector.greedy), seq)

    def _compute_losses(
        self,
        seq: SequenceBatch,
        taken: JointValues,
        next_values: JointValues,
        recalled: IncentiveInputs | None,
        total_reward: Tensor,
    ) -> Losses:
        """Compute the loss: TD loss, regularizer of the backbone and episodic loss of EMC.

        Args:
            seq: The batch.
            taken: Q_tot of the actions that were taken.
            next_values: Target values of the next step.
            recalled: Values recalled from the memory, for the episodic loss.
            total_reward: [T, B] reward plus intrinsic reward plus gated incentive.
        """
        gamma, ec = self._config.train.gamma, self._config.ec
        td = self.online.td_loss(taken, total_reward, gamma * (1.0 - seq.terminated), next_values)
        values = {"train/td_loss": masked_mean(td.loss, seq.mask)}
        loss = values["train/td_loss"]
        if taken.regularizer is not None:
            values["train/regularizer"] = masked_mean(taken.regularizer, seq.mask)
            loss = loss + values["train/regularizer"]
        if ec.enabled and recalled is not None:
            error = episodic_control_error(
                taken.q_tot, recalled, reward=seq.reward, terminated=seq.terminated, gamma=gamma
            )
            values["train/episodic_loss"] = masked_mean(error.square(), seq.mask)
            loss = loss + ec.weight * values["train/episodic_loss"]
        return Losses(values=values | {"train/loss": loss}, error=td.error.detach() * seq.mask)

    def _clip_and_step(self) -> Tensor:
        """Clip the gradient, take an optimizer step and return the gradient norm before clipping."""
        norm = nn.utils.clip_grad_norm_(self._parameters, self._config.train.grad_clip)
        self._optimizer.step()
        return norm

    def _compute_incentive(
        self, seq: SequenceBatch, next_values: JointValues, recalled: IncentiveInputs | None
    ) -> Incentive | None:
        config = self._config.incentive
        if recalled is None or not self._uses_incentive:
            return None
        return episodic_incentive(
            recalled,
            next_values.q_tot,
            beta=seq.beta,
            terminated=seq.terminated,
            gamma=self._config.train.gamma,
            clamp=config.clamp,
            mask_terminal=config.mask_terminal,
        )

    @torch.no_grad()
    def _make_stats(
        self,
        mask: Tensor,
        beta: Tensor,
        q_tot: Tensor,
        losses: Losses,
        incentive: Incentive | None,
        recalled: IncentiveInputs | None,
    ) -> LearnerStats:
        values = dict(losses.values)
        values["train/td_error_abs"] = masked_mean(losses.error.abs(), mask)
        values["train/q_taken"] = masked_mean(q_tot, mask)
        values["train/target"] = masked_mean(q_tot - losses.error, mask)
        if incentive is not None and recalled is not None:
            values["incentive/r_p"] = masked_mean(incentive.r_p, mask)
            values["incentive/gated_r_p"] = masked_mean(incentive.gated, mask)
            values["incentive/rho"] = masked_mean(recalled.rho_next.transpose(0, 1), mask)
            values["gate/beta_batch"] = masked_mean(beta, mask)
        ratios = {} if incentive is None or not self._config.uses_gate else gate_ratios(incentive, beta, mask)
        episode_error = losses.error.square().sum(0) / mask.sum(0).clamp_min(1.0)
        return pack_stats(values, ratios=ratios, episode_error=episode_error)


def _compute_reward(
    reward: IntrinsicReward,
    wait_for_preparation: Callable[[], None],
    seq: SequenceBatch,
    online: Unrolled,
    env_step: int,
) -> Tensor:
    """Wait until a reward is prepared and compute it: [T, B]."""
    wait_for_preparation()
    return reward.reward(seq, online, env_step=env_step)


Learner = ValueLearner | MappoLearner


def make_learner(
    config: RunConfig,
    info: EnvInfo,
    *,
    device: torch.device | str,
    seed: int,
    act_device: torch.device | str = "cpu",
    target_values: TargetValues | None = None,
) -> Learner:
    """Make the learner of the configured algorithm: a `MappoLearner` (`on_policy` is True) or a `ValueLearner`.

    On a GPU this sets matmul precision and determinism for the whole process.

    Args:
        config: Configuration of the run.
        info: Sizes of the environment.
        device: Device of networks and updates.
        seed: Random seed of the weights and of the learner's generator.
        act_device: Device that computes actions: the host, or that of the learner.
        target_values: Cache of the target network's values, see `ValueLearner`.
    """
    if torch.device(device).type == "cuda":
        set_matmul_precision(config.train.matmul_precision)
        set_determinism(config.train.deterministic)
    if config.backbone == "mappo":
        return MappoLearner(config, info, device=device, seed=seed, act_device=act_device)
    return ValueLearner(config, info, device=device, seed=seed, act_device=act_device, target_values=target_values)
