"""The list of runs at the left of the charts of the page Live: the eye of a run overlays it on the charts.

The runs are grouped by sweep. The group of the shown run is first and open. The shown run itself is not in the list.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import streamlit as st

from app.analysis.format import escape_markdown, format_count
from app.figures.reference_runs import MAX_REFERENCE_RUNS, style_reference_runs
from app.figures.theme import Style
from app.ui import data
from app.ui.live.cells import OVERLAID_RUNS, list_overlaid_runs
from app.ui.page_state import Flag, Text
from app.ui.widgets import run_filters, run_list
from app.ui.widgets.run_list import ListedRun, RunGroup
from emtc_core.errors import ConfigError
from storage.queries.run_search import RunFilter, run_page
from storage.runs.rows import RunRow, shown_status

IS_OPEN: Final = Flag("list", "live")
"""Whether the list is drawn."""
_SEARCH: Final = Text("q", "live")
_MAX_LISTED: Final = 200
"""Maximum number of runs in the list: the newest of those that match."""


def show(run: RunRow) -> None:
    """Draw the search and the list."""
    text = st.text_input(
        "Find runs", **_SEARCH.bind(), type="search", placeholder="Find runs", help=run_filters.HELP,
        label_visibility="collapsed",
    )  # fmt: skip
    try:
        page = data.cached(run_page, ttl=2)(RunFilter(text=text or ""), sort="-created", limit=_MAX_LISTED)
    except ConfigError as exc:  # the search cannot be parsed
        st.caption(escape_markdown(str(exc)))
        return
    if page.total > len(page.frame):
        st.caption(f"The newest {format_count(len(page.frame))} of {format_count(page.total)} runs.")
    rows = [row for row in data.rows_of(page.frame) if row["id"] != run.id]
    overlaid = list_overlaid_runs(run.id)
    groups = _make_groups(rows, run, style_reference_runs(overlaid))
    if not groups:
        st.caption("No other run matches." if text else "There is no other run.")
        return
    ids_by_group = {group.key: [listed.id for listed in group.runs] for group in groups}
    run_list.show(
        groups, key="live_list_of_runs", on_toggle=partial(_on_toggle, ids_by_group), label="Overlaid runs",
        height="calc(100vh - 8rem)",
    )  # fmt: skip


def _make_groups(rows: Sequence[Mapping[str, Any]], run: RunRow, styles: Mapping[str, Style]) -> list[RunGroup]:
    """Group the runs by sweep.

    Args:
        rows: The listed runs.
        run: The shown run, whose group is the first one.
        styles: Id of each overlaid run → style of its lines.
    """
    key_of_run = run_list.make_sweep_key(run.sweep_id)
    groups: list[RunGroup] = []
    for key, title, members in run_list.group_by_sweep(rows):
        runs = tuple(_describe_run(row, title, styles) for row in members)
        is_open = key == key_of_run or any(listed.is_shown for listed in runs)
        groups.append(RunGroup(key, title, runs, is_open=is_open))
    groups.sort(key=lambda group: group.key != key_of_run)
    if groups and not any(group.is_open for group in groups):
        groups[0] = replace(groups[0], is_open=True)
    return groups


def _describe_run(row: Mapping[str, Any], group_title: str, styles: Mapping[str, Style]) -> ListedRun:
    run_id = str(row["id"])
    status = shown_status(str(row["status"]), row["tags"])
    return ListedRun(
        run_id,
        str(row["name"]).removeprefix(f"{group_title} · "),
        status,
        rate=row["final_rate"],
        is_shown=run_id in styles,
        tip=f"{row['name']} · {run_id} · {row['map']} · {status}",
        style=styles.get(run_id),
        line=run_id if run_id in styles else "",
    )


def _on_toggle(ids_by_group: Mapping[str, Sequence[str]], name: str, is_shown: bool) -> None:
    """Overlay a run or the runs of a group, or remove them. Beyond the largest number, the first ones are removed."""
    ids = ids_by_group.get(name, [name])
    overlaid = [run_id for run_id in OVERLAID_RUNS.read() if run_id not in ids]
    if is_shown:
        overlaid += ids
    if len(overlaid) > MAX_REFERENCE_RUNS:
        st.toast(f"At most {MAX_REFERENCE_RUNS} runs are overlaid.", icon=":material/info:")
    OVERLAID_RUNS.write(overlaid[-MAX_REFERENCE_RUNS:])
