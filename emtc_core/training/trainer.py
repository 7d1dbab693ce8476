"""The main loop (Algorithm 3).

Glossary
    run          one configuration trained once, with one seed
    round        one episode in each of the B environments, acted by the same weights
    episode      one game from reset to its end; numbered 1, 2, 3… in the order of entering the memory
    env step     one transition of a training episode; evaluation steps are not counted
    update       one gradient step of the learner on a batch of episodes
    refit        one call of Algorithm 1: the embedder is trained on a sample of the memory
    re-projection  every node is embedded anew after a refit, and the index rebuilt
    snapshot     a copy of the memory's columns, recorded for the pages

Nothing here prints or knows SQL: what is observed goes to the recorder, commands come from the control.
They are obeyed between two environment steps and between two updates; there questions are answered, too, which
leave no trace in the training. A stop abandons an evaluation or the stepping of a round, which their seeds repeat
exactly; episodes that were played but not learned from yet become part of the state.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from emtc_core.arrays import derive_seed, make_generator
from emtc_core.config.run import RunConfig
from emtc_core.control import Control, Question, Steering, StopRequested
from emtc_core.devices import Stopwatch, choose_threads
from emtc_core.envs.base import VectorEnv
from emtc_core.gate.gate import Temperature
from emtc_core.install import memory_bytes
from emtc_core.learner.learner import ValueLearner, make_learner
from emtc_core.learner.targets import LearnerStats
from emtc_core.recorder import Recorder
from emtc_core.replay_buffer.buffer import Batch, ReplayBuffer
from emtc_core.rollout.collector import Collector, FreshEpisodes, pack_episodes, unpack_episodes
from emtc_core.rollout.episode import Episode, discounted_returns
from emtc_core.schedules import exploration, make_duties
from emtc_core.training.checkpoint import BestSoFar, CheckpointStore
from emtc_core.training.episodic import make_episodic_system
from emtc_core.training.evaluation import Evaluator
from emtc_core.training.memory_plan import count_networks, free_bytes, most_steps, plan_memory
from emtc_core.training.monitor import Hooks, Learned, LossWatch, MetricsWindow


@dataclass(frozen=True)
class RunSummary:
    """How a call of `Trainer.run` ended."""

    status: Literal["finished", "stopped"]
    env_steps: int
    episodes: int
    updates: int
    win_rate: float | None
    return_mean: float | None
    success_rate: float | None = None
    """Of the last evaluation, where the return decides what a success is."""


class Trainer:
    """One run: environments, episodic part, replay buffer and learner, joined by Algorithm 3."""

    def __init__(
        self,
        config: RunConfig,
        *,
        env: VectorEnv,
        eval_env: VectorEnv,
        recorder: Recorder,
        control: Control,
        checkpoints: CheckpointStore,
        device: torch.device,
        on_progress: Callable[[int], None] = lambda env_step: None,
        robust_env: VectorEnv | None = None,
    ) -> None:
        self._config, self._device = config, device
        self._recorder = recorder
        self.checkpoints = checkpoints
        self._on_progress = on_progress
        train = config.train
        threads = choose_threads(train.threads, beside=config.uses_intrinsic_reward)
        self._learner = make_learner(
            config, env.info, device=device, seed=derive_seed(config.seed, "learner"), threads=threads
        )
        self.memory_plan = plan_memory(
            config,
            env.info,
            device=device,
            networks=count_networks(self._learner.get_state()),
            free_bytes=free_bytes(device),
            host_bytes=memory_bytes(),
        )
        self._episodic = make_episodic_system(config, env.info, device=device)
        self._replay_buffer = ReplayBuffer(
            train.replay,
            env.info,
            bootstrap_on_timeout=train.bootstrap_on_timeout,
            priority_alpha=config.cds.per_alpha if config.cds.replay == "episode_per" else None,
            device=device,
            home=self.memory_plan.replay_home,
            most_steps=most_steps(config, env.info),
        )
        self._fresh = FreshEpisodes(config.mappo.rollout_steps)
        self._collector = Collector(env, reward_scale=train.reward_scale, seed=config.seed, stream="rollout")
        self._evaluator = Evaluator(
            eval_env,
            config.eval,
            gamma=train.gamma,
            reward_scale=train.reward_scale,
            seed=config.seed,
            robust_env=robust_env,
        )
        self._temperature, self._best = Temperature(config.gate, t_max=train.t_max), BestSoFar()
        self._stateful: dict[str, Any] = {
            "learner": self._learner,
            "episodic": self._episodic,
            "temperature": self._temperature,
            "replay_buffer": self._replay_buffer,
            "fresh": self._fresh,
            "best": self._best,
        }
        self._window = MetricsWindow(device)
        self._losses, self._hooks = LossWatch(checkpoints.folder), Hooks(config)
        self.env_step = 0
        self._episode = 0
        self._round = 0
        self._updates = 0
        self._last_batch: Batch | None = None
        self._last_evaluation: tuple[float, float] | None = None
        self._last_success_rate: float | None = None
        self._duties = make_duties(config)
        self._to_take: list[Episode] = []  # of this round, played and not yet in memory
        self._updates_owed = 0  # to the last episode that was taken
        self._steering = Steering(control, before_pause=recorder.flush, answer=self._answer)
        self._obey = self._steering.obey

    def run(self) -> RunSummary:
        """Train until the budget is spent or somebody says stop; leave a checkpoint either way."""
        try:
            while self.env_step < self._config.train.t_max or self._is_inside_a_round:
                self._report()
                self.step()
                self._on_progress(self.env_step)
            self._finish()
        except StopRequested:
            self.checkpoints.leave(self.env_step, self._durable_state())
            return self._summary("stopped")
        finally:
            self.checkpoints.wait()
        return self._summary("finished")

    def step(self) -> None:
        """Play one round and learn from it (Algorithm 3, lines of the outer loop), or go on with the round begun.

        Raises:
            StopRequested: If somebody said stop; the next call goes on exactly there.
        """
        if not self._is_inside_a_round:
            self._to_take = self._play()
        while self._is_inside_a_round:
            self._obey()
            if not self._updates_owed:
                self._take(self._to_take.pop(0))
            self._learn()
            if self._duties["refit"].due(self.env_step):
                refitted = self._episodic.refit(self._replay_buffer)
                self._window.add(refitted | self._hooks.on_refit(refitted, self.env_step))
            if self.env_step >= self._config.train.t_max:
                self._to_take = []

    @property
    def _is_inside_a_round(self) -> bool:
        return bool(self._to_take or self._updates_owed)

    def _play(self) -> list[Episode]:
        watch = Stopwatch(self._device)
        episodes = self._collector.collect(
            self._learner, epsilon=self._epsilon(), round=(self._round,), between_steps=self._obey
        )
        self._window.add_rollout_time(watch.stop())
        self._round += 1
        return episodes

    def _take(self, episode: Episode) -> None:
        """Count, remember, judge, store and record one episode."""
        self._episode += 1
        first = self.env_step + 1
        self.env_step += episode.length
        tau = self._tau()
        absorbed = self._episodic.absorb(episode, number=self._episode, tau=tau)
        verdict = absorbed.verdict
        if verdict is not None:
            returns = discounted_returns(episode.reward, self._config.train.gamma)[:-1]
            self._temperature.observe(verdict.delta_mem, returns)
        train, uses_gate = self._config.train, self._config.uses_gate
        gated = verdict.beta if verdict is not None and uses_gate else None
        if self._learner.on_policy:
            self._fresh.add(episode)
        else:
            self._replay_buffer.add(
                episode,
                slots=absorbed.seen,
                uids=absorbed.uids,
                generation=absorbed.generation,
                beta=gated,
                number=self._episode,
            )
        self._recorder.record_episode(absorbed.record(episode, self._episode, first, tau=tau, uses_gate=uses_gate))
        self._window.add_episode(episode, is_success=self._judge(episode.episode_return))
        self._window.add(self._hooks.on_episode(episode, self.env_step))
        if not self._learner.on_policy and len(self._replay_buffer) >= max(train.burn_in, train.batch):
            self._updates_owed = train.updates_per_episode

    def _learn(self) -> None:
        """Make the updates that one more episode allows, none while the buffer fills."""
        learner = self._learner
        if learner.on_policy is True:
            episodes = self._fresh.take_when_full()
            if episodes:
                self._count_update(learner.update_rollout(episodes, env_step=self.env_step), episodes)
            return
        while self._updates_owed:
            self._obey()
            self._update(learner)
            self._updates_owed -= 1
        if learner.on_episodes(self._episode * self._config.train.updates_per_episode):
            self._episodic.on_target_update()

    def _update(self, learner: ValueLearner) -> None:
        """Replay a batch of episodes with what the memory now says of their successors."""
        watch = Stopwatch(self._device)
        batch = self._replay_buffer.sample(
            self._config.train.batch, make_generator(self._config.seed, "replay", self._updates)
        )
        batch, inputs = self._episodic.recall(batch, self._replay_buffer, tau=self._tau())
        recalled = watch.stop()
        stats = learner.update(batch, inputs, env_step=self.env_step)
        if stats.episode_error is not None and self._config.cds.replay == "episode_per":
            self._replay_buffer.set_priorities(batch.indices, stats.episode_error)
        self._count_update(stats, (batch, inputs))
        self._last_batch = batch
        self._window.add_times({"memory/lookup_ms": recalled, "time/update_ms": watch.stop()})

    def _count_update(self, stats: LearnerStats, learned: Learned) -> None:
        self._losses.check()
        self._updates += 1
        self._losses.watch(self._updates, stats["train/loss"], learned)
        self._window.add(stats)
        self._window.add_shares(stats.shares)

    def _report(self) -> None:
        """Do what is due between two rounds."""
        step, duties = self.env_step, self._duties
        if step == 0 or self._is_inside_a_round:
            return
        if duties["gate_stats"].due(step):
            self._record_gate_stats()
        if duties["metrics"].due(step):
            self._record_metrics()
        if duties["evaluation"].due(step):
            self._evaluate()
        if self._config.record.snapshots and duties["snapshot"].due(step):
            self._record_snapshot()
        if duties["checkpoint"].due(step):
            self.checkpoints.begin(step, self._durable_state())

    def _finish(self) -> None:
        """Leave the last state of everything behind, once."""
        for name, act in (
            ("gate_stats", self._record_gate_stats),
            ("metrics", self._record_metrics),
            ("evaluation", self._evaluate),
            ("snapshot", self._record_snapshot),
        ):
            if self._duties[name].last < self.env_step:
                self._duties[name].last = self.env_step
                act()
        self.checkpoints.leave(self.env_step, self._durable_state())

    def _evaluate(self) -> None:
        try:
            record, values = self._evaluator.evaluate(self._learner, self.env_step, between_steps=self._steering.hold)
        except StopRequested:
            self._duties["evaluation"].force_due()  # the resumed run makes it anew
            raise
        self._last_evaluation = (float(record.won.mean()), float(record.returns.mean()))
        self._recorder.record_evaluation(record)
        metrics = {"eval/q_start": values.q_start, "eval/overestimation": values.overestimation}
        judged = [self._judge(float(value)) for value in record.returns]
        known = [is_success for is_success in judged if is_success is not None]
        if known:
            metrics["eval/success_rate"] = self._last_success_rate = sum(known) / len(known)
        self._recorder.record_metrics(self.env_step, metrics | self._hooks.on_evaluation(record, self.env_step))
        if self._best.beats(record):
            self._recorder.flush()  # what names the best evaluation is never behind its policy
            self.checkpoints.save_best(self.env_step, self._learner.get_state())

    def _answer(self, question: Question) -> None:
        """Show what the present policy does, beside the training and not as a part of it."""
        n_envs, listen = self._config.train.n_envs, self._steering.listen
        answer = self._evaluator.answer(
            self._learner, self.env_step, question, n_training_envs=n_envs, between_steps=listen
        )
        self._recorder.record_asked(answer)

    def _record_gate_stats(self) -> None:
        if stats := self._episodic.gate_stats(self.env_step, tau=self._tau()):
            self._recorder.record_gate_stats(stats)

    def _record_metrics(self) -> None:
        self._losses.check(wait=True)
        judged = {} if self._last_batch is None else self._episodic.judge(self._last_batch, tau=self._tau())
        values = judged | self._window.take() | self._episodic.metrics() | {"train/updates": float(self._updates)}
        if self._config.uses_gate:
            values["gate/tau"] = self._tau()
        self._recorder.record_metrics(self.env_step, values)

    def _record_snapshot(self) -> None:
        snapshot = self._episodic.snapshot(self.env_step, tau=self._tau(), states=self._config.record.snapshot_states)
        if snapshot is not None:
            self._recorder.record_snapshot(snapshot)

    def _durable_state(self) -> dict[str, Any]:
        """Collect the state when its rows are durable, so that the database is never behind a checkpoint."""
        self._losses.check(wait=True)
        self._recorder.flush()
        return self.get_state()

    def get_state(self) -> dict[str, Any]:
        """Copy every stateful part, as tensors and plain values: what is returned stays as training goes on."""
        return {
            "env_step": self.env_step,
            "episode": self._episode,
            "round": self._round,
            "updates": self._updates,
            "last_evaluation": self._last_evaluation,
            "last_success_rate": self._last_success_rate,
            "duties": {name: duty.last for name, duty in self._duties.items()},
            "to_take": pack_episodes(self._to_take),
            "updates_owed": self._updates_owed,
            **{name: part.get_state() for name, part in self._stateful.items()},
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` collected; training goes on as if it had never stopped."""
        self.env_step = state["env_step"]
        self._episode = state["episode"]
        self._round = state["round"]
        self._updates = state["updates"]
        self._last_evaluation = state["last_evaluation"]
        self._last_success_rate = state.get("last_success_rate")  # absent in older checkpoints
        for name, last in state["duties"].items():
            self._duties[name].last = last
        for name, part in self._stateful.items():
            if name in state or name not in ("temperature", "best"):  # older checkpoints have none
                part.set_state(state[name])
        self._to_take = unpack_episodes(state.get("to_take", []))
        self._updates_owed = state.get("updates_owed", 0)

    def _epsilon(self) -> float:
        # an on-policy learner explores by sampling its own policy
        return 1.0 if self._learner.on_policy else exploration(self._config.train, self.env_step)

    def _judge(self, episode_return: float) -> bool | None:
        """Whether a return is a success, where returns decide that; None where the environment does."""
        memory = self._config.memory
        return None if memory.success == "flag" else memory.is_success(won=False, episode_return=episode_return)

    def _tau(self) -> float:
        return self._temperature.at(self.env_step)

    def _summary(self, status: Literal["finished", "stopped"]) -> RunSummary:
        win_rate, return_mean = self._last_evaluation or (None, None)
        counts = (self.env_step, self._episode, self._updates)
        return RunSummary(status, *counts, win_rate, return_mean, self._last_success_rate)
