"""Numbers under a map of the memory: has the embedding collapsed, and how well does the map preserve it?

An embedding has collapsed if near states do not have similar returns, so that recalled returns are not useful. The
test is in `app.analysis.collapse`.
"""

from collections.abc import Sequence
from math import isfinite

import pandas as pd
import streamlit as st

from app.analysis.collapse import COLLAPSED_BELOW, USEFUL_ABOVE, EmbeddingNumber
from app.analysis.format import escape_markdown, format_count, format_number
from app.ui import memory_data, messages
from app.ui.memory.snapshot_map import FIRST_MAP, SECOND_MAP, MemoryMap
from app.ui.page_state import Flag

_IS_BOX_OPEN = {side: Flag(f"{side.prefix}collapse", "memory") for side in (FIRST_MAP, SECOND_MAP)}


@st.fragment
def show(memory_map: MemoryMap) -> None:
    """Draw the numbers. They are computed only while the box is open."""
    is_box_open = _IS_BOX_OPEN[memory_map.choice.side]
    box = st.expander("Has this embedding collapsed?", icon=":material/compress:", **is_box_open.bind())
    if not box.open:
        return
    with box, messages.guarded():
        url = memory_map.choice.snapshot_key.url
        result = memory_data.get_collapse(
            url,
            memory_map.embedding_key,
            memory_map.embedded,
            delta=memory_map.delta,
            delta_space=memory_map.delta_space,
        )
        layout_numbers = memory_data.get_layout_quality(
            url, memory_map.coordinates_key, memory_map.embedded, memory_map.coordinates
        )
        st.markdown(f"**{escape_markdown(result.verdict)}**")
        st.dataframe(tabulate_collapse([*result.numbers, *layout_numbers]), hide_index=True, height="content")
        verdict_rule = f"Yes: the whole interval of R² is below {COLLAPSED_BELOW:g}. No: above {USEFUL_ABOVE:g}."
        if result.sample:  # a sentence: the snapshot is a sample, so there is no verdict
            verdict_rule = (
                f"{result.sample} Its nodes are farther apart than those of the memory. Whether the embedding has "
                "collapsed, and the numbers within δ, need a whole snapshot."
            )
        st.caption(
            escape_markdown(
                f"{verdict_rule} 95 % percentile bootstrap over whole episodes, 1000 resamples. "
                "The first rows describe the embedding, the last rows this map."
            )
        )


def tabulate_collapse(numbers: Sequence[EmbeddingNumber]) -> pd.DataFrame:
    """Tabulate the numbers with their meaning. For an undefined number, the table has a text."""
    rows = []
    for number in numbers:
        if isfinite(number.value):
            interval = f"[{format_number(number.low)} to {format_number(number.high)}]"
            value = f"{format_number(number.value)} {interval}"
        else:
            value = "not defined" if number.n else "no such nodes"
        rows.append((number.meaning, value, number.unit, format_count(number.n)))
    return pd.DataFrame(rows, columns=["quantity", "value [95 %]", "unit", "nodes"])
