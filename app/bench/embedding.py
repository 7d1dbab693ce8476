"""What does the unit of the return loss do to the embedding? The same recorded episodes, embedded both ways (B15).

A short real run is recorded per task. Its episodes are then written, in their order, into a fresh memory for each
value of `embed.return_scale`, with refits as the trainer makes them; every fifth episode is kept out of it. What
comes out is judged by

    purity              share of the variance of H explained by the mean H of the 10 nearest nodes out of other
                        episodes (R²; 1 is perfect, 0 is no better than the overall mean)
    merge_rate          share of the states written after the first refit that merged, at one delta for all
    info_nce            on the held-out episodes [nats]; chance is log B
    info_nce_accuracy   on the held-out episodes; chance is 1 / B
    return_r2           share of the variance of H that the decoder explains, on the memory's nodes

`--json` of this benchmark is what `app/bench/measured/embedding.json` keeps and the Method page shows.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import KDTree

from app.bench import BenchResult, make_result
from emtc_core.config.resolve import resolve
from emtc_core.config.run import RunConfig
from emtc_core.control import NoControl
from emtc_core.devices import configure_threads
from emtc_core.embedder.fit import fit
from emtc_core.embedder.losses import augment, info_nce
from emtc_core.embedder.networks import Embedder
from emtc_core.envs.registry import check_available, make_env
from emtc_core.errors import EnvUnavailableError
from emtc_core.memory.memory import EpisodicMemory
from emtc_core.recorder import EpisodeRecord, ListRecorder
from emtc_core.schedules import Every
from emtc_core.training.checkpoint import CheckpointStore
from emtc_core.training.trainer import Trainer

TASKS = (("skirmish", "3m"), ("skirmish", "2s3z"), ("grf", "academy_3_vs_1_with_keeper"))
STEPS = 20_000
SEED = 1  # of the recorded run and of the judging
SEEDS = (1, 2)  # of the embedders, whose figures are averaged
DELTA = 1.8e-2  # the widest of the paper's study; at less, hardly anything merges so early
HELD_OUT = 5  # every fifth episode
NEIGHBORS, CANDIDATES, JUDGED = 10, 256, 4096
QUIET = {"eval.interval": 10**9, "record.snapshots": 0, "checkpoint.interval": 10**9}

Scale = Literal["none", "std"]
SCALES: tuple[Scale, ...] = ("none", "std")


def run(tasks: Sequence[tuple[str, str]] = TASKS, *, steps: int = STEPS) -> list[dict[str, Any]]:
    """Measure `embedding.<what>.<map>.<scale>` for every task that is usable here."""
    configure_threads()
    figures: list[dict[str, Any]] = []
    for env, map in tasks:
        config = resolve(env=env, map=map, steps=steps, seed=SEED, overrides=QUIET)
        try:
            check_available(config.env)
        except EnvUnavailableError:
            continue
        episodes = record_episodes(config)
        for scale in SCALES:
            judged = [judge(config, episodes, scale, seed=seed) for seed in SEEDS]
            figures += [_figure(what, map, scale, float(np.mean([j[what] for j in judged]))) for what in judged[0]]
    return figures


def record_episodes(config: RunConfig) -> list[EpisodeRecord]:
    """Train one run and keep its episodes."""
    recorder = ListRecorder()
    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            config,
            env=make_env(config.env, n_envs=config.train.n_envs),
            eval_env=make_env(config.env, n_envs=1),
            recorder=recorder,
            control=NoControl(),
            checkpoints=CheckpointStore(Path(folder), keep=1),
            device=torch.device("cpu"),
        ).run()
    return recorder.episodes


def judge(config: RunConfig, episodes: Sequence[EpisodeRecord], scale: Scale, *, seed: int) -> dict[str, float]:
    """Embed the episodes with one return scale and describe the embedding."""
    settings = config.embed.model_copy(update={"return_scale": scale})
    embedder = Embedder(
        settings,
        state_dim=episodes[0].state.shape[1],
        episode_limit=max(episode.length for episode in episodes),
        device="cpu",
        seed=seed,
    )
    memory = EpisodicMemory(
        config.memory.model_copy(update={"delta": DELTA}),
        state_dim=embedder.state_dim,
        gamma=config.train.gamma,
        embedder=embedder,
        seed=seed,
    )
    merge_rate = _fill(memory, [e for e in episodes if e.episode % HELD_OUT], settings.interval, settings.min_entries)
    nats, accuracy, rows = _contrast(embedder, [e for e in episodes if e.episode % HELD_OUT == 0])
    return {
        "purity": measure_purity(*_places(memory)),
        "merge_rate": merge_rate,
        "info_nce": nats,
        "info_nce_accuracy": accuracy,
        "info_nce_chance": 1 / rows,
        "return_r2": _return_r2(embedder, memory),
    }


def _fill(memory: EpisodicMemory, episodes: Sequence[EpisodeRecord], interval: int, min_entries: int) -> float:
    """Write the episodes with refits in between; return the merge rate after the first."""
    steps, refit = 0, Every(interval)
    for episode in episodes:
        steps += episode.length
        memory.write(
            state=episode.state,
            reward=episode.reward,
            won=episode.won,
            episode=episode.episode,
            episode_return=episode.episode_return,
        )
        if memory.size >= min_entries and refit.due(steps):
            fit(memory.embedder, memory.sample(memory.embedder.config.samples))
            memory.reproject()
            if memory.generation == 1:
                memory.take_stats()
    stats = memory.take_stats()
    return stats.merged / stats.written


def _places(memory: EpisodicMemory) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Embeddings scaled as the memory compares them, H and episode of every node."""
    columns = memory.columns()
    x = columns.embedding.astype(np.float64)
    return (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-8), columns.h, columns.episode


def measure_purity(z: NDArray[np.float64], h: NDArray[np.float64], episode: NDArray[np.int64]) -> float:
    """Explain each node's H by the mean of its nearest nodes out of other episodes; return R².

    Args:
        z: [M, X] places.
        h: [M] returns.
        episode: [M] episode of each node.
    """
    judged = np.random.default_rng(SEED).permutation(len(h))[:JUDGED]
    _, near = KDTree(z).query(z[judged], k=min(CANDIDATES, len(h)))
    is_other = episode[near] != episode[judged, None]
    is_used = is_other & (is_other.cumsum(axis=1) <= NEIGHBORS)
    has_any = is_used.any(axis=1)
    guess = (h[near] * is_used).sum(axis=1)[has_any] / is_used.sum(axis=1)[has_any]
    return _r2(h[judged][has_any], guess)


def _r2(truth: NDArray[np.float64], guess: NDArray[np.float64]) -> float:
    return 1 - float(((truth - guess) ** 2).mean() / truth.var())


@torch.no_grad()
def _contrast(embedder: Embedder, episodes: Sequence[EpisodeRecord]) -> tuple[float, float, int]:
    """Measure InfoNCE [nats], its accuracy, and the rows of a batch on episodes that no refit saw."""
    state_MS = torch.from_numpy(np.concatenate([episode.state for episode in episodes]))
    t_M = torch.cat([torch.arange(len(episode.state)) for episode in episodes])
    generator = torch.Generator().manual_seed(SEED)
    B = min(embedder.config.batch, len(t_M))
    batches = torch.randperm(len(t_M), generator=generator)[: len(t_M) // B * B].view(-1, B)
    found: list[list[float]] = []
    for rows_B in batches:
        view_BS = augment(state_MS[rows_B], embedder.config, generator)
        anchor, candidate = embedder.embed(state_MS[rows_B], t_M[rows_B]), embedder.embed(view_BS, t_M[rows_B])
        found.append([value.item() for value in info_nce(anchor, candidate, tau_cl=embedder.config.tau_cl)])
    nats, accuracy = np.mean(found, axis=0).tolist()
    return nats, accuracy, B


def _return_r2(embedder: Embedder, memory: EpisodicMemory) -> float:
    sample = memory.sample(JUDGED)
    state_MS, time_M1 = embedder.to_inputs(sample.state, sample.t)
    with torch.no_grad():
        _, h_hat_M = embedder.decoder(embedder.encoder(state_MS, time_M1), time_M1)
    return _r2(sample.h, h_hat_M.double().numpy() * embedder.return_scale.divisor)


UNITS = {"info_nce": "nats", "purity": "R²", "return_r2": "R²"}


def _figure(what: str, map: str, scale: Scale, value: float) -> BenchResult:
    reference = f"mean of {len(SEEDS)} embedders"
    return make_result(f"embedding.{what}.{map}.{scale}", value, UNITS.get(what, "fraction"), None, reference, digits=4)
