# ruff: noqa: N999  (the file name is part of the start command)
"""Entry point of the app, started with `streamlit run app/Home.py`: page setup, navigation and run picker."""

import sys
from pathlib import Path

import streamlit as st

ROOT = Path(__file__).resolve().parent.parent
# The project may not be installed, and the current folder may contain another app.py: find the package `app` of ROOT.
if str(ROOT) not in sys.path[:2]:
    sys.path.insert(1, str(ROOT))  # after Streamlit's own entry, the folder of this file

from app.figures.assets import read_asset  # noqa: E402
from app.navigation import HOME, NAVIGATION, find_name, get_path  # noqa: E402
from app.ui import data, garbage, login, messages, page_state, run_data  # noqa: E402
from app.ui.widgets import bundle_banner, run_picker  # noqa: E402
from emtc_core.errors import EmtcError  # noqa: E402

ICON = str(ROOT / "app" / "figures" / "assets" / "icon.png")  # a font icon would be loaded from another host
st.set_page_config(page_title="EMTC Lab", page_icon=ICON, layout="wide")
st.html(f"<style>{read_asset('page.css')}</style>")
login.require()
page = st.navigation(
    {
        section: [
            st.Page(
                f"../pages/{entry.name}.py",
                title=entry.title,
                icon=entry.icon,
                url_path=get_path(entry.name) or None,
                default=entry.name == HOME,
            )
            for entry in entries
        ]
        for section, entries in NAVIGATION.items()
    },
    expanded=True,  # Streamlit folds a navigation of more than twelve pages
)
page_name = find_name(page.url_path)
page_state.open_page(page_name)
try:
    bundle_banner.select_bundle()
    data.database().check_file()  # raises also if the database cannot be opened
    run_picker.show(page_name)
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
page_state.finish_page()
