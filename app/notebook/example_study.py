"""The study that ships with the program: which runs, snapshots and episodes fit into a small file, and its notebook.

One run of each variant shows its memory: four snapshots as samples of their nodes, and its
share of twenty training episodes whose states go along. All other runs have their curves and the outcomes of their
episodes, and a sample of their last snapshot where fresh embedders were fitted to it. `emtc bundle --example` writes
the file, *Open the example study* on Home opens it.

The notebook tells its story in pinned figures whose views open: curves first, then the gate of one run, what that run
remembers, and one episode beside its verdicts. A chapter that these runs cannot tell, because a snapshot or an episode
is not there, is left out. What is claimed stands in the guide (*Findings*); a chapter says what to look at.
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
from storage.queries.episodes import find_kept, list_episodes, runs_with_states
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


@dataclass(frozen=True)
class Chapter:
    """A figure, what to see on it, and where it is shown."""

    title: str
    body: str
    figure: str
    page: str
    query: Query
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of the figure, which its recipe needs too."""


def write_story(db: Database, rows: Sequence[RunRow]) -> list[int]:
    """Write an entry for each chapter that these runs can tell, the first chapter newest.

    Args:
        db: Where the runs and their entries stand: the bundle's own database.
        rows: The runs of the study. The first that has a gate and an episode to replay is shown, else the first.
    """
    told = [_curves(of_map) for of_map in _by_map(rows)]
    kept = set(runs_with_states(db))
    for row in sorted(rows, key=lambda row: (row.gate_removed is None, row.id not in kept))[:1]:
        told += [_gate(row), *_memory(db, row), *_episode(db, row)]
    numbered = [replace(chapter, title=f"{n}. {chapter.title}") for n, chapter in enumerate(told, 1)]
    made = [_write(db, rows, chapter) for chapter in reversed(numbered)]
    return [entry for entry in made if entry is not None]


def _write(db: Database, rows: Sequence[RunRow], chapter: Chapter) -> int | None:
    """Write one entry; nothing where its figure cannot be drawn of these runs."""
    shown = chapter.query.get("run") or chapter.query["runs"][0].split(",")
    cited = [row for row in rows if row.id in shown]
    kind = find_figure(chapter.figure)
    try:
        figure = kind.make(db, cited, kind.read_options(chapter.facts))
    except EmtcError:
        return None
    view = make_view(page=chapter.page, figure=chapter.figure, query=chapter.query, runs=cited, facts=chapter.facts)
    about = cited[0].id if len(cited) == 1 else None
    return create_entry(db, title=chapter.title, body=chapter.body, run_id=about, figure=freeze(figure), view=view)


def _by_map(rows: Sequence[RunRow]) -> list[list[RunRow]]:
    """The runs of each map, the longest trained first: each has an axis of its own length."""
    maps = sorted({row.map for row in rows}, key=lambda name: -max(row.env_steps for row in rows if row.map == name))
    return [[row for row in rows if row.map == name] for name in maps]


def _curves(rows: Sequence[RunRow]) -> Chapter:
    ids = ",".join(row.id for row in rows)
    body = (
        "Each line is a variant over its seeds, up to the most env steps that all of them reached; *Win rates* and "
        "*Statistics* below the curves say how many seeds a number rests on, and what so few of them can tell."
    )
    title, query = f"Who learns on {rows[0].map}, and how fast", {"runs": [ids], "rate": [AUTO]}
    return Chapter(title, body, "learning-curves", "compare", query, {"rate": AUTO})


def _gate(row: RunRow) -> Chapter:
    body = (
        f"{name_algo(row.algo)}, seed {row.seed}. Δ̄_mem is how much the memory contradicts itself, β̄ the share of the "
        "incentive that passes, τ the temperature that decides between them. Where states never merge, β stays at 1 "
        "and the gate has nothing to do: *Live* says which of the two it is."
    )
    return Chapter("The gate at work", body, "gate-dynamics", "live", {"run": [row.id]})


def _memory(db: Database, row: RunRow) -> list[Chapter]:
    snapshots = list_snapshots(db, row.id)["id"]
    if not len(snapshots):
        return []
    last = int(snapshots.iloc[-1])
    body = (
        "Every point is a remembered state, coloured by the highest return ever seen from it. *Has this embedding "
        "collapsed?* answers whether neighbors on this map are worth the same; *Nearest* lists a point's neighbors."
    )
    query = {"run": [row.id], "snap": [str(last)]}
    return [Chapter("What it remembers", body, "memory-atlas", "memory", query, {"snapshot": last})]


def _episode(db: Database, row: RunRow) -> list[Chapter]:
    kept = find_kept(db, row.id)
    if not kept:
        return []
    outcomes = list_episodes(db, row.id, "episode", limit=1_000_000).set_index("episode").loc[sorted(kept)]
    won = outcomes.index[outcomes["won"].astype(bool)]
    shown = int(won[0] if len(won) else outcomes["episode_return"].idxmax())
    what = "The first episode that it won" if len(won) else "The best of the kept episodes"
    body = (
        f"{what}: under one time cursor the team, its reward, and its path on the memory's map. Δ_mem and β of single "
        "steps stay in the database that it was trained in; *Live* has their means."
    )
    query = {"run": [row.id], "episode": [str(shown)]}
    return [Chapter("An episode, step by step", body, "trajectory", "replay", query, {"episode": shown})]
