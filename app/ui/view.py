"""Whose runs does this session look at: one's own, or those of an opened bundle, which nobody can change?

The URL's `from` names the bundle by its key and the session keeps it across pages, as the run picker keeps the run.
Runs of bundles beside one's own are named `id@key`. Nobody sees a bundle on a server that only shows: bundles are
its owner's, whatever its visitors type.
"""

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote, urlencode

import streamlit as st

from app.ui import state
from storage.bundles.bundle_cache import Bundle, find_bundle, list_bundles
from storage.engine import is_read_only

FROM: Final = "from"
CALLED: Final = "called"
"""A name in a link to a run, for tables to show; it means nothing else."""
CALLED_PATTERN: Final = rf"[?&]{CALLED}=([^&]*)"
WITH: Final = "with"
"""Bundles that stand beside one's own runs on Compare."""
_VIEWED = "bundle_viewed"
_MARK = "@"


def decide() -> str | None:
    """Decide once per rerun, before anything is read; return the key of a bundle that is asked for and not here."""
    kept = bundle()
    key = state.read_text(FROM) or (kept.key if kept else None)
    found = find(key) if key else None
    if found is None:
        st.session_state.pop(_VIEWED, None)
        state.write(FROM, None)
        return key
    st.session_state[_VIEWED] = found
    state.write(FROM, found.key)
    return None


def bundle() -> Bundle | None:
    """The bundle that this session looks at; None where it looks at its own runs."""
    viewed = st.session_state.get(_VIEWED)
    return viewed if isinstance(viewed, Bundle) else None


def enter(chosen: Bundle | None) -> None:
    """Look at a bundle's runs from now on, or at one's own again; what the pages remember belongs to the others."""
    st.session_state.clear()
    st.query_params.clear()
    if chosen is not None:
        st.session_state[_VIEWED] = chosen
        state.write(FROM, chosen.key)


def link(parameters: Mapping[str, str]) -> dict[str, str]:
    """Complete the parameters of a link to a page, so that it stays with these runs in a new tab, too."""
    viewed = bundle()
    return dict(parameters) | ({FROM: viewed.key} if viewed else {})


def address_of(page: str, parameters: Mapping[str, str]) -> str:
    """A link to a page of the app for Markdown and tables: relative, for the app may be served below a path."""
    return f"{page}?{urlencode(link(parameters), quote_via=quote)}"


def named_link(run_id: str, name: str) -> str:
    """A run's own page as a link for a cell of a table, which shows its `called`; cells sort by it."""
    return address_of("run", {CALLED: name, "run": run_id})


def bundles() -> list[Bundle]:
    """List the bundles that may be looked at here."""
    return [] if is_read_only() else list_bundles()


def find(key: str) -> Bundle | None:
    """Find one of them by its key."""
    return None if is_read_only() else find_bundle(key)


def address(run_id: str, key: str) -> str:
    """The address of a bundle's run where it stands beside one's own."""
    return f"{run_id}{_MARK}{key}"


def split(run_ids: Sequence[str]) -> dict[str, list[str]]:
    """Part runs by where they are: key of a bundle, or "" for those that this session looks at → their ids there."""
    parts: dict[str, list[str]] = {}
    for run_id in run_ids:
        own, _, key = run_id.partition(_MARK)
        parts.setdefault(key, []).append(own)
    return parts


def is_beside(run_id: str) -> bool:
    """Whether a run is named as one of a bundle beside one's own."""
    return _MARK in run_id
