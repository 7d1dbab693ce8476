"""Which episode is replayed? All of them can be searched; a page of those that match is listed, and one chosen."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.analysis.format import format_count, format_number
from app.analysis.quantities import name_outcome
from app.replay.replay import Replay, make_replay
from app.ui import data, messages, state
from storage.queries.episodes import EpisodePage, Order
from storage.runs.rows import RunRow

LISTED = 200
PLAY = "play"
TRAINING, EVALUATION = "training", "evaluation"
SOURCES = {TRAINING: "Training episodes", EVALUATION: "Evaluation playbacks"}


@dataclass(frozen=True)
class Place:
    """Where the choice of one of the two episodes is kept: names in the URL and keys of its widgets."""

    episode: str  # in the URL: the training episode
    play: str  # in the URL: the playback, as env step-episode
    find: str
    source: str
    page: str
    order: str
    beside: bool = False
    """The second of two: its choice takes one row, and an episode that nobody chose is in the URL too."""

    @property
    def labels(self) -> Literal["visible", "collapsed"]:
        """Whether its widgets' names take a row of their own."""
        return "collapsed" if self.beside else "visible"

    def is_in_url(self) -> bool:
        """Whether the URL names an episode here."""
        return any(state.read_text(name) is not None for name in (self.episode, self.play))


FIRST = Place(state.EPISODE, PLAY, "find", "source", "episodes_page", "episode_order")
BESIDE = Place("beside", "beside_play", "beside_find", "beside_source", "beside_page", "beside_order", True)
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


def choose(run: RunRow, bar: DeltaGenerator, foot: DeltaGenerator, place: Place) -> Replay | None:
    """Draw the choice of an episode in `bar` and how many there are in `foot`, and read it."""
    linked = EVALUATION if state.read_text(place.play) is not None else TRAINING
    st.session_state.setdefault(place.source, linked)
    source = bar.segmented_control(
        "Beside" if place.beside else "Episodes",
        list(SOURCES),
        required=True,
        format_func=SOURCES.__getitem__,
        key=place.source,
        on_change=_turn_source,
        args=(place,),
        help="Training episodes carry the gate's verdicts; evaluation playbacks show the greedy team.",
        label_visibility=place.labels,
    )
    choose_in = _training if source == TRAINING else _playback
    return choose_in(run, bar, foot, place)


def _turn_source(place: Place) -> None:
    """Start the other list at its first page; what stands beside is named by one parameter alone."""
    st.session_state[place.page] = 1
    if place.beside:
        state.write(place.episode, None)
        state.write(place.play, None)


def _training(run: RunRow, bar: DeltaGenerator, foot: DeltaGenerator, place: Place) -> Replay | None:
    """Draw the choice of a training episode and read it."""
    with bar:
        order = "-episode" if place.beside else _order(place)
        text = _search(place, place.episode)
        page = _page(place, lambda offset: data.episode_page(run.id, text, order_by=order, limit=LISTED, offset=offset))
        rows = data.rows_of(page.frame)
        kept = data.kept_episodes(run.id, tuple(int(row["episode"]) for row in rows))
        labels = {
            str(row["episode"]): f"episode {format_count(row['episode'])} · {_outcome(run, row)}"
            f"{'' if int(row['episode']) in kept else ' · states left out'}"
            for row in rows
        }
        if rows and not kept and not text:  # none on this page: begin with one that can be shown all the same
            kept = data.kept_episodes(run.id)[:1]
            labels = {str(each): f"episode {format_count(each)}" for each in kept} | labels
        usual = next((key for key in labels if int(key) in kept), None)
        wanted = state.read_int(place.episode)
        if wanted is not None and str(wanted) not in labels:
            labels = {str(wanted): f"episode {format_count(wanted)}"} | labels
        chosen = _select("Episode", labels, place, parameter=place.episode, usual=usual)
    _tell(foot, place, page, "No training episode has been recorded yet.", "The first ones follow within seconds.")
    return make_replay(run, data.trajectory(run.id, int(chosen)), training=True) if chosen else None


def _playback(run: RunRow, bar: DeltaGenerator, foot: DeltaGenerator, place: Place) -> Replay | None:
    """Draw the choice of an evaluation's episode and read it."""
    with bar:
        text = _search(place, place.play)
        page = _page(place, lambda offset: data.playback_page(run.id, text, limit=LISTED, offset=offset))
        labels = {
            f"{row['env_step']}-{row['episode']}": (
                f"step {format_count(row['env_step'])} · episode {row['episode']} · {_outcome(run, row)}"
            )
            for row in data.rows_of(page.frame)
        }
        wanted = state.read_text(place.play) or ""
        step, _, episode = wanted.partition("-")
        if wanted not in labels and step.isdecimal() and episode.isdecimal():
            labels = {wanted: f"step {format_count(int(step))} · episode {episode}"} | labels
        chosen = _select("Playback", labels, place, parameter=place.play)
    _tell(foot, place, page, "No evaluation episode has been kept yet.", "One follows the first training round.")
    if not chosen:
        return None
    step, _, episode = chosen.partition("-")
    return make_replay(run, data.playback(run.id, int(step), int(episode)), training=False)


def _order(place: Place) -> Order:
    return st.selectbox(
        "Order",
        list(_ORDERS),
        format_func=_ORDERS.__getitem__,
        key=place.order,
        width=200,
        on_change=_restart,
        args=(place, place.episode),
    )


def _search(place: Place, parameter: str) -> str:
    text = st.text_input(
        "Find",
        key=place.find,
        type="search",
        bind="query-params",
        placeholder="won return>5",
        help=_HELP,
        width=170 if place.beside else 220,
        label_visibility=place.labels,
        on_change=_restart,
        args=(place, parameter),
    )
    return text or ""


def _restart(place: Place, parameter: str) -> None:
    """Show the first episode of what matches now."""
    st.session_state[place.page] = 1
    st.session_state.pop(f"choose-{parameter}", None)
    state.write(parameter, None)
    state.write(state.START, None)


def _page(place: Place, read: Callable[[int], EpisodePage]) -> EpisodePage:
    """Read the page that is asked for, or the last one."""
    asked = int(st.session_state.get(place.page, 1))
    page = read((asked - 1) * LISTED)
    last = max(1, -(-page.total // LISTED))
    if asked <= last:
        return page
    st.session_state[place.page] = last
    return read((last - 1) * LISTED)


def _tell(foot: DeltaGenerator, place: Place, page: EpisodePage, nothing: str, next_step: str) -> None:
    """How many episodes there are, and turn their pages; or that there is none."""
    if not page.recorded:
        messages.empty(nothing, next_step, page="../pages/live.py", label="Watch the run on Live")
        return
    if place.beside:
        return
    pages = max(1, -(-page.total // LISTED))
    with foot:
        turned = st.pagination(pages, key=place.page, width=420) if pages > 1 else 1
        first = (turned - 1) * LISTED + 1
        shown = f"{format_count(first)}–{format_count(first + len(page.frame) - 1)} of " if pages > 1 else ""
        of = (
            f"{format_count(page.total)} of {format_count(page.recorded)} episodes match"
            if page.total < page.recorded
            else ""
        )
        st.caption(f"{shown}{of or format_count(page.recorded) + ' episodes'}.", width="content")


def _select(
    label: str, labels: dict[str, str], place: Place, *, parameter: str, usual: str | None = None
) -> str | None:
    """Draw the choice of one; nobody's choice is the `usual` one, the first unless told."""
    if not labels:
        return None
    widget = f"choose-{parameter}"
    wanted = state.read_text(parameter)
    if wanted in labels:
        st.session_state[widget] = wanted
    elif st.session_state.get(widget) not in labels:
        st.session_state[widget] = usual or next(iter(labels))
    if place.beside:
        state.write(parameter, st.session_state[widget])

    def changed() -> None:
        state.write(parameter, st.session_state[widget])
        state.write(state.START, None)

    return str(
        st.selectbox(
            label,
            list(labels),
            format_func=lambda key: str(labels.get(key, key)),
            key=widget,
            on_change=changed,
            label_visibility=place.labels,
        )
    )


def _outcome(run: RunRow, row: dict[str, Any]) -> str:
    ended = name_outcome(run.config, won=bool(row["won"]), episode_return=float(row["episode_return"]))
    return f"{ended} · return {format_number(row['episode_return'])} · {row['length']} steps"
