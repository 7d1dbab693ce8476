"""Env steps per second of a complete training that is recorded to a database on disk.

One case starts from a filled memory, to measure the speed late in a training without the hours before.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from app.analysis.provenance import library_versions
from app.jobs.training import train_run
from emtc_core.config.resolve import resolve
from emtc_core.config.run import RunConfig
from emtc_core.control import NoControl, StopRequested
from emtc_core.devices import choose_device
from emtc_core.envs.registry import check_available, make_env
from emtc_core.errors import EnvUnavailableError
from emtc_core.recorder import NullRecorder
from emtc_core.replay_buffer.buffer import ReplayBuffer
from emtc_core.rollout.collector import Collector
from emtc_core.threads import configure_threads
from emtc_core.training.checkpoint import CheckpointStore
from emtc_core.training.episodic import EpisodicPart
from emtc_core.training.trainer import Trainer
from storage.engine import Database
from storage.files import run_folder
from storage.runs.changes import create_run
from tests.bench.learner import store_episode
from tests.records import temporary_database
from tests.report import BenchResult, make_result

FILLING_ENVS = 64
CASES = (
    ("skirmish", "3m", 10_000, None, "none published"),
    ("grf", "academy_3_vs_1_with_keeper", 8_000, 250.0, "EMU's public code 97-113 steps/s in its first 9,000 steps"),
)
"""Environment, map, env steps, budget [steps/s], reference."""
FILLED_MAP, FILLED_NODES, FILLED_STEPS = "3s_vs_5z", 200_000, 8_000


class RandomActor:
    """Chooses a random available action."""

    def start_episodes(self, n_envs: int) -> None:
        """Do nothing, because this actor has no hidden state."""

    def act(
        self, obs: NDArray[np.float32], avail: NDArray[np.bool_], *, epsilon: float, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Choose actions [B, N]."""
        return np.where(avail, rng.random(avail.shape), -1.0).argmax(-1)


def save_filled_state(database: Database, run_id: str, config: RunConfig, *, nodes: int) -> None:
    """Save a checkpoint at env step 0 whose memory has at least `nodes` nodes."""
    device = choose_device(config.train.device)
    configure_threads()
    memory, replay_buffer = _fill_memory(config, nodes, device)
    store = CheckpointStore(run_folder(database, run_id), keep=1, run_id=run_id)
    fresh = Trainer(
        config,
        env=make_env(config.env, n_envs=config.train.n_envs),
        eval_env=make_env(config.env, n_envs=config.train.n_envs),
        recorder=NullRecorder(),
        control=NoControl(),
        checkpoints=store,
        device=device,
    )
    filled = {"episodic": memory.get_state(), "replay_buffer": replay_buffer.get_state()}
    evaluated = {"intervals": fresh.get_state()["intervals"] | {"evaluation": 0}}
    store.save(0, fresh.get_state() | filled | evaluated)


def _fill_memory(config: RunConfig, nodes: int, device: torch.device) -> tuple[EpisodicPart, ReplayBuffer]:
    env = make_env(config.env, n_envs=FILLING_ENVS)
    memory = EpisodicPart(config, env.info, device=device)
    replay_buffer = ReplayBuffer(config.train.replay, env.info, device=device)
    collector = Collector(env, reward_scale=config.train.reward_scale, seed=config.seed, stream="filling")
    n_episodes = 0
    while memory.memory.size < nodes:
        for episode in collector.collect(RandomActor(), epsilon=1.0, round=(n_episodes,)):
            n_episodes += 1
            store_episode(memory, replay_buffer, episode, n_episodes)
    memory.refit(replay_buffer)
    return memory, replay_buffer


def measure_resumed_speed(database: Database, run_id: str, *, steps: int) -> float:
    """Resume a run for `steps` env steps. Return the env steps per second without start, end and first round."""
    times: list[tuple[float, int]] = []

    def on_progress(env_step: int) -> None:
        times.append((time.monotonic(), env_step))
        if env_step >= steps:
            raise StopRequested

    train_run(database, run_id, resume=True, on_progress=on_progress)
    (started, first), (ended, last) = times[0], times[-1]
    return (last - first) / (ended - started)


def run() -> list[BenchResult]:
    """Train EMTC(QPLEX) for a short time in each available environment, and twice from a filled memory."""
    results = []
    for env, map, steps, budget, reference in CASES:
        config = resolve(env=env, map=map, steps=steps)
        try:
            check_available(config.env)
        except EnvUnavailableError:
            continue
        results.append(_make_result(f"{env}.{map}", _measure_whole_run(config), budget, reference))
    return [*results, run_filled(), run_filled(threads=2)]


def run_filled(nodes: int = FILLED_NODES, steps: int = FILLED_STEPS, *, threads: int = 1) -> BenchResult:
    """Train from a memory with `nodes` nodes. The embedder is refitted every 1,000 steps, as in a long run."""
    config = resolve(env="skirmish", map=FILLED_MAP, overrides=[f"train.threads={threads}"])
    with _create_temporary_run(config) as (database, run_id):
        save_filled_state(database, run_id, config, nodes=nodes)
        speed = measure_resumed_speed(database, run_id, steps=steps)
    case = ".two_threads" if threads == 2 else ""
    return _make_result(
        f"skirmish.{FILLED_MAP}{case}", speed, None, f"from a memory of {nodes:,} nodes, {threads} threads"
    )


def _measure_whole_run(config: RunConfig) -> float:
    with _create_temporary_run(config) as (database, run_id):
        started = time.monotonic()
        summary = train_run(database, run_id, resume=False)
        return summary.env_steps / (time.monotonic() - started)


@contextmanager
def _create_temporary_run(config: RunConfig) -> Generator[tuple[Database, str]]:
    """Create a run in a temporary database."""
    with temporary_database() as database:
        settings, steps = config.model_dump(mode="json"), config.train.t_max
        yield database, create_run(database, settings, target_steps=steps, versions=library_versions())


def _make_result(case: str, speed: float, budget: float | None, reference: str) -> BenchResult:
    return make_result(f"end_to_end.steps_per_second.{case}", speed, "steps/s", budget, reference, digits=1)
