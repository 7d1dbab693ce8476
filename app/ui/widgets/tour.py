"""A tour of one run in six steps: its gate, its memory, an outlier, the outlier's episode, *What if*, and replays.

The gate is the weight β of the episodic incentive, the reward from the episodic memory. A node is a stored state of the
memory, and an outlier is a node whose return differs from the returns of its neighbors. *What if* shows the effect of
another temperature τ of the gate. The URL contains the step (`tour=3`), so a link opens it. Each step highlights a part
of its page and scrolls to it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import streamlit as st
from streamlit.components.v2 import component

from app.analysis.format import escape_markdown, format_number
from app.analysis.settings import get_delta_space, is_gate_off
from app.figures.assets import read_asset
from app.figures.theme import ENDED_STATUSES
from app.ui import data, run_data
from app.ui.page_state import MARK, RUN, TOUR
from emtc_core.errors import EmtcError
from storage.queries.episode_search import Extremes, find_extremes
from storage.queries.memory import list_snapshots
from storage.queries.run_search import RunFilter, run_page
from storage.runs.rows import RunRow

if TYPE_CHECKING:
    from app.analysis.neighborhoods import Outlier
    from app.ui.memory_data import SnapshotKey

NO_SUITABLE_RUN = (
    "No run has both a gate and a snapshot of its memory yet. Start the demo run: it has both within a minute."
)
_NO_SNAPSHOT = (
    " There is no snapshot of the memory yet: wait on Live for the first one, or start the demo run on Guide."
)
_MEMORY_MAP = ".st-key-atlas"
"""CSS selector of the map of nodes on the page Memory."""
_MAX_RUNS = 50
"""Maximum number of runs, the newest ones, among which a run for the tour is searched."""
_VIEW_WIDTH = 0.03
"""Width of the visible part of the map around the outlier, as a fraction of the width of the whole map."""


@dataclass(frozen=True)
class Step:
    """One step of the tour."""

    page: str
    title: str
    target: str
    """CSS selector of the part of the page that is highlighted."""
    describe: Callable[[RunRow], str]
    """Returns the text of the step for a run."""
    get_parameters: Callable[[RunRow], dict[str, str]] = lambda run: {}
    """Returns the URL parameters of the page for a run, in addition to run and step."""


_highlight = component("emtc_lab_tour", js=read_asset("tour.js"))


def show(run: RunRow) -> None:
    """Draw the step that the URL names, if there is one."""
    number = TOUR.read()
    if number is None or number > len(STEPS):
        return
    step = STEPS[number - 1]
    with st.container(border=True, key="tour", gap=None):
        text, buttons = st.columns([8, 3], vertical_alignment="center")
        text.markdown(f"**{step.title}** {step.describe(run)}")
        with buttons.container(horizontal=True, horizontal_alignment="right", vertical_alignment="center", gap="small"):
            dots = "".join("●" if index < number else "○" for index in range(len(STEPS)))
            st.caption(f"{dots}  {number} of {len(STEPS)}", width="content")
            if number > 1:
                _show_step_button("Back", number - 1, run)
            if number < len(STEPS):
                _show_step_button("Next", number + 1, run)
            label = "Close" if number < len(STEPS) else "Done"
            st.button(label, key="tour_leave", on_click=TOUR.write, args=(None,))
        _highlight(key="tour_highlight", data={"target": step.target, "step": number})


def show_start_button() -> None:
    """Draw the button that starts the tour of the newest suitable run; a message if there is none."""
    if not st.button(
        "Take the tour", icon=":material/explore:", key="take_tour",
        help="Six steps on the newest run with a gate and a stored memory: gate, memory, outlier, episode, what if, "
        "replay.",
    ):  # fmt: skip
        return
    run_id = find_run_for_tour()
    if run_id is None:
        st.info(NO_SUITABLE_RUN, icon=":material/explore:")
    else:
        st.switch_page("../pages/live.py", query_params={RUN.name: run_id, TOUR.name: "1"})


def find_run_for_tour() -> str | None:
    """Find the newest run with a measured gate and a stored memory. A run with an active gate is preferred.

    A gate is idle if it removes almost nothing of the incentive (less than `gate_state.ACTIVE_SHARE`).
    """
    rows = data.rows_of(data.cached(run_page, ttl=1)(RunFilter(), sort="-created", limit=_MAX_RUNS).frame)
    gated_rows = [row for row in rows if row["gate"] in ("active", "idle")]
    for row in sorted(gated_rows, key=lambda row: row["gate"] == "idle"):  # active gates first, else newest first
        if len(data.cached(list_snapshots, ttl=2)(str(row["id"]))):
            return str(row["id"])
    return None


def _show_step_button(label: str, number: int, run: RunRow) -> None:
    if not st.button(label, key=f"tour_{label.lower()}", type="primary" if label == "Next" else "secondary"):
        return
    step = STEPS[number - 1]
    parameters = {RUN.name: run.id, TOUR.name: str(number)} | step.get_parameters(run)
    st.switch_page(f"../pages/{step.page}.py", query_params=parameters)


def _describe_gate(run: RunRow) -> str:
    # This text is not drawn again while the run trains. So before the first gate statistics, its settings decide.
    will_have_gate = run.live_status not in ENDED_STATUSES and not is_gate_off(run.config)
    if not will_have_gate and run_data.get_gate_verdict(run.id, run.live_status).gate is None:
        return (
            "This run has no gate, or it ended before the gate was measured. *Take the tour* on Guide finds a run with "
            "a gate."
        )
    return (
        "*gate activity* shows when the gate acts, and β̄ how open the gate is: at 1 the incentive is used in full, at "
        "0 it is removed. Continue when the first curve is drawn."
    )


def _describe_growth(run: RunRow) -> str:
    text = "Every point is a stored state. Press *▶ Growth* to see the states in the order in which they were written."
    return text if len(data.cached(list_snapshots, ttl=2)(run.id)) else text + _NO_SNAPSHOT


def _describe_outlier(run: RunRow) -> str:
    outlier = _find_outlier(run)
    if outlier is None:
        return "No outlier: the memory has too few nodes, or all their returns are equal." + _NO_SNAPSHOT
    part = f" among {outlier.searched}" if outlier.searched else ""
    return escape_markdown(
        f"Memory {outlier.slot} is the largest outlier{part}: H = {format_number(outlier.h)}, but "
        f"{format_number(outlier.neighbors_h)} on average at its ten nearest neighbors. "
        "Click the point with the large ring."
    )


def _describe_episode(run: RunRow) -> str:
    return (
        "This is the episode that wrote the node. Press *▶ Play* to show its path on the map. The line is wide where "
        "the gate is open."
    )


def _describe_what_if(run: RunRow) -> str:
    return "Change τ to see which share of the incentive the gate removes at another temperature."


def _describe_replay(run: RunRow) -> str:
    extremes = _find_extremes(run)
    if extremes is None:
        return "Choose an episode in the list and press *▶ Play*. *Pin* stores the figure and the view in the notebook."
    part = " of those that can be replayed" if extremes.n_replayable < extremes.n_recorded else ""
    return (
        f"The episodes with the highest and the lowest return{part}, with the same time cursor. Press *▶ Play* to see "
        "where they differ."
    )


def _import_memory_data() -> ModuleType:
    """Import the module that reads snapshots of the memory. It imports scipy, which must not delay the first page."""
    from app.ui import memory_data

    return memory_data


def _find_newest_snapshot(run: RunRow) -> "SnapshotKey | None":
    snapshots = data.cached(list_snapshots, ttl=2)(run.id)
    if snapshots.empty:
        return None
    newest = snapshots.iloc[-1]
    return _import_memory_data().SnapshotKey(data.database_url(), int(newest["id"]), str(newest["created_at"]))


def _find_outlier(run: RunRow) -> "Outlier | None":
    snapshot = _find_newest_snapshot(run)
    if snapshot is None:
        return None
    memory_data = _import_memory_data()
    outliers = memory_data.get_outliers(
        snapshot.url,
        snapshot.name,
        memory_data.get_snapshot(snapshot),
        delta_space=get_delta_space(run.config),
    )
    return outliers[0] if outliers else None


def _get_outlier_view(run: RunRow) -> dict[str, str]:
    """Return the URL parameters with which the map shows the surroundings of the outlier and marks it."""
    outlier = _find_outlier(run)
    snapshot = _find_newest_snapshot(run)
    if outlier is None or snapshot is None:
        return {}
    coordinates = _import_memory_data().get_pca(snapshot).coordinates
    x, y = coordinates[outlier.row].tolist()
    width = _VIEW_WIDTH * float(coordinates[:, 0].max() - coordinates[:, 0].min())
    view = {"snap": str(snapshot.snapshot_id), "color": "h", "camera": f"{x:.6g},{y:.6g},{width:.6g}"}
    return view | {MARK.name: str(outlier.slot)}


def _get_outlier_point(run: RunRow) -> dict[str, str]:
    """Return the URL parameters with which the page Memory selects the outlier."""
    outlier = _find_outlier(run)
    return {} if outlier is None else {"point": str(outlier.slot), "color": "h"}


def _get_what_if(run: RunRow) -> dict[str, str]:
    return _get_outlier_point(run) | {"what_if": "true"}


def _find_extremes(run: RunRow) -> Extremes | None:
    try:
        return data.cached(find_extremes, ttl=10)(run.id)
    except EmtcError:
        return None


def _get_two_episodes(run: RunRow) -> dict[str, str]:
    """Return the URL parameters with which Replay shows the episodes with the highest and the lowest return."""
    extremes = _find_extremes(run)
    return {} if extremes is None else {"episode": str(extremes.best), "beside": str(extremes.worst)}


STEPS = (
    Step("live", "The gate.", "[class*=st-key-live-gate]", _describe_gate),
    Step("memory", "The memory grows.", _MEMORY_MAP, _describe_growth),
    Step("memory", "An outlier.", _MEMORY_MAP, _describe_outlier, _get_outlier_view),
    Step("memory", "Its episode.", ".st-key-point-replay", _describe_episode, _get_outlier_point),
    Step("memory", "What if?", ".st-key-what_if_box", _describe_what_if, _get_what_if),
    Step("replay", "Replay.", ".st-key-replay-player", _describe_replay, _get_two_episodes),
)
