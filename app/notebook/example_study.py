"""The example study that is part of the program: which data of its runs fit into a small bundle, and its notebook.

The bundle contains of one run per variant: four snapshots as samples of their nodes, and its share of twenty training
episodes with their states. Of all other runs it contains the curves and the outcomes of the episodes, and a sample of
the last snapshot if other embedders were fitted to it. `emtc bundle --example` writes the bundle, and *Open the example
study* on Home opens it.

The notebook has one entry per chapter, with a pinned figure: first the curves, then the gate, the memory and an episode
of one run. A chapter is omitted if its snapshot or episode does not exist. The claims of the study are in the guide
(*Findings*); a chapter only explains what its figure shows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from app.analysis.quantities import AUTO
from app.analysis.series import join_seeds, read_seeds
from app.analysis.settings import name_algo
from app.figures.registry import find_figure
from app.notebook.view import Query, freeze, make_view
from emtc_core.errors import EmtcError
from storage.bundles.contents import Contents
from storage.engine import Database
from storage.notebook import create_entry
from storage.queries.episode_search import find_replayable_episodes, list_replayable_runs
from storage.queries.episodes import list_episodes
from storage.queries.memory import get_nodes, list_snapshots
from storage.queries.projections import find_embedding
from storage.runs.rows import RunRow

SNAPSHOTS: Final = 4
"""Sampled snapshots per run that shows its memory."""
EPISODES: Final = 20
"""Training episodes with their states, of all runs together."""
_MAX_EPISODES: Final = 1_000_000


@dataclass(frozen=True)
class Chapter:
    """A figure with a text, and the page that shows it."""

    title: str
    body: str
    figure: str
    page: str
    query: Query
    """URL parameters of the page."""
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of the figure."""


def choose_contents(db: Database, rows: Sequence[RunRow]) -> Contents:
    """Choose what of these runs the bundle contains."""
    run_ids = _choose_runs(db, rows)
    n_episodes = EPISODES // max(1, len(run_ids))
    episodes = {run_id: frozenset(choose_episodes(db, run_id, n_episodes)) for run_id in run_ids}
    return Contents(
        snapshots=False,
        playbacks=False,
        transitions=False,
        kept_episodes={run_id: numbers for run_id, numbers in episodes.items() if numbers},
        sampled_snapshots={row.id: 1 for row in rows if _has_embeddings(db, row.id)}
        | dict.fromkeys(run_ids, SNAPSHOTS),
        entries=True,
    )


def choose_episodes(db: Database, run_id: str, n: int) -> list[int]:
    """Choose at most `n` training episodes of a run.

    These are the first won episode, the last lost episode after it, and the episodes that have most nodes in the last
    snapshot.
    """
    outcomes = list_episodes(db, run_id, "episode", limit=_MAX_EPISODES)
    won = outcomes.loc[outcomes["won"].astype(bool), "episode"]
    chosen = won.head(1).tolist()
    if len(won):
        lost_later = outcomes.loc[(outcomes["episode"] > won.iloc[0]) & ~outcomes["won"].astype(bool), "episode"]
        chosen += lost_later.tail(1).tolist()
    snapshots = list_snapshots(db, run_id)["id"]
    if len(snapshots):
        episodes, counts = np.unique(get_nodes(db, int(snapshots.iloc[-1])).episode, return_counts=True)
        chosen += episodes[np.argsort(-counts, kind="stable")].tolist()
    return list(dict.fromkeys(int(episode) for episode in chosen))[:n]


def write_story(db: Database, rows: Sequence[RunRow]) -> list[int]:
    """Write the entries of the notebook. The first chapter is written last, so that it is the newest entry.

    Args:
        db: The database of the bundle, which has the runs.
        rows: The runs of the study. The chapters about one run use the first run with a gate and a recorded episode,
            or the first run if there is none.

    Returns:
        The numbers of the entries.
    """
    maps = sorted({row.map for row in rows}, key=lambda name: -max(row.env_steps for row in rows if row.map == name))
    chapters = [_make_curves([row for row in rows if row.map == name]) for name in maps]
    recorded = set(list_replayable_runs(db))
    for row in sorted(rows, key=lambda row: (row.gate_removed is None, row.id not in recorded))[:1]:
        chapters += [_make_gate(row), *_make_memory(db, row), *_make_episode(db, row)]
    numbered = [replace(chapter, title=f"{n}. {chapter.title}") for n, chapter in enumerate(chapters, 1)]
    entry_ids = [_write_entry(db, rows, chapter) for chapter in reversed(numbered)]
    return [entry_id for entry_id in entry_ids if entry_id is not None]


def _choose_runs(db: Database, rows: Sequence[RunRow]) -> list[str]:
    """Choose one run per variant, on the map with the longest training.

    Runs with recorded episodes are preferred, and then the lowest seed.
    """
    recorded = set(list_replayable_runs(db))
    run_ids: dict[str, str] = {}
    groups = join_seeds(read_seeds(db, rows), final=True).groups
    for group in sorted(groups, key=lambda group: -max(seed.target_steps for seed in group.seeds)):
        best = min(group.seeds, key=lambda seed: (seed.id not in recorded, int(seed.seed_text), seed.id))
        run_ids.setdefault(group.variant.name, best.id)
    return list(run_ids.values())


def _has_embeddings(db: Database, run_id: str) -> bool:
    """Whether other embedders were fitted to the last snapshot of a run. Claim 8 needs those of every seed."""
    snapshots = list_snapshots(db, run_id)["id"]
    return bool(len(snapshots)) and find_embedding(db, int(snapshots.iloc[-1]), "tcse", seed=0) is not None


def _write_entry(db: Database, rows: Sequence[RunRow], chapter: Chapter) -> int | None:
    """Write the entry of a chapter and return its number; None if its figure cannot be drawn for these runs."""
    run_ids = chapter.query.get("run") or chapter.query["runs"][0].split(",")
    cited = [row for row in rows if row.id in run_ids]
    kind = find_figure(chapter.figure)
    try:
        figure = kind.make(db, cited, kind.read_options(chapter.facts))
    except EmtcError:
        return None
    view = make_view(page=chapter.page, figure=chapter.figure, query=chapter.query, runs=cited, facts=chapter.facts)
    run_id = cited[0].id if len(cited) == 1 else None
    return create_entry(db, title=chapter.title, body=chapter.body, run_id=run_id, figure=freeze(figure), view=view)


def _make_curves(rows: Sequence[RunRow]) -> Chapter:
    run_ids = ",".join(row.id for row in rows)
    body = (
        "Each line is a variant over its seeds, up to the largest number of env steps that all of them reached. *Win "
        "rates* and *Statistics* below the curves show the number of seeds, and what can be concluded from so few."
    )
    title, query = f"Who learns on {rows[0].map}, and how fast", {"runs": [run_ids], "rate": [AUTO]}
    return Chapter(title, body, "learning-curves", "compare", query, {"rate": AUTO})


def _make_gate(row: RunRow) -> Chapter:
    body = (
        f"{name_algo(row.algo)}, seed {row.seed}. Δ̄_mem is the mean consistency error of the memory, β̄ the mean "
        "fraction of the incentive that passes the gate, and τ the temperature of the gate. If states never merge, β "
        "stays at 1 and the gate has no effect. *Live* shows which of the two is the case."
    )
    return Chapter("The gate during training", body, "gate-dynamics", "live", {"run": [row.id]})


def _make_memory(db: Database, row: RunRow) -> list[Chapter]:
    snapshots = list_snapshots(db, row.id)["id"]
    if not len(snapshots):
        return []
    last = int(snapshots.iloc[-1])
    body = (
        "Every point is a stored state. Its color is the highest return that was ever reached from it. *Has this "
        "embedding collapsed?* shows whether neighbors on this map have similar returns. *Neighbors* lists the "
        "neighbors of a point."
    )
    query = {"run": [row.id], "snap": [str(last)]}
    return [Chapter("The memory", body, "memory-atlas", "memory", query, {"snapshot": last})]


def _make_episode(db: Database, row: RunRow) -> list[Chapter]:
    recorded = find_replayable_episodes(db, row.id)
    if not recorded:
        return []
    outcomes = list_episodes(db, row.id, "episode", limit=_MAX_EPISODES).set_index("episode").loc[sorted(recorded)]
    won = outcomes.index[outcomes["won"].astype(bool)]
    episode = int(won[0] if len(won) else outcomes["episode_return"].idxmax())
    which = "The first episode that it won" if len(won) else "The best of the recorded episodes"
    body = (
        f"{which}, with one time cursor for the units, the reward and the path on the map of the memory. Δ_mem "
        "and β of single steps are only in the original database, not in this file. *Live* shows their means."
    )
    query = {"run": [row.id], "episode": [str(episode)]}
    return [Chapter("An episode, step by step", body, "trajectory", "replay", query, {"episode": episode})]
