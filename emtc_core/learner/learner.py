"""The value learner: one class for every value system, joined from parts.

    Q_tot      backbone, as the configuration names it          (backbones/, mixers/)
    target     reward + intrinsic + beta * r_p + gamma Qbar      (targets.py)
    intrinsic  curiosity (EMC), diversity (CDS)                  (curiosity.py, diversity.py)

Before: the replay buffer and what the memory recalls. After: the recorder, by `LearnerStats`. MAPPO is the
other learner behind the same interface (mappo.py).

With `threads` > 1 on a CPU the episodes of a batch are dealt out to a `Team` (parts.py): each part is unrolled, valued
and differentiated on its own thread, and the gradients are added up in the parts' order.
"""

import contextlib
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from emtc_core.config.run import RunConfig
from emtc_core.devices import autocast, branch, copy_state, restore, send, set_determinism, set_matmul_precision
from emtc_core.envs.base import EnvInfo
from emtc_core.learner.backbones.base import Evaluation, Unrolled
from emtc_core.learner.controller import Controller
from emtc_core.learner.factory import IntrinsicReward, make_backbone, make_intrinsic, make_optimizer, make_target
from emtc_core.learner.mappo import MappoLearner
from emtc_core.learner.networks import Sequence, agent_inputs, make_sequence
from emtc_core.learner.parts import Background, Part, Team, Valued, join, join_unrolled, split
from emtc_core.learner.targets import (
    Incentive,
    IncentiveInputs,
    LearnerStats,
    episodic_control_error,
    episodic_incentive,
    gate_shares,
    masked_mean,
)
from emtc_core.replay_buffer.buffer import Batch


@dataclass(frozen=True)
class LossTerms:
    """Losses by metric name, with their graph, and the masked TD error [T, B]."""

    values: dict[str, Tensor]
    error: Tensor


class ValueLearner:
    """Online and target copies of a backbone, one optimiser, one gated TD loss."""

    on_policy: Literal[False] = False

    def __init__(
        self, config: RunConfig, info: EnvInfo, *, device: torch.device | str, seed: int, threads: int = 1
    ) -> None:
        """Build the networks from a seed; global randomness is left as it was.

        Args:
            config: The run.
            info: Sizes of the game.
            device: Where to compute.
            seed: Of the weights and of whatever the learner draws.
            threads: Threads of the CPU among which the episodes of a batch are shared.
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
        self._optimizer = make_optimizer(config.train, self._parameters)
        self._background = Background(self._device)
        self._team = Team(threads if self._device.type == "cpu" else 1)
        for part in self._intrinsic:
            part.use(self._team)
        self._controller = Controller(self.online, info, agent_id=self._agent_id, device=self._device)
        self._last_copy = 0

    # ---- acting ----

    def begin(self, n_envs: int) -> None:
        """Forget hidden states: every environment starts a new episode."""
        self._controller.begin(n_envs)

    def elsewhere(self) -> contextlib.AbstractContextManager[None]:
        """Act in other environments meanwhile, from `begin` on; afterwards the round that was left goes on."""
        return self._controller.elsewhere()

    def act(
        self, obs: NDArray[np.float32], avail: NDArray[np.bool_], *, epsilon: float, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Choose actions [B, N] for observations [B, N, O]; epsilon 0 is greedy and draws nothing."""
        return self._controller.act(obs, avail, epsilon=epsilon, rng=rng)

    @torch.no_grad()
    def q_start(
        self, obs: NDArray[np.float32], state: NDArray[np.float32], avail: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """Estimate the greedy Q_tot of first steps: obs [B, N, O], state [B, S], avail [B, N, A] to [B]."""
        seq = self._start_sequence(obs, state, avail)
        unrolled = self.online.unroll(seq, torch.Generator().manual_seed(0))
        return self.online.start(unrolled, seq).cpu().numpy()

    # ---- learning ----

    def update(self, batch: Batch, incentive: IncentiveInputs | None, *, env_step: int) -> LearnerStats:
        """Make one gradient step on a batch of episodes.

        Args:
            batch: Padded episodes.
            incentive: What the memory recalls of the successors; None without a memory.
            env_step: Training env steps so far, for annealed weights.
        """
        if 1 < self._team.threads <= len(batch.length):
            return self._update_in_parts(batch, incentive, env_step)
        with autocast(self._device, wanted=self._config.train.mixed_precision):
            seq = make_sequence(batch, agent_id=self._agent_id)
            prepared = [self._background.submit(part.prepare, seq) for part in self._intrinsic]
            online = self.online.unroll(seq, self._generator)
            rewards = [self._background.submit(p.reward, seq, online, env_step=env_step) for p in self._intrinsic]
            taken = self.online.taken(online, seq)
            following = self._following(online, seq)
        gained = self._incentive(seq, following, incentive)
        for wait in prepared:
            wait()
        intrinsic = torch.stack([wait() for wait in rewards]).sum(0) if rewards else None
        # From here on nothing else draws random numbers, and nothing changes what the intrinsic parts read.
        trainings = [
            self._background.submit(p.train, seq, online, env_step=env_step, generator=self._generator)
            for p in self._intrinsic
        ]
        shift = seq.reward + (0.0 if gained is None else gained.gated)
        shift = shift + (0.0 if intrinsic is None else intrinsic)
        terms = self._terms(seq, taken, following, incentive, shift)
        terms.values["train/grad_norm"] = self._step(terms.values["train/loss"])
        for wait in trainings:
            wait()
        if intrinsic is not None:
            terms.values["train/intrinsic_reward"] = masked_mean(intrinsic, seq.mask)
        return self._stats(seq.mask, seq.beta, taken.q_tot.detach(), terms, gained, incentive)

    def _update_in_parts(self, batch: Batch, incentive: IncentiveInputs | None, env_step: int) -> LearnerStats:
        """Do what `update` does, every part of the batch on a thread of its own."""
        run, parts = self._team.run, split(batch, incentive, self._team.threads)
        seq = make_sequence(batch, agent_id=self._agent_id) if self._intrinsic else None
        prepared = [self._background.submit(each.prepare, seq) for each in self._intrinsic if seq is not None]
        generators = [branch(self._generator) for _ in parts]
        valued = run([partial(self._value, *each) for each in zip(parts, generators, strict=True)])
        for wait in prepared:
            wait()
        whole = None if seq is None else join_unrolled(parts, [v.online for v in valued])
        rewards = [self._rewards(each, parts, valued, seq, whole, env_step) for each in self._intrinsic]
        intrinsic = torch.stack(rewards).sum(0) if rewards else None
        trainings = [
            self._background.submit(each.train, seq, whole, env_step=env_step, generator=self._generator)
            for each in self._intrinsic
            if seq is not None and whole is not None
        ]
        count = batch.filled.sum().to(batch.reward.dtype)
        shares = run(
            [partial(self._differentiate, *each, intrinsic, count) for each in zip(parts, valued, strict=True)]
        )
        terms = _join_terms(parts, [terms for terms, _ in shares])
        terms.values["train/grad_norm"] = self._descend([gradients for _, gradients in shares])
        for wait in trainings:
            wait()
        mask, beta = (x.transpose(0, 1) for x in (batch.filled.to(batch.reward.dtype), batch.beta))
        if intrinsic is not None:
            terms.values["train/intrinsic_reward"] = masked_mean(intrinsic, mask)
        q_tot = join(parts, [v.taken.q_tot.detach() for v in valued])
        return self._stats(mask, beta, q_tot, terms, _join_gained(parts, valued), incentive)

    def on_episodes(self, episodes_total: int) -> bool:
        """Copy the target networks when due.

        Args:
            episodes_total: Collected episodes times updates per episode, as PyMARL counts.

        Returns:
            Whether they were copied.
        """
        for part in self._intrinsic:
            part.on_episodes(episodes_total)
        if episodes_total - self._last_copy < self._config.train.target_interval:
            return False
        self._last_copy = episodes_total
        self.target.load_state_dict(self.online.state_dict())
        for part in self._intrinsic:
            part.copy_target()
        return True

    # ---- state ----

    def get_state(self) -> dict[str, Any]:
        """Copy networks, optimiser, generator and counters as tensors and plain values."""
        return {
            "online": copy_state(self.online.state_dict()),
            "target": copy_state(self.target.state_dict()),
            "optimizer": copy_state(self._optimizer.state_dict()),
            "generator": self._generator.get_state(),
            "last_copy": self._last_copy,
            "intrinsic": [copy_state(part.get_state()) for part in self._intrinsic],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned; later updates equal those of the saved learner."""
        self.online.load_state_dict(state["online"])
        self.target.load_state_dict(state["target"])
        self._optimizer.load_state_dict(state["optimizer"])
        restore(self._generator, state["generator"])
        self._last_copy = state["last_copy"]
        for part, saved in zip(self._intrinsic, state["intrinsic"], strict=True):
            part.set_state(saved)

    # ---- parts of an update ----

    def _value(self, part: Part, generator: torch.Generator) -> Valued:
        """Pass a part's episodes through both copies."""
        seq = make_sequence(part.batch, agent_id=self._agent_id)
        online = self.online.unroll(seq, generator)
        taken, following = self.online.taken(online, seq), self._following(online, seq, generator)
        return Valued(seq, online, taken, following, self._incentive(seq, following, part.recalled))

    def _rewards(
        self,
        intrinsic: IntrinsicReward,
        parts: list[Part],
        valued: list[Valued],
        seq: Sequence | None,
        whole: Unrolled | None,
        env_step: int,
    ) -> Tensor:
        """Compute an intrinsic reward [T, B], part by part where it allows that."""
        if intrinsic.by_episode:
            several = [partial(intrinsic.reward, v.seq, v.online, env_step=env_step) for v in valued]
            return join(parts, self._team.run(several))
        assert seq is not None, "made where there are intrinsic rewards"
        assert whole is not None, "made where there are intrinsic rewards"
        return intrinsic.reward(seq, whole, env_step=env_step)

    def _differentiate(
        self, part: Part, valued: Valued, intrinsic: Tensor | None, count: Tensor
    ) -> tuple[LossTerms, list[Tensor | None]]:
        """Compute a part's share of the losses and of every weight's gradient."""
        seq, gained = valued.seq, valued.gained
        shift = seq.reward + (0.0 if gained is None else gained.gated)
        shift = shift + (0.0 if intrinsic is None else intrinsic[:, torch.from_numpy(part.rows)])
        terms = self._terms(seq, valued.taken, valued.following, part.recalled, shift, count)
        return terms, list(torch.autograd.grad(terms.values["train/loss"], self._parameters, allow_unused=True))

    def _descend(self, shares: list[list[Tensor | None]]) -> Tensor:
        """Descend once by the sum of the parts' gradients, taken in their order."""
        for parameter, gradients in zip(self._parameters, zip(*shares, strict=True), strict=True):
            known = [gradient for gradient in gradients if gradient is not None]
            parameter.grad = reduce(torch.add, known) if known else None
        return self._clip_and_step()

    @torch.no_grad()
    def _following(self, online: Unrolled, seq: Sequence, generator: torch.Generator | None = None) -> Evaluation:
        """Value the next step with the target copy at the online copy's greedy action (double Q)."""
        target = self.target.unroll(seq, generator or self._generator)
        chooser = online if self._config.train.double_q else target
        return self.target.bootstrap(target, chooser.greedy[1:], seq)

    def _terms(
        self,
        seq: Sequence,
        taken: Evaluation,
        following: Evaluation,
        recalled: IncentiveInputs | None,
        shift: Tensor,
        count: Tensor | None = None,
    ) -> LossTerms:
        """Join the TD loss, the backbone's own term and EMC's episodic loss; `count` as of `masked_mean`."""
        gamma, ec = self._config.train.gamma, self._config.ec
        td = self.online.td_loss(taken, shift, gamma * (1.0 - seq.terminated), following)
        values = {"train/td_loss": masked_mean(td.loss, seq.mask, count)}
        loss = values["train/td_loss"]
        if taken.regularizer is not None:
            values["train/regularizer"] = masked_mean(taken.regularizer, seq.mask, count)
            loss = loss + values["train/regularizer"]
        if ec.enabled and recalled is not None:
            error = episodic_control_error(
                taken.q_tot, recalled, reward=seq.reward, terminated=seq.terminated, gamma=gamma
            )
            values["train/episodic_loss"] = masked_mean(error.square(), seq.mask, count)
            loss = loss + ec.weight * values["train/episodic_loss"]
        return LossTerms(values=values | {"train/loss": loss}, error=td.error.detach() * seq.mask)

    def _step(self, loss: Tensor) -> Tensor:
        """Descend once; return the gradient norm before clipping."""
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        return self._clip_and_step()

    def _clip_and_step(self) -> Tensor:
        norm = nn.utils.clip_grad_norm_(self._parameters, self._config.train.grad_clip)
        self._optimizer.step()
        return norm

    def _incentive(self, seq: Sequence, following: Evaluation, recalled: IncentiveInputs | None) -> Incentive | None:
        config = self._config.incentive
        if recalled is None or not self._uses_incentive:
            return None
        return episodic_incentive(
            recalled,
            following.q_tot,
            beta=seq.beta,
            terminated=seq.terminated,
            gamma=self._config.train.gamma,
            clamp=config.clamp,
            mask_terminal=config.mask_terminal,
        )

    @torch.no_grad()
    def _stats(
        self,
        mask: Tensor,
        beta: Tensor,
        q_tot: Tensor,
        terms: LossTerms,
        gained: Incentive | None,
        recalled: IncentiveInputs | None,
    ) -> LearnerStats:
        values = {name: value.detach() for name, value in terms.values.items()}
        values["train/td_error_abs"] = masked_mean(terms.error.abs(), mask)
        values["train/q_taken"] = masked_mean(q_tot, mask)
        values["train/target"] = masked_mean(q_tot - terms.error, mask)
        if gained is not None and recalled is not None:
            values["incentive/r_p"] = masked_mean(gained.r_p, mask)
            values["incentive/gated_r_p"] = masked_mean(gained.gated, mask)
            values["incentive/rho"] = masked_mean(recalled.rho_next.transpose(0, 1), mask)
            values["gate/beta_batch"] = masked_mean(beta, mask)
        shares = {} if gained is None or not self._config.uses_gate else gate_shares(gained, beta, mask)
        episode_error = terms.error.square().sum(0) / mask.sum(0).clamp_min(1.0)
        return LearnerStats(values, episode_error=episode_error, shares=shares)

    def _start_sequence(
        self, obs: NDArray[np.float32], state: NDArray[np.float32], avail: NDArray[np.bool_]
    ) -> Sequence:
        """Lay B first steps out as sequences of length one, without transitions."""
        obs_1BNO, state_1BS, avail_1BNA = (send(x, self._device)[None] for x in (obs, state, avail))
        n_batch, n_agents, n_actions = avail.shape
        action = torch.zeros((0, n_batch, n_agents), dtype=torch.int64, device=self._device)
        nothing = torch.zeros((0, n_batch), device=self._device)
        inputs = agent_inputs(obs_1BNO, action, n_actions=n_actions, agent_id=self._agent_id)
        return Sequence(inputs, obs_1BNO, state_1BS, avail_1BNA, action, nothing, nothing, nothing, nothing, 0)


def _join_terms(parts: list[Part], shares: list[LossTerms]) -> LossTerms:
    names = shares[0].values
    values = {name: torch.stack([share.values[name].detach() for share in shares]).sum(0) for name in names}
    return LossTerms(values, join(parts, [share.error for share in shares]))


def _join_gained(parts: list[Part], valued: list[Valued]) -> Incentive | None:
    known = [v.gained for v in valued if v.gained is not None]
    if not known:
        return None
    return Incentive(join(parts, [g.r_p for g in known]), join(parts, [g.gated for g in known]))


Learner = ValueLearner | MappoLearner


def make_learner(
    config: RunConfig, info: EnvInfo, *, device: torch.device | str, seed: int, threads: int = 1
) -> Learner:
    """Make the learner that the algorithm asks for; `on_policy` tells the two kinds apart.

    On a GPU this sets precision and determinism of the whole process.

    Args:
        config: The run.
        info: Sizes of the game.
        device: Where to compute.
        seed: Of weights and draws.
        threads: As of `ValueLearner`; MAPPO uses one.
    """
    if torch.device(device).type == "cuda":
        set_matmul_precision(config.train.matmul_precision)
        set_determinism(config.train.deterministic)
    if config.backbone == "mappo":
        return MappoLearner(config, info, device=device, seed=seed)
    return ValueLearner(config, info, device=device, seed=seed, threads=threads)
