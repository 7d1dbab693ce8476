"""One button to the study that ships with the program: opened read-only, beside one's own runs."""

import streamlit as st

from app.analysis.example_study import EXAMPLE_STUDY
from app.ui import data, messages, view
from emtc_core.errors import EmtcError
from storage.bundles.bundle_cache import cache_bundle
from storage.engine import is_read_only


def show() -> None:
    """Draw the button, where there is a study and bundles may be opened."""
    if is_read_only() or not EXAMPLE_STUDY.is_file():
        return
    pressed = st.button(
        "Open the example study",
        icon=":material/science:",
        key="open_example",
        help="EMTC, EMU and their backbone on 3s_vs_5z: curves, memories and chosen episodes, to look at and compare.",
    )
    if not pressed:
        return
    try:
        with st.spinner("Checking every row of the study …"):
            bundle = cache_bundle(EXAMPLE_STUDY)
    except EmtcError as exc:
        messages.error(exc)
        return
    data.close_url(bundle.url)
    view.enter(bundle)
    st.switch_page("../pages/compare.py", query_params=view.link({}))
