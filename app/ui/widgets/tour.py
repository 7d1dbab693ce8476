"""A short tour over one's own run, from the gate to the memory to the replay: left and taken again at any time.

The address says at which stop one is (`tour=3`), so that a stop can be shared as any other view.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import streamlit as st

from app.analysis.format import escape_markdown, format_number
from app.figures.theme import ENDED_STATUSES
from app.ui import data, state
from storage.queries.runs import RunFilter
from storage.runs.rows import RunRow

if TYPE_CHECKING:
    from app.analysis.neighborhoods import Outlier

_NO_SNAPSHOT = " No snapshot of the memory is there: wait on Live for the first one, or start the demo run on Home."
NOTHING_TO_SHOW = (
    "No run here has both a gate and a snapshot of its memory yet. Start the demo run: it has both within a minute."
)
_LOOKED_AT = 50
"""Of the newest runs."""
_FRAME = 0.03
"""Width of the frame around a point, as a part of the map."""


@dataclass(frozen=True)
class Stop:
    """One step: on which page it is, what the address there says besides the run, and what to look at."""

    page: str
    title: str
    tell: Callable[[RunRow], str]
    view: Callable[[RunRow], dict[str, str]] = lambda run: {}


def show(run: RunRow) -> None:
    """Draw the stop that the address names, where there is one."""
    at = state.read_int(state.TOUR)
    if at is None or not 1 <= at <= len(STOPS):
        return
    stop = STOPS[at - 1]
    with st.container(border=True, key="tour"):
        text, buttons = st.columns([8, 3], vertical_alignment="center")
        text.markdown(f"**{at} of {len(STOPS)} · {stop.title}** {stop.tell(run)}")
        with buttons.container(horizontal=True, horizontal_alignment="right", gap="small"):
            if at > 1:
                _go("Back", at - 1, run)
            if at < len(STOPS):
                _go("Next", at + 1, run)
            leave = "Leave" if at < len(STOPS) else "Done"
            st.button(leave, key="tour_leave", on_click=state.write, args=(state.TOUR, None))


def offer() -> None:
    """Offer the tour over the newest run that can show all of it, or say that there is none."""
    if not st.button(
        "Take the tour", icon=":material/explore:", key="take_tour",
        help="Six stops on the newest run with a gate and a kept memory: its gate, its memory, an odd point, the "
        "episode behind it, what if, replay.",
    ):  # fmt: skip
        return
    run_id = find()
    if run_id is None:
        st.info(NOTHING_TO_SHOW, icon=":material/explore:")
    else:
        st.switch_page("../pages/live.py", query_params={state.RUN: run_id, state.TOUR: "1"})


def find() -> str | None:
    """The newest run whose gate was measured and whose memory was kept; one whose gate acts comes first."""
    newest = data.rows_of(data.run_page(RunFilter(), sort="-created", limit=_LOOKED_AT).frame)
    gated = [row for row in newest if row["gate"] in ("active", "idle")]
    for row in sorted(gated, key=lambda row: row["gate"] == "idle"):
        if len(_memories().snapshots(str(row["id"]))):
            return str(row["id"])
    return None


def _go(label: str, at: int, run: RunRow) -> None:
    if not st.button(label, key=f"tour_{label.lower()}", type="primary" if label == "Next" else "secondary"):
        return
    stop = STOPS[at - 1]
    there = {state.RUN: run.id, state.TOUR: str(at)}
    st.switch_page(f"../pages/{stop.page}.py", query_params=there | stop.view(run))


def _tell_gate(run: RunRow) -> str:
    # the card is not drawn anew while a run trains: before the first report its settings say what will come
    coming = run.live_status not in ENDED_STATUSES and run.config.get("gate", {}).get("enabled")
    if not coming and data.gate_state(run) is None:
        return (
            "This run has no gate, or ended before it was measured: there is nothing to see here. *Take the tour* on "
            "Home finds a run that has one."
        )
    return (
        "*Gate* shows Δ̄_mem, how far the memory contradicts itself from one step to the next, and β̄, how open the gate "
        "is: 1 trusts the memory, 0 shuts it out. Go on when the first curve stands."
    )


def _tell_growth(run: RunRow) -> str:
    said = "Every point is a state that the run remembers. Press *▶ Growth*: they appear in the order of their writing."
    return said if len(_memories().snapshots(run.id)) else said + _NO_SNAPSHOT


def _tell_outlier(run: RunRow) -> str:
    odd = _outlier(run)
    if odd is None:
        return "The memory is still too small for a point that stands out." + _NO_SNAPSHOT
    return escape_markdown(
        f"A bright point among dark ones: memory {odd.slot} holds H = {format_number(odd.h)}, its ten nearest "
        f"neighbors "
        f"{format_number(odd.neighbors_h)} on average. It is in the middle of the map now: click it."
    )


def _tell_episode(run: RunRow) -> str:
    return (
        "Beside the map: the memory's entry, and the episode that wrote it. Press *▶ Play*: its head moves over the "
        "map, the line is as wide as the gate is open. *Against* finds the opposite episode from the same region."
    )


def _tell_what_if(run: RunRow) -> str:
    return (
        "Would another temperature have judged otherwise? Open *What if* under the map: it recomputes the gate with "
        "the core's own functions. Move τ, and see what share of the incentive it would have removed."
    )


def _tell_replay(run: RunRow) -> str:
    return (
        "Here every episode can be searched and played, two of them side by side under one time cursor. Keep what you "
        "found with *Pin*: the notebook holds the figure, the view and your words."
    )


def _memories() -> ModuleType:
    """Reads of memories: the scipy behind them is loaded when a stop asks, and not before the first page."""
    from app.ui import memory_data

    return memory_data


def _outlier(run: RunRow) -> "Outlier | None":
    listed = _memories().snapshots(run.id)
    return None if listed.empty else _memories().outlier(int(listed["id"].iloc[-1]), str(listed["created_at"].iloc[-1]))


def _look_at_outlier(run: RunRow) -> dict[str, str]:
    odd, listed = _outlier(run), _memories().snapshots(run.id)
    if odd is None:
        return {}
    snapshot_id, stamp = int(listed["id"].iloc[-1]), str(listed["created_at"].iloc[-1])
    places = _memories().principal_plane(snapshot_id, stamp).coordinates
    x, y = places[odd.row].tolist()
    span = _FRAME * float(places[:, 0].max() - places[:, 0].min())
    return {"snap": str(snapshot_id), "color": "h", "camera": f"{x:.6g},{y:.6g},{span:.6g}"}


def _look_at_episode(run: RunRow) -> dict[str, str]:
    odd = _outlier(run)
    return {} if odd is None else {"point": str(odd.slot), "color": "h"}


STOPS = (
    Stop("live", "The gate at work.", _tell_gate),
    Stop("memory", "The memory grows.", _tell_growth),
    Stop("memory", "A point that stands out.", _tell_outlier, _look_at_outlier),
    Stop("memory", "The episode behind it.", _tell_episode, _look_at_episode),
    Stop("memory", "What if?", _tell_what_if, _look_at_episode),
    Stop("replay", "Two strategies.", _tell_replay),
)
