"""A field for a whole number that tells what it refuses: Streamlit's own keeps what is out of bounds to itself.

Its box turns red, the page never hears of it, and a button beside it acts on the value before.
"""

import streamlit as st

from app.analysis.format import escape_markdown
from app.jobs.launch_request import parse_count
from app.ui import in_url
from emtc_core.config.base import quote
from emtc_core.errors import ConfigError

_LONGEST = 40


def ask(
    label: str,
    *,
    key: str,
    usual: int,
    low: int,
    high: int,
    about: str | None = None,
    page: str = "",
    width: int | None = None,
) -> int | None:
    """Draw the field; return its number, or None while it holds none.

    Args:
        label: Above the field.
        key: The widget's; with a `page` the name in the address, too.
        usual: What an empty field means.
        low: The least that may be typed.
        high: The most.
        about: Help.
        page: Bind it to the address of this page.
        width: Of the field [pixels].
    """
    bound = in_url.text(page, key) if page else in_url.Bound(key=key, on_change=_nothing)
    typed = st.text_input(
        label, **bound, placeholder=str(usual), help=about, max_chars=_LONGEST, width=width or "stretch"
    )
    try:
        return read(typed or "", usual=usual, low=low, high=high)
    except ConfigError as exc:
        with st.container(key=f"wrong-{key}"):
            st.markdown(f":red[:material/error: {escape_markdown(str(exc))}]")
        return None


def read(text: str, *, usual: int, low: int, high: int) -> int:
    """Read what was typed.

    Raises:
        ConfigError: If it is no whole number between the bounds.
    """
    number = parse_count(text) if text.strip() else usual
    if not low <= number <= high:
        raise ConfigError(f"Must be between {low:,} and {high:,}, got {quote(text.strip())}.")
    return number


def _nothing() -> None:
    """Nobody waits for it."""
