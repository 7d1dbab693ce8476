"""The Memory page's upper part: which snapshot, which projection, and the map itself."""

from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st
from numpy.typing import NDArray

from app import data, messages, state
from app.components.memory import atlas, projection_job
from app.components.memory.columns import columns_of
from app.figures.cloud import QUANTITIES, Cloud
from app.figures.memory import draw_memory
from app.format import count, escape_markdown
from app.projections.jobs import projection_params
from app.projections.linear import AXIS_PAIRS, Drawn, draw_axes
from app.projections.methods import BACKGROUND, SMALLEST
from app.results.selection import Choice
from emtc_core.errors import ConfigError
from storage.queries.memory import Snapshot
from storage.runs import RunRow

METHODS = {"axes": "Axes", "pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}
SIZES = (2000, 5000, 10_000, 20_000, 50_000)
CHANNEL = "atlas"
MOST_IN_FILE = 100_000
"""Nodes in an exported or pinned map; the map on the page shows all of them."""
COLOR, PALETTE, CAMERA, LASSO, RANGES = "color", "scale", "camera", "lasso", "ranges"
LONGEST_CHOICE = 8000
_SLIDER = 180


@dataclass(frozen=True)
class _View:
    method: str
    pair: int
    n: int  # points that t-SNE or UMAP lays out
    seed: int


@dataclass(frozen=True)
class Chosen:
    """What the map is to show: a snapshot, and how."""

    snapshot: Snapshot
    stamp: str  # when it was kept: a reused id is another snapshot
    view: _View


@dataclass(frozen=True)
class Shown:
    """What the map shows now."""

    chosen: Chosen
    drawn: Drawn  # places of every node of the snapshot; NaN where the projection has none
    name: str  # of the projection

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
        return asdict(self.chosen.view) | {"snapshot": self.snapshot.id, "method": method, "fit": "all"} | choice


def choose(run: RunRow) -> Chosen | None:
    """Draw the choices in one bar; None while there is nothing to draw a map of."""
    listed = data.snapshots(run.id)
    if not len(listed):
        _empty(run)
        return None
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        row = _choose_snapshot(listed)
        view = _choose_view()
    stamp = str(row["created_at"])
    snapshot = data.snapshot(row["id"], stamp)
    if snapshot.size == 0:
        messages.empty("The memory was still empty at this moment.", "Choose a later snapshot.")
        return None
    return Chosen(snapshot, stamp, view)


def show(run: RunRow, chosen: Chosen) -> Shown:
    """Draw the map."""
    drawn, name = _project(chosen)
    plane = f"{chosen.snapshot.id}-{chosen.stamp}-{name}-{chosen.view.pair}-{chosen.view.n}-{chosen.view.seed}"
    atlas.show(
        columns_of(chosen.snapshot, chosen.stamp), drawn, channel=CHANNEL,
        of=chosen.snapshot.size, nodes=f"{chosen.snapshot.id}-{chosen.stamp}", plane=plane,
        kind=f"{name}-{chosen.view.pair}", view=read_view(),
        alt=f"Episodic memory of {run.name} at step {chosen.snapshot.env_step}, {name}.",
    )  # fmt: skip
    return Shown(chosen, drawn, name)


def _empty(run: RunRow) -> None:
    if not run.config.get("algo", "").startswith(("emtc", "emu", "emc")):
        messages.empty(
            f"{escape_markdown(run.algo)} keeps no episodic memory.", "Choose a run of an EMTC or EMU algorithm."
        )
        return
    messages.empty(
        "This run has no snapshot of its memory yet.",
        "Snapshots are taken evenly over a run. Reload in a moment, or watch its progress on Live.",
        page="../pages/live.py",
        label="Open Live",
    )


def _choose_snapshot(listed: pd.DataFrame) -> dict[str, Any]:
    rows = {int(row["id"]): row for row in data.rows_of(listed)}
    ids = list(rows)
    wanted = state.read_int(state.SNAPSHOT)
    if st.session_state.get("snapshot") not in ids or wanted not in (None, st.session_state.get("snapshot")):
        st.session_state["snapshot"] = wanted if wanted in ids else ids[-1]
    if len(ids) > 1:
        chosen = st.select_slider(
            "Snapshot at env step",
            ids,
            key="snapshot",
            format_func=lambda each: count(rows[each]["env_step"]) if each in rows else "–",
            on_change=_snapshot_chosen,
            width=_SLIDER,
        )
    else:
        chosen = ids[0]
        st.caption(f"One snapshot so far, at env step {count(rows[chosen]['env_step'])}.", width=_SLIDER)
    state.write(state.SNAPSHOT, chosen)
    return rows[chosen]


def _snapshot_chosen() -> None:
    state.write(state.SNAPSHOT, st.session_state["snapshot"])


def _choose_view() -> _View:
    method = st.segmented_control(
        "Projection", list(METHODS), default="pca", required=True, format_func=METHODS.__getitem__,
        key="method", bind="query-params",
        help="Axes and PCA are instant; t-SNE and UMAP are computed in the background.",
    )  # fmt: skip
    pair, n, seed = 0, SIZES[1], 0
    if method == "axes":
        pair = st.selectbox(
            "Axes", range(len(AXIS_PAIRS)), key="pair", bind="query-params", width=130,
            format_func=lambda i: "x{} · x{}".format(*(axis + 1 for axis in AXIS_PAIRS[i])),
        )  # fmt: skip
    if method in BACKGROUND:
        n = st.selectbox(
            "Landmarks", SIZES, index=1, key="points", bind="query-params", width=110, format_func=count,
            help="How many nodes are laid out, chosen evenly over return and time; the rest is placed among them.",
        )  # fmt: skip
        seed = st.number_input(
            "Seed", min_value=0, max_value=2**31 - 1, value=0, step=1, width=100,
            key="map_seed", bind=state.bind_int("map_seed"),
            help="Decides the landmarks and everything random in the method: the same seed, the same map.",
        )  # fmt: skip
    return _View(str(method), int(pair or 0), int(n or SIZES[1]), int(seed or 0))


def read_view() -> atlas.View:
    """Read colour, scale, camera and choice from the address; what means nothing is dropped."""
    color, palette = state.read_text(COLOR) or "", state.read_text(PALETTE) or ""
    numbers = [float(part) for part in (state.read_text(CAMERA) or "").split(",") if _is_number(part)]
    camera = (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 and numbers[2] > 0 else None
    return atlas.View(
        color=next((key for key, each in QUANTITIES.items() if color in (key, each.name)), "h"),
        palette=palette if palette in atlas.PALETTES else next(iter(atlas.PALETTES)),
        camera=camera,
        choice=read_choice(),
    )


def read_choice() -> Choice:
    """Read lasso and ranges from the address; what means nothing is dropped."""
    try:
        return Choice.parse(state.read_long(LASSO, LONGEST_CHOICE), state.read_long(RANGES, LONGEST_CHOICE))
    except ConfigError:
        return Choice()


def _is_number(text: str) -> bool:
    try:
        return isfinite(float(text))
    except ValueError:
        return False


def _project(chosen: Chosen) -> tuple[Drawn, str]:
    """Compute at once what is instant; take the rest from the database, PCA standing in until it is there."""
    snapshot, view = chosen.snapshot, chosen.view
    if view.method == "axes":
        return draw_axes(snapshot.embedding, AXIS_PAIRS[view.pair]), "embedding axes"
    pca = data.principal_plane(snapshot.id, chosen.stamp)
    if view.method not in BACKGROUND:
        return pca, "PCA"
    name = METHODS[view.method]
    if snapshot.size < SMALLEST:
        st.info(f"{name} needs at least {SMALLEST} nodes; this snapshot has {snapshot.size}. Here is PCA.")
        return pca, "PCA"
    n = min(view.n, snapshot.size)
    found = data.find_projection(snapshot.id, view.method, projection_params(view.method, n=n, seed=view.seed))
    if found is None:
        projection_job.show(snapshot, method=view.method, label=name, n=n, seed=view.seed)
        return pca, "PCA, in the meantime"
    return Drawn(found.coordinates, f"{name} 1 [1]", f"{name} 2 [1]"), name


def keep_view(said: dict[str, Any]) -> None:
    """Put colour, scale and camera of a map into the address."""
    for name, key in ((COLOR, "color"), (PALETTE, "palette"), (CAMERA, "camera")):
        value = said.get(key)
        state.write(name, str(value)[:64] if value else None)


def keep_choice(said: dict[str, Any]) -> None:
    """Put lasso and ranges of a map into the address."""
    state.write(LASSO, str(said.get("polygon") or "")[:LONGEST_CHOICE] or None)
    state.write(RANGES, str(said.get("filters") or "")[:LONGEST_CHOICE] or None)


def make_figure(run: RunRow, shown: Shown) -> Cloud:
    """Draw what the map shows as a figure for files: its colour and its choice, of a bounded number of nodes."""
    snapshot, asked = shown.snapshot, read_view()
    rows = data.sample(snapshot.id, shown.chosen.stamp, n=MOST_IN_FILE, seed=shown.chosen.view.seed)
    rows = rows[asked.choice.mask(snapshot, shown.coordinates)[rows]]
    sample = "all nodes" if snapshot.size <= MOST_IN_FILE else f"by return × time, seed {shown.chosen.view.seed}"
    kept = f", chosen: {asked.choice.words}" if asked.choice else ""
    caption = (
        f"Showing {count(len(rows))} of {count(snapshot.size)} nodes, {sample}{kept} · {shown.name} · "
        f"snapshot at env step {count(snapshot.env_step)}"
    )
    return draw_memory(
        snapshot, rows, shown.coordinates[rows], x_label=shown.drawn.x_label, y_label=shown.drawn.y_label,
        color=asked.color, title=f"Episodic memory of {run.name} at step {snapshot.env_step}",
        caption=f"{caption}. Colour: {QUANTITIES[asked.color].meaning}.",
        colors=atlas.PALETTES[asked.palette].colors, every_quantity=True,
    )  # fmt: skip
