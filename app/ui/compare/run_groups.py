"""The list of runs at the left of the charts of Compare: its groups, and the runs whose lines are hidden.

A group is a variant (runs that differ only in their seed, so they are one line), a sweep, or a tag. The eye of a group
hides all of its runs. The URL parameter `hide` has one value for each hidden variant (`Variant.method`), and the id of
each other hidden run. A hidden run is only left out of the charts; the tables have all runs.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import streamlit as st

from app.analysis.curves import ComparedRun, Curves, RunTables, read_curves
from app.analysis.finals import LAST_TENTH, compute_final_rates
from app.analysis.format import format_run_count
from app.analysis.quantities import RateName
from app.figures.named.curves import LearningCurveOptions, name_seed_line, style_comparison
from app.ui import data, view
from app.ui.compare import run_choice
from app.ui.page_state import RUN, Choice, Choices, Flag
from app.ui.widgets import run_list
from app.ui.widgets.run_list import ListedRun, RunGroup
from storage.runs.rows import shown_status
from storage.runs.sweeps import find_sweep_names

IS_OPEN: Final = Flag("list", "compare", default=True)
"""Whether the list is drawn."""
HIDDEN: Final = Choices("hide", "compare", separator="")
"""The hidden variants and runs; the URL has one parameter for each."""
_GROUPING: Final = Choice("group", "compare")
_GROUPINGS: Final = {"variant": "Variant", "sweep": "Sweep", "tag": "Tag"}
_NO_SWEEP: Final = "no sweep"
_NO_TAG: Final = "no tag"
_REQUEST: Final = "compare_list_request"
"""Key of Streamlit's session state: what to do with the whole page after a press in the list."""


@dataclass(frozen=True)
class _Group:
    """Runs with a common title."""

    key: str
    title: str
    runs: tuple[ComparedRun, ...]


def follow_press() -> None:
    """Draw the whole page again, or open the page of a run, if a press in the list needs it.

    Call this first in the fragment of the list: a callback of a fragment draws only the fragment.
    """
    request: Callable[[], None] | None = st.session_state.pop(_REQUEST, None)
    if request is not None:
        request()


def show(tables: RunTables, curves: Curves, options: LearningCurveOptions, rate: RateName) -> None:
    """Draw the choice of the groups, and the list.

    Args:
        tables: The compared runs.
        curves: The curves in the charts, with those of hidden runs.
        options: The options of the charts.
        rate: The win rate whose final values the list shows.
    """
    grouping = _choose_grouping(tables)
    groups = _make_groups(tables, grouping)
    rates = _compute_rates(tables, rate)
    hidden_ids = _find_hidden(HIDDEN.read(), tables.runs)
    visible = curves.hide(hidden_ids)
    visible_methods = visible.methods
    styles = style_comparison(curves)
    has_seed_lines = options.per_seed

    def describe_run(run: ComparedRun, *, name: str) -> ListedRun:
        row = tables.rows[run.id]
        line = name_seed_line(run) if has_seed_lines else ""
        status = shown_status(row.live_status, row.tags)
        tip = f"{row.name} · {run.id} · {status}"
        return ListedRun(run.id, name, status, rates.get(run.id), run.id not in hidden_ids, tip, line=line)

    def describe_group(group: _Group) -> RunGroup:
        tasks = {run.task for run in group.runs}
        is_variant = grouping == "variant"

        def name_run(run: ComparedRun) -> str:
            seed = f"seed {run.seed_text}"
            if is_variant:
                return f"{run.task} · {seed}" if len(tasks) > 1 else seed
            return f"{run.variant.label}, {seed}" if len(tasks) > 1 else f"{run.variant.name}, {seed}"

        values = [rates[run.id] for run in group.runs if run.id in rates]
        is_one_task = len(tasks) == 1
        line = ""
        if is_variant and group.key in visible_methods:
            line = visible.name_line(group.key)
        return RunGroup(
            group.key,
            group.title,
            tuple(describe_run(run, name=name_run(run)) for run in group.runs),
            rate=float(np.mean(values)) if values and is_one_task else None,
            tip=f"{group.title}: {format_run_count(len(group.runs))}",
            style=styles.get(group.key) if is_variant else None,
            line=line,
        )

    ids_by_group = {group.key: [run.id for run in group.runs] for group in groups}
    run_list.show(
        [describe_group(group) for group in groups],
        key="compare_list_of_runs",
        on_toggle=partial(_on_toggle, tables.runs, ids_by_group),
        on_pick=_on_pick,
        on_only=partial(_on_only, ids_by_group),
        height="calc(100vh - 11rem)",
    )


def _choose_grouping(tables: RunTables) -> str:
    """Draw the choice of the groups if there is more than one; return the selected one."""
    rows = tables.rows.values()
    groupings = ["variant"]
    if any(row.sweep_id for row in rows):
        groupings.append("sweep")
    if any(row.tags for row in rows):
        groupings.append("tag")
    if len(groupings) == 1:
        return groupings[0]
    bound = _GROUPING.bind(groupings, _GROUPINGS.__getitem__)
    selected = st.segmented_control("Group runs by", **bound, required=True, label_visibility="collapsed")
    return str(selected)


def _make_groups(tables: RunTables, grouping: str) -> list[_Group]:
    """Group the runs. A run with several tags is in several groups."""
    runs: dict[str, list[ComparedRun]] = {}
    titles: dict[str, str] = {}
    sweep_ids = sorted({row.sweep_id for row in tables.rows.values() if row.sweep_id})
    sweep_names = data.cached(find_sweep_names, ttl=5)(sweep_ids) if grouping == "sweep" else {}
    for run in tables.runs:
        row = tables.rows[run.id]
        if grouping == "variant":
            titles_of_run = {run.variant.method: run.variant.name}
        elif grouping == "sweep":
            titles_of_run = {_NO_SWEEP: "No sweep"}
            if row.sweep_id:
                titles_of_run = {f"sweep {row.sweep_id}": sweep_names.get(row.sweep_id, row.sweep_id)}
        else:
            titles_of_run = {f"tag {tag}": tag for tag in row.tags} or {_NO_TAG: "No tag"}
        titles |= titles_of_run
        for key in titles_of_run:
            runs.setdefault(key, []).append(run)
    groups = [_Group(key, titles[key], tuple(group)) for key, group in runs.items()]
    return sorted(groups, key=lambda group: group.key in (_NO_SWEEP, _NO_TAG))  # the runs without one are last


def _compute_rates(tables: RunTables, rate: RateName) -> dict[str, float]:
    """Compute the final win rate of each run that has one."""
    curves = read_curves(tables, rate=rate)
    rates = compute_final_rates(curves, LAST_TENTH)  # NaN without an evaluation
    return {run.id: float(value) for run, value in zip(curves.runs, rates, strict=True) if not np.isnan(value)}


def change_hidden(
    names: Sequence[str], runs: Sequence[ComparedRun], ids: Collection[str], *, is_shown: bool
) -> list[str]:
    """Hide or show some runs. A variant of which all runs are hidden becomes one name.

    Args:
        names: The former values of the URL parameter `hide`. Values that are not compared runs or variants stay.
        runs: All compared runs.
        ids: The runs that are hidden or shown.
        is_shown: Whether these runs are shown.

    Returns:
        The new values of the URL parameter.
    """
    hidden_ids = _find_hidden(names, runs)
    hidden_ids = hidden_ids.difference(ids) if is_shown else hidden_ids.union(ids)
    ids_by_method: dict[str, list[str]] = {}
    for run in runs:
        ids_by_method.setdefault(run.variant.method, []).append(run.id)
    current_names = {*ids_by_method, *(run.id for run in runs)}
    result = {name for name in names if name not in current_names}
    for method, method_ids in ids_by_method.items():
        hidden_of_method = hidden_ids.intersection(method_ids)
        result |= {method} if len(hidden_of_method) == len(method_ids) else hidden_of_method
    return sorted(result)


def _find_hidden(names: Iterable[str], runs: Iterable[ComparedRun]) -> set[str]:
    """Find the ids of the hidden runs. The names are ids and methods."""
    names = set(names)
    return {run.id for run in runs if run.id in names or run.variant.method in names}


def _on_toggle(runs: tuple[ComparedRun, ...], ids_by_group: Mapping[str, list[str]], name: str, is_shown: bool) -> None:
    HIDDEN.write(change_hidden(HIDDEN.read(), runs, ids_by_group.get(name, [name]), is_shown=is_shown))


def _on_only(ids_by_group: Mapping[str, list[str]], name: str) -> None:
    run_choice.select_only(ids_by_group.get(name, [name]))
    st.session_state[_REQUEST] = st.rerun


def _on_pick(name: str) -> None:
    """Open the page of a run; a run of a bundle is opened in its bundle."""
    [(bundle_key, [run_id])] = view.group_by_bundle([name]).items()
    parameters = (
        {RUN.name: run_id, view.SHOWN_BUNDLE.name: bundle_key} if bundle_key else view.add_bundle({RUN.name: run_id})
    )
    st.session_state[_REQUEST] = partial(st.switch_page, "../pages/live.py", query_params=parameters)
