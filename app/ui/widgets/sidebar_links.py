"""The links to the pages in the sidebar. One link opens the last shown page of a group (`app.navigation.PageGroup`).

Streamlit's navigation is hidden: its links have no parameters, it has no groups, and the Tab key reaches it before the
picker of the run.
"""

from typing import Final

import streamlit as st

from app.navigation import NAVIGATION, PageGroup, find_group
from app.ui.page_url import get_page
from app.ui.widgets import page_tabs

_LAST_PAGES: Final = "last_pages"
"""Key of Streamlit's session state: title of a group → name of its page that was shown last."""


def show() -> None:
    """Draw the links. Streamlit highlights the link to the current page."""
    page = get_page()
    last_pages: dict[str, str] = st.session_state.setdefault(_LAST_PAGES, {})
    group = find_group(page)
    if group is not None:
        last_pages[group.title] = page
    parameters = page_tabs.keep_run()
    with st.sidebar.container(key="sidebar_links", gap=None):
        for entry in NAVIGATION:
            name = last_pages.get(entry.title, entry.default) if isinstance(entry, PageGroup) else entry.name
            st.page_link(
                f"../pages/{name}.py", label=entry.title, icon=entry.icon, width="stretch", query_params=parameters
            )
