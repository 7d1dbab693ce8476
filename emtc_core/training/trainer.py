"""The main loop (Algorithm 3).

Glossary
    run          one configuration trained once, with one seed
    round        one episode in each of the B environments, played with the same weights
    episode      one game from reset to its end; numbered 1, 2, 3… in the order in which the memory stores them
    env step     one transition of a training episode; evaluation steps are not counted
    update       one gradient step of the learner on a batch of episodes
    refit        one call of Algorithm 1: the embedder is trained on a sample of the memory
    re-projection  after a refit, all nodes are embedded again and the index is rebuilt
    snapshot     a copy of the memory's columns, recorded for the pages

The trainer writes its observations to the recorder and reads commands from the control.
It handles commands between two environment steps and between two updates. It also answers questions there; a question
does not change the training. On stop, a running evaluation or rollout is discarded. On resume it is repeated with the
same seeds. Finished episodes that were not learned from yet are part of the checkpoint.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from emtc_core.arrays import derive_seed, make_generator
from emtc_core.config.run import RunConfig
from emtc_core.control import CommandHandler, Control, Question, StopRequested
from emtc_core.devices import AsyncCopy, choose_act_device, choose_replay_device, fetch
from emtc_core.envs.base import VectorEnv
from emtc_core.gate.temperature import Temperature
from emtc_core.learner.learner import ValueLearner, make_learner
from emtc_core.learner.target_values import TargetValues
from emtc_core.learner.targets import LearnerStats
from emtc_core.memory_estimate import (
    count_replay_states_bytes,
    count_replay_steps,
    estimate_gpu_memory,
    estimate_memory,
)
from emtc_core.recorder import Recorder
from emtc_core.replay_buffer.buffer import Batch, ReplayBuffer
from emtc_core.rollout.collector import Collector, RolloutBuffer, pack_episodes, unpack_episodes
from emtc_core.rollout.episode import Episode, discounted_returns
from emtc_core.schedules import compute_epsilon
from emtc_core.stopwatch import Stopwatch
from emtc_core.training.checkpoint import BestSoFar, CheckpointStore
from emtc_core.training.episodic import make_episodic_system
from emtc_core.training.evaluation import Evaluator
from emtc_core.training.hooks import Hooks
from emtc_core.training.intervals import make_intervals
from emtc_core.training.loss_check import LossCheck, UpdateInputs
from emtc_core.training.metrics_window import MetricsWindow


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
    """Success rate of the last evaluation. None unless `memory.success = return_threshold`."""


class Trainer:
    """Trains one run: environments, episodic memory, replay buffer and learner (Algorithm 3)."""

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
        self._target_values = TargetValues()
        self._learner = make_learner(
            config,
            env.info,
            device=device,
            seed=derive_seed(config.seed, "learner"),
            act_device=choose_act_device(train.act_device, device=device, n_rows=train.n_envs * env.info.n_agents),
            target_values=self._target_values,
        )
        self.memory_sizes = estimate_memory(config, env.info)
        self.gpu_sizes = estimate_gpu_memory(config, env.info) if device.type == "cuda" else {}
        self.replay_device = choose_replay_device(
            train.replay_device,
            device=device,
            size_bytes=self.memory_sizes["replay"],
            other_bytes=sum(self.gpu_sizes.values()),
            gpu_share=train.gpu_share,
        )
        if self.replay_device.type == "cuda":
            self.memory_sizes["replay states"] = count_replay_states_bytes(config, env.info)
            self.gpu_sizes["replay"] = self.memory_sizes["replay"]
        self._episodic = make_episodic_system(config, env.info, device=device)
        self._replay_buffer = ReplayBuffer(
            train.replay,
            env.info,
            bootstrap_on_timeout=train.bootstrap_on_timeout,
            priority_alpha=config.cds.per_alpha if config.cds.replay == "episode_per" else None,
            device=device,
            storage_device=self.replay_device,
            max_steps=count_replay_steps(config, env.info),
        )
        self._rollout = RolloutBuffer(config.mappo.rollout_steps)
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
        self._commands = CommandHandler(control, before_pause=recorder.flush, answer=self._answer)
        self._handle_commands = self._commands.handle
        self._window = MetricsWindow(device, self._commands.read_clock)
        self._stateful: dict[str, Any] = {
            "learner": self._learner,
            "episodic": self._episodic,
            "temperature": self._temperature,
            "replay_buffer": self._replay_buffer,
            "target_values": self._target_values,
            "rollout": self._rollout,
            "best": self._best,
            "metrics_window": self._window,
        }
        self._losses, self._hooks = LossCheck(checkpoints.folder), Hooks(config)
        self.env_step = 0
        self._episode = 0
        self._round = 0
        self._updates = 0
        self._last_batch: Batch | None = None
        self._last_evaluation: tuple[float, float] | None = None
        self._last_success_rate: float | None = None
        self._intervals = make_intervals(config)
        self._pending_episodes: list[Episode] = []  # played in this round, not processed yet
        self._pending_updates = 0  # for the last processed episode

    def run(self) -> RunSummary:
        """Train until `train.t_max` env steps or a stop command. Write a checkpoint in both cases."""
        status: Literal["finished", "stopped"] = "finished"
        try:
            while self.env_step < self._config.train.t_max or self._is_in_round:
                self._run_due_tasks()
                self.step()
                self._on_progress(self.env_step)
            self._finish()
        except StopRequested:
            status = "stopped"
            self.checkpoints.save_final(self.env_step, self._get_durable_state())
        finally:
            self.checkpoints.wait()
        win_rate, return_mean = self._last_evaluation or (None, None)
        counts = (self.env_step, self._episode, self._updates)
        return RunSummary(status, *counts, win_rate, return_mean, self._last_success_rate)

    def step(self) -> None:
        """Play one round and learn from it (Algorithm 3, outer loop), or continue an interrupted round.

        Raises:
            StopRequested: On a stop command. The next call continues at the same point.
        """
        if not self._is_in_round:
            self._pending_episodes = self._play()
        while self._is_in_round:
            self._handle_commands()
            if not self._pending_updates:
                self._process_episode(self._pending_episodes.pop(0))
            self._learn()
            if self._intervals["refit"].start_if_due(self.env_step):
                metrics = self._episodic.refit(self._replay_buffer)
                self._window.add(metrics | self._hooks.on_refit(metrics, self.env_step))
            if self.env_step >= self._config.train.t_max:
                self._pending_episodes = []

    @property
    def _is_in_round(self) -> bool:
        return bool(self._pending_episodes or self._pending_updates)

    def _play(self) -> list[Episode]:
        started = self._commands.read_clock()
        # an on-policy learner explores by sampling from its policy
        epsilon = 1.0 if self._learner.on_policy else compute_epsilon(self._config.train, self.env_step)
        episodes = self._collector.collect(
            self._learner, epsilon=epsilon, round=(self._round,), between_steps=self._handle_commands
        )
        self._window.add_rollout_time(self._commands.read_clock() - started)
        self._round += 1
        return episodes

    def _process_episode(self, episode: Episode) -> None:
        """Write one episode to the memory, compute its gate, store it for replay and record it."""
        self._episode += 1
        first = self.env_step + 1
        self.env_step += episode.length
        tau = self._tau()
        stored = self._episodic.write_and_gate(episode, number=self._episode, tau=tau)
        gate = stored.gate
        if gate is not None:
            returns = discounted_returns(episode.reward, self._config.train.gamma)[:-1]
            self._temperature.observe(gate.delta_mem, returns)
        train, uses_gate = self._config.train, self._config.uses_gate
        if self._learner.on_policy:
            self._rollout.add(episode)
        else:
            index = self._replay_buffer.add(
                episode,
                slots=stored.incentive_slots,
                uids=stored.uids,
                generation=stored.generation,
                beta=gate.beta if gate is not None and uses_gate else None,
                number=self._episode,
            )
            self._target_values.discard(index)
        self._recorder.record_episode(stored.make_record(episode, self._episode, first, tau=tau, uses_gate=uses_gate))
        self._window.add_episode(episode, is_success=self._is_success(episode.episode_return))
        self._window.add(self._hooks.on_episode(episode, self.env_step))
        if not self._learner.on_policy and len(self._replay_buffer) >= max(train.burn_in, train.batch):
            self._pending_updates = train.updates_per_episode

    def _learn(self) -> None:
        """Do the updates of the last processed episode. There are none before `train.burn_in` episodes are stored."""
        learner = self._learner
        if learner.on_policy is True:
            episodes = self._rollout.pop_when_full()
            if episodes:
                self._count_update(learner.update_rollout(episodes, env_step=self.env_step), episodes)
            return
        while self._pending_updates:
            self._handle_commands()
            self._update(learner)
            self._pending_updates -= 1
        if learner.on_episodes(self._episode * self._config.train.updates_per_episode):
            self._episodic.on_target_update()

    def _update(self, learner: ValueLearner) -> None:
        """Update the learner on a sampled batch, with the current memory values of the successor states."""
        watch = Stopwatch(self._device)
        batch = self._replay_buffer.sample(
            self._config.train.batch, make_generator(self._config.seed, "replay", self._updates)
        )
        batch, inputs = self._episodic.recall(batch, self._replay_buffer, tau=self._tau())
        lookup_time = watch.stop()
        stats = learner.update(batch, inputs, env_step=self.env_step)
        # Before the copy of the statistics: when that has arrived, the times can be read without a wait.
        self._window.add_times({"memory/lookup_ms": lookup_time, "time/update_ms": watch.stop()})
        numbers = self._count_update(stats, (batch, inputs))
        if self._config.cds.replay == "episode_per":
            self._replay_buffer.set_priorities(batch.indices, numbers.select(stats.n_scalars))
        self._last_batch = batch

    def _count_update(self, stats: LearnerStats, inputs: UpdateInputs) -> AsyncCopy:
        """Count an update, and start to copy its statistics to the host."""
        numbers = fetch(stats.numbers)
        self._updates += 1
        self._losses.add(self._updates, stats, numbers, inputs)
        self._read_update_stats()
        return numbers

    def _read_update_stats(self, *, wait: bool = False) -> None:
        """Add the statistics that have arrived on the host to the window; with `wait`, wait for all of them."""
        for stats in self._losses.check(wait=wait):
            self._window.add_update(stats)

    def _run_due_tasks(self) -> None:
        """Record, evaluate and save what is due. Called between two rounds."""
        step, intervals = self.env_step, self._intervals
        if step == 0 or self._is_in_round:
            return
        if intervals["gate_stats"].start_if_due(step):
            self._record_gate_stats()
        if intervals["metrics"].start_if_due(step):
            self._record_metrics()
        if intervals["evaluation"].start_if_due(step):
            self._evaluate()
        if self._config.record.snapshots and intervals["snapshot"].start_if_due(step):
            self._record_snapshot()
        if self.checkpoints.is_background_save_due() and intervals["checkpoint"].start_if_due(step):
            self.checkpoints.save_in_background(step, self._get_durable_state())

    def _finish(self) -> None:
        """Record, evaluate and save the final state, unless this was already done at this step."""
        for name, task in (
            ("gate_stats", self._record_gate_stats),
            ("metrics", self._record_metrics),
            ("evaluation", self._evaluate),
            ("snapshot", self._record_snapshot),
        ):
            if self._intervals[name].last < self.env_step:
                self._intervals[name].last = self.env_step
                task()
        self.checkpoints.save_final(self.env_step, self._get_durable_state())

    def _evaluate(self) -> None:
        try:
            record, values = self._evaluator.evaluate(
                self._learner, self.env_step, between_steps=self._commands.handle_without_questions
            )
        except StopRequested:
            self._intervals["evaluation"].force_due()  # the resumed run repeats the evaluation
            raise
        self._last_evaluation = (float(record.won.mean()), float(record.returns.mean()))
        self._recorder.record_evaluation(record)
        metrics = {"eval/q_start": values.q_start, "eval/overestimation": values.overestimation}
        successes = [is_success for x in record.returns if (is_success := self._is_success(float(x))) is not None]
        if successes:
            metrics["eval/success_rate"] = self._last_success_rate = sum(successes) / len(successes)
        self._recorder.record_metrics(self.env_step, metrics | self._hooks.on_evaluation(record, self.env_step))
        if self._best.update(record):
            self._recorder.flush()  # the row of the best evaluation must exist before its policy file
            self.checkpoints.save_best(self.env_step, self._learner.get_state())

    def _answer(self, question: Question) -> None:
        """Play the episodes that a question asks for, with the current policy. The training does not change."""
        answer = self._evaluator.answer(
            self._learner,
            self.env_step,
            question,
            n_training_envs=self._config.train.n_envs,
            between_steps=self._commands.poll,
        )
        self._recorder.record_answer(answer)

    def _record_gate_stats(self) -> None:
        if stats := self._episodic.gate_stats(self.env_step, tau=self._tau()):
            self._recorder.record_gate_stats(stats)

    def _record_metrics(self) -> None:
        batch, tau = self._last_batch, self._tau()
        values = {} if batch is None else self._episodic.measure_gate(batch, tau=tau)
        self._read_update_stats(wait=True)
        values |= self._window.take() | self._episodic.metrics() | {"train/updates": float(self._updates)}
        if self._config.uses_gate:
            values["gate/tau"] = tau
        self._recorder.record_metrics(self.env_step, values)

    def _record_snapshot(self) -> None:
        snapshot = self._episodic.snapshot(self.env_step, tau=self._tau(), states=self._config.record.snapshot_states)
        if snapshot is not None:
            self._recorder.record_snapshot(snapshot)

    def _get_durable_state(self) -> dict[str, Any]:
        """Flush the recorder, then return the state: the database has every row before the checkpoint is written."""
        self._recorder.flush()
        return self.get_state()

    def get_state(self) -> dict[str, Any]:
        """Copy the state of every part, as tensors and plain values. Later training does not change the copy.

        Raises:
            NonFiniteLossError: If the loss of an update is NaN or infinite. All losses are checked before.
        """
        self._read_update_stats(wait=True)
        return {
            "env_step": self.env_step,
            "episode": self._episode,
            "round": self._round,
            "updates": self._updates,
            "last_evaluation": self._last_evaluation,
            "last_success_rate": self._last_success_rate,
            "intervals": {name: interval.last for name, interval in self._intervals.items()},
            "pending_episodes": pack_episodes(self._pending_episodes),
            "pending_updates": self._pending_updates,
            **{name: part.get_state() for name, part in self._stateful.items()},
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `get_state`. Training continues with identical results."""
        self.env_step = state["env_step"]
        self._episode = state["episode"]
        self._round = state["round"]
        self._updates = state["updates"]
        self._last_evaluation = state["last_evaluation"]
        self._last_success_rate = state["last_success_rate"]
        for name, last in state["intervals"].items():
            self._intervals[name].last = last
        for name, part in self._stateful.items():
            part.set_state(state[name])
        self._pending_episodes = unpack_episodes(state["pending_episodes"])
        self._pending_updates = state["pending_updates"]

    def _is_success(self, episode_return: float) -> bool | None:
        """Whether a return is a success. None if the environment's flag decides (`memory.success = flag`)."""
        memory = self._config.memory
        return None if memory.success == "flag" else memory.is_success(won=False, episode_return=episode_return)

    def _tau(self) -> float:
        return self._temperature.at(self.env_step)
