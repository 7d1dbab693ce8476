"""The opened bundles in the box *Bundles* of Home: contents of each, and buttons to view, compare, import or remove it.

A bundle is a file of exported runs. An opened bundle is unpacked in the cache folder.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import streamlit as st

from app.analysis.format import escape_markdown, format_run_count, format_size
from app.analysis.settings import name_algo
from app.ui import data, messages, view
from app.ui.home import import_bundle
from emtc_core.errors import EmtcError
from storage.bundles.bundle_cache import Bundle, remove_bundle
from storage.guards import shorten
from storage.queries.run_search import RunFilter, run_page

MAX_ROWS: Final = 200
_MAX_VALUES: Final = 6
"""Maximum number of algorithms, maps or seeds in the description of a bundle's runs."""


def show() -> None:
    """Draw the opened bundles, the one that was opened last first."""
    for bundle in view.list_bundles():
        with st.container(border=True, key=f"bundle-{bundle.key}"):
            _show_bundle(bundle)


def describe_runs(rows: Sequence[Mapping[str, Any]], *, total: int) -> str:
    """Describe runs in one line: their number, algorithms, maps and seeds.

    Args:
        rows: The first runs.
        total: Number of all runs.
    """
    algos = _join(name_algo(str(row.get("algo", "?"))) for row in rows)
    seeds = sorted({str(row.get("seed", "?")) for row in rows}, key=lambda seed: (len(seed), seed))
    maps = _join(str(row.get("map", "?")) for row in rows)
    seed_word = "seed" if len(seeds) == 1 else "seeds"
    return f"{format_run_count(total)}: {algos} on {maps}, {seed_word} {_join(seeds)}"


def describe_file(bundle: Bundle) -> str:
    """Describe the contents, the size, the version and the date of a bundle."""
    created = f"made by {bundle.made_by or 'an unknown version'}"
    date = f" on {bundle.made_at[:10]}" if bundle.made_at else ""  # the first ten characters are YYYY-MM-DD
    contents = ", ".join(bundle.contents.describe())
    size = f"{format_size(bundle.packed_bytes)}, {format_size(bundle.study_bytes)} unpacked"
    return f"Contains {contents} · {size} · {created}{date}"


def _show_bundle(bundle: Bundle) -> None:
    try:
        read_page = data.cached(run_page, ttl=1, url=bundle.url)
        page = read_page(RunFilter(visibility="all"), sort="-created", limit=MAX_ROWS)
    except EmtcError as exc:
        st.markdown(f"**{escape_markdown(bundle.name)}**")
        messages.error(exc)
        _show_button(bundle, "Remove", ":material/close:", _remove)
        return
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        st.markdown(f"**{escape_markdown(bundle.name)}**", width="content")
        st.badge("read-only", icon=":material/lock:", color="gray")
        with st.container(horizontal=True, width="content", gap="small", vertical_alignment="center"):
            _show_buttons(bundle)
    rows = data.rows_of(page.frame)
    st.caption(escape_markdown(f"{describe_runs(rows, total=page.total)}. {describe_file(bundle)}"))
    import_bundle.show_confirmation(bundle)


def _show_buttons(bundle: Bundle) -> None:
    viewed = view.get_bundle()
    if viewed is None or viewed.key != bundle.key:
        _show_button(bundle, "Open", ":material/visibility:", view.switch_to_bundle)
    if viewed is None:
        st.page_link(
            "../pages/compare.py",
            label="Compare with mine",
            icon=":material/stacked_line_chart:",
            query_params={view.COMPARED_BUNDLES.name: bundle.key},
        )
        import_bundle.show_button(bundle)
        _show_button(
            bundle, "Remove", ":material/close:", _remove, help="Removes it from this list. The file is not deleted."
        )


def _show_button(
    bundle: Bundle, label: str, icon: str, action: Callable[[Bundle], None], *, help: str | None = None
) -> None:
    key = f"bundle-{label}-{bundle.key}"
    st.button(label, icon=icon, key=key, on_click=action, args=(bundle,), help=help)


def _remove(bundle: Bundle) -> None:
    data.open_url.clear(bundle.url)
    try:
        remove_bundle(bundle)
    except EmtcError as exc:
        import_bundle.set_outcome(exc)


def _join(values: Iterable[str]) -> str:
    """Join the first distinct values, each with at most 40 characters."""
    distinct = list(dict.fromkeys(values))
    texts = [value if value.isprintable() else shorten(value) for value in distinct[:_MAX_VALUES]]
    more = " …" if len(distinct) > _MAX_VALUES else ""
    return ", ".join(text[:40] for text in texts) + more
