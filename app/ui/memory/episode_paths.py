"""Paths of episodes on the map: of the episode that wrote the selected node, and of an episode to compare with.

A path connects the nodes (stored states of the memory) that an episode visited. Its values per step are Δ_mem, the
consistency error of the recalled returns, and β, the gate coefficient, which is the weight of the episodic incentive.
"""

import numpy as np
import streamlit as st

from app.analysis.format import escape_markdown, format_number
from app.figures.kinds.maps import MAX_LABELED_ERRORS, largest_errors
from app.figures.named.memories import find_contrast
from app.figures.theme import DELTA_MEM_COLOR, WIN_RATE_COLOR
from app.ui import data
from app.ui.memory import atlas
from app.ui.memory.snapshot_map import MemoryMap
from app.ui.page_state import Integer
from emtc_core.errors import EmtcError
from emtc_core.metrics import CLOSED_BELOW
from storage.queries.episodes import Trajectory, get_trajectory
from storage.queries.memory import NodeDetail
from storage.runs.rows import RunRow

_OTHER_EPISODE = Integer("against", "memory", low=1)
"""Number of the episode to compare with."""
STEPS_PER_MARK = 10
"""Number of steps between two marks on a path."""
_SEARCH_ERROR = "against_error"
"""Key of the session state: why no episode with the opposite outcome was found."""


def choose_other_episode(run: RunRow, memory_map: MemoryMap, detail: NodeDetail) -> Trajectory | None:
    """Draw the choice of an episode to compare with the one that wrote a memory; the URL stores it."""
    with st.popover("Compare", help="Draw the path of a second episode on the map"):
        episode = st.number_input(
            "Compare with episode", **_OTHER_EPISODE.bind(), step=1, placeholder="none",
            help="Its path is drawn next to the path of the selected memory's episode.",
        )  # fmt: skip
        st.button(
            "Find opposite outcome", icon=":material/search:", key="find_opposite",
            help="Selects the episode from the same region of the memory whose outcome differs most: the highest "
            "return, if this one is low, or the lowest.",
            on_click=_find_opposite, args=(memory_map, detail.trajectory),
        )  # fmt: skip
        message = st.session_state.pop(_SEARCH_ERROR, None)
        if message is not None:
            st.caption(escape_markdown(str(message)))
    if episode is None or episode == detail.trajectory.episode:
        return None
    try:
        return get_trajectory(data.database(), run.id, int(episode))
    except EmtcError as exc:
        st.caption(escape_markdown(str(exc)))
        return None


def make_paths(memory_map: MemoryMap, trajectory: Trajectory, other: Trajectory | None) -> list[atlas.EpisodePath]:
    """Make one path, or two: the better episode has the color of the win rate, the worse one that of Δ_mem."""
    if other is None:
        return [make_path(memory_map, trajectory)]
    better, worse = _sort_by_outcome(trajectory, other)
    colors = {better.episode: WIN_RATE_COLOR, worse.episode: DELTA_MEM_COLOR}
    return [make_path(memory_map, episode, color=colors[episode.episode]) for episode in (trajectory, other)]


def make_path(memory_map: MemoryMap, trajectory: Trajectory, *, color: str | None = None) -> atlas.EpisodePath:
    """Make the path of one episode. A step has no point if its node is not in the snapshot."""
    points: list[atlas.MapPoint | None] = []
    if trajectory.slots is not None:
        rows = memory_map.snapshot.rows_of(trajectory.slots)
        is_in_snapshot = rows[:, None] >= 0
        coordinates = np.where(is_in_snapshot, memory_map.coordinates[rows], np.nan)
        points = [point if np.isfinite(point).all() else None for point in coordinates.tolist()]
    path = atlas.EpisodePath(
        label=_describe(trajectory),
        points=points,
        beta=_replace_nan(trajectory.beta),
        delta_mem=_replace_nan(trajectory.delta_mem),
        jumps=[] if trajectory.delta_mem is None else largest_errors(trajectory.delta_mem, MAX_LABELED_ERRORS).tolist(),
    )
    if color is not None:
        path["color"] = color
    return path


def show_gate_values(trajectory: Trajectory, other: Trajectory) -> None:
    """Draw the errors and gate coefficients of two episodes as text, the better one first."""
    st.caption(" · ".join(_describe_gate(episode) for episode in _sort_by_outcome(trajectory, other)))


def _find_opposite(memory_map: MemoryMap, trajectory: Trajectory) -> None:
    try:
        _OTHER_EPISODE.write(find_contrast(data.database(), memory_map.snapshot, trajectory))
    except EmtcError as exc:
        st.session_state[_SEARCH_ERROR] = str(exc)


def _sort_by_outcome(first: Trajectory, second: Trajectory) -> tuple[Trajectory, Trajectory]:
    """Return the better episode first: a win before a loss, then the higher return."""
    if (first.won, first.episode_return) >= (second.won, second.episode_return):
        return first, second
    return second, first


def _describe(trajectory: Trajectory) -> str:
    outcome = "won" if trajectory.won else "not won"
    return f"episode {trajectory.episode}, {outcome}, return {format_number(trajectory.episode_return)}"


def _describe_gate(trajectory: Trajectory) -> str:
    if trajectory.delta_mem is None or trajectory.beta is None:
        return escape_markdown(_describe(trajectory))
    has_error = np.isfinite(trajectory.delta_mem)  # not if the memory had no node for the state or its successor
    if not has_error.any():
        return escape_markdown(_describe(trajectory))
    delta_mem = trajectory.delta_mem[has_error]
    beta = trajectory.beta[has_error]
    return escape_markdown(
        f"{_describe(trajectory)}: mean Δ_mem {delta_mem.mean():.3g}, largest {delta_mem.max():.3g}, "
        f"mean β {beta.mean():.3g}, β < {CLOSED_BELOW:g} at {100 * np.mean(beta < CLOSED_BELOW):.0f} % of its steps"
    )


def _replace_nan(values: np.ndarray | None) -> list[float | None]:
    """Convert values to a list for JSON: None for NaN, empty if there are no values."""
    if values is None:
        return []
    return [float(value) if np.isfinite(value) else None for value in values]
