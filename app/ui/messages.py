"""What the pages say when there is nothing to show or something failed: one sentence and one next step."""

import logging
from collections.abc import Generator
from contextlib import contextmanager

import streamlit as st

from app.analysis.format import escape_markdown
from app.ui import view
from emtc_core.errors import DataRemovedError, EmtcError
from storage.engine import is_read_only
from storage.guards import hide_passwords

_log = logging.getLogger(__name__)

READ_ONLY = "This server only shows: nothing can be started, stopped, changed or deleted here."
NO_RUNS = "There is no run yet."
START_DEMO_HINT = "Press *Start the demo run*: it needs no network and shows its first curve in seconds."


def error(exc: BaseException) -> None:
    """Show a failure: a deliberate one in its own words, a strange one by its kind; the log has the rest."""
    if isinstance(exc, DataRemovedError):
        st.info(escape_markdown(str(exc)), icon=":material/content_cut:")
        return
    if isinstance(exc, EmtcError):
        st.error(escape_markdown(hide_passwords(str(exc))), icon=":material/error:")
        return
    _log.exception("a page failed", exc_info=exc)
    st.error(
        f"Something unexpected happened ({type(exc).__name__}). The log of the app has the details; "
        "reload the page to try again.",
        icon=":material/error:",
    )


def may_act() -> bool:
    """Whether buttons that start, stop, change or delete may be pressed; storage refuses them anyway if not."""
    return not is_read_only() and view.bundle() is None


def tell_read_only() -> None:
    """Show once, at the top, that nothing can be changed."""
    if is_read_only():
        st.info(READ_ONLY, icon=":material/lock:")


@contextmanager
def guarded() -> Generator[None]:
    """Turn an exception of what stands inside into its message; Streamlit's own signals pass."""
    try:
        yield
    except Exception as exc:  # the last border before the screen: nobody above could say it better
        error(exc)


def empty(what: str, next_step: str, *, page: str | None = None, label: str = "") -> None:
    """Show that something does not exist yet, why, and what to do."""
    with st.container(border=True):
        st.markdown(f"**{what}**")
        st.markdown(next_step)
        if page:
            st.page_link(page, label=label, icon=":material/arrow_forward:")
