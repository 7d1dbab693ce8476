# ruff: noqa: N999  (the file name is part of the start command)
"""Entry point of the app, started with `streamlit run app/Home.py`: the server, page setup, navigation and run picker.

Streamlit imports this file once and serves the variable `server`. It runs the file as `__main__` for each page.
"""

import sys
from pathlib import Path

import streamlit as st

ROOT = Path(__file__).resolve().parent.parent
# The project may not be installed, and the current folder may contain another app.py: find the package `app` of ROOT.
if str(ROOT) not in sys.path[:2]:
    sys.path.insert(1, str(ROOT))  # after Streamlit's own entry, the folder of this file

ICON = str(ROOT / "app" / "figures" / "assets" / "icon.png")  # a font icon would be loaded from another host


def show_page() -> None:
    """Draw the page of the address. The imports need the runtime of the server, because they define caches."""
    from app.figures.assets import read_asset
    from app.ui import data, garbage, login, messages, run_data
    from app.ui.widgets import bundle_banner, run_picker
    from emtc_core.errors import EmtcError

    st.set_page_config(page_title="EMTC Lab", page_icon=ICON, layout="wide")
    st.html(f"<style>{read_asset('page.css')}</style>")
    login.require()
    page = st.navigation(
        {
            "": [st.Page("../pages/home.py", title="Home", icon=":material/home:", default=True)],
            "Runs": [
                st.Page("../pages/launch.py", title="Launch", icon=":material/rocket_launch:"),
                st.Page("../pages/run.py", title="Run", icon=":material/description:"),
                st.Page("../pages/live.py", title="Live", icon=":material/monitoring:"),
                st.Page("../pages/memory.py", title="Memory", icon=":material/bubble_chart:"),
                st.Page("../pages/replay.py", title="Replay", icon=":material/smart_display:"),
            ],
            "Study": [
                st.Page("../pages/findings.py", title="Findings", icon=":material/fact_check:"),
                st.Page("../pages/compare.py", title="Compare", icon=":material/stacked_line_chart:"),
                st.Page("../pages/sweeps.py", title="Sweeps", icon=":material/grid_on:"),
                st.Page("../pages/notebook.py", title="Notebook", icon=":material/menu_book:"),
                st.Page("../pages/sql.py", title="SQL", icon=":material/database:"),
            ],
            "Maintenance": [
                st.Page("../pages/disk.py", title="Storage", icon=":material/hard_drive:", url_path="storage"),
                st.Page("../pages/health.py", title="Health", icon=":material/notifications:"),
            ],
            "Learn": [
                st.Page("../pages/method.py", title="Method", icon=":material/function:", url_path="method"),
                st.Page("../pages/guide.py", title="Guide", icon=":material/help:", url_path="guide"),
            ],
        },
        expanded=True,  # Streamlit folds a navigation of more than twelve pages
    )
    try:
        bundle_banner.select_bundle()
        data.database().check_file()  # raises also if the database cannot be opened
        run_picker.show(page.url_path)
    except EmtcError as exc:
        messages.error(exc)
        st.markdown("Set the environment variable `EMTC_DB` to another database and restart the app.")
        st.stop()
    garbage.freeze_imported_modules()
    run_data.compile_ahead(data.app_url())
    login.show_account()
    messages.show_read_only_notice()
    bundle_banner.show()
    bundle_banner.show_alerts()
    page.run()


if __name__ == "__main__":
    show_page()
else:
    from app.ui import access

    server = st.App(__file__, middleware=[access.make_middleware()], lifespan=access.announce)
