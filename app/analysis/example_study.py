"""The study that ships with the program: which of its runs, snapshots and episodes fit into a small file.

One run of each variant shows its memory: four snapshots as samples of their nodes, and its
share of twenty training episodes whose states go along. All other runs have their curves and the outcomes of their
episodes, and a sample of their last snapshot where fresh embedders were fitted to it. `emtc bundle --example` writes
the file, *Open the example study* on Home opens it.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from app.analysis.series import join_seeds, read_seeds
from storage.bundles.contents import Contents
from storage.engine import Database
from storage.queries.episodes import list_episodes, runs_with_states
from storage.queries.memory import find_embedding, get_nodes, list_snapshots
from storage.runs.rows import RunRow

SNAPSHOTS: Final = 4
EPISODES: Final = 20
"""Training episodes with their states, of all runs together."""


def choose_contents(db: Database, rows: Sequence[RunRow]) -> Contents:
    """What of these runs goes into the file."""
    shown = _one_of_each_variant(db, rows)
    each = EPISODES // max(1, len(shown))
    chosen = {run_id: frozenset(choose_episodes(db, run_id, each)) for run_id in shown}
    return Contents(
        snapshots=False,
        playbacks=False,
        transitions=False,
        chosen={run_id: episodes for run_id, episodes in chosen.items() if episodes},
        samples={row.id: 1 for row in rows if _has_embeddings(db, row.id)} | dict.fromkeys(shown, SNAPSHOTS),
        entries=True,
    )


def choose_episodes(db: Database, run_id: str, n: int) -> list[int]:
    """The first episode that was won, the last lost one after it, and those that wrote most of the last snapshot."""
    outcomes = list_episodes(db, run_id, "episode", limit=1_000_000)
    won = outcomes.loc[outcomes["won"].astype(bool), "episode"]
    chosen = won.head(1).tolist()
    if len(won):
        later = outcomes.loc[(outcomes["episode"] > won.iloc[0]) & ~outcomes["won"].astype(bool), "episode"]
        chosen += later.tail(1).tolist()
    snapshots = list_snapshots(db, run_id)["id"]
    if len(snapshots):
        episodes, counts = np.unique(get_nodes(db, int(snapshots.iloc[-1])).episode, return_counts=True)
        chosen += [int(each) for each in episodes[np.argsort(-counts, kind="stable")]]
    return list(dict.fromkeys(int(each) for each in chosen))[:n]


def _has_embeddings(db: Database, run_id: str) -> bool:
    """Whether fresh embedders were fitted to its last snapshot: claim 8 is about those of every seed."""
    snapshots = list_snapshots(db, run_id)["id"]
    return bool(len(snapshots)) and find_embedding(db, int(snapshots.iloc[-1]), "tcse", seed=0) is not None


def _one_of_each_variant(db: Database, rows: Sequence[RunRow]) -> list[str]:
    """A run of each variant on the map where it was trained longest: of those to replay if any, the least seed."""
    told = set(runs_with_states(db))
    shown: dict[str, str] = {}
    groups = join_seeds(read_seeds(db, rows), final=True).groups
    for group in sorted(groups, key=lambda group: -max(seed.target_steps for seed in group.seeds)):
        least = min(group.seeds, key=lambda seed: (seed.id not in told, int(seed.number), seed.id))
        shown.setdefault(group.variant.name, least.id)
    return list(shown.values())
