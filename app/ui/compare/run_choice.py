"""The runs that the Compare page compares: search, filters, bundles, and a selection of runs. The URL contains all.

A bundle is a file of exported runs that was opened in the app. Runs of bundles are compared only if their bundle is
selected; the URL parameter `with` lists the selected bundles. The address of such a run is `id@key` of its bundle.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.analysis.curves import Curves
from app.analysis.format import escape_markdown, format_run_count
from app.analysis.results import COMMON, OWN_END, Budget, parse_budget
from app.figures.options import BudgetOptions, FinalRuleOptions
from app.ui import data, view
from app.ui.compared import get_bundle_run_names, list_bundle_runs
from app.ui.page_state import RUNS, Flag
from app.ui.widgets import run_filters
from app.ui.widgets.option_widget import OptionWidget
from storage.queries.run_search import RunFilter, matching_ids, run_names
from storage.queries.runs import find_run_names

MAX_AUTOMATIC = 1000
"""Number of runs that are compared without a click. Their curves are read within a second."""
_FINAL = OptionWidget(FinalRuleOptions, "final", "compare", kind="buttons")
_BUDGET = OptionWidget(BudgetOptions, "budget", "compare")
_ALL_RUNS = Flag("every", "compare")
"""Whether more than `MAX_AUTOMATIC` runs are compared."""


@dataclass(frozen=True)
class BundleSelection:
    """Runs of the selected bundles, by their addresses `id@key`."""

    evaluated: list[str] = field(default_factory=list)
    """The runs that match the filters and have an evaluation."""
    note: str = ""
    """Sentence with the number of these runs; empty if no bundle is selected."""

    def list_other_runs(self, compared_ids: Sequence[str]) -> tuple[list[str], int]:
        """List the evaluated runs of the bundles in which no single run is selected, without copies of compared runs.

        Args:
            compared_ids: The runs that are compared already, for example imported copies of runs of a bundle.

        Returns:
            Ids of the runs, and the number of copies that are left out.
        """
        compared_by_bundle = view.group_by_bundle(compared_ids)
        database_ids = set(compared_by_bundle.get("", ()))  # the empty key: runs of the database
        runs: list[str] = []
        n_copies = 0
        for address in self.evaluated:
            [(bundle_key, [run_id])] = view.group_by_bundle([address]).items()
            if bundle_key in compared_by_bundle:
                continue
            if run_id in database_ids:
                n_copies += 1
            else:
                runs.append(address)
        return runs, n_copies


def choose_runs(bar: DeltaGenerator, note: DeltaGenerator) -> list[str]:
    """Draw the search and the filters in `bar`, and what is compared in `note`.

    Returns:
        The ids of the runs to compare, newest first.
    """
    with bar:
        text = run_filters.search()
        with st.popover("Filters", icon=":material/filter_list:", key="compare_filters"):
            run_filter = run_filters.lists(RunFilter(text=text))
            run_filter = replace(run_filter, statuses=run_filters.statuses())
            bundles = _choose_bundles(run_filter)
    prefixes = [prefix.lower() for prefix in RUNS.read()]
    selected_ids, n_unknown = _find_selected(prefixes)
    if n_unknown:
        st.warning(f"{n_unknown} of the runs in this link are not in the database.", icon=":material/link_off:")
    with note:
        compared_ids = selected_ids or _list_matching_runs(run_filter, bundles.note)
        others, n_copies = bundles.list_other_runs(compared_ids)
        if selected_ids:
            st.caption(f"{format_run_count(len(selected_ids))} selected.{bundles.note}", width="content")
        if n_copies:
            text = f"{format_run_count(n_copies)} of the selected bundles are also in this database and are drawn once."
            st.caption(text, width="content")
        if prefixes:
            st.button(
                "All runs", key="compare_all_runs", on_click=RUNS.write, args=(None,), type="tertiary",
                icon=":material/undo:", help="Compare all runs that match, instead of the selected ones",
            )  # fmt: skip
    return [*compared_ids, *others]


def has_conditions() -> bool:
    """Return whether a search, a filter or a selection leaves out runs."""
    return run_filters.is_any_set() or bool(RUNS.read())


def select_only(run_ids: list[str]) -> None:
    """Compare exactly these runs."""
    view.COMPARED_BUNDLES.write(None)
    RUNS.write(run_ids)


def choose_final(lengths: Sequence[int]) -> dict[str, Any]:
    """Draw the choice of the final win rate of a run, and of the env steps at which runs are compared.

    Args:
        lengths: The different lengths of the runs [env steps].

    Returns:
        The values of the options `budget` and `final`.
    """
    return {"budget": _choose_budget(lengths), "final": _FINAL.draw()}


def show_length_note(curves: Curves) -> None:
    """Show above the tables that the runs have different lengths."""
    if curves.mixed_length_tasks:
        st.warning(escape_markdown(curves.budget_note), icon=":material/warning:")
    elif curves.budget_if_unequal:
        st.info(escape_markdown(curves.budget_if_unequal), icon=":material/straighten:")


def _choose_bundles(run_filter: RunFilter) -> BundleSelection:
    """Draw the selection of opened bundles. Nothing is drawn if there is none, or if all pages show one bundle."""
    bundles = {bundle.key: bundle for bundle in view.list_bundles()}
    if not bundles or view.get_bundle() is not None:
        return BundleSelection()
    keys = st.multiselect(
        "Compare with bundle",
        **view.COMPARED_BUNDLES.bind(
            list(bundles), lambda key: bundles[key].name if key in bundles else "no longer open"
        ),
        placeholder="none",
        help="Runs of a bundle are separate lines with the name of the bundle. They are never averaged with your runs.",
        width=220,
    )
    selected = [bundles[key] for key in keys if key in bundles]
    evaluated: list[str] = []
    for bundle in selected:
        # "drawn": neither hidden nor archived
        evaluated += list_bundle_runs(bundle, replace(run_filter, evaluated=True, visibility="drawn"))
    bundle_names = ", ".join(escape_markdown(bundle.name) for bundle in selected)
    note = f" Runs of {bundle_names}: {len(evaluated):,}." if selected else ""
    return BundleSelection(evaluated, note)


def _find_selected(prefixes: Sequence[str]) -> tuple[list[str], int]:
    """Find the runs of the URL parameter `runs`, which has ids or prefixes of ids.

    Returns:
        Ids of the runs, and the number of prefixes that no run has.
    """
    names = data.cached(find_run_names, ttl=5)(prefixes) | get_bundle_run_names(prefixes)
    selected_ids: list[str] = []
    n_unknown = 0
    for prefix in prefixes:
        matching = [run_id for run_id in names if run_id.startswith(prefix)]
        selected_ids += [run_id for run_id in matching if run_id not in selected_ids]
        if not matching:
            n_unknown += 1
    return selected_ids, n_unknown


def _list_matching_runs(run_filter: RunFilter, bundle_note: str) -> list[str]:
    """List all evaluated runs that match, and show their number."""
    run_ids = matching_ids(data.database(), replace(run_filter, evaluated=True, visibility="drawn"), sort="-created")
    _, n_matching = data.cached(run_names, ttl=2)(run_filter, limit=0)
    n_other = n_matching - len(run_ids)
    note = f" {n_other:,} more: hidden, or without an evaluation." if n_other > 0 else ""
    if filters := run_filters.describe(run_filter):
        note += f" Filters: {escape_markdown(filters)}."
    if len(run_ids) > MAX_AUTOMATIC:
        compares_all = st.toggle(
            f"Compare all {len(run_ids):,}", **_ALL_RUNS.bind(),
            help="Reading the curves of thousands of runs takes seconds.",
        )  # fmt: skip
        if not compares_all:
            st.caption(
                f"The newest {MAX_AUTOMATIC:,} of {len(run_ids):,} evaluated runs.{note}{bundle_note}", width="content"
            )
            return run_ids[:MAX_AUTOMATIC]
    st.caption(f"Evaluated runs that match: {len(run_ids):,}.{note}{bundle_note}", width="content")
    return run_ids


def _choose_budget(lengths: Sequence[int]) -> Budget:
    """Draw the choice of the env steps at which runs are compared. The URL may contain any number."""
    labels = _BUDGET.option.choices
    parameter = _BUDGET.parameter
    text = parameter.read()
    try:
        url_budget = parse_budget(text or COMMON)
        if text is not None and text != str(url_budget):  # for example 0200 instead of 200
            parameter.write(str(url_budget))
    except ValueError:
        url_budget = COMMON
        parameter.reject(labels[COMMON])
    if len(lengths) < 2:
        return url_budget
    budgets: list[str] = [COMMON, *map(str, lengths), OWN_END]
    if str(url_budget) not in budgets:
        budgets.append(str(url_budget))
    chosen = _BUDGET.draw(budgets, lambda budget: labels.get(budget) or f"{int(budget):,} env steps", width=260)
    return parse_budget(chosen)
