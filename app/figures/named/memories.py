"""Figures that lay memories side by side: two embedders, and a good beside a bad strategy."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from app.analysis.projections.snapshots import project_snapshot, sample_rows
from app.figures.figure import NO_OPTIONS, FigureKind, Options
from app.figures.kinds.maps import Cloud, Maps, Trace
from app.figures.named.memory_map import draw_memory, last_snapshot
from app.figures.theme import DELTA_MEM, WIN_RATE
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.queries.episodes import Trajectory, get_trajectory, list_episodes
from storage.queries.memory import Snapshot
from storage.runs.rows import RunRow

SHOWN = 20_000
NEIGHBORS = 10
LOOKED_AT = 500  # episodes before the snapshot among which the best and the worst are chosen
REGION_NODES = 200
FOLLOWED_STEPS, EVERY_STEPS, MARKERS = 200, 10, 12


def make_embedding_comparison(db: Database, rows: Sequence[RunRow], options: Options = NO_OPTIONS) -> Maps:
    """Draw the last memories of two or three runs under one colour scale of H, as dCAE beside TCSE."""
    method = options.method or "tsne"
    if not 2 <= len(rows) <= 3:
        raise ConfigError(
            f"shows two or three runs, got {len(rows)}", key="embedding-comparison", hint="Name them as RUN RUN."
        )
    panels, said = [], []
    for row in rows:
        snapshot = last_snapshot(db, row)
        shown = sample_rows(snapshot, n=SHOWN, seed=0)
        name = f"{row.config['embed']['type']}, {row.map} ({row.id})"
        said.append(f"{name}: {len(shown)} of {snapshot.size} nodes, local spread {local_spread(snapshot, shown):.2f}")
        coordinates = project_snapshot(db, snapshot.id, method=method, n=SHOWN).coordinates[shown]
        panels.append(_panel(snapshot, shown, coordinates, method, name))
    caption = (
        f"{'; '.join(said)}. Local spread: standard deviation of H among the {NEIGHBORS} nearest nodes in the "
        "embedding, over that of all nodes; near 1 the embedding does not tell returns apart. Sample seed 0."
    )
    return Maps("embedding-comparison", "Memories under different embedders", tuple(panels), caption)


def _panel(
    snapshot: Snapshot, shown: NDArray[np.int64], coordinates: NDArray[np.float32], method: str, title: str
) -> Cloud:
    x, y = f"{method} 1", f"{method} 2"
    return draw_memory(snapshot, shown, coordinates, x_label=x, y_label=y, color="h", title=title, caption="")


def local_spread(snapshot: Snapshot, rows: NDArray[np.int64]) -> float:
    """Measure how alike the returns of neighbors are: 0 the same, about 1 as different as any two; NaN: no spread."""
    h = snapshot.h[rows].astype(np.float64)
    if len(rows) <= NEIGHBORS or not h.std():
        return float("nan")
    from sklearn.neighbors import NearestNeighbors  # only now: it takes a second to import

    near = NearestNeighbors(n_neighbors=NEIGHBORS + 1).fit(snapshot.embedding[rows])
    neighbors = near.kneighbors(return_distance=False)[:, :NEIGHBORS]
    return float(h[neighbors].std(axis=1).mean() / h.std())


def make_strategy_divergence(db: Database, rows: Sequence[RunRow], options: Options = NO_OPTIONS) -> Maps:
    """Draw the memories that a good and a bad episode retrieved, over the run's last memory.

    Without two `episodes` that are asked for, the best and the worst of the last ones before the snapshot are followed.
    """
    method = options.method or "pca"
    if len(rows) != 1:
        raise ConfigError(f"shows one run, got {len(rows)}", key="strategy-divergence")
    snapshot = last_snapshot(db, rows[0])
    good, bad = (get_trajectory(db, rows[0].id, n) for n in options.episodes or _best_and_worst(db, snapshot))
    shown = sample_rows(snapshot, n=SHOWN, seed=0)
    every_node = project_snapshot(db, snapshot.id, method=method, n=SHOWN).coordinates
    panels, traces = [], []
    for episode, color in ((good, WIN_RATE), (bad, DELTA_MEM)):
        outcome = "won" if episode.won else "lost"
        label = f"episode {episode.episode}, {outcome}, return {episode.episode_return:.1f}"
        panels.append(_panel(snapshot, shown, every_node[shown], method, label))
        traces.append(trace_episode(episode, snapshot, every_node, label=label, color=color))
    every = traces[0].t[1] - traces[0].t[0] if len(traces[0].t) > 1 else 1
    caption = (
        f"Memory of {rows[0].name} at step {snapshot.env_step}, coloured by H ({len(shown)} of {snapshot.size} nodes, "
        f"seed 0); paths join the nodes that each episode met, every {every} step(s) of its first {FOLLOWED_STEPS}. "
        "Numbers: the largest Δ_mem [return] on the way. A path breaks off where a node has left the memory."
    )
    return Maps("strategy-divergence", "Where strategies part", tuple(panels), caption, tuple(traces))


def trace_episode(
    episode: Trajectory, snapshot: Snapshot, coordinates: NDArray[np.float32], *, label: str, color: str
) -> Trace:
    """Place the nodes that an episode met on the map [M, 2] of a snapshot."""
    if episode.slots is None or episode.delta_mem is None:
        raise ConfigError(f"Episode {episode.episode} met no memory", hint="Choose a run of an EMTC or EMU algorithm.")
    length = min(episode.length, FOLLOWED_STEPS)
    t = np.arange(0, length, max(1, min(EVERY_STEPS, length // MARKERS)))
    place = snapshot.rows_of(episode.slots[t])
    xy = np.where(place[:, None] >= 0, coordinates[place], np.nan)
    return Trace(label, color, t, xy[:, 0].astype(np.float32), xy[:, 1].astype(np.float32), episode.delta_mem[t])


def best_and_worst(db: Database, row: RunRow) -> tuple[int, int]:
    """Choose the episodes that `strategy-divergence` follows when none is named.

    Raises:
        ConfigError: If the run has no snapshot, or fewer than two episodes before it.
    """
    return _best_and_worst(db, last_snapshot(db, row))


def _best_and_worst(db: Database, snapshot: Snapshot) -> tuple[int, int]:
    """Choose by outcome first, then by return, among the last episodes that the snapshot knows."""
    frame = list_episodes(db, snapshot.run_id, "-episode", limit=1_000_000)
    frame = frame.loc[frame["first_env_step"] + frame["length"] - 1 <= snapshot.env_step].head(LOOKED_AT)
    if len(frame) < 2:
        raise ConfigError(
            f"Run {snapshot.run_id} has fewer than two episodes before its snapshot", hint="Let it train on."
        )
    ranked = frame.sort_values(["won", "episode_return", "episode"], kind="stable")["episode"].tolist()
    return int(ranked[-1]), int(ranked[0])


def find_contrast(db: Database, snapshot: Snapshot, episode: Trajectory) -> int:
    """Find the episode whose outcome differs most from this one's among those that wrote into the same region.

    The same region: the nodes nearest to the one in which the episode begins, as many as hold ten episodes or a
    hundredth of the memory. Outcome first, then return; the later episode on a tie.

    Raises:
        ConfigError: If nobody else wrote there.
    """
    begin = None if episode.slots is None else snapshot.row_of(int(episode.slots[0]))
    if begin is None:
        raise ConfigError(f"The place where episode {episode.episode} begins has left the memory: name an episode")
    away = ((snapshot.embedding - snapshot.embedding[begin]) ** 2).sum(axis=1)
    near = np.argsort(away, kind="stable")[: max(REGION_NODES, snapshot.size // 100)]
    others = {int(each) for each in snapshot.episode[near]} - {episode.episode}
    if not others:
        raise ConfigError(f"No other episode wrote where episode {episode.episode} begins: name an episode")
    frame = list_episodes(db, snapshot.run_id, "-episode", limit=1_000_000)
    ranked = frame.loc[frame["episode"].isin(sorted(others))].sort_values(
        ["won", "episode_return", "episode"], kind="stable"
    )
    ends = [ranked.iloc[0], ranked.iloc[-1]]
    apart = [(bool(end["won"]) != episode.won, abs(end["episode_return"] - episode.episode_return)) for end in ends]
    if max(apart) == (False, 0.0):
        raise ConfigError(f"All {len(ranked)} episodes that wrote there ended as episode {episode.episode} did")
    return int(ends[apart.index(max(apart))]["episode"])


FIGURES = (
    FigureKind(
        "embedding-comparison", make_embedding_comparison, frozenset({"method"}), needs_runs=True, pages=("compare",),
        question="Which embedder tells returns apart?",
    ),
    FigureKind(
        "strategy-divergence", make_strategy_divergence, frozenset({"method", "episodes"}), needs_runs=True,
        pages=("memory",), question="Where do a good and a bad strategy part?",
    ),
)  # fmt: skip
