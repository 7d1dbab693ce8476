"""One legend for all panels of a comparison; what the reader hides stands in the URL."""

import streamlit as st
from streamlit.components.v2 import component

from app.analysis.series import Comparison
from app.figures.assets import read_asset, read_script
from app.figures.learning_curves import style_comparison
from app.ui import state

HIDDEN = "hide"

_legend = component(
    "emtc_lab_legend",
    html='<div class="legend" role="group" aria-label="Lines"></div>',
    css=read_asset("legend.css"),
    js=read_script("legend.js"),
)


def show(comparison: Comparison, *, key: str) -> Comparison:
    """Draw a button for each method and return the comparison without the hidden ones.

    A press hides a line, resting on its button lets it stand out in every panel.
    """
    styles = style_comparison(comparison)
    hidden = set(state.read_list(HIDDEN, separator=""))
    items = [
        {
            "name": method,
            "label": comparison.name_line(method),
            "color": styles[method].color,
            "dash": list(styles[method].dash or ()) or None,
            "marker": styles[method].marker or None,
            "hidden": method in hidden,
        }
        for method in comparison.methods
    ]

    def toggled() -> None:
        heard = st.session_state.get(key)
        name = heard.get("toggle") if heard else None
        if name:
            state.write_list(HIDDEN, sorted(hidden ^ {str(name)}), separator="")

    _legend(key=key, data={"items": items}, on_toggle_change=toggled)
    return comparison.without(hidden)
