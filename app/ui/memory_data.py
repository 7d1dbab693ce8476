"""Cached results that are computed from snapshots of a run's episodic memory.

A snapshot contains the nodes (stored states) of the memory at one env step. The results are large, so all sessions
share one object: never change a cached value. A snapshot never changes, so the results have no maximum age, only a
maximum number. A parameter whose name starts with `_` is not part of the key in the cache.
"""

import os
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from app.analysis.collapse import CollapseResult, EmbeddingNumber, measure_collapse, measure_layout, scale_like_memory
from app.analysis.neighborhoods import Outlier, find_outliers
from app.analysis.projections.alignment import compute_aligned_pca, find_axis_signs
from app.analysis.projections.linear import AxisSigns, LabeledPoints
from app.analysis.projections.snapshots import sample_rows
from app.analysis.what_if import GateSettings, RecordedTransitions, merge_nodes, read_recorded_transitions
from app.ui.data import open_url
from storage.queries import memory
from storage.queries.memory import Snapshot

if TYPE_CHECKING:
    from emtc_core.memory.remerge import MergedNodes


class SnapshotKey(NamedTuple):
    """Identifies a snapshot in the caches."""

    url: str
    """URL of the database."""
    snapshot_id: int
    created_at: str
    """The time of creation. It distinguishes snapshots with a reused id."""

    @property
    def name(self) -> str:
        """A text that identifies the snapshot in its database, for the browser and for keys of caches."""
        return f"{self.snapshot_id}-{self.created_at}"


@st.cache_resource(max_entries=6, show_spinner="Reading the snapshot …")
def get_snapshot(key: SnapshotKey) -> Snapshot:
    """Read the columns of a snapshot."""
    return memory.get_snapshot(open_url(key.url), key.snapshot_id)


@st.cache_resource(max_entries=6, show_spinner=False)
def get_pca(key: SnapshotKey) -> LabeledPoints:
    """Project a snapshot by PCA, with the axis signs of earlier snapshots, so that the map does not flip."""
    return compute_aligned_pca(open_url(key.url), get_snapshot(key), _get_known_signs(key.url))


def get_axis_signs(key: SnapshotKey) -> AxisSigns:
    """Return the axis signs of the PCA of a snapshot."""
    return find_axis_signs(open_url(key.url), get_snapshot(key), _get_known_signs(key.url))


@st.cache_resource(max_entries=64, show_spinner=False)
def _get_known_signs(url: str) -> dict[int, AxisSigns]:
    """Return the dictionary snapshot id → axis signs of its PCA. `app.analysis` adds the signs that it computes."""
    return {}


@st.cache_resource(max_entries=16, show_spinner=False)
def get_sample(key: SnapshotKey, *, n: int, seed: int) -> NDArray[np.int64]:
    """Sample `n` rows of a snapshot, stratified by return and time."""
    return sample_rows(get_snapshot(key), n=n, seed=seed)


@st.cache_resource(max_entries=4, show_spinner="Reading the newest transitions …")
def get_stream(key: SnapshotKey, _rules: GateSettings) -> RecordedTransitions:
    """Read the newest transitions of a run up to one of its snapshots, for *What if*.

    The rules are the run's settings of gate and incentive, which never change.
    """
    snapshot = get_snapshot(key)
    return read_recorded_transitions(open_url(key.url), snapshot.run_id, _rules, until=snapshot.env_step)


@st.cache_resource(max_entries=8, show_spinner="Merging …")
def get_merged_nodes(key: SnapshotKey, _rules: GateSettings, factor: float) -> "MergedNodes":
    """Merge a snapshot's nodes again, with a merge radius of `factor` times the run's `memory.delta`.

    Raises:
        ConfigError: If the snapshot cannot be merged.
    """
    return merge_nodes(get_snapshot(key), _rules, factor)


@st.cache_resource(max_entries=32, show_spinner="Measuring the embedding …")
def get_collapse(
    url: str, embedding_key: str, _snapshot: Snapshot, *, delta: float, delta_space: Literal["raw", "normalized"]
) -> CollapseResult:
    """Measure whether an embedding has collapsed: whether nearby states still have similar returns.

    All projections of the embedding share the result.

    Args:
        url: URL of the database.
        embedding_key: Key of the embedding in the cache.
        delta: Merge radius of the memory, `memory.delta`.
        delta_space: Space in which the memory compares embeddings, `memory.delta_space`.
    """
    return measure_collapse(_snapshot, delta=delta, delta_space=delta_space, n_jobs=os.cpu_count() or 1)


@st.cache_resource(max_entries=32, show_spinner="Measuring the map …")
def get_layout_quality(
    url: str, coordinates_key: str, _snapshot: Snapshot, _layout: NDArray[np.float32]
) -> list[EmbeddingNumber]:
    """Measure how well a layout [M, 2] preserves a snapshot's embedding.

    Args:
        url: URL of the database.
        coordinates_key: Key of the layout in the cache.
    """
    return measure_layout(_snapshot, _layout)


@st.cache_resource(max_entries=4, show_spinner=False)
def get_compared_embedding(
    url: str, embedding_key: str, _snapshot: Snapshot, *, delta_space: Literal["raw", "normalized"]
) -> NDArray[np.floating]:
    """Return an embedding in the space in which the memory compares embeddings."""
    return _snapshot.embedding if delta_space == "raw" else scale_like_memory(_snapshot.embedding)


@st.cache_resource(max_entries=64, show_spinner="Comparing neighbors …")
def get_outliers(
    url: str, embedding_key: str, _snapshot: Snapshot, *, delta_space: Literal["raw", "normalized"]
) -> list[Outlier]:
    """Find the nodes of a snapshot whose return differs most from the mean return of their neighbors, largest first."""
    embedding = get_compared_embedding(url, embedding_key, _snapshot, delta_space=delta_space)
    return find_outliers(_snapshot, embedding, n_jobs=os.cpu_count() or 1)
