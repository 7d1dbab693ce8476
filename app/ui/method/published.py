"""How a baseline's settings compare with what its authors published, with a reason for each difference."""

import streamlit as st

from app.analysis.format import escape_markdown
from app.ui.method.markdown import write_table
from emtc_core.config.published import Case, compare, find_configuration, read_table
from emtc_core.config.resolve import Value


def show(algo: str, env: str, map: str) -> None:
    """List every difference of a baseline's preset `paper` from the published configuration."""
    st.markdown(f"##### {escape_markdown(algo)}, as published and as compared here")
    case = Case(algo, env, map)
    rows = list_differences(case)
    if not rows:
        st.caption(f"No configuration of {escape_markdown(algo)} on {escape_markdown(map)} is published in code.")
        return
    st.markdown(write_table(("Key", "Here", "Published", "Where", "Why"), rows))
    st.caption(escape_markdown(describe(case)))


def list_differences(case: Case) -> list[tuple[str, ...]]:
    """List what differs: key, ours, theirs, repository and file, reason; empty where nothing is published."""
    return [
        (
            f"`{row.key}`",
            f"`{_plain(row.ours)}`",
            f"`{_plain(row.published)}`",
            escape_markdown(row.source),
            escape_markdown(row.why),
        )
        for row in compare(case).differences
    ]


def describe(case: Case) -> str:
    """Say how many published values were compared, and of which commits."""
    known, table, rows = find_configuration(case), read_table(), compare(case).compared
    used = dict.fromkeys(table.file[name].repository for name in known.files) if known else {}
    commits = ", ".join(f"{table.repository[name].name} at {table.repository[name].commit}" for name in used)
    equal = sum(not row.why for row in rows)
    told = f"{equal} of {len(rows)} published values are the same here, the rest is listed: {commits}."
    return f"{told} {known.note}" if known and known.note else told


def _plain(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
