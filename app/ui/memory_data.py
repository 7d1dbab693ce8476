"""Cached reads of memories: snapshots, where their nodes lie, and what is computed of them. Never mutate them."""

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import streamlit as st
from numpy.typing import NDArray

from app.analysis.collapse import CollapseResult, EmbeddingNumber, measure_collapse, measure_layout, scale_like_memory
from app.analysis.neighborhoods import Outlier, find_nearest, find_outlier
from app.analysis.projections.alignment import compute_aligned_pca, find_axis_signs
from app.analysis.projections.linear import AxisSigns, LabeledPoints
from app.analysis.projections.snapshots import sample_rows
from app.analysis.what_if import Rules, Stream, merge_nodes, read_stream
from app.ui.data import cached, database, database_url, open_url
from storage.queries import memory
from storage.queries.memory import NodeDetail, Projection, Snapshot

if TYPE_CHECKING:
    from emtc_core.memory.remerge import MergedNodes


@cached(st.cache_data, ttl=2)
def snapshots(url: str, run_id: str) -> pd.DataFrame:
    """List a run's snapshots; at most two seconds old."""
    return memory.list_snapshots(open_url(url), run_id)


@cached(st.cache_resource, max_entries=6, show_spinner="Reading the snapshot …")
def snapshot(url: str, snapshot_id: int, stamp: str) -> Snapshot:
    """Read a snapshot's columns; `stamp` is its creation time, so that a reused id is not confused."""
    return memory.get_snapshot(open_url(url), snapshot_id)


@cached(st.cache_resource, max_entries=6)
def principal_plane(url: str, snapshot_id: int, stamp: str) -> LabeledPoints:
    """Place every node of a snapshot by the two directions of largest variance, turned as in earlier snapshots."""
    return compute_aligned_pca(open_url(url), snapshot(snapshot_id, stamp), _turns(url))


@st.cache_resource(show_spinner=False)
def _turns(url: str) -> dict[int, AxisSigns]:
    """Which way round the PCA of each snapshot is shown, as far as it was asked."""
    return {}


def turn_of(snapshot: Snapshot) -> AxisSigns:
    """Which way round the PCA of a snapshot is shown."""
    return find_axis_signs(database(), snapshot, _turns(database_url()))


@cached(st.cache_resource, max_entries=16)
def sample(url: str, snapshot_id: int, stamp: str, *, n: int, seed: int) -> NDArray[np.int64]:
    """Choose the rows of a snapshot that are shown, stratified by return and time."""
    return sample_rows(snapshot(snapshot_id, stamp), n=n, seed=seed)


_WHICH = {Snapshot: lambda each: (each.run_id, each.id, each.env_step)}
"""What tells a snapshot from every other one of its database; its run's rules never change."""


@cached(st.cache_resource, max_entries=4, show_spinner="Reading the newest transitions …", hash_funcs=_WHICH)
def stream(url: str, snapshot: Snapshot, _rules: Rules) -> Stream:
    """Read the newest transitions of a run up to one of its snapshots; both never change."""
    return read_stream(open_url(url), snapshot.run_id, _rules, until=snapshot.env_step)


@cached(st.cache_resource, max_entries=8, show_spinner="Merging …", hash_funcs=_WHICH)
def merged(url: str, snapshot: Snapshot, _rules: Rules, factor: float) -> "MergedNodes":
    """Merge a snapshot's nodes at `factor` times the run's delta.

    Raises:
        ConfigError: If the snapshot cannot be merged.
    """
    return merge_nodes(snapshot, _rules, factor)


@cached(st.cache_data, max_entries=64)
def outlier(url: str, snapshot_id: int, stamp: str) -> Outlier | None:
    """Find the node of a snapshot whose return stands out most from its neighbors'."""
    return find_outlier(snapshot(snapshot_id, stamp))


@st.cache_resource(max_entries=16, show_spinner="Measuring the embedding …")
def _collapse(url: str, embedding: str, delta: float, delta_space: str, _snapshot: Snapshot) -> CollapseResult:
    space = "raw" if delta_space == "raw" else "normalized"
    return measure_collapse(_snapshot, delta=delta, delta_space=space, n_jobs=os.cpu_count() or 1)


def collapse(snapshot: Snapshot, embedding: str, memory: dict[str, Any]) -> CollapseResult:
    """Measure whether a snapshot's embedding has collapsed, once for all its projections; `embedding` is its name."""
    delta, space = float(memory.get("delta", 0.0)), str(memory.get("delta_space", "normalized"))
    return _collapse(database_url(), embedding, delta, space, snapshot)


@cached(st.cache_resource, max_entries=32, show_spinner="Measuring the map …")
def faithfulness(url: str, _snapshot: Snapshot, _layout: NDArray[np.float32], plane: str) -> list[EmbeddingNumber]:
    """Measure how well a layout [M, 2] shows a snapshot's embedding; `plane` names the layout."""
    return measure_layout(_snapshot, _layout)


@st.cache_resource(max_entries=4)
def _scaled(url: str, embedding: str, delta_space: str, _snapshot: Snapshot) -> NDArray[np.floating]:
    return _snapshot.embedding if delta_space == "raw" else scale_like_memory(_snapshot.embedding)


def nearest(
    snapshot: Snapshot, embedding: str, memory: dict[str, Any], row: int, k: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Find the rows of the k nodes nearest to one, where the memory itself compares them, and their distances."""
    space = _scaled(database_url(), embedding, str(memory.get("delta_space", "normalized")), snapshot)
    return find_nearest(space, row, k)


def point(snapshot: Snapshot, slot: int) -> NodeDetail:
    """Read one node with the episode that wrote it.

    Raises:
        StorageError: If the snapshot has no such node.
    """
    return memory.get_node(database(), snapshot, slot)


def find_projection(snapshot_id: int, method: str, params: dict[str, object]) -> Projection | None:
    """Find stored coordinates."""
    return memory.find_projection(database(), snapshot_id, method, params)


def find_embedding(snapshot_id: int, kind: str, *, seed: int) -> Projection | None:
    """Find the stored embedding [M, 4] of a snapshot by an embedder that was fitted to it anew."""
    return memory.find_embedding(database(), snapshot_id, kind, seed=seed)
