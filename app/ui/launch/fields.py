"""The fields of the Launch form: their texts in the session and in the URL, and their widgets.

The form is a dict: field → text. A field is a choice of the form, for example the algorithm, or a setting by its
dotted key. Widgets are set from these texts. So a page that is opened again shows the same texts, a URL shows another
browser the same form, and an invalid text stays in its field until it is corrected.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import streamlit as st

from app.analysis.format import escape_markdown
from app.jobs import launch_request
from app.jobs.launch_request import DEFAULTS, Request
from app.ui.page_state import Bound, Fields
from app.ui.widgets import config_form
from emtc_core.config.values import FieldInfo, format_argument
from emtc_core.errors import Fault

_FORM: Final = "launch_form"
"""Key of Streamlit's session state: field → text."""
_PAGE_MARKER: Final = "algo"
"""Key of a widget that the form always has. Streamlit deletes it when another page is shown."""
_FIELDS: Final = Fields("launch", launch_request.is_field)
"""The URL parameters of all fields."""
_PER_ROW: Final = 3
"""Number of settings next to each other."""


def read_texts() -> dict[str, str]:
    """Read the texts from the URL if the page is opened with fields in its URL, else from the session."""
    url_texts = launch_request.select_texts(_FIELDS.read())
    is_opened = _PAGE_MARKER not in st.session_state
    if _FORM not in st.session_state or (is_opened and url_texts):
        st.session_state[_FORM] = url_texts
    texts = dict(st.session_state[_FORM])
    _FIELDS.write(texts)
    return texts


def set_text(name: str, text: str | None) -> None:
    """Set the text of one field. None removes it, so that the field has its default."""
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


def bind(
    name: str,
    key: str,
    value: object,
    *,
    default: str = "",
    write: Callable[[Any], str] = str,
    on_change: Callable[[str], None] | None = None,
) -> Bound:
    """Bind a widget to a field.

    Args:
        name: The field.
        key: The widget's key.
        value: The value that the widget must show.
        default: The text that is not written into the URL.
        write: Writes the widget's value as text.
        on_change: Called with the new text.
    """
    if key not in st.session_state or st.session_state[key] != value:
        st.session_state[key] = value  # only if needed: an assignment deletes text that is typed but not sent yet

    def changed() -> None:
        new_value = st.session_state[key]
        text = "" if new_value is None else write(new_value).strip()
        set_text(name, None if text in ("", default) else text)
        if on_change:
            on_change(text)

    return Bound(key=key, on_change=changed)


def show_fault(faults: Mapping[str, Fault], name: str) -> None:
    """Draw the fault of a field, if it has one. The page's style sheet marks the field above it."""
    if fault := faults.get(name):
        with st.container(key=f"wrong-{name.replace('.', '-')}"):
            text = launch_request.describe_field_fault(name, fault)
            st.markdown(f":red[:material/error: {escape_markdown(text)}]")


def show_choice(
    label: str,
    name: str,
    options: list[str],
    request: Request,
    *,
    key: str,
    help_text: str,
    on_change: Callable[[str], None] | None = None,
    format_option: Callable[[str], str] = str,
) -> None:
    """Draw a choice. If the URL names an option that does not exist, nothing is selected and the fault is drawn.

    Args:
        label: Label of the widget.
        name: The field.
        options: The options. The first one is the default, unless the form has another default.
        request: The checked form.
        key: The widget's key.
        help_text: Tooltip.
        on_change: Called with the new text.
        format_option: Label of an option.
    """
    is_invalid = name in request.faults
    value = None if is_invalid else request.choices[name]
    bound = bind(name, key, value, default=DEFAULTS.get(name, options[0]), on_change=on_change)
    index = None if is_invalid else 0  # None: nothing is selected; otherwise `bind` has set the value
    st.selectbox(label, options, index=index, **bound, help=help_text, format_func=format_option)
    show_fault(request.faults, name)


def show_text(
    label: str,
    name: str,
    text: str,
    request: Request,
    *,
    key: str,
    help_text: str,
    default: str = "",
    placeholder: str = "",
) -> None:
    """Draw a text field and its fault.

    Args:
        label: Label of the widget.
        name: The field.
        text: Its text.
        request: The checked form.
        key: The widget's key.
        help_text: Tooltip.
        default: The text that is not written into the URL.
        placeholder: Shown in the empty field instead of the default.
    """
    st.text_input(
        label, **bind(name, key, text, default=default), help=help_text, placeholder=placeholder or default,
        max_chars=launch_request.MAX_CHARACTERS,
    )  # fmt: skip
    show_fault(request.faults, name)


def show_settings(
    settings: Sequence[FieldInfo],
    texts: Mapping[str, str],
    request: Request,
    faults: Mapping[str, Fault],
    unused: Collection[str],
) -> None:
    """Draw one widget for each setting, and its fault.

    Args:
        settings: The settings.
        texts: Field → text.
        request: The checked form.
        faults: Field → fault.
        unused: Keys of settings without effect, because of the value of another one. Their widgets are disabled.
    """
    for start in range(0, len(settings), _PER_ROW):
        columns = st.columns(_PER_ROW, vertical_alignment="top")
        for column, info in zip(columns, settings[start : start + _PER_ROW], strict=False):
            with column:
                default = format_argument(request.defaults.get(info.key, info.default))
                _show_setting(info, default, texts.get(info.key), is_disabled=info.key in unused)
                show_fault(faults, info.key)


def _show_setting(info: FieldInfo, default: str, text: str | None, *, is_disabled: bool) -> None:
    """Draw the widget of a setting. Numbers are text fields.

    Streamlit's number field does not send a value that is out of bounds, so the page could not show the fault.
    """
    label = config_form.write_label(info)
    help_text = config_form.write_help(info)
    if text is not None and text != default:
        label = f":primary[●] {label} :gray[· default {escape_markdown(default or 'not set')}]"
    text = default if text is None else text
    key = f"set-{info.key}"
    if info.type == "bool":
        is_on = text.lower() == "true"
        bound = bind(info.key, key, is_on, default=default, write=lambda value: str(value).lower())
        st.toggle(label, **bound, help=help_text, disabled=is_disabled)
    elif info.type == "choice":
        is_valid = text in info.choices
        bound = bind(info.key, key, text if is_valid else None, default=default)
        index = 0 if is_valid else None  # None: nothing is selected; otherwise `bind` has set the value
        st.selectbox(label, info.choices, index=index, **bound, help=help_text, disabled=is_disabled)
    else:
        bound = bind(info.key, key, text, default=default)
        st.text_input(label, **bound, help=help_text, placeholder=default or "not set", disabled=is_disabled)
