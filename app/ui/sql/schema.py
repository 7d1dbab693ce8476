"""The tables with their columns and what they mean, beside the box."""

import pandas as pd
import streamlit as st

from app.analysis.format import escape_markdown
from app.ui import data


def show() -> None:
    """Draw the choice of a table and what its columns mean."""
    tables = {table.name: table for table in data.schema()}
    chosen = st.selectbox(
        "Table", list(tables), key="table", bind="query-params",
        format_func=lambda name: f"{name}: {tables[name].meaning}", help="A blob is shown by its size.",
    )  # fmt: skip
    table = tables[chosen or "runs"]
    columns = [{"Column": each.name, "Type": each.kind, "Meaning": each.meaning} for each in table.columns]
    st.dataframe(
        pd.DataFrame(columns),
        hide_index=True,
        height=390,
        key="columns",
        column_config={name: st.column_config.TextColumn(width="small") for name in ("Column", "Type")},
        alt=f"Columns of the table {table.name}, their types and what they mean.",
    )
    if data.database().dialect == "sqlite":
        st.caption(escape_markdown("Times are text in UTC, as 2026-01-31 12:00:00; a boolean is 1 or 0."))
