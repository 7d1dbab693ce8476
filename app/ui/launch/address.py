"""The Launch form's texts: kept by the session, written into the address, and read from it when the page is opened.

What is typed stands here first and in its widget second. So a page that is left and opened again shows what it showed,
an address shows another browser the same form, and a text that is no value keeps its place until it is mended.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import streamlit as st

from app.analysis.format import escape_markdown
from app.jobs import launch_request
from app.jobs.launch_request import CHOICES
from app.ui import state, view
from app.ui.in_url import Bound
from emtc_core.config.resolve import suggest
from emtc_core.errors import Fault

_FORM = "launch_form"
_ALWAYS_DRAWN = "algo"
"""A widget that the form always has; the session forgets it when another page is shown."""
_OTHERS: Final = frozenset({state.RUN, view.FROM})
"""Names in the address that are not the form's."""


def read() -> dict[str, str]:
    """Read the form's texts: from the address when the page is opened with some, else what stood here last."""
    given = launch_request.read_texts({name: st.query_params[name] for name in st.query_params})
    opened = _ALWAYS_DRAWN not in st.session_state
    if _FORM not in st.session_state or (opened and given):
        st.session_state[_FORM] = given
    texts = dict(st.session_state[_FORM])
    write(texts)
    return texts


def write(texts: dict[str, str]) -> None:
    """Put the texts into the address, and take out what is not among them."""
    for name in list(st.query_params):
        if launch_request.is_field(name) and name not in texts:
            st.query_params.pop(name, None)
    for name, text in texts.items():
        state.write(name, text)


def put(name: str, text: str | None) -> None:
    """Change one text; None is its usual value."""
    texts = dict(st.session_state.get(_FORM, {}))
    texts.pop(name, None)
    st.session_state[_FORM] = texts if text is None else texts | {name: text}


def keep_only(names: frozenset[str]) -> None:
    """Take every other text away, and what the address says beyond the form."""
    texts = st.session_state.get(_FORM, {})
    st.session_state[_FORM] = {name: text for name, text in texts.items() if name in names}
    for name in strangers():
        st.query_params.pop(name, None)


def strangers() -> list[str]:
    """List the names in the address that mean nothing here."""
    return [name for name in st.query_params if not launch_request.is_field(name) and name not in _OTHERS]


def describe_stranger(name: str) -> str:
    """What is wrong with such a name."""
    sentence = f'The address names "{name[:60]}", which this form does not have.'
    return f"{sentence} {suggest(name, CHOICES)}".rstrip()


def bind(
    name: str,
    key: str,
    shown: object,
    *,
    usual: str = "",
    write: Callable[[Any], str] = str,
    then: Callable[[str], None] | None = None,
) -> Bound:
    """Bind a widget to a field.

    Args:
        name: The field.
        key: The widget's.
        shown: What the widget must show.
        usual: The text that leaves the address bare.
        write: The widget's value as text.
        then: Called with the new text.
    """
    if key not in st.session_state or st.session_state[key] != shown:
        st.session_state[key] = shown  # only then: what is typed and not sent yet would go

    def changed() -> None:
        value = st.session_state[key]
        text = "" if value is None else write(value).strip()
        put(name, None if text in ("", usual) else text)
        if then:
            then(text)

    return Bound(key=key, on_change=changed)


def mark(faults: Mapping[str, Fault], name: str) -> None:
    """What is wrong with a field, under it; the page's style marks the field above."""
    if fault := faults.get(name):
        with st.container(key=f"wrong-{name.replace('.', '-')}"):
            told = launch_request.describe_field_fault(name, fault)
            st.markdown(f":red[:material/error: {escape_markdown(told)}]")
