"""The row of tabs of a group of pages (`app.navigation.PageGroup`). The tabs are links between the pages."""

import streamlit as st

from app.navigation import find_group
from app.ui import view
from app.ui.page_state import RUN
from app.ui.page_url import get_page


def show() -> None:
    """Draw the tabs of the group of this page. The tab of this page is its title, the other tabs are links."""
    page = get_page()
    group = find_group(page)
    if group is None:
        raise ValueError(f"the page {page!r} is in no group of app.navigation")
    parameters = keep_run()
    with st.container(key="page_tabs", horizontal=True, vertical_alignment="center", gap="small"):
        for tab in group.pages:
            if tab.name == page:
                st.title(tab.title, anchor=False, width="content")
            else:
                st.page_link(f"../pages/{tab.name}.py", label=tab.title, icon=tab.icon, query_params=parameters)


def keep_run() -> dict[str, str]:
    """Return the URL parameters of a link that keeps the shown run and the opened bundle (a file with runs)."""
    return view.add_bundle({RUN.name: RUN.read()} if RUN.is_in_url else {})
