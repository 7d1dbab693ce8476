"""The bundles that are open, read-only beside one's own runs: what each holds, and what can be done with it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import streamlit as st

from app.analysis.format import escape_markdown, runs_of, size
from app.analysis.names import name_algo
from app.ui import data, messages, view
from app.ui.home import import_bundle, run_table
from emtc_core.errors import EmtcError
from storage.bundles.bundle_cache import Bundle, remove_bundle
from storage.guards import shorten
from storage.queries.run_table import RunFilter

NEW = "bundle_new"
"""Key of the one that was opened just now."""
ROWS = 200
_NAMED = 6
_COLUMNS = ["status", "name", "algo", "map", "seed", "progress", "win_rate", "mu_w", "gate", "tags", "id"]


def show(*, new: bool) -> None:
    """Draw every open bundle in its place, which is the top as long as one was `new` to this session just now."""
    bundles = view.bundles()
    if new != (st.session_state.get(NEW) in {bundle.key for bundle in bundles}):
        return
    import_bundle.tell()
    if not bundles:
        return
    st.subheader(
        "Bundles", help="Files from colleagues. Their runs are read and never written; yours are not among them."
    )
    for bundle in bundles:
        with st.container(border=True, key=f"bundle-{bundle.key}"):
            _draw(bundle)


def _draw(bundle: Bundle) -> None:
    try:
        page = data.run_page(RunFilter(shelf="all"), sort="-created", limit=ROWS, url=bundle.url)
    except EmtcError as exc:
        st.markdown(f"**{escape_markdown(bundle.name)}**")
        messages.error(exc)
        _button(bundle, "Remove", ":material/close:", _remove)
        return
    rows = data.rows_of(page.frame)
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        st.markdown(f"**{escape_markdown(bundle.name)}**", width="content")
        st.badge("read-only", icon=":material/lock:", color="gray")
        with st.container(horizontal=True, width="content", gap="small", vertical_alignment="center"):
            _acts(bundle)
    st.caption(escape_markdown(f"{describe_runs(rows, total=page.total)}. {describe_file(bundle)}"))
    import_bundle.confirm(bundle)
    with st.expander("Its runs", key=f"bundle-runs-{bundle.key}", icon=":material/table_rows:"):
        st.dataframe(
            run_table.make_rows(page.frame),
            hide_index=True,
            height=36 * min(len(page.frame), 8) + 38,
            column_order=_COLUMNS,
            column_config=run_table.column_config(),
            alt=f"Runs of {bundle.name} with status, progress and last evaluation.",
        )


def _acts(bundle: Bundle) -> None:
    viewed = view.bundle()
    if viewed is None or viewed.key != bundle.key:
        _button(bundle, "Look at it", ":material/visibility:", view.enter)
    if viewed is None:
        beside = {view.WITH: bundle.key}
        page, icon = "../pages/compare.py", ":material/stacked_line_chart:"
        st.page_link(page, label="Compare with mine", icon=icon, query_params=beside)
        import_bundle.offer(bundle)
        _button(bundle, "Remove", ":material/close:", _remove, about="From this list. The file stays where it is.")


def _button(bundle: Bundle, label: str, icon: str, do: Any, about: str | None = None) -> None:
    key = f"bundle-{label}-{bundle.key}"
    st.button(label, icon=icon, key=key, on_click=do, args=(bundle,), help=about)


def _remove(bundle: Bundle) -> None:
    st.session_state.pop(NEW, None)
    data.close_url(bundle.url)
    try:
        remove_bundle(bundle)
    except EmtcError as exc:
        import_bundle.say(exc)


def describe_runs(rows: Sequence[Mapping[str, Any]], *, total: int | None = None) -> str:
    """Say in a line what runs there are: how many, of which algorithms, on which maps, with which seeds."""
    number = len(rows) if total is None else total
    algos = _list(name_algo(str(row.get("algo", "?"))) for row in rows)
    seeds = sorted({str(row.get("seed", "?")) for row in rows}, key=lambda seed: (len(seed), seed))
    maps = _list(str(row.get("map", "?")) for row in rows)
    return f"{runs_of(number)}: {algos} on {maps}, seed{'' if len(seeds) == 1 else 's'} {_list(seeds)}"


def describe_file(bundle: Bundle) -> str:
    """Say what else a bundle tells: its size, who made it when, what went along."""
    made = f"made by {bundle.made_by or 'an unknown version'}"
    when = f" on {bundle.made_at[:10]}" if bundle.made_at else ""
    parts = ["curves and outcomes", *bundle.contents]
    room = f"{size(bundle.packed_bytes)}, {size(bundle.study_bytes)} unpacked"
    return f"With {', '.join(parts)} · {room} · {made}{when}"


def _list(values: Iterable[str]) -> str:
    known = [value if value.isprintable() else shorten(value) for value in dict.fromkeys(values)]
    return ", ".join(value[:40] for value in known[:_NAMED]) + (" …" if len(known) > _NAMED else "")
