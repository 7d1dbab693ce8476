"""What this machine has and lacks: the same checks as `emtc doctor`, made when they are asked for."""

import pandas as pd
import streamlit as st

from app.analysis.format import escape_markdown
from app.jobs.doctor import Check, run_checks

_SEEN = "machine_checked"


def show() -> None:
    """Draw the button, and the table once it was pressed."""
    st.subheader("This machine")
    if st.button("Check this machine", icon=":material/stethoscope:", key="check_machine"):
        _checks.clear()
        st.session_state[_SEEN] = True
    if not st.session_state.get(_SEEN):
        st.caption("Libraries, graphics card, environments and browser, as `emtc doctor` lists them. Takes seconds.")
        return
    checks = _checks()
    missing = [check.name for check in checks if check.needed and not check.usable]
    if missing:
        st.error(escape_markdown(f"Nothing works without {', '.join(missing)}. The advice below says how to get it."))
    else:
        st.success("All that is needed is there; what else is missing limits only what it names.")
    st.dataframe(
        make_rows(checks), hide_index=True, key="machine_table",
        alt="Table of what this machine has: name, whether it can be used, what was found, and how to get it.",
    )  # fmt: skip


@st.cache_data(ttl=600, show_spinner="Checking this machine …")
def _checks() -> list[Check]:
    return run_checks()


def make_rows(checks: list[Check]) -> pd.DataFrame:
    """Turn checks into what the table shows; a word stands beside each sign."""
    return pd.DataFrame(
        {
            "Part": [check.name for check in checks],
            "State": ["✔ usable" if check.usable else "✖ missing" for check in checks],
            "Found": [check.detail for check in checks],
            "How to get it": [check.advice for check in checks],
        }
    )
