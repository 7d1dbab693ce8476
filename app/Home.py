# ruff: noqa: N999  (the file name is part of the start command)
"""Entry point of the app, started with `streamlit run app/Home.py`: the server, page setup, navigation and run picker.

Streamlit executes this file in two ways. It imports it once as a module and serves the application `server`. It then
runs it as `__main__` at each rerun of a page.
"""

import sys
from pathlib import Path

import streamlit as st

ROOT = Path(__file__).resolve().parent.parent
# The project may not be installed, and the current folder may contain another app.py: find the package `app` of ROOT.
if str(ROOT) not in sys.path[:2]:
    sys.path.insert(1, str(ROOT))  # after Streamlit's own entry, the folder of this file

ICON = str(ROOT / "app" / "figures" / "assets" / "icon.png")  # a font icon would be loaded from another host
SIDEBAR_WIDTH = 240  # [pixels] until the user changes it; a comment, because Streamlit draws a bare string on the page


def show_page() -> None:
    """Draw the page that the URL names."""
    # Imported here, not above: these modules define Streamlit caches, which need the running server.
    from app.figures.assets import read_asset
    from app.navigation import HOME, PAGES, find_name, get_path
    from app.ui import data, garbage, login, messages, page_url, server_warmup
    from app.ui.widgets import bundle_banner, files, run_picker, sidebar_links

    st.set_page_config(page_title="EMTC Lab", page_icon=ICON, layout="wide", initial_sidebar_state=SIDEBAR_WIDTH)
    style, script = read_asset("page.css"), read_asset("page.js")
    with st.container(key="page_script"):
        st.html(f"<style>{style}</style><script>{script}</script>", unsafe_allow_javascript=True)
    login.require_login()
    unknown_path = page_url.take_unknown_path()
    page = st.navigation(
        [
            st.Page(
                f"../pages/{entry.name}.py",
                title=entry.title,
                icon=entry.icon,
                url_path=get_path(entry.name) or None,
                default=entry.name == HOME,
            )
            for entry in PAGES.values()
        ],
        position="hidden",  # `sidebar_links` draws the links
    )
    page_name = find_name(page.url_path) or HOME
    page_url.begin_page(page_name)
    if unknown_path is not None:
        page_url.report_unknown_path(unknown_path)
    try:
        bundle_banner.select_bundle()  # a bundle is a file with exported runs, opened read-only instead of the database
        data.database().check_file()  # raises also if the database cannot be opened
        run_picker.show(page_name)
        sidebar_links.show()
    except Exception as exc:  # top-level exception handler, also for data that cannot be read
        messages.error(exc)
        st.markdown("Set the environment variable `EMTC_DB` to another database and restart the app.")
        st.stop()
    server_warmup.start_once(data.app_url())
    login.show_account()
    messages.show_read_only_notice()
    bundle_banner.show()
    bundle_banner.show_alerts()
    files.add_download_fragment()
    with messages.guarded():
        page.run()
    page_url.finish_page()
    garbage.freeze_imported_modules()  # shortens later garbage collections


if __name__ == "__main__":
    show_page()
else:
    from app.ui import access

    server = st.App(__file__, middleware=[access.make_middleware()], lifespan=access.print_address_at_start)
