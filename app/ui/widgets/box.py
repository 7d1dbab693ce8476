"""A box: a popover whose content is drawn only after it was opened, because the content is slow to draw.

`st.popover(on_change=…)` cannot be used for this. If another page is opened while such a popover is open, the browser
sends the change of the page and then the closing of the popover, with the values of the former page. The new page then
stays empty. A box sends only its opening, with a small component in the browser.
"""

from functools import partial
from typing import Any, Final, NamedTuple

import streamlit as st
from streamlit.components.v2 import component
from streamlit.delta_generator import DeltaGenerator

from app.figures.assets import read_asset
from app.ui.page_url import OPENED_BOX

_opener: Final = component("emtc_lab_box", js=read_asset("box.js"))


class Box(NamedTuple):
    """The container of the content, and whether to draw the content."""

    container: DeltaGenerator
    is_opened: bool


def show(label: str, *, key: str, **options: Any) -> Box:
    """Draw the button that opens the box.

    `is_opened` stays true after the user closes the box, until another box or another page is opened.

    Args:
        label: Text of the button.
        key: Key of the popover, unique on the page. If the key of a box changes, the box is closed.
        options: Further arguments of `st.popover`.
    """
    is_opened = st.session_state.get(OPENED_BOX) == key
    container = st.popover(label, key=key, **options)
    with container:
        _opener(key=f"opener-{key}", data={"isDrawn": is_opened}, on_opened_change=partial(_set_opened, key))
    return Box(container, is_opened)


def _set_opened(key: str) -> None:
    st.session_state[OPENED_BOX] = key
