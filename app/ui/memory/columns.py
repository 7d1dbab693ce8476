"""The columns of a snapshot (the nodes of the memory at one time) for the map in the browser.

A column has one value per node. The browser loads it as raw binary numbers, each column from another URL.
"""

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
_BROWSER_DTYPES = {"float32": "f4", "int32": "i4"}
"""Names of data types in NumPy → in the scripts of the map."""
_MIME = "application/octet-stream"


@dataclass(frozen=True)
class Columns:
    """Every quantity of every node, in the drawing order of the map."""

    order: NDArray[np.int64]  # [M] rows of the snapshot in random order, so that no value is always drawn on top
    slot: NDArray[np.int32]  # [M]
    quantities: Mapping[str, NDArray[np.float32]]
    color_limits: Mapping[str, tuple[float, float]]
    """Values at the ends of each quantity's color scale (`compute_color_limits`). Nodes may be beyond the ends."""


@st.cache_resource(max_entries=6, show_spinner=False)
def make_columns(snapshot_key: SnapshotKey) -> Columns:
    """Compute the columns of a snapshot. The result is cached."""
    snapshot = get_snapshot(snapshot_key)
    order = np.random.default_rng(0).permutation(snapshot.size)
    quantities = {name: compute_node_values(snapshot, name)[order] for name in NODE_QUANTITIES}
    color_limits = {name: compute_color_limits(values, NODE_QUANTITIES[name]) for name, values in quantities.items()}
    return Columns(order, snapshot.slot[order].astype(np.int32), quantities, color_limits)


def publish_column(name: str, column: Column) -> dict[str, str]:
    """Make a column available at a URL; return the URL and the data type.

    The name must be unique for the column and its snapshot. Streamlit does not compare the whole content of large
    files: it identifies them by their length, a few samples and the name.
    """
    url = get_instance().media_file_mgr.add(
        np.ascontiguousarray(column).tobytes(), _MIME, coordinates=f"emtc-column-{name}", file_name=name
    )
    return {"url": url, "dtype": _BROWSER_DTYPES[column.dtype.name]}
