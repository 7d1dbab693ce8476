"""The effect of `embed.return_scale` on the embedding of the same recorded episodes.

A short run is recorded per task. For each value of `embed.return_scale`, its episodes are written in their order to a
new memory. As in a training, the embedder is trained again (a refit) after every `embed.interval` steps. Every fifth
episode is not written and is used for validation. H is the highest return that was recorded for a node. The results are

    purity              share of the variance of H explained by the mean H of the 10 nearest nodes of other episodes
                        (R²; 1 is perfect, 0 is as good as the overall mean)
    merge_rate          fraction of the states written after the first refit that merged into an existing node; all
                        scales use the same delta
    info_nce            loss on the validation episodes [nats]; a random guess has log(batch size)
    info_nce_accuracy   accuracy on the validation episodes; a random guess has 1 / batch size
    return_r2           share of the variance of H that the decoder explains, over the nodes of the memory

`app/guide/measured/embedding.json` is the output with `--json`. The Method page shows it.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import KDTree

from emtc_core.config.resolve import resolve
from emtc_core.config.run import RunConfig
from emtc_core.control import NoControl
from emtc_core.embedder.augmentation import augment
from emtc_core.embedder.fit import fit
from emtc_core.embedder.losses import info_nce
from emtc_core.embedder.networks import Embedder
from emtc_core.envs.registry import check_available, make_env
from emtc_core.errors import EnvUnavailableError
from emtc_core.memory.memory import EpisodicMemory
from emtc_core.recorder import EpisodeRecord, ListRecorder
from emtc_core.threads import configure_threads
from emtc_core.training.checkpoint import CheckpointStore
from emtc_core.training.intervals import Interval
from emtc_core.training.trainer import Trainer
from tests.report import BenchResult, make_result

TASKS = (("skirmish", "3m"), ("skirmish", "2s3z"), ("grf", "academy_3_vs_1_with_keeper"))
STEPS = 20_000
RUN_SEED = 1  # of the recorded run and of the evaluation
EMBEDDER_SEEDS = (1, 2)  # of the embedders; the results are averaged
DELTA = 1.8e-2
"""The largest delta of the paper's ablation. With a smaller one, almost no states merge within `STEPS` steps."""
VALIDATION_INTERVAL = 5  # every fifth episode
NEIGHBORS = 10
"""Number of nearest nodes of other episodes that predict H."""
CANDIDATES = 256
"""Number of nearest nodes that are searched for `NEIGHBORS` nodes of other episodes."""
MAX_NODES = 4096
"""Maximum number of nodes for which H is predicted."""
OVERRIDES = {"eval.interval": 10**9, "record.snapshots": 0, "checkpoint.interval": 10**9}

Scale = Literal["none", "std"]
SCALES: tuple[Scale, ...] = ("none", "std")
UNITS = {"info_nce": "nats", "purity": "R²", "return_r2": "R²"}


def run(tasks: Sequence[tuple[str, str]] = TASKS, *, steps: int = STEPS) -> list[BenchResult]:
    """Measure `embedding.<quantity>.<map>.<scale>` for each task that is available on this machine."""
    configure_threads()
    results: list[BenchResult] = []
    for env, map in tasks:
        config = resolve(env=env, map=map, steps=steps, seed=RUN_SEED, overrides=OVERRIDES)
        try:
            check_available(config.env)
        except EnvUnavailableError:
            continue
        episodes = record_episodes(config)
        for scale in SCALES:
            values = [evaluate_embedding(config, episodes, scale, seed=seed) for seed in EMBEDDER_SEEDS]
            for quantity in values[0]:
                mean = float(np.mean([values_of_seed[quantity] for values_of_seed in values]))
                results.append(_make_result(quantity, map, scale, mean))
    return results


def record_episodes(config: RunConfig) -> list[EpisodeRecord]:
    """Train one run and return its episodes."""
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


def evaluate_embedding(
    config: RunConfig, episodes: Sequence[EpisodeRecord], scale: Scale, *, seed: int
) -> dict[str, float]:
    """Embed the episodes with one return scale. Return the quantities of this benchmark by name."""
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
    written = [episode for episode in episodes if episode.episode % VALIDATION_INTERVAL]
    validation = [episode for episode in episodes if episode.episode % VALIDATION_INTERVAL == 0]
    merge_rate = _fill_memory(memory, written, settings.interval, settings.min_entries)
    loss, accuracy, batch_size = _evaluate_info_nce(embedder, validation)
    return {
        "purity": measure_purity(*_get_nodes(memory)),
        "merge_rate": merge_rate,
        "info_nce": loss,
        "info_nce_accuracy": accuracy,
        "info_nce_chance": 1 / batch_size,
        "return_r2": _compute_return_r2(embedder, memory),
    }


def _fill_memory(memory: EpisodicMemory, episodes: Sequence[EpisodeRecord], interval: int, min_entries: int) -> float:
    """Write the episodes, with refits. Return the merge rate after the first refit."""
    steps, refit = 0, Interval(interval)
    for episode in episodes:
        steps += episode.length
        memory.write(
            state=episode.state,
            reward=episode.reward,
            won=episode.won,
            episode=episode.episode,
            episode_return=episode.episode_return,
        )
        if memory.size >= min_entries and refit.start_if_due(steps):
            fit(memory.embedder, memory.sample(memory.embedder.config.samples))
            memory.reproject()
            if memory.generation == 1:  # number of refits: discard the counts up to the first one
                memory.take_stats()
    stats = memory.take_stats()
    return stats.merged / stats.written


def _get_nodes(memory: EpisodicMemory) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Return the normalized embedding, H and episode of every node."""
    columns = memory.columns()
    x = columns.embedding.astype(np.float64)
    return (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-8), columns.h, columns.episode


def measure_purity(z: NDArray[np.float64], h: NDArray[np.float64], episode: NDArray[np.int64]) -> float:
    """Compute R² of H, predicted by the mean H of the nearest nodes of other episodes.

    Args:
        z: [M, X] normalized embeddings.
        h: [M] returns.
        episode: [M] episode number of each node.
    """
    sample = np.random.default_rng(RUN_SEED).permutation(len(h))[:MAX_NODES]
    _, near = KDTree(z).query(z[sample], k=min(CANDIDATES, len(h)))
    is_other = episode[near] != episode[sample, None]
    is_used = is_other & (is_other.cumsum(axis=1) <= NEIGHBORS)
    has_any = is_used.any(axis=1)
    prediction = (h[near] * is_used).sum(axis=1)[has_any] / is_used.sum(axis=1)[has_any]
    return _r2(h[sample][has_any], prediction)


def _r2(values: NDArray[np.float64], prediction: NDArray[np.float64]) -> float:
    return 1 - float(((values - prediction) ** 2).mean() / values.var())


@torch.no_grad()
def _evaluate_info_nce(embedder: Embedder, episodes: Sequence[EpisodeRecord]) -> tuple[float, float, int]:
    """Compute InfoNCE [nats] and its accuracy on the validation episodes. The last value is the batch size."""
    state_MS = torch.from_numpy(np.concatenate([episode.state for episode in episodes]))
    t_M = torch.cat([torch.arange(len(episode.state)) for episode in episodes])
    generator = torch.Generator().manual_seed(RUN_SEED)
    B = min(embedder.config.batch, len(t_M))
    batches = torch.randperm(len(t_M), generator=generator)[: len(t_M) // B * B].view(-1, B)
    values: list[list[float]] = []
    for rows_B in batches:
        view_BS = augment(state_MS[rows_B], embedder.config, generator)
        anchor, candidate = embedder.embed(state_MS[rows_B], t_M[rows_B]), embedder.embed(view_BS, t_M[rows_B])
        loss_and_accuracy = info_nce(anchor, candidate, tau_cl=embedder.config.tau_cl)
        values.append([value.item() for value in loss_and_accuracy])
    loss, accuracy = np.mean(values, axis=0).tolist()
    return loss, accuracy, B


def _compute_return_r2(embedder: Embedder, memory: EpisodicMemory) -> float:
    sample = memory.sample(MAX_NODES)
    state_MS, time_M1 = embedder.to_inputs(sample.state, sample.t)
    with torch.no_grad():
        _, h_hat_M = embedder.decoder(embedder.encoder(state_MS, time_M1), time_M1)
    return _r2(sample.h, h_hat_M.double().numpy() * embedder.return_scale.divisor)


def _make_result(quantity: str, map: str, scale: Scale, value: float) -> BenchResult:
    unit, reference = UNITS.get(quantity, "fraction"), f"mean of {len(EMBEDDER_SEEDS)} embedders"
    return make_result(f"embedding.{quantity}.{map}.{scale}", value, unit, None, reference, digits=4)
