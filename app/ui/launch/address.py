"""The texts of the Launch form: stored in the session, written into the URL, and read from the URL when a page opens.

The form is a map from field to text. Widgets are set from these texts. So a page that is opened again shows the same
texts, a URL shows another browser the same form, and an invalid text stays in its field until it is corrected.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import streamlit as st

from app.analysis.format import escape_markdown
from app.jobs import launch_request
from app.jobs.launch_request import CHOICES
from app.ui.page_state import Bound, Fields
from emtc_core.config.resolve import suggest
from emtc_core.errors import Fault

_FORM = "launch_form"
_PAGE_MARKER = "algo"
"""Key of a widget that the form always has. Streamlit deletes it when another page is shown."""
_FIELDS: Final = Fields("launch", launch_request.is_field)


def read() -> dict[str, str]:
    """Read the texts from the URL if the page is opened with some, else from the session."""
    url_texts = launch_request.read_texts(_FIELDS.read())
    is_opened = _PAGE_MARKER not in st.session_state
    if _FORM not in st.session_state or (is_opened and url_texts):
        st.session_state[_FORM] = url_texts
    texts = dict(st.session_state[_FORM])
    _FIELDS.write(texts)
    return texts


def put(name: str, text: str | None) -> None:
    """Set the text of one field; None sets the field to its default."""
    texts = dict(st.session_state.get(_FORM, {}))
    texts.pop(name, None)
    st.session_state[_FORM] = texts if text is None else texts | {name: text}


def keep_only(names: frozenset[str]) -> None:
    """Remove the texts of all other fields, and the URL parameters that the form does not have."""
    texts = st.session_state.get(_FORM, {})
    st.session_state[_FORM] = {name: text for name, text in texts.items() if name in names}
    _FIELDS.remove_undeclared()


def list_unknown_parameters() -> list[str]:
    """List the URL parameters that the form does not have."""
    return _FIELDS.list_undeclared()


def describe_unknown_parameter(name: str) -> str:
    """Write that the form does not have this URL parameter, and suggest a similar one."""
    sentence = f'The form does not have the URL parameter "{name[:60]}".'
    return f"{sentence} {suggest(name, CHOICES)}".rstrip()


def bind(
    name: str,
    key: str,
    value: object,
    *,
    default: str = "",
    write: Callable[[Any], str] = str,
    on_text: Callable[[str], None] | None = None,
) -> Bound:
    """Bind a widget to a field.

    Args:
        name: The field.
        key: The widget's key.
        value: The value that the widget must show.
        default: The text that is not written into the URL.
        write: Writes the widget's value as text.
        on_text: Called with the new text.
    """
    if key not in st.session_state or st.session_state[key] != value:
        st.session_state[key] = value  # an assignment deletes text that is typed but not sent yet

    def changed() -> None:
        new_value = st.session_state[key]
        text = "" if new_value is None else write(new_value).strip()
        put(name, None if text in ("", default) else text)
        if on_text:
            on_text(text)

    return Bound(key=key, on_change=changed)


def mark(faults: Mapping[str, Fault], name: str) -> None:
    """Draw the fault of a field, if it has one. The page's style sheet marks the field above it."""
    if fault := faults.get(name):
        with st.container(key=f"wrong-{name.replace('.', '-')}"):
            text = launch_request.describe_field_fault(name, fault)
            st.markdown(f":red[:material/error: {escape_markdown(text)}]")
