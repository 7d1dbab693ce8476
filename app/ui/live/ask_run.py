"""Ask the living run: an evaluation or an episode now, and what it answered; the training does not notice."""

from urllib.parse import urlencode

import streamlit as st

from app.analysis.format import escape_markdown
from app.jobs.questions import describe
from app.ui import data, messages, state, view
from app.ui.widgets import whole_number
from emtc_core.control import QuestionKind
from emtc_core.errors import EmtcError
from storage.runs.control import Asked, send_command
from storage.runs.lifecycle import ANSWERS
from storage.runs.rows import RunRow

PLAY = "play"  # the parameter by which Replay opens a greedy episode
_EVALUATE = "As many greedy episodes as a regular evaluation has, with the present weights."
_ONE = "One greedy episode with the present weights, kept for Replay."
_ASIDE = "The training goes on as if nobody had asked, and no curve gets a point."


def show_buttons(run: RunRow) -> None:
    """Draw a button for each question; where nobody is there to answer, it says so."""
    _button(run, "evaluate", "Evaluate now", ":material/exercise:", _EVALUATE)
    _button(run, "play", "Play one episode now", ":material/smart_display:", _ONE)
    if why_not(run) is None and run.env_steps:
        with st.popover("Play again …", icon=":material/replay:", help="A training episode, with the present policy"):
            episode = whole_number.ask("Training episode", key="ask-episode", usual=1, low=1, high=10**9)
            if episode is not None:
                show_again(run, episode)


def show_again(run: RunRow, episode: int) -> None:
    """Draw the button that plays a training episode again, from its start, with the present policy."""
    about = (
        f"One greedy episode with the present weights, from the start of training episode {episode} where the "
        "environment can repeat it; the answer says which start it was."
    )
    _button(run, "play", "Play it with the present policy", ":material/replay:", about, episode=episode)


def show_answers(run: RunRow) -> None:
    """What became of the last questions, each with the way to its playback.

    The way is a plain link: this part of the page ticks, and a tick takes a page link's address back. It is relative,
    for the app may be served below a path of its own.
    """
    for asked in data.questions(run, limit=2):
        st.caption(f"{escape_markdown(describe(asked))}{_link(run, asked)}")


def why_not(run: RunRow) -> str | None:
    """Why a run cannot be asked, or None if it can."""
    if run.state in ANSWERS:
        return None
    return f"No trainer is there to answer: the run is {run.state.value}."


def _button(run: RunRow, kind: QuestionKind, label: str, icon: str, about: str, *, episode: int | None = None) -> None:
    reason = why_not(run)
    key = f"ask-{kind}" if episode is None else f"ask-{kind}-again"
    if st.button(label, icon=icon, key=key, disabled=reason is not None, help=reason or f"{about} {_ASIDE}"):
        try:
            send_command(data.database(), run.id, kind, episode=episode)
        except EmtcError as exc:
            messages.error(exc)


def _link(run: RunRow, asked: Asked) -> str:
    if asked.answer is None:
        return ""
    about = view.link({state.RUN: run.id, PLAY: f"{asked.answer.env_step}-{asked.answer.playback}"})
    return f" · [Replay](replay?{urlencode(about)})"
