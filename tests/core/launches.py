"""What one update and one refit on 3s_vs_5z launch on a GPU and send to it, counted on an imitated one.

`python -m tests.core.launches` prints the table; `--json` prints the counts for the tests. Networks are narrow and
mini-batches small, which changes no count. The number of operations depends on the number of mini-batches and, for CDS,
on the length of the episodes; both are smaller than in a run. A recurrent layer counts as one operation each way; cuDNN
launches more kernels for it, without the host's work for each.

Times are estimates from three assumptions, not measurements: a launch takes 8 µs of the host, an operation in a graph
2 µs of the GPU, and a copy from the host runs at 6 GB/s.
"""

import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from emtc_core.config.memory import EmbedConfig, MemoryConfig
from emtc_core.config.resolve import resolve
from emtc_core.embedder.fit import fit
from emtc_core.embedder.networks import Embedder
from emtc_core.envs.base import EnvInfo
from emtc_core.envs.registry import get_env_info
from emtc_core.learner.learner import make_learner
from emtc_core.learner.mappo import MappoLearner
from emtc_core.learner.targets import make_incentive_inputs
from emtc_core.memory.memory import EpisodicMemory, NodeSample
from emtc_core.repeated_step import WARM_UP
from emtc_core.replay_buffer.buffer import ReplayBuffer
from emtc_core.threads import configure_threads
from tests.core.imitated_gpu import ACTIVITY, GPU, imitate
from tests.core.learner_cases import make_config, make_episode

LAUNCH_S, REPLAYED_S, SEND_RATE = 8e-6, 2e-6, 6e9
BATCH, MINI_BATCHES = 32, 20
CDS_LENGTH = 50
SETTINGS: dict[str, dict[str, Any]] = {
    "emc": {"ec": {"enabled": True}, "incentive": {"enabled": False}, "curiosity": {"scale": 0.1}},
    "cds": {"cds": {"beta": 0.1, "policy_mixture": "agents"}},
}


@dataclass(frozen=True)
class Count:
    """Launches of the host, and what it sends."""

    stage: str
    launches: int
    replays: int  # of a captured step, among the launches
    replayed: int  # operations in these replays
    sent_bytes: int
    most_frequent: dict[str, int]  # operation to launches

    @property
    def estimate_ms(self) -> float:
        """Estimated time: launches by the host, operations in graphs, and copies."""
        return 1e3 * (LAUNCH_S * self.launches + REPLAYED_S * self.replayed + self.sent_bytes / SEND_RATE)


def measure(stage: str, work: Callable[[], object]) -> Count:
    """Count what a piece of work launches."""
    ACTIVITY.clear()
    work()
    launches, sent = ACTIVITY.launches, sum(ACTIVITY.sent_bytes)
    most_frequent = dict(launches.most_common(8))
    return Count(stage, launches.total(), launches["replay"], ACTIVITY.replayed, sent, most_frequent)


def get_sizes() -> EnvInfo:
    """Get the sizes of 3s_vs_5z."""
    info = get_env_info(resolve(map="3s_vs_5z").env)
    assert info is not None
    return info


def count_update(algo: str) -> Count:
    """Count a later update of a learner, its sample included: the first ones prepare what later ones repeat."""
    info = get_sizes()
    config = make_config(algo, **SETTINGS.get(algo, {}))
    learner = make_learner(config, info, device=GPU, seed=1)
    assert not isinstance(learner, MappoLearner)
    length, n_before = (CDS_LENGTH, 2) if algo == "cds" else (5, WARM_UP + 1)
    buffer = ReplayBuffer(BATCH, info, device=GPU)
    for i in range(BATCH):
        buffer.add(make_episode(info, length, i))

    def update() -> None:
        batch = buffer.sample(BATCH, np.random.default_rng(0))
        shape = batch.ends.shape
        recalled = make_incentive_inputs(np.ones(shape), np.ones(shape), np.ones(shape, np.bool_))
        learner.update(batch, recalled if config.uses_memory else None, env_step=0)

    for _ in range(n_before):
        update()
    return measure(f"update, {algo}", update)


def count_stored_episode() -> Count:
    """Count an episode that is added to the replay buffer."""
    info = get_sizes()
    buffer, episode = ReplayBuffer(2, info, device=GPU), make_episode(info, info.episode_limit, 0)
    return measure("stored episode", lambda: buffer.add(episode))


def count_refit() -> Count:
    """Count the third refit of an embedder."""
    info, rows = get_sizes(), 16
    config = EmbedConfig(batch=rows, samples=rows * MINI_BATCHES)
    embedder = Embedder(config, state_dim=info.state_dim, episode_limit=info.episode_limit, device=GPU, seed=1)
    rng, n = np.random.default_rng(0), config.samples
    state = rng.normal(size=(n, info.state_dim)).astype(np.float32)
    sample = NodeSample(state, rng.integers(0, info.episode_limit, n).astype(np.int32), rng.normal(size=n))
    for _ in range(2):
        fit(embedder, sample)
    return measure("refit", lambda: fit(embedder, sample))


def count_reprojections() -> list[Count]:
    """Count a re-projection of 10,000 nodes, all of them new, and one 1,000 steps later."""
    info = get_sizes()
    sizes = {"state_dim": info.state_dim, "episode_limit": info.episode_limit}
    embedder = Embedder(EmbedConfig(), **sizes, device=GPU, seed=1)
    memory = EpisodicMemory(MemoryConfig(), state_dim=info.state_dim, gamma=0.99, embedder=embedder, device="cuda")

    def write(first: int, episodes: int) -> None:
        for i in range(first, first + episodes):
            episode = make_episode(info, info.episode_limit, i)
            memory.write(state=episode.state, reward=episode.reward, won=False, episode=i, episode_return=0.0)

    write(0, 40)
    everything = measure("re-projection, all nodes", memory.reproject)
    write(40, 4)  # the table of the nodes does not grow here
    return [everything, measure("re-projection", memory.reproject)]


def count_all() -> list[Count]:
    """Count every stage."""
    with imitate():
        updates = [count_update(algo) for algo in ("emtc-qplex", "emc", "cds")]
        return [*updates, count_stored_episode(), count_refit(), *count_reprojections()]


def main() -> None:
    """Print the counts."""
    warnings.simplefilter("ignore")
    configure_threads()
    counts = count_all()
    if "--json" in sys.argv:
        json.dump([asdict(count) for count in counts], sys.stdout)
        return
    for count in counts:
        graphs = f"{count.replays:4} graphs of {count.replayed:5,} operations" if count.replays else ""
        sent = f"{count.sent_bytes / 1e6:7.2f} MB sent"
        line = f"{count.stage:24} {count.launches:5,} launches {graphs:32} {sent} {count.estimate_ms:6.1f} ms"
        sys.stdout.write(f"{line}  {count.most_frequent}\n")


if __name__ == "__main__":
    main()
