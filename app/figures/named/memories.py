"""Figures with two or three memory maps: different embedders, or the paths of a good and a bad episode.

A node is one stored state of the episodic memory; H is its return. A memory map shows the nodes of a snapshot in a
plane. The path of an episode connects the nodes that it retrieved.
"""

from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.analysis.projections.snapshots import describe_equal_embeddings, project_snapshot, sample_rows
from app.analysis.samples import describe_nodes
from app.analysis.settings import EMBEDDER_NAMES
from app.figures.figure import FigureKind, StoredRuns
from app.figures.kinds.maps import Cloud, Maps
from app.figures.named.memory_map import (
    MAX_PATH_STEPS,
    describe_collapse,
    draw_memory,
    get_last_snapshot,
    make_trace,
    name_path,
)
from app.figures.options import METHOD_NAMES, MethodOptions, Option, ProjectionMethod, convert_with, read_episodes
from app.figures.theme import DELTA_MEM_COLOR, WIN_RATE_COLOR
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.queries.episode_search import find_replayable_episodes
from storage.queries.episodes import Trajectory, get_trajectory, list_episodes
from storage.queries.memory import Snapshot
from storage.runs.rows import RunRow

MAX_POINTS = 20_000
"""Largest number of nodes in one map."""
N_NEIGHBORS = 10
"""Number of nearest nodes for the local spread of H."""
N_EPISODES = 500
"""The best and the worst episode are selected among this many episodes before the snapshot."""
MIN_REGION_NODES = 200
"""Smallest number of nodes in the region around the start of an episode."""
_NO_LIMIT = 1_000_000
"""Limit of `list_episodes` that is larger than the number of stored episodes."""


class DivergenceOptions(MethodOptions):
    """Options of the figure `strategy-divergence`."""

    episodes: Annotated[
        tuple[int, ...],
        convert_with(partial(read_episodes, min_count=2)),
        Option(
            help="Two episodes of strategy-divergence, for example 120,87",
            rule="two numbers of episodes, for example 120,87",
            has_flag=True,
        ),
    ] = ()


def make_embedding_comparison(runs: StoredRuns, options: MethodOptions) -> Maps:
    """Draw the last memories of two or three runs, for example with dCAE and TCSE, with one color scale of H."""
    db, rows = runs
    method = options.method or "tsne"
    if not 2 <= len(rows) <= 3:
        raise ConfigError(
            f"shows two or three runs, got {len(rows)}", key="embedding-comparison", hint="Give them as RUN RUN."
        )
    panels = []
    descriptions = []
    for row in rows:
        snapshot = get_last_snapshot(db, row)
        sample = sample_rows(snapshot, n=MAX_POINTS, seed=0)
        embedder = row.config.get("embed", {}).get("type", "unknown embedder")
        name = f"{EMBEDDER_NAMES.get(embedder, embedder)}, {row.map} ({row.id})"
        spread = compute_local_spread(snapshot, sample)
        description = f"{name}: {describe_nodes(len(sample), snapshot)}, local spread {spread:.2f}"
        collapse_note = describe_equal_embeddings(snapshot.embedding)
        if collapse_note:
            description += f" ({collapse_note.rstrip('.')})"
        descriptions.append(description)
        coordinates = project_snapshot(db, snapshot.id, method=method, n=MAX_POINTS).coordinates[sample]
        panels.append(_draw_panel(snapshot, sample, coordinates, method, name))
    caption = (
        f"{'; '.join(descriptions)}. Local spread: standard deviation of H among the {N_NEIGHBORS} nearest nodes in "
        "the embedding, divided by the standard deviation of all nodes. Near 1, the embedding does not separate "
        "different returns. Sample seed 0."
    )
    return Maps("embedding-comparison", "Memories under different embedders", tuple(panels), caption)


def compute_local_spread(snapshot: Snapshot, rows: NDArray[np.int64]) -> float:
    """Compute the standard deviation of H among nearest nodes, divided by the standard deviation of all rows.

    0: neighbors have the same return. About 1: neighbors differ as much as any nodes. NaN: H is constant, or there are
    too few rows.
    """
    h = snapshot.h[rows].astype(np.float64)
    if len(rows) <= N_NEIGHBORS or not h.std():
        return float("nan")
    from sklearn.neighbors import NearestNeighbors  # imported here because the import takes one second

    index = NearestNeighbors(n_neighbors=N_NEIGHBORS + 1).fit(snapshot.embedding[rows])
    neighbors = index.kneighbors(return_distance=False)[:, :N_NEIGHBORS]
    return float(h[neighbors].std(axis=1).mean() / h.std())


def make_strategy_divergence(runs: StoredRuns, options: DivergenceOptions) -> Maps:
    """Draw the paths of a good and a bad episode through the last memory of a run.

    The option `episodes` selects the two episodes. Default: the best and the worst of the `N_EPISODES` episodes before
    the snapshot that can be replayed.
    """
    db, rows = runs
    method = options.method or "pca"
    if len(rows) != 1:
        raise ConfigError(f"shows one run, got {len(rows)}", key="strategy-divergence")
    snapshot = get_last_snapshot(db, rows[0])
    episodes = options.episodes
    selection_note = ""
    if not episodes:
        extremes = _find_best_and_worst(db, snapshot)
        episodes = (extremes.best, extremes.worst)
        selection_note = extremes.describe_selection()
    good, bad = (get_trajectory(db, rows[0].id, number) for number in episodes)
    sample = sample_rows(snapshot, n=MAX_POINTS, seed=0)
    coordinates = project_snapshot(db, snapshot.id, method=method, n=MAX_POINTS).coordinates
    panels = []
    traces = []
    for episode, color in ((good, WIN_RATE_COLOR), (bad, DELTA_MEM_COLOR)):  # green and orange
        label = name_path(episode)
        panels.append(_draw_panel(snapshot, sample, coordinates[sample], method, label))
        traces.append(make_trace(episode, snapshot, coordinates, color=color))
    first_steps = traces[0].t
    interval = first_steps[1] - first_steps[0] if len(first_steps) > 1 else 1
    caption = (
        f"Memory of {rows[0].name} at step {snapshot.env_step}, colored by H "
        f"({describe_nodes(len(sample), snapshot)}, seed 0). The paths connect the nodes that each episode retrieved, "
        f"every {interval} step(s) of its first {MAX_PATH_STEPS}. Numbers: the largest Δ_mem [return] of the path. "
        f"Nodes that are not in the snapshot are left out.{selection_note}{describe_collapse(snapshot)}"
    )
    return Maps("strategy-divergence", "Where strategies diverge", tuple(panels), caption, tuple(traces))


def best_and_worst(db: Database, row: RunRow) -> tuple[int, int]:
    """Return the default episodes of the figure `strategy-divergence`: the best and the worst.

    Raises:
        ConfigError: If the run has no snapshot, or fewer than two episodes before it can be replayed.
    """
    extremes = _find_best_and_worst(db, get_last_snapshot(db, row))
    return extremes.best, extremes.worst


def find_contrast(db: Database, snapshot: Snapshot, episode: Trajectory) -> int:
    """Among the episodes that wrote nodes near the start of this one, find the one with the most different result.

    "Near" means the nodes nearest to the first node of this episode: 1 % of the snapshot, at least `MIN_REGION_NODES`.
    Only episodes that can be replayed are compared. The outcome is compared first, then the return.

    Raises:
        ConfigError: If no other episode wrote there, or if all of them have the same result.
    """
    first_row = None if episode.slots is None else snapshot.row_of(int(episode.slots[0]))
    if first_row is None:
        raise ConfigError(
            f"The first node of episode {episode.episode} is not in this snapshot", hint="Name an episode."
        )
    distances = ((snapshot.embedding - snapshot.embedding[first_row]) ** 2).sum(axis=1)
    n_nearest = max(MIN_REGION_NODES, snapshot.size // 100)
    nearest_rows = np.argsort(distances, kind="stable")[:n_nearest]
    nearby = {int(number) for number in snapshot.episode[nearest_rows]} - {episode.episode}
    others = find_replayable_episodes(db, snapshot.run_id, sorted(nearby), limit=None)
    if not others:
        raise ConfigError(
            f"No other episode that can be replayed wrote nodes near the start of episode {episode.episode}",
            hint="Name an episode.",
        )
    frame = list_episodes(db, snapshot.run_id, "-episode", limit=_NO_LIMIT)
    ranked = frame.loc[frame["episode"].isin(others)].sort_values(["won", "episode_return", "episode"], kind="stable")
    worst, best = ranked.iloc[0], ranked.iloc[-1]
    worst_difference = _compare_results(worst, episode)
    best_difference = _compare_results(best, episode)
    if max(worst_difference, best_difference) == (False, 0.0):
        raise ConfigError(f"All {len(ranked)} episodes that wrote there have the result of episode {episode.episode}")
    contrast = worst if worst_difference >= best_difference else best
    return int(contrast["episode"])


def _compare_results(other: Any, episode: Trajectory) -> tuple[bool, float]:
    """Return whether the outcomes of two episodes differ, and by how much the returns differ.

    `other` is a row of `list_episodes`.
    """
    is_other_outcome = bool(other["won"]) != episode.won
    return is_other_outcome, abs(float(other["episode_return"]) - episode.episode_return)


def _draw_panel(
    snapshot: Snapshot, rows: NDArray[np.int64], coordinates: NDArray[np.float32], method: ProjectionMethod, title: str
) -> Cloud:
    x, y = (f"{METHOD_NAMES[method]} {axis}" for axis in (1, 2))
    return draw_memory(snapshot, rows, coordinates, x_label=x, y_label=y, quantity="h", title=title, caption="")


class _Extremes(NamedTuple):
    """The best and the worst episode, and the numbers of episodes before the snapshot."""

    best: int
    worst: int
    n_replayable: int
    n_recorded: int

    def describe_selection(self) -> str:
        """Write among which episodes these are the best and the worst; empty if all episodes can be replayed."""
        if self.n_replayable == self.n_recorded:
            return ""
        return (
            f" The episodes are the best and the worst of the newest {min(N_EPISODES, self.n_replayable):,} that can "
            f"be replayed, of {self.n_recorded:,} before the snapshot."
        )


def _find_best_and_worst(db: Database, snapshot: Snapshot) -> _Extremes:
    """Find the best and the worst of the last `N_EPISODES` episodes before the snapshot: by outcome, then by return.

    Only episodes that can be replayed are compared.
    """
    frame = list_episodes(db, snapshot.run_id, "-episode", limit=_NO_LIMIT)  # newest first
    frame = frame.loc[frame["first_env_step"] + frame["length"] - 1 <= snapshot.env_step]
    replayable = frame.loc[frame["episode"].isin(find_replayable_episodes(db, snapshot.run_id, limit=None))]
    if len(replayable) < 2:
        raise ConfigError(
            f"Run {snapshot.run_id} has fewer than two episodes before its snapshot that can be replayed",
            hint="Continue training, or choose another run.",
        )
    ranked = replayable.head(N_EPISODES).sort_values(["won", "episode_return", "episode"], kind="stable")
    episodes = ranked["episode"].tolist()
    return _Extremes(int(episodes[-1]), int(episodes[0]), len(replayable), len(frame))


FIGURES = (
    FigureKind(
        "embedding-comparison", make_embedding_comparison, options=MethodOptions, needs_runs=True, pages=("compare",),
        question="Which embedder separates different returns?",
    ),
    FigureKind(
        "strategy-divergence", make_strategy_divergence, options=DivergenceOptions, needs_runs=True,
        pages=("memory",), question="Where do a good and a bad strategy diverge?",
    ),
)  # fmt: skip
