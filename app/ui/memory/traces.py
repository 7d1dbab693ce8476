"""The paths of episodes over the map: that of the chosen memory, and another held against it."""

import numpy as np
import streamlit as st

from app.analysis.format import escape_markdown, format_number
from app.figures.kinds.maps import MAX_LABELED_ERRORS, largest_errors
from app.figures.named.memories import find_contrast
from app.figures.theme import DELTA_MEM, WIN_RATE
from app.ui import data, state
from app.ui.memory import atlas
from app.ui.memory.snapshot_map import Shown
from emtc_core.errors import EmtcError
from emtc_core.metrics import CLOSED_BELOW
from storage.queries.episodes import Trajectory
from storage.queries.memory import NodeDetail
from storage.runs.rows import RunRow

AGAINST = "against"
EVERY = 10
"""Steps between two marks of a path."""


def choose(run: RunRow, shown: Shown, detail: NodeDetail) -> Trajectory | None:
    """Ask which episode to hold against the one that wrote a memory; the address keeps it."""
    asked = state.read_int(AGAINST)
    if st.session_state.get("against_seen") != asked:
        st.session_state["against_seen"] = st.session_state["against_typed"] = asked
    with st.popover("Against", icon=":material/compare_arrows:", help="Draw a second episode's path over the map"):
        chosen = st.number_input(
            "Hold against episode", min_value=1, step=1, value=None, key="against_typed", on_change=_typed,
            placeholder="none", help="Its path is drawn beside that of the chosen memory's episode.",
        )  # fmt: skip
        st.button(
            "Find its opposite", icon=":material/search:", key="find_opposite",
            help="The episode from the same region of the memory whose outcome differs most: "
            "the highest return against the lowest.",
            on_click=_find, args=(shown, detail.trajectory),
        )  # fmt: skip
        if (told := st.session_state.pop("against_told", None)) is not None:
            st.caption(escape_markdown(str(told)))
    if chosen is None or chosen == detail.trajectory.episode:
        return None
    try:
        return data.trajectory(run.id, int(chosen))
    except EmtcError as exc:
        st.caption(escape_markdown(str(exc)))
        return None


def make_paths(shown: Shown, own: Trajectory, other: Trajectory | None) -> list[atlas.Path]:
    """Draw one path, or two in the colours of a good and a bad strategy."""
    if other is None:
        return [make_path(shown, own)]
    good, bad = _in_order(own, other)
    colors = {good.episode: WIN_RATE, bad.episode: DELTA_MEM}
    return [make_path(shown, each, color=colors[each.episode]) for each in (own, other)]


def say(own: Trajectory, other: Trajectory) -> None:
    """Show in numbers what the gate made of two episodes, the better one first."""
    st.caption(" · ".join(_in_numbers(each) for each in _in_order(own, other)))


def _in_order(own: Trajectory, other: Trajectory) -> tuple[Trajectory, Trajectory]:
    return (own, other) if _rank(own) >= _rank(other) else (other, own)


def make_path(shown: Shown, trajectory: Trajectory, *, color: str | None = None) -> atlas.Path:
    """Place every state of an episode on the map; None where its node is no longer in the memory."""
    places: list[atlas.Place | None] = []
    if trajectory.slots is not None:
        rows = shown.snapshot.rows_of(trajectory.slots)
        found = np.where(rows[:, None] >= 0, shown.coordinates[rows], np.nan)
        places = [place if np.isfinite(place).all() else None for place in found.tolist()]
    path = atlas.Path(
        label=_name(trajectory),
        places=places,
        beta=_known(trajectory.beta),
        delta_mem=_known(trajectory.delta_mem),
        jumps=[] if trajectory.delta_mem is None else largest_errors(trajectory.delta_mem, MAX_LABELED_ERRORS).tolist(),
    )
    if color is not None:
        path["color"] = color
    return path


def _typed() -> None:
    st.session_state["against_seen"] = st.session_state["against_typed"]
    state.write(AGAINST, st.session_state["against_typed"])


def _find(shown: Shown, own: Trajectory) -> None:
    try:
        state.write(AGAINST, find_contrast(data.database(), shown.snapshot, own))
    except EmtcError as exc:
        st.session_state["against_told"] = str(exc)


def _rank(trajectory: Trajectory) -> tuple[bool, float]:
    return trajectory.won, trajectory.episode_return


def _name(trajectory: Trajectory) -> str:
    outcome = "won" if trajectory.won else "not won"
    return f"episode {trajectory.episode}, {outcome}, return {format_number(trajectory.episode_return)}"


def _in_numbers(trajectory: Trajectory) -> str:
    """What an episode's errors and gates come to."""
    if trajectory.delta_mem is None or trajectory.beta is None:
        return escape_markdown(_name(trajectory))
    known = np.isfinite(trajectory.delta_mem)
    if not known.any():
        return escape_markdown(_name(trajectory))
    error, gate = trajectory.delta_mem[known], trajectory.beta[known]
    return escape_markdown(
        f"{_name(trajectory)}: mean Δ_mem {error.mean():.3g}, largest {error.max():.3g}, "
        f"mean β {gate.mean():.3g}, β < {CLOSED_BELOW:g} at {100 * np.mean(gate < CLOSED_BELOW):.0f} % of its steps"
    )


def _known(values: np.ndarray | None) -> list[float | None]:
    return [] if values is None else [float(value) if np.isfinite(value) else None for value in values]
