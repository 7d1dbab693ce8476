"""The Memory page's upper part: which snapshot, which projection, which colour, and the map itself."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st
from numpy.typing import NDArray

from app import data, messages, state
from app.components import pin
from app.components.memory import atlas, projection_job
from app.figures.cloud import QUANTITIES
from app.figures.memory import draw_memory
from app.format import count, escape_markdown
from app.projections.jobs import projection_params
from app.projections.linear import AXIS_PAIRS, Drawn, draw_axes, draw_pca
from app.projections.methods import BACKGROUND, SMALLEST
from storage.queries.memory import Snapshot
from storage.runs import RunRow

METHODS = {"axes": "Axes", "pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}
SIZES = (2000, 5000, 10_000, 20_000, 50_000)
ALL = 0
MOST_PROJECTED = 50_000
CHANNEL = "atlas"
_SLIDER = 180


@dataclass(frozen=True)
class Shown:
    """What the map shows now."""

    snapshot: Snapshot
    coordinates: NDArray[np.float32]  # [M, 2] of every node; NaN where the projection has none


@dataclass(frozen=True)
class _View:
    method: str
    pair: int
    color: str
    n: int
    seed: int


@dataclass(frozen=True)
class Chosen:
    """What the map is to show: a snapshot, the rows of it that are drawn, and how."""

    snapshot: Snapshot
    rows: NDArray[np.int64]
    view: _View


def choose(run: RunRow) -> Chosen | None:
    """Draw the choices in one bar; None while there is nothing to draw a map of."""
    listed = data.snapshots(run.id)
    if not len(listed):
        _empty(run)
        return None
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        row = _choose_snapshot(listed)
        view = _choose_view()
    snapshot = data.snapshot(row["id"], str(row["created_at"]))
    if snapshot.size == 0:
        messages.empty("The memory was still empty at this moment.", "Choose a later snapshot.")
        return None
    rows = data.sample(row["id"], str(row["created_at"]), n=view.n or snapshot.size, seed=view.seed)
    return Chosen(snapshot, rows, view)


def show(run: RunRow, chosen: Chosen) -> Shown:
    """Draw the map."""
    drawn, name = _project(chosen.snapshot, chosen.rows, chosen.view)
    _draw(run, chosen.snapshot, chosen.rows, drawn, chosen.view, name)
    return Shown(chosen.snapshot, drawn.coordinates)


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
    pair = 0
    if method == "axes":
        pair = st.selectbox(
            "Axes", range(len(AXIS_PAIRS)), key="pair", bind="query-params", width=130,
            format_func=lambda i: "x{} · x{}".format(*(axis + 1 for axis in AXIS_PAIRS[i])),
        )  # fmt: skip
    color = st.segmented_control(
        "Colour", list(QUANTITIES), default="h", required=True, key="color", bind="query-params",
        format_func=lambda key: QUANTITIES[key].name,
        help="  \n".join(f"**{q.name}** [{q.unit}]: {q.meaning}" for q in QUANTITIES.values()),
    )  # fmt: skip
    n = st.selectbox(
        "Points", [*SIZES, ALL], index=1, key="points", bind="query-params", width=100,
        format_func=lambda value: count(value) if value else "all",
        help="How many nodes are shown; fewer than all are chosen evenly over return and time.",
    )  # fmt: skip
    seed = st.number_input(
        "Seed", min_value=0, max_value=2**31 - 1, value=0, step=1, width=100,
        key="map_seed", bind=state.bind_int("map_seed"),
        help="Decides the sample and everything random in t-SNE and UMAP: the same seed, the same map.",
    )  # fmt: skip
    return _View(str(method), int(pair or 0), str(color), int(n or 0), int(seed or 0))


def _project(snapshot: Snapshot, rows: NDArray[np.int64], view: _View) -> tuple[Drawn, str]:
    """Compute at once what is instant; take the rest from the database, PCA standing in until it is there."""
    if view.method == "axes":
        return draw_axes(snapshot.embedding, AXIS_PAIRS[view.pair]), "embedding axes"
    pca = draw_pca(snapshot.embedding, fit_on=rows)
    if view.method not in BACKGROUND:
        return pca, "PCA"
    if len(rows) < SMALLEST:
        st.info(
            f"{METHODS[view.method]} needs at least {SMALLEST} nodes; this snapshot shows {len(rows)}. Here is PCA."
        )
        return pca, "PCA"
    if len(rows) > MOST_PROJECTED:
        st.info(
            f"{METHODS[view.method]} takes at most {count(MOST_PROJECTED)} points; choose fewer to compute it. "
            "The map shows PCA."
        )
        return pca, "PCA"
    params = projection_params(view.method, n=len(rows), seed=view.seed)
    found = data.find_projection(snapshot.id, view.method, params)
    if found is None:
        projection_job.show(snapshot, method=view.method, label=METHODS[view.method], n=len(rows), seed=view.seed)
        return pca, "PCA, in the meantime"
    name = METHODS[view.method]
    labels = (f"{name} 1 [1]", f"{name} 2 [1]")
    return Drawn(found.coordinates, *labels), name


def _draw(run: RunRow, snapshot: Snapshot, rows: NDArray[np.int64], drawn: Drawn, view: _View, name: str) -> None:
    sample = "all nodes" if len(rows) == snapshot.size else f"by return × time, seed {view.seed}"
    caption = (
        f"Showing {count(len(rows))} of {count(snapshot.size)} nodes, {sample} · {name} · "
        f"snapshot at env step {count(snapshot.env_step)}"
    )
    quantity = QUANTITIES[view.color]
    cloud = draw_memory(
        snapshot, rows, drawn.coordinates[rows], x_label=drawn.x_label, y_label=drawn.y_label, color=view.color,
        title=f"Episodic memory of {run.name} at step {snapshot.env_step}",
        caption=f"{caption}. Colour: {quantity.meaning}.", every_quantity=True,
    )  # fmt: skip
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(escape_markdown(f"{count(len(rows))} of {count(snapshot.size)} nodes · {sample} · {name}"))
        facts = {**asdict(view), "snapshot": snapshot.id, "method": "pca" if name.startswith("PCA") else view.method}
        stem = f"{run.id}-{snapshot.env_step}"
        pin.show_with_export(cloud, key="atlas", stem=stem, page="memory", run=run, facts=facts)
    view_key = f"{snapshot.id}-{view.method}-{view.pair}-{view.n}-{view.seed}-{name}"
    atlas.show(cloud, key=CHANNEL, view_key=view_key, on_point=_point_chosen)
    st.caption(
        f"{quantity.name}: {quantity.meaning}. Click a point for its entry and replay; drag to pan, "
        f"scroll to zoom, double-click to see everything. Grey: {'not desirable' if quantity.binary else 'no value'}."
    )


def _point_chosen(slot: int) -> None:
    state.write(state.POINT, slot)
