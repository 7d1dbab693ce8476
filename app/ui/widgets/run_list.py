"""A narrow list of runs in groups, drawn in the browser, next to charts and in the run picker.

A group is closed or shows its runs. Each group and each run may have an eye, which is a button that hides or shows its
lines in the charts. A chart that has the line of a pressed group hides it at once; the page then makes new data. The
pointer or the focus on a row highlights the line of the row in all charts of the page.

Example:
    `run_list.show(groups, key="compare_list", on_toggle=hide_or_show, on_pick=open_run)`
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import streamlit as st
from streamlit.components.v2 import component

from app.analysis.format import format_percent
from app.figures.assets import read_asset
from app.figures.theme import STATUS_COLOR, STATUS_ICON, Style
from app.ui import data
from storage.runs.sweeps import find_sweep_names

MAX_LISTED: Final = 500
"""Maximum number of runs that are sent to the browser. A group states how many of its runs are left out."""
_list = component(
    "emtc_lab_run_list",
    html='<div class="run-list" role="group"></div>',
    css=read_asset("run_list.css"),
    js="\n".join(map(read_asset, ("line_marker.js", "run_list.js"))),
)


@dataclass(frozen=True)
class ListedRun:
    """One run of the list."""

    id: str
    name: str
    """A short name that is unique in its group, such as "seed 3"."""
    status: str
    """As `storage.runs.rows.shown_status` returns it."""
    rate: float | None = None
    """The final win rate [fraction]; None if there is none."""
    is_shown: bool = True
    """Whether its lines are drawn. Without effect in a list without eyes."""
    tip: str = ""
    """Tooltip, for example the full name."""
    style: Style | None = None
    """Style of the line that shows only this run; None if there is none."""
    line: str = ""
    """Name of this line in the charts (`Line.name`), which the eye of the run hides; empty if there is none."""


@dataclass(frozen=True)
class RunGroup:
    """Runs with a common title: a variant (runs that differ only in their seed), a sweep, or a tag."""

    key: str
    """Unique among the groups, and different from all run ids."""
    title: str
    runs: tuple[ListedRun, ...]
    rate: float | None = None
    """The mean of the final win rates of its runs [fraction]; None if there is none."""
    tip: str = ""
    """Tooltip."""
    style: Style | None = None
    """Style of the line of the group; None if the group is not one line."""
    line: str = ""
    """Name of this line in the charts (`Line.name`); empty if the group is not one line."""
    is_open: bool = False
    """Whether the runs are listed until the user folds or unfolds the group."""


def show(
    groups: Sequence[RunGroup],
    *,
    key: str,
    on_toggle: Callable[[str, bool], None] | None = None,
    on_pick: Callable[[str], None] | None = None,
    on_only: Callable[[str], None] | None = None,
    current_id: str = "",
    label: str = "Runs",
    height: str = "calc(100vh - 12rem)",
) -> None:
    """Draw the list. The callbacks run before the page or the fragment is drawn again.

    Args:
        groups: The groups, in their order.
        key: Key of the component, unique on the page.
        on_toggle: Called with the key of a group or the id of a run, and whether its lines must be drawn now. Two
            presses may arrive together; then it is called for each of them. None: the list has no eyes.
        on_pick: Called with the id of a run whose name was pressed. None: names are not buttons.
        on_only: Called with the key of a group or the id of a run whose button *only* was pressed. None: without it.
        current_id: Id of the run that is marked as the current one.
        label: Name of the list for a screen reader.
        height: Largest height of the list, in CSS. A longer list has a scroll bar.
    """

    def read(event: str) -> Any:
        state = st.session_state.get(key)
        return state.get(event) if state else None

    def toggled() -> None:
        for name, is_shown in dict(read("toggle") or {}).items():
            if on_toggle is not None:
                on_toggle(str(name), bool(is_shown))

    def picked() -> None:
        if on_pick is not None and (run_id := read("pick")):
            on_pick(str(run_id))

    def isolated() -> None:
        if on_only is not None and (name := read("only")):
            on_only(str(name))

    _list(
        key=key,
        data={
            "groups": _describe_groups(groups),
            "hides": on_toggle is not None,
            "picks": on_pick is not None,
            "isolates": on_only is not None,
            "current": current_id,
            "label": label,
            "height": height,
        },
        on_toggle_change=toggled,
        on_pick_change=picked,
        on_only_change=isolated,
    )


def group_by_sweep(rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, list[Mapping[str, Any]]]]:
    """Group rows of runs by sweep. The runs without a sweep are one group.

    Args:
        rows: Rows of `storage.queries.run_search.run_page`.

    Returns:
        Key (`make_sweep_key`), title and rows of each group, in the order of their first rows.
    """
    rows_by_sweep: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        rows_by_sweep.setdefault(str(row["sweep_id"] or ""), []).append(row)
    names = data.cached(find_sweep_names, ttl=5)(sorted(sweep_id for sweep_id in rows_by_sweep if sweep_id))
    return [
        (make_sweep_key(sweep_id), names.get(sweep_id, sweep_id) or "Single runs", members)
        for sweep_id, members in rows_by_sweep.items()
    ]


def make_sweep_key(sweep_id: str | None) -> str:
    """Return the key of the group of a sweep, or of the runs without a sweep."""
    return f"sweep {sweep_id or ''}"


def _describe_groups(groups: Sequence[RunGroup]) -> list[dict[str, Any]]:
    """Write the groups as JSON values. After `MAX_LISTED` runs, a group has the number of its other runs."""
    n_left = MAX_LISTED
    described: list[dict[str, Any]] = []
    for group in groups:
        listed = group.runs[:n_left]
        n_left -= len(listed)
        states = {run.is_shown for run in group.runs}
        described.append(
            {
                "key": group.key,
                "title": group.title,
                "tip": group.tip,
                "rate": _write_rate(group.rate),
                "style": _describe_style(group.style),
                "line": group.line,
                "open": group.is_open,
                "shown": "mixed" if len(states) > 1 else _write_state(states != {False}),
                "runs": [_describe_run(run) for run in listed],
                "more": len(group.runs) - len(listed),
            }
        )
    return described


def _describe_run(run: ListedRun) -> dict[str, Any]:
    return {
        "id": run.id,
        "name": run.name,
        "tip": run.tip,
        "status": run.status,
        "icon": STATUS_ICON.get(run.status, ":material/help:").removeprefix(":material/").removesuffix(":"),
        "color": STATUS_COLOR.get(run.status, "gray"),
        "rate": _write_rate(run.rate),
        "style": _describe_style(run.style),
        "line": run.line,
        "shown": _write_state(run.is_shown),
    }


def _write_state(is_shown: bool) -> str:
    """Write the value of `aria-pressed` of an eye."""
    return "true" if is_shown else "false"


def _write_rate(rate: float | None) -> str:
    """Write a rate in percent; empty without a rate."""
    return "" if rate is None or rate != rate else format_percent(rate)


def _describe_style(style: Style | None) -> dict[str, Any] | None:
    if style is None:
        return None
    return {"color": style.color, "dash": list(style.dash or ()) or None, "marker": style.marker or None}
