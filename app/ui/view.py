"""Which runs a session shows: those of the app's database, or those of an opened bundle, which is read-only.

A bundle is a file with exported runs. The URL parameter `from` contains its key. The session stores the bundle, so all
pages show the same runs. Compare can show runs of bundles together with the app's runs, and names them `id@key`. A
read-only server opens no bundle, because bundles belong to the owner of the server and not to its visitors.
"""

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote, urlencode

import streamlit as st

from app.ui.page_state import Choices, Text
from app.ui.page_url import clear
from storage.bundles import bundle_cache
from storage.bundles.bundle_cache import Bundle
from storage.engine import is_read_only

SHOWN_BUNDLE: Final = Text("from", max_characters=64, is_pinned=False)
"""Key of the bundle whose runs the pages show."""
_LINK_TEXT: Final = "called"
"""URL parameter with the name of a run. Table cells show it as the text of the link. Pages ignore it."""
LINK_TEXT_PATTERN: Final = rf"[?&]{_LINK_TEXT}=([^&]*)"
"""Regular expression that finds the text of a link in its URL, for `st.column_config.LinkColumn`."""
COMPARED_BUNDLES: Final = Choices("with", "compare")
"""Keys of the bundles whose runs are shown on Compare together with the app's runs."""
_BUNDLE = "opened_bundle"
"""Key of Streamlit's session state: the bundle that the pages show."""
_SEPARATOR = "@"
"""Separates the id of a run and the key of its bundle."""


def select_bundle() -> str | None:
    """Select the bundle that the URL names, else the one of the session. Call this once per rerun, before any read.

    Returns:
        The key of a bundle that the URL names and that does not exist, else None.
    """
    current = get_bundle()
    key = SHOWN_BUNDLE.read() or (current.key if current else None)
    selected = find_bundle(key) if key else None
    if selected is None:
        st.session_state.pop(_BUNDLE, None)
        SHOWN_BUNDLE.write(None)
        return key
    st.session_state[_BUNDLE] = selected
    SHOWN_BUNDLE.write(selected.key)
    return None


def get_bundle() -> Bundle | None:
    """Return the bundle that this session shows; None if it shows the app's runs."""
    current = st.session_state.get(_BUNDLE)
    return current if isinstance(current, Bundle) else None


def switch_to_bundle(new_bundle: Bundle | None) -> None:
    """Show the runs of a bundle, or the app's runs for None. Delete the state of the pages: it is of other runs."""
    st.session_state.clear()
    clear()
    if new_bundle is not None:
        st.session_state[_BUNDLE] = new_bundle
        SHOWN_BUNDLE.write(new_bundle.key)


def add_bundle(parameters: Mapping[str, str]) -> dict[str, str]:
    """Add the bundle to the parameters of a link, so that the link shows the same runs in a new tab."""
    result = dict(parameters)
    if (current := get_bundle()) is not None:
        result[SHOWN_BUNDLE.name] = current.key
    return result


def address_of(page: str, parameters: Mapping[str, str]) -> str:
    """Write a relative link to a page, for Markdown and tables. It also works if the app is served below a path."""
    return f"{page}?{urlencode(add_bundle(parameters), quote_via=quote)}"


def link_run(run_id: str, name: str) -> str:
    """Write a link to a run's page for a table cell. The cell shows the name, and cells are sorted by it."""
    return address_of("run", {_LINK_TEXT: name, "run": run_id})


def list_bundles() -> list[Bundle]:
    """List the opened bundles; a read-only server has none."""
    return [] if is_read_only() else bundle_cache.list_bundles()


def find_bundle(key: str) -> Bundle | None:
    """Find an opened bundle by its key; None if this server does not have it or is read-only."""
    return None if is_read_only() else bundle_cache.find_bundle(key)


def name_bundle_run(run_id: str, key: str) -> str:
    """Write the name of a bundle's run on Compare: `id@key`."""
    return f"{run_id}{_SEPARATOR}{key}"


def group_by_bundle(names: Sequence[str]) -> dict[str, list[str]]:
    """Group run names by bundle.

    Args:
        names: Ids of runs that this session shows, and `id@key` of runs of other bundles.

    Returns:
        Key of the bundle → run ids; the key is empty for the runs that this session shows.
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        run_id, _, key = name.partition(_SEPARATOR)
        groups.setdefault(key, []).append(run_id)
    return groups


def is_bundle_run(name: str) -> bool:
    """Return whether a run name has the form `id@key`."""
    return _SEPARATOR in name
