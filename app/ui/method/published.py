"""The differences between a baseline's preset `paper` and the configuration that its authors published."""

import streamlit as st

from app.analysis.format import escape_markdown
from app.ui.widgets.result_table import write_table
from emtc_core.config.published import Case, as_text, compare, find_configuration, read_table


def show(algo: str, env: str, map: str) -> None:
    """Draw the table of differences, or a note if no configuration is published."""
    st.markdown(f"##### {escape_markdown(algo)}: published configuration and preset `paper`")
    case = Case(algo, env, map)
    rows = list_differences(case)
    if not rows:
        st.caption(f"No configuration of {escape_markdown(algo)} on {escape_markdown(map)} is published in code.")
        return
    st.markdown(write_table(("Key", "Here", "Published", "Source", "Reason"), rows))
    st.caption(escape_markdown(describe(case)))


def list_differences(case: Case) -> list[tuple[str, ...]]:
    """List the settings that differ: key, our value, published value, source, reason; empty if none is published."""
    return [
        (
            f"`{row.key}`",
            f"`{as_text(row.ours)}`",
            f"`{as_text(row.published)}`",
            escape_markdown(row.source),
            escape_markdown(row.why),
        )
        for row in compare(case).differences
    ]


def describe(case: Case) -> str:
    """Describe how many published values are equal here, and from which commits they were read."""
    configuration, table, rows = find_configuration(case), read_table(), compare(case).compared
    names = dict.fromkeys(table.file[name].repository for name in configuration.files) if configuration else {}
    commits = ", ".join(f"{table.repository[name].name} at {table.repository[name].commit}" for name in names)
    n_equal = sum(not row.why for row in rows)
    text = f"{n_equal} of {len(rows)} published values are equal here; the table lists the others. Source: {commits}."
    return f"{text} {configuration.note}" if configuration and configuration.note else text
