"""Numbers under a map: does this embedding tell returns and success apart, and how far can the map be trusted?"""

import pandas as pd
import streamlit as st

from app.analysis.collapse import Collapse, Number
from app.analysis.format import count, escape_markdown, number
from app.ui import data, messages
from app.ui.memory.snapshot_map import Shown


@st.fragment
def show(shown: Shown) -> None:
    """Draw the numbers once somebody opens them."""
    box = st.expander(
        "Has this embedding collapsed?", icon=":material/compress:", key=f"{shown.chosen.side.prefix}collapse",
        bind="query-params",
    )  # fmt: skip
    if not box.open:
        return
    with box, messages.guarded():
        found = data.collapse(shown.embedded, shown.coordinates, shown.plane, shown.run.config.get("memory", {}))
        st.dataframe(_tabulate(found), hide_index=True, height="content")
        said = "; ".join(f"*{escape_markdown(each.name)}*: {escape_markdown(each.meaning)}" for each in found.numbers)
        st.caption(f"95 % percentile bootstrap over whole episodes, 1000 draws. {said}.")


def _tabulate(found: Collapse) -> pd.DataFrame:
    def told(each: Number) -> str:
        return f"{number(each.value)} [{number(each.low)} – {number(each.high)}]"

    rows = [(each.name, told(each), each.unit, count(each.n)) for each in found.numbers]
    return pd.DataFrame(rows, columns=["number", "value [95 %]", "unit", "nodes"])
