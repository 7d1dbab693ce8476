"""The columns of a snapshot as the browser fetches them: raw numbers, each column at its own URL."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import streamlit as st
from numpy.typing import NDArray
from streamlit.runtime import get_instance

from app.analysis.selection import NODE_QUANTITIES, compute_node_values
from app.figures.kinds.maps import compute_color_limits
from app.ui.memory_data import SnapshotKey, get_snapshot

Column = NDArray[np.float32] | NDArray[np.int32]
_DTYPES = {"float32": "f4", "int32": "i4"}
_MIME = "application/octet-stream"


@dataclass(frozen=True)
class Columns:
    """Every quantity of every node, in the drawing order of the map."""

    order: NDArray[np.int64]  # [M] rows of the snapshot, shuffled, so that no range of values always covers another
    slot: NDArray[np.int32]
    quantities: Mapping[str, NDArray[np.float32]]
    color_limits: Mapping[str, tuple[float, float]]
    """Values at the ends of the color scale. One percent of the nodes may be beyond each end."""


@st.cache_resource(max_entries=6, show_spinner=False)
def make_columns(key: SnapshotKey) -> Columns:
    """Compute the columns of a snapshot. The result is cached."""
    snapshot = get_snapshot(key)
    order = np.random.default_rng(0).permutation(snapshot.size)
    quantities = {key: compute_node_values(snapshot, key)[order] for key in NODE_QUANTITIES}
    limits = {key: compute_color_limits(values, NODE_QUANTITIES[key]) for key, values in quantities.items()}
    return Columns(order, snapshot.slot[order].astype(np.int32), quantities, limits)


def publish(name: str, column: Column) -> dict[str, str]:
    """Make a column available at a URL; return the URL and the data type.

    `name` must be unique for the column and its snapshot. Streamlit identifies large files by their length, a few
    samples and this name.
    """
    url = get_instance().media_file_mgr.add(
        np.ascontiguousarray(column).tobytes(), _MIME, coordinates=f"emtc-column-{name}", file_name=name
    )
    return {"url": url, "dtype": _DTYPES[column.dtype.name]}
