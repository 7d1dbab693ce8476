"""The Memory page's upper part: which snapshot, which projection, and the map itself.

The choice of a second map: another snapshot, another projection or another run beside the first.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st
from numpy.typing import NDArray

from app.analysis.format import escape_markdown, format_count
from app.analysis.projections.linear import AXIS_PAIRS, LabeledPoints, select_axes
from app.analysis.projections.snapshots import (
    BACKGROUND,
    MAX_LANDMARKS,
    MIN_POINTS,
    make_projection_params,
    read_initial_projection,
)
from app.analysis.selection import NODE_QUANTITIES, NodeSelection, parse_numbers
from app.analysis.settings import name_algo
from app.figures import options as figure_options
from app.figures.kinds.maps import Cloud
from app.figures.named.memory_map import COLOR_SCALE, MapNodes
from app.figures.registry import find_figure
from app.figures.theme import ENDED_STATUSES
from app.ui import data, in_url, memory_data, messages, state
from app.ui.memory import atlas, projection_job
from app.ui.memory.atlas import Columns, columns_of
from app.ui.widgets.run_picker import LISTED
from emtc_core.errors import ConfigError, EmtcError
from storage.queries.memory import Snapshot
from storage.queries.runs import RunFilter
from storage.runs.rows import RunRow

OWN = "own"
EMBEDDINGS = {OWN: "the run's own", "tcse": "a fresh TCSE", "dcae": "a fresh dCAE", "random": "a random one"}
METHODS = {"axes": "Axes", "pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}
SIZES = (2000, 5000, 10_000, 20_000, MAX_LANDMARKS)
MOST_IN_FILE = 100_000
"""Nodes in an exported or pinned map; the map on the page shows all of them."""
COLOR, PALETTE, CAMERA, LASSO, RANGES = "color", "scale", "camera", "lasso", "ranges"
LONGEST_CHOICE = 8000
_SLIDER = 180


@dataclass(frozen=True)
class Side:
    """One of the page's maps."""

    channel: str
    prefix: str  # of its widgets and of its names in the address


FIRST, SECOND = Side("atlas", ""), Side("atlas-b", "b_")


@dataclass(frozen=True)
class _View:
    method: str
    pair: int
    n: int  # points that t-SNE or UMAP lays out
    seed: int
    embedder: str


@dataclass(frozen=True)
class Chosen:
    """What the map is to show: a snapshot, and how."""

    run: RunRow
    side: Side
    snapshot: Snapshot
    stamp: str  # when it was kept: a reused id is another snapshot
    view: _View

    @property
    def columns(self) -> Columns:
        """Every quantity of its nodes."""
        return columns_of(self.snapshot, self.stamp)


@dataclass(frozen=True)
class Shown:
    """What the map shows now."""

    chosen: Chosen
    drawn: LabeledPoints  # places of every node of the snapshot; NaN where the projection has none
    name: str  # of the projection
    embedded: Snapshot  # the snapshot with the embedding that is shown: the run's own, or one fitted anew

    @property
    def run(self) -> RunRow:
        """Whose memory it is."""
        return self.chosen.run

    @property
    def plane(self) -> str:
        """A key that these places have and no others."""
        view = self.chosen.view
        return f"{self.snapshot.id}-{self.chosen.stamp}-{self.name}-{view.pair}-{view.n}-{view.seed}-{view.embedder}"

    @property
    def embedding(self) -> str:
        """A key that this embedding of these nodes has, however it is projected."""
        view, nodes = self.chosen.view, f"{self.snapshot.id}-{self.chosen.stamp}"
        return nodes if self.embedded is self.snapshot else f"{nodes}-{view.embedder}-{view.seed}"

    @property
    def snapshot(self) -> Snapshot:
        """The memory at one moment."""
        return self.chosen.snapshot

    @property
    def coordinates(self) -> NDArray[np.float32]:
        """Places [M, 2]."""
        return self.drawn.coordinates

    @property
    def facts(self) -> dict[str, Any]:
        """Everything that a recipe needs to find the same places and the same choice again."""
        method = "pca" if self.name.startswith("PCA") else self.chosen.view.method
        kept = read_choice()
        choice = {name: state.read_long(name, LONGEST_CHOICE) if kept else "" for name in (LASSO, RANGES)}
        turn = {"turn": memory_data.turn_of(self.snapshot)} if method == "pca" else {}
        return asdict(self.chosen.view) | {"snapshot": self.snapshot.id, "method": method, "fit": "all"} | turn | choice


def choose(run: RunRow, side: Side, beside: int | None = None) -> Chosen | None:
    """Draw the choices into the bar around; None while there is nothing to draw a map of.

    A map `beside` a snapshot of the same run shows another one at first, or the only one otherwise projected.
    """
    listed = memory_data.snapshots(run.id)
    if not len(listed):
        _empty(run)
        return None
    row = _choose_snapshot(listed, side, beside)
    view = _choose_view(side, usual="axes" if row["id"] == beside and len(listed) == 1 else "pca")
    stamp = str(row["created_at"])
    snapshot = memory_data.snapshot(row["id"], stamp)
    if snapshot.size == 0:
        messages.empty("The memory was still empty at this moment.", "Choose a later snapshot.")
        return None
    return Chosen(run, side, snapshot, stamp, view)


def show(chosen: Chosen, beside: Chosen | None = None) -> Shown:
    """Draw a map; beside another one it shares the ends of every colour scale, and moves and selects with it."""
    drawn, name, embedded = _project(chosen)
    shown = Shown(chosen, drawn, name, embedded)
    both = [each.columns.ends for each in (chosen, beside) if each is not None]
    ends = {key: (min(e[key][0] for e in both), max(e[key][1] for e in both)) for key in both[0]}
    snapshot = chosen.snapshot
    atlas.show(
        chosen.columns, drawn, ends, view=read_view(), plane=shown.plane,
        frame=atlas.Frame(
            channel=chosen.side.channel, group="" if beside is None else "memories", run=chosen.run.id,
            nodes=f"{snapshot.id}-{chosen.stamp}",
            kind=f"{chosen.view.method}-{chosen.view.pair}-{chosen.view.embedder}",
        ),
        alt=f"Episodic memory of {chosen.run.name} at step {snapshot.env_step}, {name}.",
    )  # fmt: skip
    return shown


def _empty(run: RunRow) -> None:
    if not run.config.get("algo", "").startswith(("emtc", "emu", "emc")):
        messages.empty(
            f"{escape_markdown(name_algo(run.algo))} keeps no episodic memory.",
            "Choose a run of an EMTC or EMU algorithm.",
        )
        return
    if run.live_status in ENDED_STATUSES:
        messages.empty(
            "This run ended before it kept a snapshot of its memory.",
            "Live says how it ended, and whether it can go on.",
            page="../pages/live.py",
            label="Open Live",
        )
        return
    messages.empty(
        "This run has no snapshot of its memory yet.",
        "Snapshots are taken evenly over a run. Reload in a moment, or watch its progress on Live.",
        page="../pages/live.py",
        label="Open Live",
    )


def _choose_snapshot(listed: pd.DataFrame, side: Side, beside: int | None) -> dict[str, Any]:
    rows = {int(row["id"]): row for row in data.rows_of(listed)}
    ids = list(rows)
    key, name = f"{side.prefix}snapshot", f"{side.prefix}{state.SNAPSHOT}"
    wanted = state.read_int(name)
    if st.session_state.get(key) not in ids or wanted not in (None, st.session_state.get(key)):
        others = [each for each in ids if each != beside] or ids
        usual = ids[-1] if beside is None else others[len(others) // 2]
        st.session_state[key] = wanted if wanted in ids else usual
    if len(ids) > 1:
        chosen = st.select_slider(
            "Snapshot at env step",
            ids,
            key=key,
            format_func=lambda each: format_count(rows[each]["env_step"]) if each in rows else "–",
            on_change=lambda: state.write(name, st.session_state[key]),
            width=_SLIDER,
        )
    else:
        chosen = ids[0]
        st.caption(f"One snapshot so far, at env step {format_count(rows[chosen]['env_step'])}.", width=_SLIDER)
    state.write(name, chosen)
    return rows[chosen]


def _choose_view(side: Side, *, usual: str) -> _View:
    prefix = side.prefix
    method = st.segmented_control(
        "Projection", list(METHODS), default=usual, required=True, format_func=METHODS.__getitem__,
        key=f"{prefix}method", bind="query-params",
        help="Axes and PCA are instant; t-SNE and UMAP are computed in the background.",
    )  # fmt: skip
    pair, n, seed = 0, SIZES[1], 0
    if method == "axes":
        pair = st.selectbox(
            "Axes", range(len(AXIS_PAIRS)), key=f"{prefix}pair", bind="query-params", width=130,
            format_func=lambda i: "x{} · x{}".format(*(axis + 1 for axis in AXIS_PAIRS[i])),
        )  # fmt: skip
    embedder = OWN
    if side is SECOND:
        embedder = st.selectbox(
            "Embedding", **in_url.one("memory", f"{prefix}embedder", list(EMBEDDINGS)),
            format_func=EMBEDDINGS.__getitem__, width=140,
            help="Another embedder is fitted to the states of this snapshot in the background, then shown here.",
        )  # fmt: skip
    if method in BACKGROUND or embedder != OWN:
        n = st.selectbox(
            "Landmarks", SIZES, index=1, key=f"{prefix}points", bind="query-params", width=110,
            format_func=format_count,
            help="How many nodes are laid out, chosen evenly over return and time; the rest is placed among them.",
        )  # fmt: skip
        seed = st.number_input(
            "Seed", min_value=0, max_value=2**31 - 1, value=0, step=1, width=100,
            key=f"{prefix}map_seed", bind=state.bind_int(f"{prefix}map_seed"),
            help="Decides the landmarks and everything random in the method: the same seed, the same map.",
        )  # fmt: skip
    return _View(str(method), int(pair or 0), int(n or SIZES[1]), int(seed or 0), str(embedder))


def read_view() -> atlas.View:
    """Read colour, scale, camera and choice from the address; what means nothing is dropped."""
    color, palette = state.read_text(COLOR) or "", state.read_text(PALETTE) or ""
    numbers = parse_numbers(state.read_text(CAMERA) or "", ",")
    camera = (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 and numbers[2] > 0 else None
    return atlas.View(
        color=next((key for key, each in NODE_QUANTITIES.items() if color in (key, each.name)), "h"),
        palette=palette if palette in atlas.PALETTES else next(iter(atlas.PALETTES)),
        camera=camera,
        choice=read_choice(),
    )


def read_choice() -> NodeSelection:
    """Read lasso and ranges from the address; what means nothing is dropped."""
    try:
        return NodeSelection.parse(state.read_long(LASSO, LONGEST_CHOICE), state.read_long(RANGES, LONGEST_CHOICE))
    except ConfigError:
        return NodeSelection()


def _project(chosen: Chosen) -> tuple[LabeledPoints, str, Snapshot]:
    """Compute at once what is instant; take the rest from the database, PCA standing in until it is there.

    Returns:
        Places, the name of the projection, and the snapshot with the embedding that was projected.
    """
    snapshot, view = chosen.snapshot, chosen.view
    if view.embedder != OWN:
        return _project_refitted(chosen)
    if view.method == "axes":
        return select_axes(snapshot.embedding, AXIS_PAIRS[view.pair]), "embedding axes", snapshot
    pca = memory_data.principal_plane(snapshot.id, chosen.stamp)
    if view.method not in BACKGROUND:
        return pca, "PCA", snapshot
    if snapshot.size < MIN_POINTS:
        name = METHODS[view.method]
        st.info(f"{name} needs at least {MIN_POINTS} nodes; this snapshot has {snapshot.size}. Here is PCA.")
        return pca, "PCA", snapshot
    found = _stored(chosen, view.method)
    return (*found, snapshot) if found is not None else (pca, "PCA, in the meantime", snapshot)


def _project_refitted(chosen: Chosen) -> tuple[LabeledPoints, str, Snapshot]:
    """Project the embedding of an embedder that was fitted anew to this snapshot; the run's own until it is there."""
    snapshot, view = chosen.snapshot, chosen.view
    embedding = memory_data.find_embedding(snapshot.id, view.embedder, seed=view.seed)
    found = _stored(chosen, "pca" if view.method == "axes" else view.method)
    if embedding is None or found is None:
        pca = memory_data.principal_plane(snapshot.id, chosen.stamp)
        return pca, "PCA of the run's own embedding, in the meantime", snapshot
    refitted = replace(snapshot, embedding=embedding.coordinates)
    if view.method == "axes":
        drawn = select_axes(refitted.embedding, AXIS_PAIRS[view.pair])
        return drawn, f"embedding axes of {EMBEDDINGS[view.embedder]}", refitted
    return found[0], f"{found[1]} of {EMBEDDINGS[view.embedder]}", refitted


def _stored(chosen: Chosen, method: str) -> tuple[LabeledPoints, str] | None:
    """Find a stored projection and name it, or offer to compute it."""
    snapshot, view, name = chosen.snapshot, chosen.view, METHODS[method]
    n, embedder = min(view.n, snapshot.size), None if view.embedder == OWN else view.embedder
    params = make_projection_params(method, n=n, seed=view.seed, embedder=embedder)
    found = memory_data.find_projection(snapshot.id, method, params)
    if found is None:
        label = name if embedder is None else f"{name} of {EMBEDDINGS[embedder]}"
        projection_job.show(
            snapshot, method=method, label=label, n=n, seed=view.seed, embedder=embedder, key=chosen.side.channel
        )
        return None
    start = read_initial_projection(found.params)
    said = f"{name} of {format_count(n)} landmarks" if method in BACKGROUND and n < snapshot.size else name
    began = "" if start is None else f" from the layout at env step {format_count(start.env_step)}"
    return LabeledPoints(found.coordinates, f"{name} 1 [1]", f"{name} 2 [1]"), f"{said}{began}"


def keep_view(said: dict[str, Any]) -> None:
    """Put colour, scale and camera of a map into the address."""
    for name, key in ((COLOR, "color"), (PALETTE, "palette"), (CAMERA, "camera")):
        value = said.get(key)
        state.write(name, str(value)[:64] if value else None)


def keep_choice(said: dict[str, Any]) -> None:
    """Put lasso and ranges of a map into the address."""
    state.write(LASSO, str(said.get("polygon") or "")[:LONGEST_CHOICE] or None)
    state.write(RANGES, str(said.get("filters") or "")[:LONGEST_CHOICE] or None)


def make_figure(shown: Shown, chosen: NDArray[np.bool_]) -> Cloud:
    """Draw the chosen nodes [M] in the map's colour as a figure for files, a bounded number of them."""
    snapshot, asked = shown.snapshot, read_view()
    rows = memory_data.sample(snapshot.id, shown.chosen.stamp, n=MOST_IN_FILE, seed=shown.chosen.view.seed)
    rows = rows[chosen[rows]]
    sample = "all nodes" if snapshot.size <= MOST_IN_FILE else f"by return × time, seed {shown.chosen.view.seed}"
    kept = f", chosen: {asked.choice.words}" if asked.choice else ""
    caption = (
        f"Showing {format_count(len(rows))} of {format_count(snapshot.size)} nodes, {sample}{kept} · {shown.name} · "
        f"snapshot at env step {format_count(snapshot.env_step)}"
    )
    nodes = MapNodes(
        snapshot,
        rows,
        LabeledPoints(shown.coordinates, shown.drawn.x_label, shown.drawn.y_label),
        title=f"Episodic memory of {shown.run.name} at step {snapshot.env_step}",
        caption=f"{caption}. Colour: {NODE_QUANTITIES[asked.color].meaning}.",
        all_quantities=True,
    )
    colors = atlas.PALETTES[asked.palette].colors
    options = figure_options.make_options({figure_options.COLOR: asked.color, COLOR_SCALE: colors})
    return find_figure("memory-atlas").draw(nodes, options)  # type: ignore[return-value]  # this figure is a Cloud


_HELP = (
    "Another snapshot, projection or run beside this one: colour and filters are shared, and of one run the selection, "
    "the point under the pointer and, under one projection, the camera too."
)


def asked() -> bool:
    """Draw the switch; tell whether two maps are wanted."""
    wanted = st.toggle("Two maps", key="two", bind="query-params", help=_HELP)
    return bool(wanted)


def choose_second(run: RunRow, first: Chosen) -> Chosen | None:
    """Draw the choices in one bar; None while there is nothing to draw a second map of."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        chosen = _choose_run(run)
        return choose(chosen, SECOND, first.snapshot.id if chosen.id == run.id else None)


def _choose_run(run: RunRow) -> RunRow:
    names = {run.id: run.name} | data.run_names(RunFilter(), LISTED)[0]
    chosen = st.selectbox(
        "Run of the second map", **in_url.one("memory", "b_run", list(names)),
        format_func=lambda each: f"{names[each]} · {each}", width=220,
    )  # fmt: skip
    try:
        return data.get_run(str(chosen))
    except EmtcError:  # deleted between two looks
        return run
