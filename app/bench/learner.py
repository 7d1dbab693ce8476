"""How long does one update take, and how much of it is the memory? Football's 3 against 1, 32 episodes of 150 steps.

An update is everything between two environment steps: sampling the replay buffer, recalling from a memory of 100K
entries, and the gradient step. With `embed.interval` at 1,000 env steps the memory is embedded anew every seven
episodes, after which sampled states that do not stand in their own node are searched again; the timed updates
follow that rhythm.
"""

import statistics
import time
from dataclasses import dataclass

import numpy as np
import torch

from app.bench import BenchResult, make_result
from emtc_core.config.resolve import resolve
from emtc_core.config.run import RunConfig
from emtc_core.devices import choose_device, configure_threads
from emtc_core.envs.base import EnvInfo
from emtc_core.learner.learner import Learner, MappoLearner, make_learner
from emtc_core.replay_buffer.buffer import ReplayBuffer
from emtc_core.rollout.episode import Episode
from emtc_core.training.episodic import EpisodicPart

ENTRIES, LENGTH, BATCH = 100_000, 150, 32
UPDATES_PER_REFIT = 7
CYCLES = 3
BUDGET_S, BUDGET_SHARE = 0.15, 0.05
INFO = EnvInfo("grf", "academy_3_vs_1_with_keeper", 3, 19, 26, 26, LENGTH, (-100.0, 100.0))
ALGOS = (
    "emtc-qplex",
    "emtc-cds",
    "emu-qplex",
    "emu-cds",
    "qplex",
    "cds",
    "qmix",
    "vdn",
    "dmix",
    "emc",
    "mappo",
)
SHARED = ("emtc-qplex", "emu-qplex", "emc", "emtc-cds", "cds")
"""Measured on two threads, too."""
EMU_CODE = "EMU's public code 1.83 s at 7K entries; a bare QPLEX update 0.13 s"


@dataclass(frozen=True)
class Timing:
    """Median seconds of one update, and the share of all timed seconds that the memory took."""

    update_s: float
    memory_share: float
    settled_share: float


def run(algos: tuple[str, ...] = ALGOS, entries: int = ENTRIES) -> list[BenchResult]:
    """Measure `learner.update_seconds.<algo>` and `learner.memory_share`."""
    device = choose_device("auto")
    configure_threads()
    store = _fill(entries, device)
    figures = []
    for algo in algos:
        config = _config(algo)
        learner = make_learner(config, INFO, device=device, seed=1)
        if isinstance(learner, MappoLearner):
            figures.append(_update_figure(algo, _time_rollout(learner, config)))
            continue
        timing = _time_updates(learner, config, store)
        figures.append(_update_figure(algo, timing.update_s))
        if algo in SHARED and device.type == "cpu":
            sharing = make_learner(config, INFO, device=device, seed=1, threads=2)
            figures.append(_shared_figure(algo, timing.update_s, _time_updates(sharing, config, store).update_s))
        if algo == "emtc-qplex":
            figures += _share_figures(timing)
    return figures


@dataclass(frozen=True)
class Store:
    """A full memory with the episodes that wrote it, in a replay buffer."""

    memory: EpisodicPart
    replay_buffer: ReplayBuffer


def _config(algo: str) -> RunConfig:
    config = resolve(env=INFO.env, map=INFO.map, algo=algo)
    train = config.train.model_copy(update={"batch": BATCH})
    return config.model_copy(update={"train": train})


def _fill(entries: int, device: torch.device) -> Store:
    """Write random walks until the memory holds that many entries."""
    config = _config("emtc-qplex")
    store = Store(
        EpisodicPart(config, INFO, device=device),
        ReplayBuffer(max(BATCH, -(-entries // LENGTH)), INFO, device=device),
    )
    rng = np.random.default_rng(0)
    number = 0
    while store.memory.memory.size < entries:
        number += 1
        episode = _episode(rng)
        keep_episode(store.memory, store.replay_buffer, episode, number)
    return store


def keep_episode(memory: EpisodicPart, replay_buffer: ReplayBuffer, episode: Episode, number: int) -> None:
    """Put an episode into a memory and a replay buffer, as a trainer does."""
    absorbed = memory.write_and_gate(episode, number=number, tau=1.0)
    beta = None if absorbed.gate is None else absorbed.gate.beta
    slots, uids, generation = absorbed.incentive_slots, absorbed.uids, absorbed.generation
    replay_buffer.add(episode, slots=slots, uids=uids, generation=generation, beta=beta, number=number)


def _episode(rng: np.random.Generator) -> Episode:
    n, a = INFO.n_agents, INFO.n_actions
    state = np.cumsum(0.1 * rng.standard_normal((LENGTH + 1, INFO.state_dim), np.float32), axis=0)
    reward = np.zeros(LENGTH, np.float32)
    reward[-1] = rng.choice([0.0, 100.0])
    return Episode(
        obs=np.repeat(state[:, None], n, axis=1),
        state=state,
        avail=np.ones((LENGTH + 1, n, a), np.bool_),
        action=rng.integers(0, a, (LENGTH, n)),
        reward=reward,
        terminated=True,
        truncated=False,
        won=bool(reward[-1] > 0),
        episode_return=float(reward.sum()),
    )


def _time_updates(learner: Learner, config: RunConfig, store: Store) -> Timing:
    assert not isinstance(learner, MappoLearner), "on-policy learners are timed by the rollout"
    rng = np.random.default_rng(0)
    recalls, wholes = [], []
    for cycle in range(CYCLES + 1):
        if config.uses_memory:
            store.memory.memory.reproject()
        for _ in range(UPDATES_PER_REFIT):
            started = time.perf_counter()
            batch = store.replay_buffer.sample(BATCH, rng)
            sampled = time.perf_counter()
            inputs = None
            if config.uses_memory:
                batch, inputs = store.memory.recall(batch, store.replay_buffer, tau=1.0)
            recalled = time.perf_counter()
            learner.update(batch, inputs, env_step=0)
            _wait()
            if cycle:
                recalls.append(recalled - sampled)
                wholes.append(time.perf_counter() - started)
    settled = _settled_recall(store) if config.uses_memory else 0.0
    learning = statistics.median(wholes) - statistics.median(recalls)
    return Timing(
        update_s=statistics.median(wholes),
        memory_share=sum(recalls) / sum(wholes),
        settled_share=settled / (learning + settled),
    )


def _settled_recall(store: Store) -> float:
    """Time a recall of episodes whose slots are known: gathers only."""
    batch = store.replay_buffer.sample(BATCH, np.random.default_rng(1))
    store.memory.recall(batch, store.replay_buffer, tau=1.0)
    times = []
    for _ in range(UPDATES_PER_REFIT):
        batch = store.replay_buffer.take(batch.indices)
        started = time.perf_counter()
        store.memory.recall(batch, store.replay_buffer, tau=1.0)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _time_rollout(learner: MappoLearner, config: RunConfig) -> float:
    rng = np.random.default_rng(0)
    episodes = [_episode(rng) for _ in range(-(-config.mappo.rollout_steps // LENGTH))]
    times = []
    for _ in range(CYCLES + 1):
        started = time.perf_counter()
        learner.update_rollout(episodes)
        _wait()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _update_figure(algo: str, seconds: float) -> BenchResult:
    budget = BUDGET_S if algo == "emtc-qplex" else None
    reference = "one rollout of 3,200 transitions" if algo == "mappo" else EMU_CODE
    return make_result(f"learner.update_seconds.{algo}", seconds, "s", budget, reference, digits=4)


def _shared_figure(algo: str, alone_s: float, shared_s: float) -> BenchResult:
    reference = f"train.threads = 2: {1e3 * shared_s:.1f} ms, against {1e3 * alone_s:.1f} ms on one"
    return make_result(f"learner.speedup_of_two_threads.{algo}", alone_s / shared_s, "ratio", None, reference, digits=2)


def _share_figures(timing: Timing) -> list[BenchResult]:
    rows = (
        ("learner.memory_share", timing.memory_share, "with a re-projection every seven updates (t_emb = 1K)"),
        ("learner.memory_share.settled", timing.settled_share, "between two re-projections: gathers only"),
    )
    return [make_result(name, share, "fraction", BUDGET_SHARE, what, digits=4) for name, share, what in rows]
