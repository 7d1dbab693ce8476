"""The bundles that are open, read-only beside one's own runs: what each holds, and what can be done with it.

Taking the runs of an open bundle into one's own database: first what that would add, then the doing.

A file from a colleague: dropped here, or named by its path; checked row by row before anything is shown of it.
"""

import shutil
import tempfile
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import streamlit as st

from app.analysis.format import escape_markdown, format_run_count, format_size
from app.analysis.settings import name_algo
from app.ui import data, messages, view
from app.ui.home import run_columns, run_table
from emtc_core.errors import EmtcError, StorageError
from storage.bundles.bundle_cache import Bundle, cache_bundle, clean_name, remove_bundle
from storage.bundles.read import find_cache, read_manifest
from storage.bundles.write import ImportPlan, import_runs, plan_import
from storage.engine import is_read_only
from storage.guards import shorten
from storage.private_files import make_private_folder
from storage.queries.runs import RunFilter

SUFFIX = ".emtc"
_DROPPED, _TYPED, _TIMES = "bundle_file", "bundle_path", "bundles_opened"
_HELP = "A bundle is data: nothing in it is run. It is unpacked into this user's cache folder and stays read-only."


def show_open() -> None:
    """Offer to open a bundle; a server that only shows offers nothing."""
    if is_read_only():
        return
    times = st.session_state.get(_TIMES, 0)  # another time is another popover: closed, and its field holds no upload
    with st.popover("Open a bundle", icon=":material/folder_zip:", key=f"open_bundle-{times}", help=_HELP):
        dropped = st.file_uploader(
            f"A file that `emtc bundle` wrote, up to {st.get_option('server.maxUploadSize')} MB",
            type=SUFFIX.removeprefix("."),
            key=f"{_DROPPED}-{times}",
        )
        with st.form("bundle_by_path", border=False):
            path = st.text_input(
                "A larger one: its path on this machine", key=_TYPED, placeholder="~/Downloads/study.emtc"
            )
            typed = st.form_submit_button("Check and open", icon=":material/folder_open:")
        try:
            if dropped is not None:
                with _kept(dropped, dropped.name) as place:
                    _open(place)
            elif typed and path:
                _open(_find(path))
            else:
                return
        except EmtcError as exc:
            messages.error(exc)
            return
    st.session_state[_TIMES] = times + 1
    st.rerun()


def _open(place: Path) -> None:
    """Show at once what a file says of itself, then look at every row of it."""
    manifest = read_manifest(place)
    runs = [run for run in manifest.runs if isinstance(run, dict)]
    says = f"It says that it holds {describe_runs(runs)}, {format_size(manifest.size)} unpacked"
    with st.spinner(f"{escape_markdown(says)}. Checking every row …"):
        bundle = cache_bundle(place)
    data.open_url.clear(bundle.url)
    st.session_state[NEW] = bundle.key


def _find(path: str) -> Path:
    """Read a path that somebody typed; what is no bundle by its name is not even looked at.

    Raises:
        StorageError: If no bundle can be there.
    """
    try:
        place = Path(path.strip()).expanduser().absolute()
    except (RuntimeError, ValueError) as error:
        raise StorageError("This is no path of a file on this machine.") from error
    if place.suffix != SUFFIX or not path.isprintable():
        raise StorageError(f"A bundle's name ends in {SUFFIX}, got {clean_name(path)}.")
    return place


@contextmanager
def _kept(dropped: BinaryIO, name: str) -> Generator[Path]:
    """Write an upload where it can be read in parts, under its own name, for as long as it is checked."""
    folder = find_cache()
    try:
        make_private_folder(folder)
        with tempfile.TemporaryDirectory(prefix=".dropped-", dir=folder) as holder:
            place = Path(holder) / clean_name(name)
            with place.open("xb") as file:
                shutil.copyfileobj(dropped, file)
            yield place
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error.strerror}. A bundle is unpacked there.") from error


_ASKED, _SAID = "bundle_to_import", "bundle_said"
_NAMED_AT_MOST = 10


def offer(bundle: Bundle) -> None:
    """Draw the button that asks what an import would add; nothing is written by it."""
    key = f"bundle-import-{bundle.key}"
    st.button("Import …", icon=":material/download:", key=key, on_click=_ask, args=(bundle.key,))


def _ask(key: str | None) -> None:
    st.session_state[_ASKED] = key


def confirm(bundle: Bundle) -> None:
    """What the import that was asked for would add and what it leaves alone; do it on a second press."""
    if st.session_state.get(_ASKED) != bundle.key or not messages.may_act():
        return
    with st.container(border=True), messages.guarded():
        plan = plan_import(data.database(), bundle)
        st.markdown(f"Adds {escape_markdown(str(plan))}.")
        if plan.existing:
            st.markdown(f"Already here, and left as they are: {_name(plan)}.")
        st.caption(
            f"Imported runs are your own from then on: they carry the tag `{bundle.origin}`, and Compare puts seeds "
            "of one variant together whoever trained them. Find or leave them out by that tag."
        )
        with st.container(horizontal=True):
            st.button(
                f"Import {format_run_count(len(plan.new))}", type="primary", key="import-now", disabled=not plan.new,
                on_click=_import, args=(bundle, plan),
            )  # fmt: skip
            st.button("Not now", key="import-not", on_click=_ask, args=(None,))


def _name(plan: ImportPlan) -> str:
    named = ", ".join(f"`{run_id}`" for run_id in plan.existing[:_NAMED_AT_MOST])
    return f"{named} and {len(plan.existing) - _NAMED_AT_MOST:,} more" if len(plan.existing) > _NAMED_AT_MOST else named


def _import(bundle: Bundle, plan: ImportPlan) -> None:
    _ask(None)
    try:
        made = import_runs(data.database(), bundle, plan.new)
    except EmtcError as exc:
        say(exc)
        return
    say(f"Imported {format_run_count(len(made))} from {bundle.name}.")
    st.cache_data.clear()


def say(what: str | EmtcError) -> None:
    """Keep what was done, or why not, for the next drawing."""
    st.session_state[_SAID] = what


def tell() -> None:
    """Show what was said, once."""
    said = st.session_state.pop(_SAID, None)
    if isinstance(said, EmtcError):
        messages.error(said)
    elif said is not None:
        st.success(escape_markdown(said), icon=":material/check:")


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
    tell()
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
    confirm(bundle)
    with st.expander("Its runs", key=f"bundle-runs-{bundle.key}", icon=":material/table_rows:"):
        st.dataframe(
            run_table.make_rows(page.frame),
            hide_index=True,
            height=36 * min(len(page.frame), 8) + 38,
            column_order=_COLUMNS,
            column_config=run_columns.column_config(),
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
        offer(bundle)
        _button(bundle, "Remove", ":material/close:", _remove, about="From this list. The file stays where it is.")


def _button(bundle: Bundle, label: str, icon: str, do: Any, about: str | None = None) -> None:
    key = f"bundle-{label}-{bundle.key}"
    st.button(label, icon=icon, key=key, on_click=do, args=(bundle,), help=about)


def _remove(bundle: Bundle) -> None:
    st.session_state.pop(NEW, None)
    data.open_url.clear(bundle.url)
    try:
        remove_bundle(bundle)
    except EmtcError as exc:
        say(exc)


def describe_runs(rows: Sequence[Mapping[str, Any]], *, total: int | None = None) -> str:
    """The runs in one line: how many, of which algorithms, on which maps, with which seeds."""
    number = len(rows) if total is None else total
    algos = _list(name_algo(str(row.get("algo", "?"))) for row in rows)
    seeds = sorted({str(row.get("seed", "?")) for row in rows}, key=lambda seed: (len(seed), seed))
    maps = _list(str(row.get("map", "?")) for row in rows)
    return f"{format_run_count(number)}: {algos} on {maps}, seed{'' if len(seeds) == 1 else 's'} {_list(seeds)}"


def describe_file(bundle: Bundle) -> str:
    """What else a bundle tells: its size, who made it when, what went along."""
    made = f"made by {bundle.made_by or 'an unknown version'}"
    when = f" on {bundle.made_at[:10]}" if bundle.made_at else ""
    parts = ["curves and outcomes", *bundle.contents]
    room = f"{format_size(bundle.packed_bytes)}, {format_size(bundle.study_bytes)} unpacked"
    return f"With {', '.join(parts)} · {room} · {made}{when}"


def _list(values: Iterable[str]) -> str:
    known = [value if value.isprintable() else shorten(value) for value in dict.fromkeys(values)]
    return ", ".join(value[:40] for value in known[:_NAMED]) + (" …" if len(known) > _NAMED else "")
