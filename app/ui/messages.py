"""Messages of the pages for an error, for a page without data, and for a read-only server."""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial

import streamlit as st

from app.analysis.format import escape_markdown
from app.ui import view
from emtc_core.errors import DataRemovedError, EmtcError
from storage.engine import is_read_only
from storage.guards import hide_passwords

READ_ONLY = "This server is read-only: runs cannot be started, stopped, changed or deleted here."
NO_RUNS = "There is no run yet."
BUNDLE_READ_ONLY = "The runs of a bundle are read-only."
START_DEMO_HINT = "Press *Start the demo run*. It needs no network and shows its first curve within seconds."
_log = logging.getLogger(__name__)


def error(exc: BaseException, *, as_toast: bool = False) -> None:
    """Draw an error message on the page: the text of an `EmtcError`, or the type of any other exception.

    The traceback of any other exception is written to the log.

    Args:
        exc: The exception.
        as_toast: Whether to draw the message in the corner of the window instead of in the page.
    """
    draw = partial(st.toast, duration="long") if as_toast else st.error
    if isinstance(exc, DataRemovedError) and not as_toast:
        st.info(escape_markdown(str(exc)), icon=":material/content_cut:")
        return
    if isinstance(exc, EmtcError):
        draw(escape_markdown(hide_passwords(str(exc))), icon=":material/error:")
        return
    _log.exception("a page failed", exc_info=exc)
    draw(
        f"The data cannot be read, or the program has an error ({type(exc).__name__}). The app's log has the details. "
        "Reload the page to try again.",
        icon=":material/error:",
    )


def may_act() -> bool:
    """Return whether this session can write: the server is not read-only, and no bundle (a file with runs) is shown.

    If not, the pages disable the buttons that start, stop, change or delete, and `storage` refuses these actions.
    """
    return not is_read_only() and view.get_bundle() is None


def get_read_only_reason() -> str | None:
    """Return why this session cannot write, for the tooltip of a disabled button; None if it can (`may_act`)."""
    if may_act():
        return None
    return READ_ONLY if view.get_bundle() is None else BUNDLE_READ_ONLY


def show_read_only_notice() -> None:
    """Draw the notice of a read-only server."""
    if is_read_only():
        st.info(READ_ONLY, icon=":material/lock:")


@contextmanager
def guarded() -> Generator[None]:
    """Catch an exception of the block and draw its message, so that the other parts of the page are drawn.

    Streamlit's exceptions for a stop or rerun of the page are not caught: they derive from `BaseException`.
    """
    try:
        yield
    except Exception as exc:  # top-level exception handler of a part of a page
        error(exc)


def empty(message: str, next_step: str, *, page: str | None = None, label: str = "") -> None:
    """Draw a box for a part of a page without data: the reason, the next step, and optionally a link to a page.

    Args:
        message: The reason, for example that there is no run yet, nothing is selected, or nothing matches.
        next_step: The action by which the user gets data.
        page: File of the linked page, or None.
        label: Text of the link.
    """
    with st.container(border=True):
        st.markdown(f"**{message}**")
        st.markdown(next_step)
        if page:
            st.page_link(page, label=label, icon=":material/arrow_forward:")
