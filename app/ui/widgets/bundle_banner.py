"""On every page: whose runs these are, where they are not one's own, and the way back."""

import streamlit as st

from app.analysis.format import escape_markdown
from app.ui import view


def settle() -> None:
    """Decide whose runs this session looks at, before anything is read."""
    missing = view.settle()
    if missing is not None:
        st.warning(
            f"This link shows a bundle that is not open here ({escape_markdown(missing)}): these are your own runs. "
            "Open the file on Home, then follow the link again.",
            icon=":material/link_off:",
        )


def show() -> None:
    """Say that the pages show a bundle, which nobody can change."""
    bundle = view.bundle()
    if bundle is None:
        return
    with st.container(border=True, horizontal=True, vertical_alignment="center", key="bundle_banner"):
        st.markdown(
            f":material/lock: **From {escape_markdown(bundle.name)}, read-only.** These are not your runs; "
            "nothing about them can be started or changed.",
            width="stretch",
        )
        st.button("Back to my own runs", icon=":material/undo:", key="leave_bundle", on_click=view.enter, args=(None,))
