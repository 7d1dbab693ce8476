"""The columns of a snapshot as the browser fetches them: one address each, raw numbers behind it.

Streamlit's media store serves them, as it serves an image, so a column travels once for as long as the page shows its
snapshot; the browser's own cache keeps it beyond that.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import streamlit as st
from numpy.typing import NDArray
from streamlit.runtime import get_instance

from app.analysis.node_quantities import QUANTITIES, values_of
from app.figures.kinds.cloud import scale_ends
from app.ui import data
from storage.queries.memory import Snapshot

Column = NDArray[np.float32] | NDArray[np.int32]
_DTYPES = {"float32": "f4", "int32": "i4"}
_MIME = "application/octet-stream"


@dataclass(frozen=True)
class Columns:
    """Every quantity of every node, in the order in which the map draws them."""

    order: NDArray[np.int64]  # [M] rows of the snapshot, shuffled, so that no value lies on top of another
    slot: NDArray[np.int32]
    quantities: Mapping[str, NDArray[np.float32]]
    ends: Mapping[str, tuple[float, float]]
    """Values at the ends of the colour scale; one point in a hundred may lie beyond either."""


def columns_of(snapshot: Snapshot, stamp: str) -> Columns:
    """Arrange the columns of a snapshot, once."""
    return _columns(data.database_url(), snapshot.id, stamp, snapshot)


@st.cache_resource(max_entries=6, show_spinner=False)
def _columns(url: str, snapshot_id: int, stamp: str, _snapshot: Snapshot) -> Columns:
    order = np.random.default_rng(0).permutation(_snapshot.size)
    quantities = {key: values_of(_snapshot, key)[order] for key in QUANTITIES}
    ends = {key: scale_ends(values, QUANTITIES[key]) for key, values in quantities.items()}
    return Columns(order, _snapshot.slot[order].astype(np.int32), quantities, ends)


def publish(name: str, column: Column) -> dict[str, str]:
    """Give a column an address; `name` tells it from every other column of every snapshot.

    The store tells big files apart by their length and a few samples, so the name is a part of what it looks at.
    """
    url = get_instance().media_file_mgr.add(
        np.ascontiguousarray(column).tobytes(), _MIME, coordinates=f"emtc-column-{name}", file_name=name
    )
    return {"url": url, "dtype": _DTYPES[column.dtype.name]}
