"""The duration of one update and the share of the memory in it: football, 3 against 1, 32 episodes of 150 steps.

An update is sampling from the replay buffer, recalling from a memory of 100K nodes, and the gradient step. With
`embed.interval` at 1,000 env steps, the embeddings of all nodes are computed again (a re-projection) every seven
episodes. After a re-projection, the node of a sampled state must be searched again, unless the node stores this state.
Therefore seven updates are timed after each re-projection.
"""

import statistics
import time
from dataclasses import dataclass

import numpy as np
import torch

from emtc_core.config.resolve import resolve
from emtc_core.config.run import RunConfig
from emtc_core.devices import choose_device
from emtc_core.envs.base import EnvInfo
from emtc_core.learner.learner import Learner, MappoLearner, make_learner
from emtc_core.replay_buffer.buffer import ReplayBuffer
from emtc_core.rollout.episode import Episode
from emtc_core.threads import configure_threads
from emtc_core.training.episodic import EpisodicPart
from tests.bench import BenchResult, make_result

N_NODES, LENGTH, BATCH = 100_000, 150, 32
UPDATES_PER_REPROJECTION = 7
CYCLES = 3
BUDGET_S, BUDGET_SHARE = 0.15, 0.05
"""Maximum accepted duration of an update [s] and share of the memory in it, both only of emtc-qplex."""
INFO = EnvInfo(
    "grf",
    "academy_3_vs_1_with_keeper",
    n_agents=3,
    n_actions=19,
    obs_dim=26,
    state_dim=26,
    episode_limit=LENGTH,
    reward_range=(-100.0, 100.0),
)
ALGOS = (
    "emtc-qplex", "emtc-cds", "emu-qplex", "emu-cds", "qplex", "cds", "qmix", "vdn", "dmix", "emc", "mappo",
)  # fmt: skip
TWO_THREAD_ALGOS = ("emtc-qplex", "emu-qplex", "emc", "emtc-cds", "cds")
"""Measured with two threads as well."""
EMU_REFERENCE = "EMU's public code 1.83 s at 7K entries; a bare QPLEX update 0.13 s"


@dataclass(frozen=True)
class Timing:
    """Duration of one update and the share of the memory in it."""

    update_s: float
    """Median duration [s]."""
    memory_share: float
    """Share of the recalls in the total duration."""
    settled_share: float
    """The same if the node of every sampled state is known, as between two re-projections."""


@dataclass(frozen=True)
class FilledMemory:
    """A full memory, and a replay buffer with its episodes."""

    memory: EpisodicPart
    replay_buffer: ReplayBuffer


def run(algos: tuple[str, ...] = ALGOS, entries: int = N_NODES) -> list[BenchResult]:
    """Measure the durations of updates, and for emtc-qplex the share of the memory in them.

    The results are `learner.update_seconds.<algo>`, `learner.speedup_of_two_threads.<algo>` on a CPU,
    `learner.memory_share` and `learner.memory_share.settled`.
    """
    device = choose_device("auto")
    configure_threads()
    filled = _fill_memory(entries, device)
    results = []
    for algo in algos:
        config = _config(algo)
        learner = make_learner(config, INFO, device=device, seed=1)
        if isinstance(learner, MappoLearner):
            results.append(_make_update_result(algo, _time_rollout(learner, config)))
            continue
        timing = _time_updates(learner, config, filled)
        results.append(_make_update_result(algo, timing.update_s))
        if algo in TWO_THREAD_ALGOS and device.type == "cpu":
            learner = make_learner(config, INFO, device=device, seed=1, threads=2)
            two_threads_s = _time_updates(learner, config, filled).update_s
            results.append(_make_speedup_result(algo, timing.update_s, two_threads_s))
        if algo == "emtc-qplex":
            results += _make_share_results(timing)
    return results


def _config(algo: str) -> RunConfig:
    config = resolve(env=INFO.env, map=INFO.map, algo=algo)
    train = config.train.model_copy(update={"batch": BATCH})
    return config.model_copy(update={"train": train})


def _fill_memory(entries: int, device: torch.device) -> FilledMemory:
    """Write random walks until the memory has at least `entries` nodes."""
    config = _config("emtc-qplex")
    filled = FilledMemory(
        EpisodicPart(config, INFO, device=device),
        ReplayBuffer(max(BATCH, -(-entries // LENGTH)), INFO, device=device),
    )
    rng = np.random.default_rng(0)
    number = 0
    while filled.memory.memory.size < entries:
        number += 1
        store_episode(filled.memory, filled.replay_buffer, _make_episode(rng), number)
    return filled


def store_episode(memory: EpisodicPart, replay_buffer: ReplayBuffer, episode: Episode, number: int) -> None:
    """Write an episode to a memory and add it to a replay buffer, as a trainer does.

    The buffer stores the node of each transition (`incentive_slots`, `uids`), the `generation` of the memory, which
    a re-projection increments, so that the node must be searched again, and the gate coefficient (`beta`).
    """
    written = memory.write_and_gate(episode, number=number, tau=1.0)
    replay_buffer.add(
        episode,
        slots=written.incentive_slots,
        uids=written.uids,
        generation=written.generation,
        beta=None if written.gate is None else written.gate.beta,
        number=number,
    )


def _make_episode(rng: np.random.Generator) -> Episode:
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


def _time_updates(learner: Learner, config: RunConfig, filled: FilledMemory) -> Timing:
    assert not isinstance(learner, MappoLearner), "on-policy learners are measured by _time_rollout"
    rng = np.random.default_rng(0)
    recall_times, update_times = [], []
    for cycle in range(CYCLES + 1):
        if config.uses_memory:
            filled.memory.memory.reproject()
        for _ in range(UPDATES_PER_REPROJECTION):
            started = time.perf_counter()
            batch = filled.replay_buffer.sample(BATCH, rng)
            sampled = time.perf_counter()
            inputs = None
            if config.uses_memory:
                batch, inputs = filled.memory.recall(batch, filled.replay_buffer, tau=1.0)
            recalled = time.perf_counter()
            learner.update(batch, inputs, env_step=0)
            _synchronize()
            if cycle:  # the first cycle is not measured
                recall_times.append(recalled - sampled)
                update_times.append(time.perf_counter() - started)
    known_slots_s = _time_recall_of_known_slots(filled) if config.uses_memory else 0.0
    learning_s = statistics.median(update_times) - statistics.median(recall_times)
    return Timing(
        update_s=statistics.median(update_times),
        memory_share=sum(recall_times) / sum(update_times),
        settled_share=known_slots_s / (learning_s + known_slots_s),
    )


def _time_recall_of_known_slots(filled: FilledMemory) -> float:
    """Return the median duration [s] of a recall of episodes whose nodes are known, so that no node is searched."""
    batch = filled.replay_buffer.sample(BATCH, np.random.default_rng(1))
    filled.memory.recall(batch, filled.replay_buffer, tau=1.0)
    times = []
    for _ in range(UPDATES_PER_REPROJECTION):
        batch = filled.replay_buffer.take(batch.indices)
        started = time.perf_counter()
        filled.memory.recall(batch, filled.replay_buffer, tau=1.0)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _time_rollout(learner: MappoLearner, config: RunConfig) -> float:
    rng = np.random.default_rng(0)
    episodes = [_make_episode(rng) for _ in range(-(-config.mappo.rollout_steps // LENGTH))]
    times = []
    for _ in range(CYCLES + 1):
        started = time.perf_counter()
        learner.update_rollout(episodes)
        _synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _make_update_result(algo: str, seconds: float) -> BenchResult:
    budget = BUDGET_S if algo == "emtc-qplex" else None
    reference = "one rollout of 3,200 transitions" if algo == "mappo" else EMU_REFERENCE
    return make_result(f"learner.update_seconds.{algo}", seconds, "s", budget, reference, digits=4)


def _make_speedup_result(algo: str, one_thread_s: float, two_threads_s: float) -> BenchResult:
    name, speedup = f"learner.speedup_of_two_threads.{algo}", one_thread_s / two_threads_s
    reference = f"train.threads = 2: {1e3 * two_threads_s:.1f} ms; 1 thread: {1e3 * one_thread_s:.1f} ms"
    return make_result(name, speedup, "ratio", None, reference, digits=2)


def _make_share_results(timing: Timing) -> list[BenchResult]:
    rows = (
        (
            "learner.memory_share",
            timing.memory_share,
            "with a re-projection every seven updates (embed.interval 1,000)",
        ),
        ("learner.memory_share.settled", timing.settled_share, "between two re-projections"),
    )
    return [make_result(name, share, "fraction", BUDGET_SHARE, text, digits=4) for name, share, text in rows]
