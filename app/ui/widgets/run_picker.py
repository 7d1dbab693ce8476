"""Which run the pages show. The URL's `run` decides; the picker in the sidebar writes it.

Search and filters over all runs stand in the URL, too: the runs table and the comparison ask the same way, by `page`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import streamlit as st

from app.analysis.format import escape_markdown, format_count
from app.analysis.settings import name_algo, name_algo_with_origin
from app.figures.theme import GATE_COLOR, GATE_ICON, STATUS_COLOR, STATUS_ICON
from app.ui import data, in_url, messages, state, view
from app.ui.widgets import tour
from emtc_core.errors import ConfigError, EmtcError
from storage.queries.gate import GateState
from storage.queries.runs import RunFilter, Shelf
from storage.runs.rows import RunRow, format_seed, imported_label

_KEY = "run_picker"
_KEPT = "run_kept"
_SEARCH = "run_search"
LISTED = 100
"""Runs in the box: the newest of those that match."""
RUN_PAGES = frozenset({"run", "live", "memory", "replay"})


def show(page: str) -> None:
    """Draw the picker in the sidebar and keep the URL's run across pages; a page about a run gets the newest."""
    listed, total = _search()
    wanted = state.read_text(state.RUN) or st.session_state.get(_KEPT)
    if wanted is None and page in RUN_PAGES:
        wanted = _usual_run(page)
    run_id = _resolve(wanted) if wanted else None
    if run_id:
        st.session_state[_KEPT] = run_id
        state.write(state.RUN, run_id)
    names = listed | (data.names_of([run_id]) if run_id and run_id not in listed else {})
    if not names:
        return
    st.session_state[_KEY] = run_id
    st.sidebar.selectbox(
        "Run",
        list(names),
        index=None,
        format_func=lambda each: f"{names.get(each, '')} · {each}",
        key=_KEY,
        on_change=_picked,
        args=(page,),
        placeholder="Choose a run",
        help="The pages show this run; its id is in the address, so the link can be shared.",
    )
    searched = bool(st.session_state.get(_SEARCH))
    if searched or total > len(listed):
        few = f"{format_count(len(listed))} of " if total > len(listed) else ""
        st.sidebar.caption(f"{few}{format_count(total)} {'match' if searched else 'runs are listed, the newest'}.")


def _usual_run(page: str) -> str | None:
    """The newest run; of a bundle the one its notebook tells of, for replays only one that has any."""
    if view.bundle() is None:
        return data.newest_run()
    told, shown = data.told_run(), data.runs_with_states() if page == "replay" else []
    if told is not None and (not shown or told in shown):
        return told
    return shown[0] if shown else data.newest_run()


def _search() -> tuple[dict[str, str], int]:
    """Draw the search above the picker; return the newest runs that match, and how many do."""
    if not data.has_runs():
        return {}, 0
    text = st.sidebar.text_input(
        "Find a run",
        key=_SEARCH,
        type="search",
        placeholder="corridor tag=paper",
        help=HELP,
        on_change=_searched,
    )
    try:
        return data.run_names(RunFilter(text=text or ""), LISTED)
    except ConfigError as exc:
        st.sidebar.caption(escape_markdown(str(exc)))
        return {}, 0


def _searched() -> None:
    """Pick the run when one alone is found."""
    try:
        names, total = data.run_names(RunFilter(text=st.session_state.get(_SEARCH) or ""), LISTED)
    except EmtcError:
        return
    if total == 1:
        st.session_state[_KEPT] = next(iter(names))
        state.write(state.RUN, next(iter(names)))


def require_run() -> RunRow:
    """Return the run that the page is about, or say what to do and end the page."""
    wanted = state.read_text(state.RUN) or st.session_state.get(_KEPT)
    try:
        wanted = wanted or data.newest_run()
        if wanted is None:
            messages.empty(messages.NO_RUNS, messages.START_DEMO_HINT, page="../pages/home.py", label="Go to Home")
            st.stop()
        return data.get_run(wanted)
    except EmtcError as exc:
        messages.error(exc)
        st.page_link("../pages/home.py", label="Show all runs", icon=":material/arrow_forward:")
        st.stop()


def open_page(title: str, *, gate: bool = True) -> RunRow:
    """Draw one bar with the page's title and the run that is chosen, or stop and say how to choose one.

    Without `gate` the page itself says whether the gate acts, and keeps that up to date.
    """
    bar = st.container(key="page_bar", horizontal=True, vertical_alignment="center", gap="medium")
    bar.title(title, width="content")
    run = require_run()
    with bar:
        header(run, gate=gate)
    tour.show(run)
    return run


def header(run: RunRow, *, gate: bool = True) -> None:
    """Draw a run's name, what it is, and whether its gate acts unless the page itself keeps that up to date."""
    algo = name_algo_with_origin(run.algo, run.config.get("plugins"))
    info = f"`{run.id}` · {algo} on {run.env} {run.map} · {format_seed(run.seed)}{_imported(run)}"
    with st.container(gap="xsmall"):
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            name_link(run.id, run.name)
            st.caption(escape_markdown(info).replace("\\`", "`"), width="content")
        if gate:
            gate_badge(data.gate_state(run))


def _imported(run: RunRow) -> str:
    return "" if (label := imported_label(run.config)) is None else f" · imported ({label})"


def links(run_id: str, name: str) -> None:
    """Show a run's name beside the links to its pages; call it inside a horizontal container."""
    name_link(run_id, name)
    page_links(run_id)


def name_link(run_id: str, name: str) -> None:
    """Show a run's name as the link to its own page; call it inside a horizontal container."""
    label, about = f"**{escape_markdown(name)}**", "What this run was: settings, code, machine, and a clone of it"
    query = view.link({state.RUN: run_id})
    st.page_link("../pages/run.py", label=label, query_params=query, width="content", help=about)


def page_links(run_id: str) -> None:
    """Show the links to what a run did; call it inside a horizontal container."""
    for page, label, icon in (
        ("live", "Live", ":material/monitoring:"),
        ("memory", "Memory", ":material/bubble_chart:"),
        ("replay", "Replay", ":material/smart_display:"),
    ):
        st.page_link(f"../pages/{page}.py", label=label, icon=icon, query_params=view.link({state.RUN: run_id}))


def status_badge(status: str) -> None:
    """Draw a status as icon, colour and word."""
    st.badge(status, icon=STATUS_ICON.get(status), color=STATUS_COLOR.get(status, "gray"))  # type: ignore[arg-type]


def gate_badge(state: GateState | None) -> None:
    """Whether a gate acts, why, and what to try; nothing of a run without one."""
    if state is None:
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.badge(f"gate {state.state}", icon=GATE_ICON[state.state], color=GATE_COLOR[state.state])
        st.caption(escape_markdown(state.sentence), width="content")


def _resolve(wanted: str) -> str | None:
    try:
        return data.get_run(wanted).id
    except EmtcError:
        return None


def _picked(page: str) -> None:
    chosen = st.session_state.get(_KEY)
    st.session_state[_KEPT] = chosen
    if page in RUN_PAGES:  # what they show of one run means nothing for another
        st.query_params.clear()
    state.write(state.RUN, chosen)


def forget(run_id: str) -> None:
    """Stop showing a run that no longer exists."""
    if st.session_state.get(_KEPT) == run_id:
        st.session_state.pop(_KEPT)
    if state.read_text(state.RUN) == run_id:
        state.write(state.RUN, None)


SHELVES: dict[Shelf, str] = {"open": "All but archived", "hidden": "Hidden", "archived": "Archived", "all": "All"}
HELP = (
    "Words of name, id, note, tags, algorithm and map; a setting as `gate.enabled=false` or `train.lr<0.001`; "
    'a column as `win_rate>0.8`, `mu_w>0.5`, `gate=idle`, `status=lost`, `tag=paper`. "Quotes" keep words together. '
    "All of it must hold."
)
STATUSES = ("running", "paused", "queued", "finished", "stopped", "failed", "lost")


def search(page: str, on_change: Callable[[], None] | None = None) -> str:
    """Draw the search box; return what stands in it."""
    return (
        st.text_input(
            "Find",
            **in_url.text(page, "q", on_change),
            type="search",
            placeholder="corridor win_rate>0.8",
            help=HELP,
        )
        or ""
    )


def shelf(page: str, on_change: Callable[[], None] | None = None) -> Shelf:
    """Draw the choice between what is listed and what was put aside."""
    chosen = st.selectbox(
        "Show",
        **in_url.one(page, "shelf", list(SHELVES), on_change),
        format_func=SHELVES.__getitem__,
        help="A hidden run is drawn only where you choose it; an archived one is listed only here.",
    )
    return chosen or "open"


def statuses(page: str, counts: dict[str, int], on_change: Callable[[], None] | None = None) -> tuple[str, ...]:
    """Draw the statuses with how many runs have each; return those that are wanted."""
    return tuple(
        st.pills(
            "Status",
            **in_url.several(page, "states", [status for status in STATUSES if counts.get(status)], on_change),
            selection_mode="multi",
            format_func=lambda status: f"{status} {counts.get(status, 0):,}",
        )
    )


def lists(page: str, wanted: RunFilter, on_change: Callable[[], None] | None = None, *, across: int = 5) -> RunFilter:
    """Draw a list for each thing that the runs of a shelf differ in; return the filter with what was chosen.

    Args:
        page: Whose widgets they are.
        wanted: What is asked for already.
        on_change: Called when something was chosen.
        across: Lists beside each other.
    """
    choices = data.run_choices(wanted.shelf)
    asked: tuple[tuple[str, str, Sequence[str]], ...] = (
        ("Environment", "envs", choices.envs),
        ("Map", "maps", choices.maps),
        ("Algorithm", "algos", choices.algos),
        ("Preset", "presets", choices.presets),
        ("Tag", "tags", choices.tags),
    )
    found: dict[str, tuple[str, ...]] = {}
    places = st.columns(across)
    for i, (label, key, options) in enumerate(asked):
        place, shown = places[i % across], name_algo if key == "algos" else str
        bound = in_url.several(page, key, options, on_change)
        found[key] = tuple(place.multiselect(label, **bound, format_func=shown, placeholder="any", wrap=True))
    envs, maps, algos, presets, tags = (found[key] for _, key, _ in asked)
    return replace(wanted, envs=envs, maps=maps, algos=algos, presets=presets, tags=tags)


def describe(wanted: RunFilter) -> str:
    """Which lists ask for what, in a line; nothing where none does."""
    chosen = {
        "environment": wanted.envs,
        "map": wanted.maps,
        "algorithm": [name_algo(algo) for algo in wanted.algos],
        "preset": wanted.presets,
        "tag": wanted.tags,
        "status": wanted.statuses,
    }
    return "; ".join(f"{name} {' or '.join(values)}" for name, values in chosen.items() if values)


def is_asking(wanted: RunFilter) -> bool:
    """Whether a filter asks anything of a run."""
    return wanted != RunFilter(shelf=wanted.shelf, evaluated=wanted.evaluated)
