"""Whole training: env steps per second with everything on, recorded to a database on disk.

A run that starts from a full memory: what training costs late, without the hours before.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from app.analysis.provenance import library_versions
from app.bench import BenchResult, make_result
from app.bench.learner import keep_episode
from app.bench.records import temporary_database
from app.jobs.training import train_run
from emtc_core.config.resolve import resolve
from emtc_core.config.run import RunConfig
from emtc_core.control import NoControl, StopRequested
from emtc_core.devices import choose_device, configure_threads
from emtc_core.envs.registry import check_available, make_env
from emtc_core.errors import EnvUnavailableError
from emtc_core.recorder import NullRecorder
from emtc_core.replay_buffer.buffer import ReplayBuffer
from emtc_core.rollout.collector import Collector
from emtc_core.training.checkpoint import CheckpointStore
from emtc_core.training.episodic import EpisodicPart
from emtc_core.training.trainer import Trainer
from storage.engine import Database
from storage.files.places import run_folder
from storage.runs.changes import create_run

FILLING_ENVS = 64


class RandomActor:
    """Takes any available action."""

    def start_episodes(self, n_envs: int) -> None:
        """There is nothing to forget."""

    def act(
        self, obs: NDArray[np.float32], avail: NDArray[np.bool_], *, epsilon: float, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Choose actions [B, N]."""
        return np.where(avail, rng.random(avail.shape), -1.0).argmax(-1)


def save_filled_state(database: Database, run_id: str, config: RunConfig, *, nodes: int) -> None:
    """Leave the run a checkpoint at step 0 whose memory holds `nodes` nodes, or a few more."""
    device = choose_device(config.train.device)
    configure_threads()
    memory, replay_buffer = _fill(config, nodes, device)
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
    evaluated = {"duties": fresh.get_state()["duties"] | {"evaluation": 0}}
    store.save(0, fresh.get_state() | filled | evaluated)


def _fill(config: RunConfig, nodes: int, device: torch.device) -> tuple[EpisodicPart, ReplayBuffer]:
    env = make_env(config.env, n_envs=FILLING_ENVS)
    memory = EpisodicPart(config, env.info, device=device)
    replay_buffer = ReplayBuffer(config.train.replay, env.info, device=device)
    collector = Collector(env, reward_scale=config.train.reward_scale, seed=config.seed, stream="filling")
    number = 0
    while memory.memory.size < nodes:
        for episode in collector.collect(RandomActor(), epsilon=1.0, round=(number,)):
            number += 1
            keep_episode(memory, replay_buffer, episode, number)
    memory.refit(replay_buffer)
    return memory, replay_buffer


def steps_per_second(database: Database, run_id: str, *, steps: int) -> float:
    """Go on with a filled run for `steps` env steps; start, end and the first round are not timed."""
    ticks: list[tuple[float, int]] = []

    def on_progress(env_step: int) -> None:
        ticks.append((time.monotonic(), env_step))
        if env_step >= steps:
            raise StopRequested

    train_run(database, run_id, resume=True, on_progress=on_progress)
    (began, first), (ended, last) = ticks[0], ticks[-1]
    return (last - first) / (ended - began)


CASES = (
    ("skirmish", "3m", 10_000, None, "none published"),
    ("grf", "academy_3_vs_1_with_keeper", 8_000, 250.0, "EMU's public code 97-113 steps/s in its first 9,000 steps"),
)
FILLED_MAP, FILLED_NODES, FILLED_STEPS = "3s_vs_5z", 200_000, 8_000
TWO_CORES = ("train.threads=2", "embed.overlap=on")


def run() -> list[BenchResult]:
    """Train EMTC(QPLEX) briefly on each environment that is usable here, once from a filled memory."""
    figures = []
    for env, map, steps, budget, reference in CASES:
        config = resolve(env=env, map=map, steps=steps)
        try:
            check_available(config.env)
        except EnvUnavailableError:
            continue
        figures.append(_figure(f"{env}.{map}", _whole_run(config), budget, reference))
    return [*figures, run_filled(), run_filled(two_cores=True)]


def run_filled(nodes: int = FILLED_NODES, steps: int = FILLED_STEPS, *, two_cores: bool = False) -> BenchResult:
    """Train from a memory of so many nodes, refitting the embedder every 1,000 steps as a long run does."""
    config = resolve(env="skirmish", map=FILLED_MAP, overrides=TWO_CORES if two_cores else ())
    with _fresh_run(config) as (database, run_id):
        save_filled_state(database, run_id, config, nodes=nodes)
        speed = steps_per_second(database, run_id, steps=steps)
    case, how = (".two_cores", f", {', '.join(TWO_CORES)}") if two_cores else ("", "")
    return _figure(f"skirmish.{FILLED_MAP}{case}", speed, None, f"from a memory of {nodes:,} nodes{how}")


def _whole_run(config: RunConfig) -> float:
    with _fresh_run(config) as (database, run_id):
        started = time.monotonic()
        summary = train_run(database, run_id, resume=False)
        return summary.env_steps / (time.monotonic() - started)


@contextmanager
def _fresh_run(config: RunConfig) -> Generator[tuple[Database, str]]:
    """Create a run in a database that is gone afterwards."""
    with temporary_database() as database:
        settings, steps = config.model_dump(mode="json"), config.train.t_max
        yield database, create_run(database, settings, target_steps=steps, versions=library_versions())


def _figure(case: str, speed: float, budget: float | None, reference: str) -> BenchResult:
    return make_result(f"end_to_end.steps_per_second.{case}", speed, "steps/s", budget, reference, digits=1)
