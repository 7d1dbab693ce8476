"""The frozen figure of an entry: curves on the canvas of the pages, everything else as an image."""

import streamlit as st

from app.analysis.format import escape_markdown
from app.figures.kinds.chart import Chart
from app.figures.render.export import export_figure
from app.figures.theme import Mode
from app.notebook.frozen import Figure, note_of, thaw
from app.ui import data, messages
from app.ui.widgets import curves
from emtc_core.errors import EmtcError
from storage.notebook import get_figure


def show(entry_id: int) -> None:
    """Draw the figure with its caption; one that this version cannot read says so in its place."""
    try:
        figure, note = _frozen(data.database_url(), entry_id)
        if isinstance(figure, Chart):
            height = 130 if len(figure.panels) > 2 else 220
            curves.show(figure, key=f"entry-{entry_id}-figure", x_name=_short(figure.x_label), panel_height=height)
        else:
            st.image(_picture(data.database_url(), entry_id, _mode()), width=760, alt=_alt(figure))
    except EmtcError as exc:
        messages.error(exc)
        return
    st.caption(" ".join(escape_markdown(part) for part in (figure.caption, note) if part))


@st.cache_data(max_entries=32, show_spinner=False)
def _frozen(url: str, entry_id: int) -> tuple[Figure, str]:
    """An entry's figure never changes, and its id is never given again."""
    frozen = get_figure(data.database(), entry_id) or {}
    return thaw(frozen), note_of(frozen)


@st.cache_data(max_entries=64, show_spinner="Drawing …")
def _picture(url: str, entry_id: int, mode: Mode) -> bytes:
    return export_figure(_frozen(url, entry_id)[0], "png", mode=mode)


def _mode() -> Mode:
    return "dark" if st.context.theme.type == "dark" else "light"


def _short(x_label: str) -> str:
    return "env step" if "env step" in x_label else x_label.partition(",")[0]


def _alt(figure: Figure) -> str:
    return figure.description
