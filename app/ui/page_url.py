"""The URL of the page that is drawn, and notices on top of the page about values in the URL that were not found.

Only this module reads and writes the URL. The parameters of the pages are declared with `page_state`.
"""

from collections.abc import Iterable
from time import monotonic
from typing import Final, NamedTuple

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from app.analysis.format import escape_markdown
from app.navigation import find_name

OPENED_BOX: Final = "opened_box"
"""Key of Streamlit's session state: the key of the box (`app.ui.widgets.box`) that was opened last on this page."""
_MAX_CHARACTERS_IN_NOTICE: Final = 60
_CONFIRMED_AFTER_S: Final = 2.0
"""After this time [s], the browser is assumed to have a change. `read_texts` then uses the URL of the request."""
# Keys of Streamlit's session state:
_PAGE: Final = "page_url_page"
"""The name of the page that is drawn."""
_NOTICE_CONTAINER: Final = "page_url_notice_container"
"""The container of the notices while the page is drawn; later None."""
_NOTICES: Final = "page_url_notices"
"""The texts of the notices."""
_QUERY: Final = "page_url_query"
"""Parameter → its texts, as the browser shows them."""
_CHANGES: Final = "page_url_changes"
"""Parameter → its last `_Change`."""


class _Change(NamedTuple):
    """The texts of a parameter before and after a change."""

    before: list[str]
    after: list[str]
    until: float
    """Until this monotonic time [s], a request may still contain the URL from before the change."""


def take_unknown_path() -> str | None:
    """Return the path in the URL if no page has it, else None. Call this before `st.navigation`, which then opens Home.

    Streamlit would open Home, too, with a dialog that does not name the path.
    """
    context = get_script_run_ctx()
    path = context.pages_manager.intended_page_name if context else None
    if context is None or not path or find_name(path) is not None:
        return None
    context.pages_manager.set_script_intent("", "")
    return path


def begin_page(page: str) -> None:
    """Begin to draw a page. Call this once per rerun, where the notices are to be drawn.

    Args:
        page: Name of the page.
    """
    st.session_state[_CHANGES] = {}
    query = _read_query()
    if get_page() == page and query != st.session_state.get(_QUERY):
        st.query_params.from_dict(query)  # after a link to the same page, the browser still shows the former URL
    st.session_state[_QUERY] = query
    if get_page() != page:
        st.session_state[_NOTICES] = []
        st.session_state.pop(OPENED_BOX, None)
    st.session_state[_PAGE] = page
    st.session_state[_NOTICE_CONTAINER] = st.container()
    # If the last rerun was interrupted before `finish_page`, its notices are still stored.
    for notice in st.session_state.setdefault(_NOTICES, []):
        _show_notice(notice)


def finish_page() -> None:
    """End the drawing of the page. A fragment that is executed later draws its notices inside the fragment."""
    st.session_state[_NOTICES] = []
    st.session_state[_NOTICE_CONTAINER] = None


def get_page() -> str:
    """Return the name of the page that is drawn now; an empty text outside of the app."""
    return st.session_state.get(_PAGE, "")


def list_names() -> list[str]:
    """List the names of all parameters in the URL."""
    return list(st.query_params)


def read_others(names: Iterable[str]) -> dict[str, str]:
    """Return all parameters in the URL except these, for a link to the same page."""
    excluded = set(names)
    return {name: st.query_params[name] for name in st.query_params if name not in excluded}


def clear() -> None:
    """Remove all parameters from the URL."""
    st.query_params.clear()
    st.session_state[_QUERY] = {}


def read_texts(name: str) -> list[str]:
    """Read the texts of a parameter.

    A fragment with a timer may change the URL and be executed again before the browser has received the change. The
    request of this execution contains the old URL. It is ignored, and the changed texts are returned.
    """
    texts = st.query_params.get_all(name)
    change: _Change | None = st.session_state.get(_CHANGES, {}).get(name)
    if change is not None and texts == change.before and monotonic() < change.until:
        return change.after
    return texts


def write_texts(name: str, texts: list[str]) -> None:
    """Write the texts of a parameter. Several texts repeat the parameter, and an empty list removes it."""
    if texts == read_texts(name):
        return
    before = st.query_params.get_all(name)
    if texts:
        st.query_params[name] = texts if len(texts) > 1 else texts[0]
    else:
        st.query_params.pop(name, None)
    st.session_state[_QUERY] = _read_query()
    change = _Change(before, texts, monotonic() + _CONFIRMED_AFTER_S)
    st.session_state.setdefault(_CHANGES, {})[name] = change


def report_unknown_path(path: str) -> None:
    """State on the page that no page has this path, and that Home is shown instead."""
    _add_notice(f'There is no page "/{_shorten(path)}". Shown instead: Home.')


def report_missing(name: str, text: str, replacement: str) -> None:
    """State on the page that a value is invalid or does not exist, and what is shown instead."""
    instead = f"Shown instead: {replacement}." if replacement else "It is ignored."
    _add_notice(f'The address contains {name} = "{_shorten(text)}", which was not found. {instead}')


def _read_query() -> dict[str, list[str]]:
    return {name: st.query_params.get_all(name) for name in st.query_params}


def _shorten(text: str) -> str:
    return f"{text[:_MAX_CHARACTERS_IN_NOTICE]}…" if len(text) > _MAX_CHARACTERS_IN_NOTICE else text


def _add_notice(text: str) -> None:
    notice = escape_markdown(text)
    st.session_state.setdefault(_NOTICES, []).append(notice)
    _show_notice(notice)


def _show_notice(notice: str) -> None:
    container = st.session_state.get(_NOTICE_CONTAINER) or st
    container.warning(notice, icon=":material/link_off:")
