"""A second episode beside the first, of this run or another; the URL names both."""

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.replay.replay import Replay
from app.ui import data, messages, state
from app.ui.replay import choose
from app.ui.replay.choose import BESIDE, FIRST, TRAINING
from emtc_core.errors import EmtcError
from storage.queries.runs import RunFilter
from storage.runs.rows import RunRow

LISTED = 100
_ON, _RUN, _NOTE = "beside_on", "choose-beside-run", "extremes_note"
_HELP = "Two episodes under one time cursor; the second may be of another run."
_BEST = "The run's training episode with the highest return, of those that can be replayed, beside this one"
_RULE = (
    "The two training episodes with the highest and the lowest return. Two that began in the same node of the memory "
    "are preferred if their returns differ by at least half as much as those of the best and the worst of all; among "
    "equal returns the newest is taken."
)


def ask(run: RunRow, foot: DeltaGenerator) -> bool:
    """Offer a second episode; say whether one is wanted."""
    if BESIDE.is_in_url():
        st.session_state[_ON] = True
    with foot:
        on = st.toggle("Beside", key=_ON, on_change=_toggled, help=_HELP)
        st.button("Beside the best", key="beside_best", on_click=_take_best, args=(run,), help=_BEST)
        st.button("Best against worst", key="extremes", on_click=_take_extremes, args=(run,), help=_RULE)
    if note := st.session_state.pop(_NOTE, ""):
        st.toast(note, icon=":material/compare:")
    return on


def choose_beside(run: RunRow) -> Replay | None:
    """Draw the choice of the second episode and read it."""
    bar = st.container(horizontal=True, vertical_alignment="center")
    return choose.choose(_choose_run(run, bar), bar, st.container(), BESIDE)


def _choose_run(run: RunRow, bar: DeltaGenerator) -> RunRow:
    """Draw the choice of the run; the URL names one that is not the page's own."""
    names, _ = data.run_names(RunFilter(), LISTED)
    wanted = state.read_text(state.BESIDE_RUN) or run.id
    try:
        other = data.get_run(wanted)
    except EmtcError as exc:
        messages.error(exc)
        other = run
    for each in (run, other):
        names = names if each.id in names else names | {each.id: each.name}
    st.session_state[_RUN] = other.id
    bar.selectbox(
        "Run of the second",
        list(names),
        format_func=lambda each: f"{names.get(each, '')} · {each}",
        key=_RUN,
        width=240,
        label_visibility=BESIDE.labels,
        on_change=_run_chosen,
        args=(run.id,),
    )
    return other


def _run_chosen(own: str) -> None:
    chosen = st.session_state[_RUN]
    _forget()
    state.write(state.BESIDE_RUN, chosen if chosen != own else None)


def _toggled() -> None:
    if not st.session_state[_ON]:
        _forget()


def _forget() -> None:
    """Take the second episode out of the URL; which one comes next is the list's first."""
    for name in (BESIDE.episode, BESIDE.play, state.BESIDE_RUN):
        state.write(name, None)
        st.session_state.pop(f"choose-{name}", None)


def _take_best(run: RunRow) -> None:
    """Show the run's best training episode beside the one that is shown."""
    found = data.extremes(run.id)
    if found is None:
        st.session_state[_NOTE] = "No two episodes of this run can be replayed that differ in return."
        return
    _forget()
    st.session_state[BESIDE.source] = TRAINING
    st.session_state[BESIDE.find] = ""
    state.write(BESIDE.episode, found.best)


def _take_extremes(run: RunRow) -> None:
    """Show the best training episode of the run beside its worst."""
    try:
        found = data.extremes(run.id)
    except EmtcError as exc:
        st.session_state[_NOTE] = str(exc)
        return
    if found is None:
        st.session_state[_NOTE] = "No two episodes of this run can be replayed that differ in return."
        return
    _forget()
    state.write(choose.PLAY, None)
    state.write(state.START, None)
    for place in (FIRST, BESIDE):
        st.session_state[place.source] = TRAINING
        st.session_state[place.find] = ""
    state.write(FIRST.episode, found.best)
    state.write(BESIDE.episode, found.worst)
    where = "both began in one node of the memory" if found.node is not None else "they began in different nodes"
    st.session_state[_NOTE] = f"Episode {found.best} had the highest return, {found.worst} the lowest; {where}."
