"""The table of runs with what each takes, by kind; chosen rows are what can be thinned."""

import zlib
from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st

from storage.maintenance.sizes import KINDS, RunSize, Sizes

_MEANING = {
    "transitions": "Rows of single steps",
    "trajectories": "States and actions of training episodes, for Replay; estimated from 200 episodes",
    "curves": "Metrics, evaluations, gate statistics and sums",
    "playbacks": "Greedy episodes kept for Replay",
    "snapshots": "The memory over time, with its projections",
    "checkpoints": "Files that a resume needs",
    "other_files": "Log and whatever else is in the run's folder",
}


def show(sizes: Sizes) -> list[RunSize]:
    """Draw the table and return the chosen runs."""
    st.subheader("Runs")
    picked = st.dataframe(
        make_rows(sizes.runs),
        key=table_key(sizes.runs),
        hide_index=True,
        on_select="rerun",
        selection_mode="multi-row",
        column_config=_columns(),
        placeholder="–",
        alt="Table of runs with the room that each takes, in all and by kind. Choose rows to thin those runs.",
    )
    st.caption("Close, not exact: rows are counted and taken at their usual size. Choose rows to thin those runs.")
    return [sizes.runs[place] for place in picked["selection"]["rows"] if place < len(sizes.runs)]


def table_key(runs: Sequence[RunSize]) -> str:
    """Name the table by the runs in its rows: a choice, which is of rows, ends when other runs stand in them."""
    return f"size_table-{zlib.crc32(','.join(run.run_id for run in runs).encode()):08x}"


def make_rows(runs: Sequence[RunSize]) -> pd.DataFrame:
    """Turn sizes into what the table shows; what takes nothing is empty."""
    return pd.DataFrame(
        {
            "name": [run.name for run in runs],
            "id": [run.run_id for run in runs],
            "status": [run.status for run in runs],
            "total": [run.total for run in runs],
            **{kind: pd.Series([getattr(run, kind) or None for run in runs], dtype="Int64") for kind in KINDS},
        }
    )


def _columns() -> dict[str, Any]:
    column = st.column_config
    named: dict[str, Any] = {
        "name": column.TextColumn("Run", width="medium"),
        "id": column.TextColumn("Id", width="small"),
        "status": column.TextColumn("Status", width="small", help="The word that its process wrote last"),
        "total": column.NumberColumn("In all", format="bytes", width="small"),
    }
    return named | {
        kind: column.NumberColumn(kind.replace("_", " ").capitalize(), format="bytes", width="small", help=meaning)
        for kind, meaning in _MEANING.items()
    }
