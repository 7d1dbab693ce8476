"""The choice of a replayed episode: a search over all episodes, one page of the matching ones, and a selection.

An episode is a training episode, selected by its number, or an evaluation episode, selected by "<env step>-<number>".
Only episodes with stored states can be replayed. Of other training episodes, the database has only the outcomes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.analysis.format import format_count, format_number
from app.analysis.quantities import name_outcome
from app.figures.theme import ENDED_STATUSES
from app.replay.replay import Replay, make_replay
from app.ui import data, messages
from app.ui.page_state import EPISODE, PLAY, START, Choice, Integer, Text
from storage.queries.episode_search import (
    EpisodePage,
    count_replayable_episodes,
    find_episodes,
    find_playbacks,
    find_replayable_episodes,
)
from storage.queries.episodes import Order, get_playback, get_trajectory
from storage.runs.rows import RunRow

EPISODES_PER_PAGE = 200
"""Episodes per page of the list."""
_MAX_DIGITS = 18
"""Maximum length of a number in the URL. A number of this length is less than 2^63, the limit of the database."""
_WAS_LIST = "replay_was_list"
"""Key of the session state: whether the first episode was chosen in a list in the previous rerun of the page."""
TRAINING = "training"
EVALUATION = "evaluation"
SOURCES = {TRAINING: "Training", EVALUATION: "Evaluation"}


@dataclass(frozen=True)
class ChoiceKeys:
    """URL parameters that select an episode. Replay shows one or two episodes, and each has these parameters."""

    episode: Choice  # number of a training episode
    play: Choice  # an evaluation episode, as the text "<env step>-<episode>"
    search: Text
    source: Choice
    page: Integer
    order: Choice
    is_second: bool = False
    """Whether these select the second episode."""

    def is_in_url(self) -> bool:
        """Return whether the URL contains an episode."""
        return self.episode.is_in_url or self.play.is_in_url


FIRST_EPISODE = ChoiceKeys(
    EPISODE,
    PLAY,
    search=Text("find", "replay"),
    source=Choice("source", "replay"),
    page=Integer("episodes_page", "replay", default=1, low=1),
    order=Choice("episode_order", "replay"),
)
# In the URL, the parameters of the second episode start with "beside".
SECOND_EPISODE = ChoiceKeys(
    Choice("beside", "replay", in_url_as_default=True),
    Choice("beside_play", "replay", in_url_as_default=True),
    search=Text("beside_find", "replay"),
    source=Choice("beside_source", "replay"),
    page=Integer("beside_page", "replay", default=1, low=1),
    order=Choice("beside_order", "replay"),
    is_second=True,
)
_ORDERS: dict[Order, str] = {
    "-episode": "Newest",
    "-episode_return": "Best",
    "episode_return": "Worst",
    "-length": "Longest",
    "episode": "Oldest",
}
"""Order of the list → its label: the episode that is listed first. Best and worst are those by return."""
_FIND_HELP = (
    "A number finds the episode with this number and the episode at this env step. Conditions: `won`, `lost`, "
    "`return>5`, `length<40`, `step>=10000`, `episode<100`. All conditions must be true."
)


def choose_episode(run: RunRow, bar: DeltaGenerator, keys: ChoiceKeys, *, is_list: bool = False) -> Replay | None:
    """Draw the choice of an episode and read the episode.

    Args:
        run: The run.
        bar: Container of the widgets.
        keys: First or second episode.
        is_list: Whether the episodes are a list below the widgets, with page numbers, instead of a select box.
    """
    source_key = keys.source.key

    def on_source() -> None:
        selected = st.session_state[source_key]
        keys.page.write(None)
        for parameter in (keys.episode, keys.play):
            parameter.write(None)
        START.write(None)
        # The default source depends on `keys.play`, which was just removed from the URL. So write the source into the
        # URL even if it was the default.
        keys.source.write(selected)

    if not keys.is_second:
        was_list = st.session_state.get(_WAS_LIST, is_list)
        if was_list != is_list:
            # The list and the select boxes are different widgets. Without values in the session state, the new widgets
            # get the values of the URL.
            for parameter in (keys.source, keys.search, keys.order, keys.episode, keys.play, keys.page):
                st.session_state.pop(parameter.key, None)
        st.session_state[_WAS_LIST] = is_list
    is_evaluation = keys.play.is_in_url or (not keys.episode.is_in_url and _has_only_evaluations(run))
    default = EVALUATION if is_evaluation else TRAINING
    source = bar.segmented_control(
        "Second episode" if keys.is_second else "Episodes",
        **keys.source.bind(list(SOURCES), SOURCES.__getitem__, default=default, on_change=on_source),
        required=True,
        help="Training episodes have values of the gate. Evaluation episodes show the greedy policy.",
        label_visibility="collapsed",
        width="stretch" if is_list else "content",
    )
    choose = _choose_training if source == TRAINING else _choose_evaluation
    message = st.container()  # outside `bar`, because the list is narrow
    with bar:
        return choose(run, keys, message, is_list)


def _has_only_evaluations(run: RunRow) -> bool:
    """Return whether an ended run has only evaluation episodes to replay, for example after its data were thinned."""
    if run.live_status not in ENDED_STATUSES or data.cached(find_replayable_episodes, ttl=10)(run.id):
        return False
    return data.cached(find_playbacks, ttl=2)(run.id, limit=1).recorded > 0


def _choose_training(run: RunRow, keys: ChoiceKeys, message: DeltaGenerator, is_list: bool) -> Replay | None:
    """Draw the choice of a training episode and read it. `message` is the container for an empty state."""
    text = _draw_search_field(keys, keys.episode, is_list)
    order: Order = "-episode"
    if not keys.is_second:
        selected = st.pills(
            "Order", label_visibility="collapsed", required=True,
            **keys.order.bind(list(_ORDERS), _ORDERS.__getitem__, on_change=partial(_reset, keys, keys.episode)),
        )  # fmt: skip
        order = next(name for name in _ORDERS if name == str(selected))  # gives `selected` the type `Order`
    n_replayable = None
    if run.live_status in ENDED_STATUSES:
        n_replayable = data.cached(count_replayable_episodes, ttl=60)(run.id)
    page = _read_list_page(keys, lambda offset: _read_training_page(run, text, order, offset, n_replayable))
    rows = data.rows_of(page.frame)
    replayable = data.cached(find_replayable_episodes, ttl=10)(run.id, [int(row["episode"]) for row in rows])
    labels: dict[str, str] = {}
    for row in rows:
        label = f"{format_count(row['episode'])} · {_describe_outcome(run, row)}"
        if int(row["episode"]) not in replayable:
            label += " · states not stored"
        labels[str(row["episode"])] = label
    first_replayable = next((number for number in labels if int(number) in replayable), None)
    url_episode = keys.episode.read() or ""
    if url_episode not in labels and _is_number(url_episode):  # an episode that is not on this page of the list
        labels = {url_episode: format_count(int(url_episode))} | labels
    if is_list and n_replayable is not None and n_replayable < page.recorded:
        st.caption(
            f"{format_count(n_replayable)} of the run's {format_count(page.recorded)} episodes can be played and are "
            "listed first. Only the outcomes of the others are stored."
        )
    episode = _select(labels, keys, is_list, parameter=keys.episode, default=first_replayable)
    if not page.recorded:
        _show_empty(message, "No training episode has been recorded yet.", "The first ones follow within seconds.")
    elif is_list:
        _show_count(keys, page)
    if not episode:
        return None
    return make_replay(run, get_trajectory(data.database(), run.id, int(episode)), training=True)


def _read_training_page(run: RunRow, text: str, order: Order, offset: int, n_replayable: int | None) -> EpisodePage:
    """Read one page of the list. If only some episodes can be replayed, they are first.

    Args:
        run: The run.
        text: The search.
        order: Order of the episodes.
        offset: Number of episodes before this page.
        n_replayable: Number of episodes that can be replayed; None: the run is being trained, and all can be replayed.
    """
    read_page = data.cached(find_episodes, ttl=2)
    page = read_page(run.id, text, order_by=order, limit=EPISODES_PER_PAGE, offset=offset)
    if n_replayable is None or n_replayable >= page.recorded:
        return page
    return read_page(run.id, text, order_by=order, limit=EPISODES_PER_PAGE, offset=offset, replayable_first=True)


def _choose_evaluation(run: RunRow, keys: ChoiceKeys, message: DeltaGenerator, is_list: bool) -> Replay | None:
    """Draw the choice of an evaluation episode and read it. `message` is the container for an empty state."""
    text = _draw_search_field(keys, keys.play, is_list)
    read_page = data.cached(find_playbacks, ttl=2)
    page = _read_list_page(keys, lambda offset: read_page(run.id, text, limit=EPISODES_PER_PAGE, offset=offset))
    labels = {
        f"{row['env_step']}-{row['episode']}": (
            f"step {format_count(row['env_step'])}, {row['episode']} · {_describe_outcome(run, row)}"
        )
        for row in data.rows_of(page.frame)
    }
    url_play = keys.play.read() or ""
    step, _, episode = url_play.partition("-")
    if url_play not in labels and _is_number(step) and _is_number(episode):  # not on this page of the list
        labels = {url_play: f"step {format_count(int(step))}, {episode}"} | labels
    play = _select(labels, keys, is_list, parameter=keys.play)
    if not page.recorded and run.live_status in ENDED_STATUSES:
        with message:
            messages.empty(
                "This database has no evaluation episodes of this run.",
                "A thin bundle contains no evaluation episodes.",
            )
    elif not page.recorded:
        _show_empty(message, "No evaluation episode has been stored yet.", "The first one follows the first episodes.")
    elif is_list:
        _show_count(keys, page)
    if not play:
        return None
    step, _, episode = play.partition("-")
    return make_replay(run, get_playback(data.database(), run.id, int(step), int(episode)), training=False)


def _draw_search_field(keys: ChoiceKeys, parameter: Choice, is_list: bool) -> str:
    width_px = 170 if keys.is_second else 220
    text = st.text_input(
        "Find",
        **keys.search.bind(partial(_reset, keys, parameter)),
        type="search",
        placeholder="won return>5",
        help=_FIND_HELP,
        width="stretch" if is_list else width_px,
        label_visibility="visible" if is_list else "collapsed",
    )
    return text or ""


def _reset(keys: ChoiceKeys, parameter: Choice) -> None:
    """Remove page, episode and start step from the URL. The first episode of the first page is then selected."""
    keys.page.write(None)
    parameter.write(None)
    START.write(None)


def _read_list_page(keys: ChoiceKeys, read: Callable[[int], EpisodePage]) -> EpisodePage:
    """Read the selected page, or the last one if there are fewer pages.

    Args:
        keys: First or second episode.
        read: Function that reads a page, given the number of episodes before it.
    """
    number = keys.page.read() or 1
    page = read((number - 1) * EPISODES_PER_PAGE)
    n_pages = _count_pages(page)
    if number <= n_pages:
        return page
    return read((keys.page.read_page_number(n_pages) - 1) * EPISODES_PER_PAGE)


def _count_pages(page: EpisodePage) -> int:
    return max(1, ceil(page.total / EPISODES_PER_PAGE))


def _show_empty(message: DeltaGenerator, text: str, advice: str) -> None:
    with message:
        messages.empty(text, advice, page="../pages/live.py", label="Watch the run on Live")


def _show_count(keys: ChoiceKeys, page: EpisodePage) -> None:
    """Draw the number of episodes and the page numbers of a list."""
    n_pages = _count_pages(page)
    number = st.pagination(**keys.page.bind_page_number(n_pages), max_visible_pages=3) if n_pages > 1 else 1
    if page.total < page.recorded:
        count = f"{format_count(page.total)} of {format_count(page.recorded)} episodes match"
    else:
        count = f"{format_count(page.recorded)} episodes"
    if n_pages > 1:
        first = (number - 1) * EPISODES_PER_PAGE + 1
        last = first + len(page.frame) - 1
        count = f"{format_count(first)}–{format_count(last)} of {count}"
    st.caption(f"{count}.")


def _select(
    labels: dict[str, str], keys: ChoiceKeys, is_list: bool, *, parameter: Choice, default: str | None = None
) -> str | None:
    """Draw the selection of one episode.

    `default` is the key that is selected until the user selects another one; None is the first key.
    """
    if not labels:
        return None
    bound = parameter.bind(list(labels), labels.__getitem__, default=default, on_change=partial(START.write, None))
    if not is_list:
        return str(st.selectbox("Episode", **bound, label_visibility="collapsed"))
    with st.container(key="replay_episodes"):
        return str(st.radio("Episode", **bound, label_visibility="collapsed"))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS


def _describe_outcome(run: RunRow, row: dict[str, Any]) -> str:
    outcome = name_outcome(run.config, won=bool(row["won"]), episode_return=float(row["episode_return"]))
    return f"{outcome} · return {format_number(row['episode_return'])} · {row['length']} steps"
