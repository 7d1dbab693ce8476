"""Fit another embedder to the states of a stored snapshot: what would this memory look like under it?

A fresh embedder of the run's own settings, but of the wanted type, learns from the snapshot's nodes as often as the
run had refitted its own by then, and embeds every node. The result is stored beside the snapshot's projections. It is
no re-run: the run's own embedder learned from memories that grew, and decided by its merges what they hold.

Needs torch; it is imported by the background process and where a notebook asks for it, never by a page.
"""

import time
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.analysis.projections.linear import Coordinates, Progress, ignore_progress
from emtc_core.config.memory import EmbedConfig
from emtc_core.embedder.fit import fit
from emtc_core.embedder.networks import Embedder, make_embedder
from emtc_core.memory.memory import NodeSample
from storage.engine import Database
from storage.projections import save_projection
from storage.queries.episodes import iter_states
from storage.queries.memory import EMBEDDING, Projection, Snapshot, find_projection, get_snapshot
from storage.runs.rows import find_run

MOST_REFITS = 100
FITTED_SHARE = 0.8  # of the progress: up to here the embedder is fitted, from here nodes are embedded
_BLOCK = 65_536  # nodes embedded at a time
_REVISION = 1
"""Goes up when a change here changes embeddings."""


def embed_snapshot(
    db: Database, snapshot_id: int, *, kind: str, seed: int = 0, progress: Progress = ignore_progress
) -> Projection:
    """Return the stored embedding by a fresh embedder, or compute and store it.

    Args:
        db: An open database.
        snapshot_id: The snapshot; the trajectories of its episodes must still be there.
        kind: "tcse", "dcae" or "random".
        seed: Of weights, batches and augmentation.
        progress: Receives the finished part in [0, 1]; may raise to cancel.

    Returns:
        A projection whose coordinates [M, X] are embeddings.

    Raises:
        StorageError: If there is no such snapshot, or states were thinned away.
    """
    snapshot = get_snapshot(db, snapshot_id)
    told = find_run(db, snapshot.run_id).config["embed"]
    known = {name: value for name, value in told.items() if name in EmbedConfig.model_fields}
    config = EmbedConfig.model_validate(known | {"type": kind, "reset_each_update": False})
    params = _params(snapshot, config, seed)
    method = f"{EMBEDDING}{kind}"
    if (found := find_projection(db, snapshot_id, method, params)) is not None:
        return found
    started = time.monotonic()
    embedding = _embed(db, snapshot, config, params, progress)
    seconds = time.monotonic() - started
    new = save_projection(db, snapshot_id, method=method, params=params, coordinates=embedding, seconds=seconds)
    return Projection(new, snapshot_id, method, params, seconds, embedding)


def _params(snapshot: Snapshot, config: EmbedConfig, seed: int) -> dict[str, Any]:
    refits = min(MOST_REFITS, max(1, snapshot.env_step // config.interval))
    return {
        "embed": config.model_dump(mode="json"),
        "seed": seed,
        "refits": refits if config.type != "random" else 0,
        "episode_limit": max(1, int(snapshot.t.max(initial=0))),
        "revision": _REVISION,
        "versions": {name: version(name) for name in ("numpy", "torch")},
    }


def _embed(
    db: Database, snapshot: Snapshot, config: EmbedConfig, params: dict[str, Any], progress: Progress
) -> Coordinates:
    rng = np.random.default_rng(params["seed"])
    pool = np.sort(rng.choice(snapshot.size, min(config.samples, snapshot.size), replace=False))
    state = read_states(db, snapshot, pool)
    embedder = make_embedder(
        config, state_dim=state.shape[1], episode_limit=params["episode_limit"], device="cpu", seed=params["seed"]
    )
    t, h = snapshot.t[pool], snapshot.h[pool].astype(np.float64)
    for done in range(params["refits"]):
        order = rng.permutation(len(pool))
        fit(embedder, NodeSample(state[order], t[order], h[order]))
        progress(FITTED_SHARE * (done + 1) / params["refits"])
    return _embed_nodes(db, snapshot, embedder, progress)


def _embed_nodes(db: Database, snapshot: Snapshot, embedder: Embedder, progress: Progress) -> Coordinates:
    embedding = np.empty((snapshot.size, embedder.dim), np.float32)
    by_episode = np.argsort(snapshot.episode, kind="stable")  # so that a block reads few episodes
    for start in range(0, snapshot.size, _BLOCK):
        rows = by_episode[start : start + _BLOCK]
        embedding[rows] = embedder.embed(read_states(db, snapshot, rows), snapshot.t[rows]).cpu().numpy()
        progress(FITTED_SHARE + (1 - FITTED_SHARE) * (start + len(rows)) / snapshot.size)
    return embedding


def read_states(db: Database, snapshot: Snapshot, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Read the states [n, S] of some rows of a snapshot out of the episodes that wrote them."""
    order = np.argsort(snapshot.episode[rows], kind="stable")
    episode, t = snapshot.episode[rows][order], snapshot.t[rows][order]
    states: NDArray[np.float32] = np.empty((0, 0), np.float32)
    for number, trajectory in iter_states(db, snapshot.run_id, episode.tolist()):
        if not states.size:
            states = np.empty((len(rows), trajectory.shape[1]), np.float32)
        first, last = np.searchsorted(episode, [number, number + 1])
        states[order[first:last]] = trajectory[t[first:last]]
    return states
