"""The duration of one update and the share of the memory in it: football, 3 against 1, 32 episodes of 150 steps.

An update is sampling from the replay buffer, recalling from a memory of 100K nodes, and the gradient step. With
`embed.interval` at 1,000 env steps, the embeddings of all nodes are computed again (a re-projection) every seven
episodes. After a re-projection, the node of a sampled state must be searched again, unless the node stores this state.
Therefore seven updates are timed after each re-projection.
"""

import statistics
import time
from collections.abc import Iterator

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
from tests.bench.timing import median_s, synchronize
from tests.report import BenchResult, make_result

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
N_ENVS, ACTS = 32, 60
EMU_REFERENCE = "EMU's public code 1.83 s at 7K entries; a bare QPLEX update 0.13 s"


def run(algos: tuple[str, ...] = ALGOS, entries: int = N_NODES) -> list[BenchResult]:
    """Measure the durations of updates, and for emtc-qplex the share of the memory in them.

    The results are `learner.update_seconds.<algo>`, `learner.speedup_of_two_threads.<algo>` on a CPU,
    `learner.act_ms.<algo>`, `learner.memory_share` and `learner.memory_share.settled`.
    """
    device = choose_device("auto")
    configure_threads()
    memory, replay_buffer = _fill_memory(entries, device)
    return [result for algo in algos for result in _measure(algo, device, memory, replay_buffer)]


def _measure(
    algo: str, device: torch.device, memory: EpisodicPart, replay_buffer: ReplayBuffer
) -> Iterator[BenchResult]:
    config, name = _config(algo), f"learner.update_seconds.{algo}"
    learner = make_learner(config, INFO, device=device, seed=1)
    if isinstance(learner, MappoLearner):
        seconds = _time_rollout(learner, config)
        yield make_result(name, seconds, "s", None, "one rollout of 3,200 transitions", digits=4)
        return
    recall_times, update_times = _time_updates(learner, config, memory, replay_buffer)
    update_s = statistics.median(update_times)
    yield make_result(name, update_s, "s", BUDGET_S if algo == "emtc-qplex" else None, EMU_REFERENCE, digits=4)
    if algo in TWO_THREAD_ALGOS and device.type == "cpu":
        configure_threads(2)
        faster = make_learner(config, INFO, device=device, seed=1)
        faster_s = statistics.median(_time_updates(faster, config, memory, replay_buffer)[1])
        configure_threads()
        reference = f"train.threads = 2: {1e3 * faster_s:.1f} ms; 1 thread: {1e3 * update_s:.1f} ms"
        yield make_result(
            f"learner.speedup_of_two_threads.{algo}", update_s / faster_s, "ratio", None, reference, digits=2
        )
    if algo == "emtc-qplex":
        share = sum(recall_times) / sum(update_times)
        load = "with a re-projection every seven updates (embed.interval 1,000)"
        yield make_result("learner.memory_share", share, "fraction", BUDGET_SHARE, load, digits=4)
        recall_s = _time_recall_of_known_slots(memory, replay_buffer)
        share = recall_s / (update_s - statistics.median(recall_times) + recall_s)
        load = "between two re-projections"
        yield make_result("learner.memory_share.settled", share, "fraction", BUDGET_SHARE, load, digits=4)
        load = f"greedy actions of one step of {N_ENVS} environments"
        yield make_result(f"learner.act_ms.{algo}", _time_acting(learner), "ms", None, load, digits=3)


def _config(algo: str) -> RunConfig:
    config = resolve(env=INFO.env, map=INFO.map, algo=algo)
    train = config.train.model_copy(update={"batch": BATCH})
    return config.model_copy(update={"train": train})


def _fill_memory(entries: int, device: torch.device) -> tuple[EpisodicPart, ReplayBuffer]:
    """Write random walks until the memory has at least `entries` nodes. Return it and the buffer of its episodes."""
    memory = EpisodicPart(_config("emtc-qplex"), INFO, device=device)
    replay_buffer = ReplayBuffer(max(BATCH, -(-entries // LENGTH)), INFO, device=device)
    rng = np.random.default_rng(0)
    number = 0
    while memory.memory.size < entries:
        number += 1
        store_episode(memory, replay_buffer, _make_episode(rng), number)
    return memory, replay_buffer


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


def _time_updates(
    learner: Learner, config: RunConfig, memory: EpisodicPart, replay_buffer: ReplayBuffer
) -> tuple[list[float], list[float]]:
    """Return the durations [s] of the recalls and of the whole updates. The first cycle is not measured."""
    assert not isinstance(learner, MappoLearner), "on-policy learners are measured by _time_rollout"
    rng = np.random.default_rng(0)
    recall_times, update_times = [], []
    for cycle in range(CYCLES + 1):
        if config.uses_memory:
            memory.memory.reproject()
        for _ in range(UPDATES_PER_REPROJECTION):
            started = time.perf_counter()
            batch = replay_buffer.sample(BATCH, rng)
            sampled = time.perf_counter()
            inputs = None
            if config.uses_memory:
                batch, inputs = memory.recall(batch, replay_buffer, tau=1.0)
            recalled = time.perf_counter()
            learner.update(batch, inputs, env_step=0)
            synchronize()
            if cycle:
                recall_times.append(recalled - sampled)
                update_times.append(time.perf_counter() - started)
    return recall_times, update_times


def _time_recall_of_known_slots(memory: EpisodicPart, replay_buffer: ReplayBuffer) -> float:
    """Return the median duration [s] of a recall of episodes whose nodes are known, so that no node is searched."""
    batch = replay_buffer.sample(BATCH, np.random.default_rng(1))
    memory.recall(batch, replay_buffer, tau=1.0)
    times = []
    for _ in range(UPDATES_PER_REPROJECTION):
        batch = replay_buffer.take(batch.indices)
        started = time.perf_counter()
        memory.recall(batch, replay_buffer, tau=1.0)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _time_rollout(learner: MappoLearner, config: RunConfig) -> float:
    """Return the median duration [s] of an update from one rollout."""
    rng = np.random.default_rng(0)
    episodes = [_make_episode(rng) for _ in range(-(-config.mappo.rollout_steps // LENGTH))]
    return median_s(lambda: learner.update_rollout(episodes), CYCLES, warm_up=1)


def _time_acting(learner: Learner) -> float:
    """Return the median time [ms] of the greedy actions of one step."""
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((N_ENVS, INFO.n_agents, INFO.obs_dim), np.float32)
    avail = np.ones((N_ENVS, INFO.n_agents, INFO.n_actions), np.bool_)
    learner.start_episodes(N_ENVS)
    return 1e3 * median_s(lambda: learner.act(obs, avail, epsilon=0.0, rng=rng), ACTS, warm_up=1)
