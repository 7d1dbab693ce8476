"""Fit another embedder to the states of a stored memory snapshot, to compare embedders on the same memory.

The new embedder has the settings of the run and the requested type. It is fitted to the nodes of the snapshot as often
as the run had refitted its embedder up to the snapshot. It embeds all nodes, and the embedding is stored in the table
of projections. A run with this embedder would have another memory: there the embedder also decides which nodes are
merged while the memory grows.

This module needs torch. Background processes and notebooks import it; pages must not.
"""

import time
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.analysis.projections.types import Coordinates, Progress, ignore_progress
from emtc_core.config.memory import EmbedConfig
from emtc_core.embedder.fit import fit
from emtc_core.embedder.networks import Embedder
from emtc_core.memory.memory import NodeSample
from storage.engine import Database
from storage.projections import save_projection
from storage.queries.episodes import iter_states
from storage.queries.memory import Snapshot, get_snapshot
from storage.queries.projections import EMBEDDING_PREFIX, Projection, find_projection
from storage.runs.rows import find_run

MAX_REFITS = 100
"""Maximum number of fits, so that the time is limited for snapshots of long runs."""
FIT_PROGRESS = 0.8
"""Fraction of the progress bar used for fitting the embedder; the rest is used for embedding the nodes."""
_EMBED_BATCH_SIZE = 65_536
"""Number of nodes that are embedded together."""
_REVISION = 1
"""Part of the stored parameters. Increase it if a change in this module changes the embeddings."""


def embed_snapshot(
    db: Database, snapshot_id: int, *, kind: str, seed: int = 0, progress: Progress = ignore_progress
) -> Projection:
    """Return the stored embedding by a newly fitted embedder, or compute and store it.

    Args:
        db: An open database.
        snapshot_id: The snapshot; the trajectories of its episodes must still be stored.
        kind: "tcse", "dcae" or "random".
        seed: Random seed of weights, batches and augmentation.
        progress: Called with the finished fraction in [0, 1]; can raise to cancel.

    Returns:
        A projection whose coordinates [M, X] are embeddings.

    Raises:
        StorageError: If the snapshot does not exist, or states were removed by thinning.
    """
    snapshot = get_snapshot(db, snapshot_id)
    run_settings = find_run(db, snapshot.run_id).config.get("embed", {})
    settings = {name: value for name, value in run_settings.items() if name in EmbedConfig.model_fields}
    config = EmbedConfig.model_validate(settings | {"type": kind, "reset_each_update": False})
    params = _make_params(snapshot, config, seed)
    method = f"{EMBEDDING_PREFIX}{kind}"
    if (stored_projection := find_projection(db, snapshot_id, method, params)) is not None:
        return stored_projection
    started = time.monotonic()
    embedding = _fit_and_embed(db, snapshot, config, params, progress)
    seconds = time.monotonic() - started
    new_id = save_projection(db, snapshot_id, method=method, params=params, coordinates=embedding, seconds=seconds)
    return Projection(new_id, snapshot_id, method, params, seconds, embedding)


def read_states(db: Database, snapshot: Snapshot, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Read the states [n, S] of the given rows of a snapshot from the stored trajectories of their episodes."""
    order = np.argsort(snapshot.episode[rows], kind="stable")
    episode = snapshot.episode[rows][order]
    t = snapshot.t[rows][order]
    states: NDArray[np.float32] = np.empty((0, 0), np.float32)
    for number, episode_states in iter_states(db, snapshot.run_id, episode.tolist()):
        if not states.size:
            states = np.empty((len(rows), episode_states.shape[1]), np.float32)
        # `episode` is sorted, so the rows of one episode are next to each other.
        first, end = np.searchsorted(episode, [number, number + 1])
        states[order[first:end]] = episode_states[t[first:end]]
    return states


def _make_params(snapshot: Snapshot, config: EmbedConfig, seed: int) -> dict[str, Any]:
    """List everything that determines the embedding of a snapshot."""
    refits = min(MAX_REFITS, max(1, snapshot.env_step // config.interval))
    return {
        "embed": config.model_dump(mode="json"),
        "seed": seed,
        "refits": refits if config.type != "random" else 0,
        "episode_limit": max(1, int(snapshot.t.max(initial=0))),
        "revision": _REVISION,
        "versions": {name: version(name) for name in ("numpy", "torch")},
    }


def _fit_and_embed(
    db: Database, snapshot: Snapshot, config: EmbedConfig, params: dict[str, Any], progress: Progress
) -> Coordinates:
    """Fit the embedder to a sample of the nodes as often as `params` states, and embed all nodes."""
    rng = np.random.default_rng(params["seed"])
    n_samples = min(config.samples, snapshot.size)
    sample = np.sort(rng.choice(snapshot.size, n_samples, replace=False))
    state = read_states(db, snapshot, sample)
    embedder = Embedder(
        config, state_dim=state.shape[1], episode_limit=params["episode_limit"], device="cpu", seed=params["seed"]
    )
    t = snapshot.t[sample]
    h = snapshot.h[sample].astype(np.float64)
    for n_fits in range(1, params["refits"] + 1):
        order = rng.permutation(len(sample))
        fit(embedder, NodeSample(state[order], t[order], h[order]))
        progress(FIT_PROGRESS * n_fits / params["refits"])
    embedding = np.empty((snapshot.size, embedder.dim), np.float32)
    by_episode = np.argsort(snapshot.episode, kind="stable")  # so that a batch reads few episodes
    for start in range(0, snapshot.size, _EMBED_BATCH_SIZE):
        rows = by_episode[start : start + _EMBED_BATCH_SIZE]
        embedding[rows] = embedder.embed(read_states(db, snapshot, rows), snapshot.t[rows]).cpu().numpy()
        progress(FIT_PROGRESS + (1 - FIT_PROGRESS) * (start + len(rows)) / snapshot.size)
    return embedding
