"""The nearest neighbors of the chosen node in the embedding: what they are worth, and which episodes wrote them.

Distances are those that the memory decides by: of the embedding scaled per dimension, unless `memory.delta_space` is
raw.
"""

from math import isfinite

import numpy as np
import pandas as pd
import streamlit as st
from numpy.typing import NDArray

from app.analysis.format import number
from app.analysis.selection import QUANTITIES
from app.ui import memory_data, state
from app.ui.memory import atlas
from app.ui.memory.snapshot_map import Shown

NEAREST = 10


def show(shown: Shown, slot: int) -> None:
    """List the nearest nodes, nearest first; a press on a row chooses its node."""
    rows, distance = _find(shown, slot)
    frame = list_nearest(shown, rows, distance)
    slots: list[int] = frame["memory"].tolist()
    key = f"nearest-{shown.snapshot.id}-{slot}"

    def chosen() -> None:
        selected = st.session_state[key]["selection"]["rows"]
        if selected and selected[0] < len(slots):
            state.write(state.POINT, slots[selected[0]])

    st.dataframe(
        frame, hide_index=True, height="content", key=key, on_select=chosen, selection_mode="single-row",
        alt="The nearest nodes in the embedding. Choose a row to go to its node.",
    )  # fmt: skip
    delta = shown.run.config.get("memory", {}).get("delta")
    st.caption(_say(frame, delta if isinstance(delta, int | float) else None))


def places(shown: Shown, slot: int) -> list[atlas.Place]:
    """Find where the nearest nodes lie on the map."""
    rows, _ = _find(shown, slot)
    return [place for row in rows if all(map(isfinite, place := shown.coordinates[row].tolist()))]


def list_nearest(shown: Shown, rows: NDArray[np.int64], distance: NDArray[np.float64]) -> pd.DataFrame:
    """List nodes with their distance, H, ξ, Δ_mem, episode and step."""
    snapshot, words = shown.snapshot, QUANTITIES["xi"].words
    return pd.DataFrame(
        {
            "memory": snapshot.slot[rows],
            "distance": [number(each) for each in distance],
            "H [return]": [number(float(each)) for each in snapshot.h[rows]],
            "ξ": [words[int(each)] for each in snapshot.xi[rows]],
            "Δ_mem [return]": [number(float(each)) for each in snapshot.delta_mem[rows]],
            "episode": snapshot.episode[rows],
            "t": snapshot.t[rows],
        }
    )


def _find(shown: Shown, slot: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    row = shown.snapshot.row_of(slot)
    if row is None:
        return np.empty(0, np.int64), np.empty(0)
    memory = shown.run.config.get("memory", {})
    return memory_data.nearest(shown.embedded, shown.embedding, memory, row, NEAREST)


def _say(frame: pd.DataFrame, delta: float | None) -> str:
    within = f" States within δ = {delta:g} are merged into one node." if delta else ""
    return f"{frame['episode'].nunique()} episodes wrote these {len(frame)} nodes.{within} A press on a row goes there."
