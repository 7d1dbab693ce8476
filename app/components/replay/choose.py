"""Which episode is replayed? All of them can be searched; a page of those that match is listed, and one chosen."""

from collections.abc import Callable
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app import data, messages, state
from app.format import count, number
from storage.queries.episode_search import EpisodePage
from storage.queries.episodes import Order, Trajectory
from storage.runs import RunRow

LISTED = 200
PLAY, FIND, PAGE = "play", "find", "episodes_page"
_ORDERS: dict[Order, str] = {
    "-episode": "newest first",
    "episode": "oldest first",
    "-episode_return": "highest return first",
    "episode_return": "lowest return first",
    "-length": "longest first",
}
_HELP = (
    "A number finds the episode of that number and the one of that env step; `won`, `lost`, `return>5`, `length<40`, "
    "`step>=10000`, `episode<100`. All of it must hold."
)


def training(run: RunRow, bar: DeltaGenerator) -> Trajectory | None:
    """Draw the choice of a training episode and read it."""
    with bar:
        order = st.selectbox(
            "Order",
            list(_ORDERS),
            format_func=_ORDERS.__getitem__,
            key="episode_order",
            width=200,
            on_change=_restart,
            args=(state.EPISODE,),
        )
        text = _search(state.EPISODE)
        page = _page(lambda offset: data.episode_page(run.id, text, order_by=order, limit=LISTED, offset=offset))
        labels = {
            str(row["episode"]): f"episode {count(row['episode'])} · {_outcome(row)}"
            for row in data.rows_of(page.frame)
        }
        wanted = state.read_int(state.EPISODE)
        if wanted is not None and str(wanted) not in labels:
            labels = {str(wanted): f"episode {count(wanted)}"} | labels
        chosen = _select("Episode", labels, parameter=state.EPISODE)
    _tell(page, "No training episode has been recorded yet.", "The first ones follow within seconds of the start.")
    return data.trajectory(run.id, int(chosen)) if chosen else None


def playback(run: RunRow, bar: DeltaGenerator) -> Trajectory | None:
    """Draw the choice of an evaluation's episode and read it."""
    with bar:
        text = _search(PLAY)
        page = _page(lambda offset: data.playback_page(run.id, text, limit=LISTED, offset=offset))
        labels = {
            f"{row['env_step']}-{row['episode']}": (
                f"step {count(row['env_step'])} · episode {row['episode']} · {_outcome(row)}"
            )
            for row in data.rows_of(page.frame)
        }
        wanted = state.read_text(PLAY) or ""
        step, _, episode = wanted.partition("-")
        if wanted not in labels and step.isdecimal() and episode.isdecimal():
            labels = {wanted: f"step {count(int(step))} · episode {episode}"} | labels
        chosen = _select("Playback", labels, parameter=PLAY)
    _tell(page, "No evaluation episode has been kept yet.", "The first evaluation follows the first training round.")
    if not chosen:
        return None
    step, _, episode = chosen.partition("-")
    return data.playback(run.id, int(step), int(episode))


def _search(parameter: str) -> str:
    text = st.text_input(
        "Find",
        key=FIND,
        type="search",
        bind="query-params",
        placeholder="1200, won, return>5",
        help=_HELP,
        width=220,
        on_change=_restart,
        args=(parameter,),
    )
    return text or ""


def _restart(parameter: str) -> None:
    """Show the first episode of what matches now."""
    st.session_state[PAGE] = 1
    st.session_state.pop(f"choose-{parameter}", None)
    state.write(parameter, None)
    state.write(state.START, None)


def _page(read: Callable[[int], EpisodePage]) -> EpisodePage:
    """Read the page that is asked for, or the last one."""
    asked = int(st.session_state.get(PAGE, 1))
    page = read((asked - 1) * LISTED)
    last = max(1, -(-page.total // LISTED))
    if asked <= last:
        return page
    st.session_state[PAGE] = last
    return read((last - 1) * LISTED)


def _tell(page: EpisodePage, nothing: str, next_step: str) -> None:
    """Say how many episodes there are, and turn their pages; or that there is none."""
    if not page.recorded:
        messages.empty(nothing, next_step, page="../pages/live.py", label="Watch the run on Live")
        return
    pages = max(1, -(-page.total // LISTED))
    with st.container(horizontal=True, vertical_alignment="center"):
        place = st.pagination(pages, key=PAGE, width=420) if pages > 1 else 1
        first = (place - 1) * LISTED + 1
        shown = f"{count(first)}–{count(first + len(page.frame) - 1)} of " if pages > 1 else ""
        of = f"{count(page.total)} of {count(page.recorded)} episodes match" if page.total < page.recorded else ""
        st.caption(f"{shown}{of or count(page.recorded) + ' episodes'}.", width="content")


def _select(label: str, labels: dict[str, str], *, parameter: str) -> str | None:
    if not labels:
        return None
    widget = f"choose-{parameter}"
    wanted = state.read_text(parameter)
    if wanted in labels:
        st.session_state[widget] = wanted
    elif st.session_state.get(widget) not in labels:
        st.session_state[widget] = next(iter(labels))

    def changed() -> None:
        state.write(parameter, st.session_state[widget])
        state.write(state.START, None)

    return str(
        st.selectbox(
            label, list(labels), format_func=lambda key: str(labels.get(key, key)), key=widget, on_change=changed
        )
    )


def _outcome(row: dict[str, Any]) -> str:
    won = "won" if row["won"] else "not won"
    return f"{won} · return {number(row['episode_return'])} · {row['length']} steps"
