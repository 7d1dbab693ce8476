"""The pin beside a figure: one press keeps it in the notebook with a note and the exact view it came from."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import streamlit as st

from app import data, state
from app.components import export
from app.format import escape_markdown
from app.notebook.frozen import Figure, freeze
from app.notebook.view import make_view
from emtc_core.errors import EmtcError
from storage.notebook import create_entry
from storage.runs import RunRow

LONGEST_TITLE = 200
_Cited = RunRow | Sequence[RunRow] | None


def show(figure: Figure, *, key: str, page: str, run: _Cited = None, facts: Mapping[str, Any] | None = None) -> None:
    """Offer to keep the figure as it is drawn now.

    Args:
        figure: What the page shows.
        key: Unique among the figures of the page.
        page: The page's path, such as "live".
        run: The run or runs that it shows.
        facts: What the notebook's recipe needs to rebuild it beside the runs, as JSON values.
    """
    name = f"{key}-pin"
    with st.popover("Pin", icon=":material/keep:", key=name, help="Keep this figure and view in the notebook"):
        token = str(st.session_state.setdefault(f"{name}-token", uuid4().hex))
        with st.form(f"{name}-form-{token}", border=False):
            st.text_input("Title", max_chars=LONGEST_TITLE, placeholder=figure.title, key=f"{name}-title-{token}")
            st.text_area("Note", placeholder="Markdown, maths as $β = 1$", height=120, key=f"{name}-note-{token}")
            st.form_submit_button(
                "Pin to notebook",
                type="primary",
                key=f"{name}-save-{token}",
                on_click=_save,
                args=(figure, name, token, page, run, dict(facts or {})),
            )
        _report(name)


def show_with_export(
    figure: Figure, *, key: str, stem: str, page: str, run: _Cited = None, facts: Mapping[str, Any] | None = None
) -> None:
    """Draw the export button and the pin side by side."""
    with st.container(horizontal=True, width="content", gap="small"):
        export.show(figure, key=key, stem=stem)
        show(figure, key=key, page=page, run=run, facts=facts)


def _save(figure: Figure, name: str, token: str, page: str, run: _Cited, facts: dict[str, Any]) -> None:
    """Write the entry; a second press carries the same token, so it makes nothing new."""
    runs = [run] if isinstance(run, RunRow) else list(run or ())
    title = str(st.session_state.get(f"{name}-title-{token}") or figure.title)[:LONGEST_TITLE]
    try:
        made = create_entry(
            data.database(),
            title=title,
            body=str(st.session_state.get(f"{name}-note-{token}") or ""),
            run_id=runs[0].id if len(runs) == 1 else None,
            figure=freeze(figure),
            view=make_view(page=page, figure=figure.name, query=_query(runs), runs=runs, facts=facts),
            token=token,
        )
    except EmtcError as exc:
        st.session_state[f"{name}-told"] = str(exc)
        return
    st.session_state[f"{name}-told"] = made
    st.session_state[f"{name}-fresh"] = True
    st.session_state[f"{name}-token"] = uuid4().hex


def _query(runs: Sequence[RunRow]) -> dict[str, list[str]]:
    """Read the whole URL state, with the run even where the page was opened without it."""
    query = {name: st.query_params.get_all(name) for name in st.query_params}
    return query | ({state.RUN: [runs[0].id]} if len(runs) == 1 else {})


def _report(name: str) -> None:
    told = st.session_state.get(f"{name}-told")
    if isinstance(told, str):
        st.error(escape_markdown(told), icon=":material/error:")
    elif told is not None:
        if st.session_state.pop(f"{name}-fresh", False):
            st.toast(f"Pinned as entry {told} of the notebook", icon=":material/keep:")
        st.success(f"Kept as entry {told}.", icon=":material/check:")
        st.page_link(
            "../pages/notebook.py", label="Open the notebook", icon=":material/menu_book:",
            query_params={"entry": str(told)},
        )  # fmt: skip
