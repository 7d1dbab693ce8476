"""Cached reads of memories: snapshots, projections, and results computed from them. Never change a cached value."""

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
from app.analysis.what_if import GateRules, Stream, merge_nodes, read_stream
from app.ui.data import cached, database, database_url, open_url
from storage.queries import memory, projections
from storage.queries.memory import NodeDetail, Snapshot
from storage.queries.projections import Projection

if TYPE_CHECKING:
    from emtc_core.memory.remerge import MergedNodes

_SNAPSHOT_KEY = {Snapshot: lambda snapshot: (snapshot.run_id, snapshot.id, snapshot.env_step)}
"""Identifies a snapshot in its database. The rules of its run never change, so they are not part of the key."""


@cached(st.cache_data, ttl=2)
def list_snapshots(url: str, run_id: str) -> pd.DataFrame:
    """List a run's snapshots; at most two seconds old."""
    return memory.list_snapshots(open_url(url), run_id)


@cached(st.cache_data, ttl=60)
def runs_with_snapshots(url: str) -> list[str]:
    """List the runs with a snapshot of their memory, newest first; at most a minute old."""
    return memory.list_runs_with_snapshots(open_url(url))


@cached(st.cache_resource, max_entries=6, show_spinner="Reading the snapshot …")
def get_snapshot(url: str, snapshot_id: int, stamp: str) -> Snapshot:
    """Read a snapshot's columns. `stamp` is its creation time, which distinguishes snapshots with a reused id."""
    return memory.get_snapshot(open_url(url), snapshot_id)


@cached(st.cache_resource, max_entries=6)
def get_pca(url: str, snapshot_id: int, stamp: str) -> LabeledPoints:
    """Project a snapshot by PCA, with the axis signs that agree with earlier snapshots."""
    return compute_aligned_pca(open_url(url), get_snapshot(snapshot_id, stamp), _axis_signs(url))


def get_axis_signs(snapshot: Snapshot) -> AxisSigns:
    """Return the axis signs of the PCA of a snapshot."""
    return find_axis_signs(database(), snapshot, _axis_signs(database_url()))


@cached(st.cache_resource, max_entries=16)
def get_sample(url: str, snapshot_id: int, stamp: str, *, n: int, seed: int) -> NDArray[np.int64]:
    """Sample `n` rows of a snapshot, stratified by return and time."""
    return sample_rows(get_snapshot(snapshot_id, stamp), n=n, seed=seed)


@cached(st.cache_resource, max_entries=4, show_spinner="Reading the newest transitions …", hash_funcs=_SNAPSHOT_KEY)
def get_stream(url: str, snapshot: Snapshot, _rules: GateRules) -> Stream:
    """Read the newest transitions of a run up to one of its snapshots."""
    return read_stream(open_url(url), snapshot.run_id, _rules, until=snapshot.env_step)


@cached(st.cache_resource, max_entries=8, show_spinner="Merging …", hash_funcs=_SNAPSHOT_KEY)
def get_merged_nodes(url: str, snapshot: Snapshot, _rules: GateRules, factor: float) -> "MergedNodes":
    """Merge a snapshot's nodes at `factor` times the run's delta.

    Raises:
        ConfigError: If the snapshot cannot be merged.
    """
    return merge_nodes(snapshot, _rules, factor)


@cached(st.cache_data, max_entries=64)
def get_outlier(url: str, snapshot_id: int, stamp: str) -> Outlier | None:
    """Find the node of a snapshot whose return differs most from the returns of its neighbors."""
    return find_outlier(get_snapshot(snapshot_id, stamp))


def get_collapse(snapshot: Snapshot, embedding: str, memory: dict[str, Any]) -> CollapseResult:
    """Measure whether a snapshot's embedding has collapsed, once for all its projections.

    Args:
        snapshot: The snapshot with the embedding.
        embedding: Key of the embedding in the cache.
        memory: The settings of the section `memory`.
    """
    delta, space = float(memory.get("delta", 0.0)), str(memory.get("delta_space", "normalized"))
    return _measure_collapse(database_url(), embedding, delta, space, snapshot)


@cached(st.cache_resource, max_entries=32, show_spinner="Measuring the map …")
def get_layout_quality(
    url: str, _snapshot: Snapshot, _layout: NDArray[np.float32], plane: str
) -> list[EmbeddingNumber]:
    """Measure how well a layout [M, 2] preserves a snapshot's embedding; `plane` is the layout's key in the cache."""
    return measure_layout(_snapshot, _layout)


def list_nearest(
    snapshot: Snapshot, embedding: str, memory: dict[str, Any], row: int, k: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Find the k nearest nodes of a node, in the space in which the memory compares embeddings.

    Args:
        snapshot: The snapshot with the embedding.
        embedding: Key of the embedding in the cache.
        memory: The settings of the section `memory`.
        row: Row of the node in the snapshot.
        k: Number of neighbors.

    Returns:
        Rows of the neighbors, nearest first, and their distances.
    """
    space = _scale_embedding(database_url(), embedding, str(memory.get("delta_space", "normalized")), snapshot)
    return find_nearest(space, row, k)


def get_node(snapshot: Snapshot, slot: int) -> NodeDetail:
    """Read one node with the episode that wrote it.

    Raises:
        StorageError: If the snapshot has no such node.
    """
    return memory.get_node(database(), snapshot, slot)


def find_projection(snapshot_id: int, method: str, params: dict[str, object]) -> Projection | None:
    """Find a stored projection."""
    return projections.find_projection(database(), snapshot_id, method, params)


def find_embedding(snapshot_id: int, kind: str, *, seed: int) -> Projection | None:
    """Find the stored embedding [M, 4] of a snapshot by an embedder that was fitted to this snapshot."""
    return projections.find_embedding(database(), snapshot_id, kind, seed=seed)


@st.cache_resource(show_spinner=False)
def _axis_signs(url: str) -> dict[int, AxisSigns]:
    """Axis signs of the PCA by snapshot, filled as they are computed."""
    return {}


@st.cache_resource(max_entries=16, show_spinner="Measuring the embedding …")
def _measure_collapse(url: str, embedding: str, delta: float, delta_space: str, _snapshot: Snapshot) -> CollapseResult:
    space = "raw" if delta_space == "raw" else "normalized"
    return measure_collapse(_snapshot, delta=delta, delta_space=space, n_jobs=os.cpu_count() or 1)


@st.cache_resource(max_entries=4)
def _scale_embedding(url: str, embedding: str, delta_space: str, _snapshot: Snapshot) -> NDArray[np.floating]:
    return _snapshot.embedding if delta_space == "raw" else scale_like_memory(_snapshot.embedding)
