"""One legend for all panels of a comparison; what the reader hides stands in the URL."""

from collections.abc import Sequence

import streamlit as st
from streamlit.components.v2 import component

from app import state
from app.comparison import Group, name_line
from app.components.assets import read_asset
from app.theme import style_methods

HIDDEN = "hide"

_legend = component(
    "emtc_lab_legend",
    html='<div class="legend" role="group" aria-label="Lines"></div>',
    css=read_asset("legend.css"),
    js=read_asset("legend.js"),
)


def show(groups: Sequence[Group], *, key: str) -> list[Group]:
    """Draw a button for each method and return the groups that are not hidden."""
    methods = list(dict.fromkeys(group.variant.method for group in groups))
    styles = style_methods(methods)
    hidden = set(state.read_list(HIDDEN, separator=""))
    items = [
        {
            "name": method,
            "label": name_line(groups, method),
            "color": styles[method][0],
            "dash": list(styles[method][1] or ()) or None,
            "hidden": method in hidden,
        }
        for method in methods
    ]

    def toggled() -> None:
        heard = st.session_state.get(key)
        name = heard.get("toggle") if heard else None
        if name:
            state.write_list(HIDDEN, sorted(hidden ^ {str(name)}), separator="")

    _legend(key=key, data={"items": items}, on_toggle_change=toggled)
    return [group for group in groups if group.variant.method not in hidden]
