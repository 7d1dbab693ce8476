"""Env steps per second of a complete training that is recorded to a database on disk.

One case starts from a filled memory, to measure the speed late in a training without the hours before. A second one,
on a GPU only, has 700K nodes, episodes of about 180 steps and evaluations, as a run near its end. Its policy is an
untrained network with a seed that avoids fights, which a tiny learning rate keeps; the work of an update is the same.
"""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from sqlalchemy import func, select

from app.analysis.provenance import library_versions
from app.jobs.training import train_run
from emtc_core.arrays import derive_seed
from emtc_core.config.resolve import resolve
from emtc_core.config.run import RunConfig
from emtc_core.control import NoControl, StopRequested
from emtc_core.devices import choose_device
from emtc_core.envs.registry import check_available, make_env
from emtc_core.errors import EnvUnavailableError
from emtc_core.learner.learner import make_learner
from emtc_core.recorder import NullRecorder
from emtc_core.replay_buffer.buffer import ReplayBuffer
from emtc_core.rollout.collector import Collector
from emtc_core.threads import configure_threads
from emtc_core.training.checkpoint import CheckpointStore
from emtc_core.training.episodic import EpisodicPart
from emtc_core.training.trainer import Trainer
from storage.engine import Database
from storage.files import run_folder
from storage.models import EpisodeRow
from storage.queries.curves import evaluations
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
LATE_NODES, LATE_WARM_UP, LATE_STEPS = 700_000, 5_000, 25_000
"""In the first LATE_WARM_UP env steps all CUDA graphs are captured. The other steps contain two evaluations."""
LATE_SETTINGS = ("env.skirmish.random_start=reflect", "train.eps_start=0.05", "train.eps_end=0.05", "train.lr=1e-9")
LATE_SEED = 2
"""With these settings, mean length 179 [env steps] in 64 episodes on a CPU."""


class Actor(Protocol):
    """Chooses actions while the memory is filled."""

    def start_episodes(self, n_envs: int) -> None:
        """Reset the hidden state."""

    def act(
        self, obs: NDArray[np.float32], avail: NDArray[np.bool_], *, epsilon: float, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Choose actions [B, N]."""
        ...


class RandomActor:
    """Chooses a random available action."""

    def start_episodes(self, n_envs: int) -> None:
        """Do nothing, because this actor has no hidden state."""

    def act(
        self, obs: NDArray[np.float32], avail: NDArray[np.bool_], *, epsilon: float, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Choose actions [B, N]."""
        return np.where(avail, rng.random(avail.shape), -1.0).argmax(-1)


def save_filled_state(database: Database, run_id: str, config: RunConfig, *, nodes: int, explores: bool = True) -> None:
    """Save a checkpoint at env step 0 whose memory has at least `nodes` nodes.

    Args:
        database: Database of the run.
        run_id: The run.
        config: Its configuration.
        nodes: Number of nodes.
        explores: Fill the memory with random actions; otherwise with the untrained policy and `train.eps_start`.
    """
    device = choose_device(config.train.device)
    configure_threads()
    memory, replay_buffer = _fill_memory(config, nodes, device, explores=explores)
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


def _fill_memory(
    config: RunConfig, nodes: int, device: torch.device, *, explores: bool
) -> tuple[EpisodicPart, ReplayBuffer]:
    env = make_env(config.env, n_envs=FILLING_ENVS)
    actor: Actor = RandomActor()
    if not explores:
        actor = make_learner(config, env.info, device=device, seed=derive_seed(config.seed, "learner"))
    epsilon = 1.0 if explores else config.train.eps_start
    memory = EpisodicPart(config, env.info, device=device)
    replay_buffer = ReplayBuffer(config.train.replay, env.info, device=device)
    collector = Collector(env, reward_scale=config.train.reward_scale, seed=config.seed, stream="filling")
    n_episodes = 0
    while memory.memory.size < nodes:
        for episode in collector.collect(actor, epsilon=epsilon, round=(n_episodes,)):
            n_episodes += 1
            store_episode(memory, replay_buffer, episode, n_episodes)
    memory.refit(replay_buffer)
    return memory, replay_buffer


def measure_resumed_speed(database: Database, run_id: str, *, steps: int, warm_up: int = 0) -> float:
    """Resume a run until env step `steps`. Return the env steps per second without start, end and warm-up."""
    times = train_and_time(database, run_id, steps=steps, warm_up=warm_up)
    (started, first), (ended, last) = times[0], times[-1]
    return (last - first) / (ended - started)


def train_and_time(
    database: Database,
    run_id: str,
    *,
    steps: int,
    warm_up: int = 0,
    wait: Callable[[], object] = lambda: None,
    gpu_share: float = 1.0,
) -> list[tuple[float, int]]:
    """Resume a run until env step `steps`.

    Args:
        database: Database of the run.
        run_id: The run.
        steps: Env step of the end.
        warm_up: Env steps that are not timed; the first round is never timed.
        wait: Called once, before the first timed round.
        gpu_share: Fraction of the GPU's memory that the run may plan with.

    Returns:
        Time [s] and env step after each timed round.
    """
    times: list[tuple[float, int]] = []

    def on_progress(env_step: int) -> None:
        if env_step < warm_up:
            return
        if not times:
            wait()
        times.append((time.monotonic(), env_step))
        if env_step >= steps:
            raise StopRequested

    train_run(database, run_id, resume=True, on_progress=on_progress, gpu_share=gpu_share)
    return times


def run() -> list[BenchResult]:
    """Train EMTC(QPLEX) for a short time in each available environment, and from a filled memory."""
    results = []
    for env, map, steps, budget, reference in CASES:
        config = resolve(env=env, map=map, steps=steps)
        try:
            check_available(config.env)
        except EnvUnavailableError:
            continue
        results.append(_make_result(f"{env}.{map}", _measure_whole_run(config), budget, reference))
    results += [run_filled(), run_filled(threads=2)]
    return [*results, run_late()] if torch.cuda.is_available() else results


def run_filled(nodes: int = FILLED_NODES, steps: int = FILLED_STEPS, *, threads: int = 1) -> BenchResult:
    """Train from a memory with `nodes` nodes. The embedder is refitted every 1,000 steps, as in a long run."""
    config = resolve(env="skirmish", map=FILLED_MAP, overrides=[f"train.threads={threads}"])
    with create_temporary_run(config) as (database, run_id):
        save_filled_state(database, run_id, config, nodes=nodes)
        speed = measure_resumed_speed(database, run_id, steps=steps)
    case = ".two_threads" if threads == 2 else ""
    return _make_result(
        f"skirmish.{FILLED_MAP}{case}", speed, None, f"from a memory of {nodes:,} nodes, {threads} threads"
    )


def run_late(
    nodes: int = LATE_NODES, *, warm_up: int = LATE_WARM_UP, steps: int = LATE_STEPS, settings: Sequence[str] = ()
) -> BenchResult:
    """Train as near the end of a run: a large memory, long episodes, and evaluations."""
    config = resolve(env="skirmish", map=FILLED_MAP, seed=LATE_SEED, overrides=[*LATE_SETTINGS, *settings])
    with create_temporary_run(config) as (database, run_id):
        save_filled_state(database, run_id, config, nodes=nodes, explores=False)
        speed = measure_resumed_speed(database, run_id, steps=steps, warm_up=warm_up)
        n_evaluations = len(evaluations(database, run_id))
        with database.transaction() as connection:
            length = connection.execute(select(func.avg(EpisodeRow.length))).scalar_one()
    case = f"from a memory of {nodes:,} nodes, episodes of {length:.0f} steps, evaluations: {n_evaluations}"
    return _make_result(f"skirmish.{FILLED_MAP}.late", speed, None, case)


def _measure_whole_run(config: RunConfig) -> float:
    with create_temporary_run(config) as (database, run_id):
        started = time.monotonic()
        summary = train_run(database, run_id, resume=False)
        return summary.env_steps / (time.monotonic() - started)


@contextmanager
def create_temporary_run(config: RunConfig) -> Generator[tuple[Database, str]]:
    """Create a run in a temporary database."""
    with temporary_database() as database:
        settings, steps = config.model_dump(mode="json"), config.train.t_max
        yield database, create_run(database, settings, target_steps=steps, versions=library_versions())


def _make_result(case: str, speed: float, budget: float | None, reference: str) -> BenchResult:
    return make_result(f"end_to_end.steps_per_second.{case}", speed, "steps/s", budget, reference, digits=1)
