"""Which runs are compared? Filters, a free search and a choice; all of it stands in the URL.

Which open bundles stand beside one's own runs? None until somebody ticks one; the URL's `with` names them. Which
numbers stand for the end of the compared runs, and what do unequal runs mean?
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.analysis.comparable import COMMON, OWN_END, Budget, parse_budget
from app.analysis.finals import FINAL_RULES, FinalRule
from app.analysis.format import escape_markdown
from app.analysis.series import Comparison
from app.ui import data, in_url, messages, state, view
from app.ui.compared import get_bundle_run_names, list_bundle_runs
from app.ui.widgets import run_filters
from storage.queries.runs import RunFilter

_PAGE = "compare"


@dataclass(frozen=True)
class Beside:
    """Runs of the ticked bundles, by `id@key`."""

    every: dict[str, str] = field(default_factory=dict)
    """Those that match the filters, with their names."""
    evaluated: list[str] = field(default_factory=list)
    words: str = ""

    def without(self, chosen: Sequence[str]) -> list[str]:
        """List the evaluated ones of those bundles of which no run was chosen."""
        named = view.split(chosen).keys()
        return [run_id for run_id in self.evaluated if not view.split([run_id]).keys() & named]


def ask(wanted: RunFilter) -> Beside:
    """Offer the open bundles; where there is none, or where one is looked at itself, nothing is drawn."""
    bundles = {bundle.key: bundle for bundle in view.bundles()}
    if not bundles or view.bundle() is not None:
        return Beside()
    ticked = st.multiselect(
        "Beside mine",
        **in_url.several(_PAGE, view.WITH, list(bundles)),
        format_func=lambda key: bundles[key].name if key in bundles else "no longer open",
        placeholder="a bundle",
        help="Runs of a bundle are lines of their own, marked with its name; they never join the seeds of yours.",
        width=220,
    )
    shown = [bundles[key] for key in ticked if key in bundles]
    every: dict[str, str] = {}
    evaluated: list[str] = []
    for bundle in shown:
        every |= list_bundle_runs(bundle, wanted)
        evaluated += list_bundle_runs(bundle, replace(wanted, evaluated=True, shelf="drawn"))
    names = ", ".join(escape_markdown(bundle.name) for bundle in shown)
    return Beside(every, evaluated, f" Beside them {len(evaluated):,} of {names}." if shown else "")


def forget() -> None:
    """Tick none any more."""
    st.session_state.pop(f"{_PAGE}-{view.WITH}", None)
    state.write_list(view.WITH, [])


AT_ONCE = 1000
"""Runs that are compared without being asked for: their curves are read within a second."""
LISTED = 200
"""Runs in the list to choose from: the newest that match; the search finds the others."""
_KEY = "compare_runs"


def show(bar: DeltaGenerator) -> list[str]:
    """Draw the filters and the choice into one row; return the ids of the runs to compare, newest first.

    Ends an empty page.
    """
    if not data.has_runs():
        messages.empty(messages.NO_RUNS, messages.START_DEMO_HINT, page="../pages/home.py", label="Go to Home")
        st.stop()
    with bar:
        wanted = _filter()
        beside = ask(wanted)
        listed, matching = data.run_names(wanted, LISTED)
        chosen, lost = _choose(listed | beside.every, matching)
    if lost:
        st.warning(f"{lost} of the runs in this link are not in the database.", icon=":material/link_off:")
    if chosen:
        return [*chosen, *beside.without(chosen)]
    return [*_all_that_match(wanted, matching, beside.words), *beside.evaluated]


def _all_that_match(wanted: RunFilter, matching: int, beside: str) -> list[str]:
    """List every evaluated run that matches, and say so."""
    drawn = data.matching_ids(replace(wanted, evaluated=True, shelf="drawn"), "-created")
    without = matching - len(drawn)
    more = f" {without:,} more have no evaluation yet, or are hidden." if without > 0 else ""
    if filters := run_filters.describe(wanted):
        more += f" Filters: {escape_markdown(filters)}."
    if len(drawn) > AT_ONCE and not _wants_all(len(drawn)):
        st.caption(f"Comparing the newest {AT_ONCE:,} of {len(drawn):,} evaluated runs that match.{more}{beside}")
        return drawn[:AT_ONCE]
    said = f"Evaluated runs that match: {len(drawn):,}; each table says which of them count."
    st.caption(f"{said}{more}{beside}")
    return drawn


def _wants_all(number: int) -> bool:
    return st.toggle(
        f"Compare all {number:,}", key="every", bind="query-params", help="Reading thousands of curves takes seconds."
    )


def _filter() -> RunFilter:
    text = run_filters.search("compare")
    with st.popover("Filters", icon=":material/filter_list:", key="compare_filters"):
        wanted = run_filters.lists("compare", RunFilter(), across=1)
        statuses = st.multiselect(
            "Status", **in_url.several("compare", "states", run_filters.STATUSES), placeholder="any", wrap=True
        )
    return replace(wanted, text=text, statuses=tuple(statuses))


def _choose(listed: dict[str, str], matching: int) -> tuple[list[str], int]:
    """Let runs be chosen one by one; the URL's `runs` decides, full ids or beginnings of them.

    Returns:
        Their ids, and how many the URL names in vain.
    """
    wanted = state.read_list(state.RUNS)
    names = data.names_of(wanted) | get_bundle_run_names(wanted)
    chosen = [run_id for text in wanted for run_id in names if run_id.startswith(text.lower())]
    chosen = list(dict.fromkeys(chosen))
    lost = sum(not any(run_id.startswith(text.lower()) for run_id in names) for text in wanted)
    st.session_state[_KEY] = chosen
    names = names | listed
    more = f" The newest {LISTED} of {matching:,} that match are listed; find the others above."
    st.multiselect(
        "Runs",
        list(dict.fromkeys([*chosen, *listed])),
        key=_KEY,
        format_func=lambda run_id: f"{names.get(run_id, '')} · {run_id}",
        on_change=_chosen,
        placeholder="All that match",
        help="Every evaluated run that matches, or those that you choose. Runs that differ in nothing but their seed "
        f"become one line.{more if matching > LISTED else ''}",
    )
    return chosen, lost


def _chosen() -> None:
    state.write_list(state.RUNS, st.session_state.get(_KEY, []))


def choose(run_ids: list[str]) -> None:
    """Compare exactly these runs from now on."""
    forget()
    state.write_list(state.RUNS, run_ids)


_FINAL_WORDS: dict[FinalRule, str] = {"last-tenth": "mean over the last tenth", "last": "last evaluation"}


def ask_end(lengths: Sequence[int]) -> tuple[FinalRule, Budget]:
    """Ask, beside the tables that it changes, which win rate stands for a run, and at which step."""
    with st.container(horizontal=True, horizontal_alignment="right", vertical_alignment="bottom"):
        budget = _ask_budget(lengths)
        chosen = st.segmented_control(
            "Win rate at the end of a run", FINAL_RULES, required=True, format_func=_FINAL_WORDS.__getitem__,
            help="While a policy forms, successive evaluations swing, so that the last one alone is a draw.",
            **in_url.key_of("compare", "final", FINAL_RULES),
        )  # fmt: skip
    rule: FinalRule = next(each for each in FINAL_RULES if each == chosen)
    return rule, budget


def _ask_budget(lengths: Sequence[int]) -> Budget:
    """Ask at how many env steps runs of different lengths are compared; the URL's `budget` may name any number."""
    given = state.read_text("budget") or COMMON
    try:
        asked = parse_budget(given)
    except ValueError:
        asked = COMMON
    if len(lengths) < 2:
        return asked
    options: list[str] = [COMMON, *map(str, lengths[1:]), OWN_END]
    options += [str(asked)] if str(asked) not in options else []
    chosen = st.selectbox(
        "Compare at", **in_url.one("compare", "budget", options), format_func=_name_budget, width=260,
        help="These runs are not of one length. A win rate after 4,000 env steps does not compare with one after "
        "40,000: so all are read at one number of steps.",
    )  # fmt: skip
    return parse_budget(chosen)


def _name_budget(option: str) -> str:
    named = {COMMON: "the most that all reached", OWN_END: "each run's own end (marked)"}
    return named.get(option) or f"{int(option):,} env steps"


def tell_lengths(comparison: Comparison) -> None:
    """Say above the tables, not only in their captions, that the runs are of different lengths."""
    if comparison.mixed_length_tasks:
        st.warning(escape_markdown(comparison.budget_note), icon=":material/warning:")
    elif comparison.budget_if_unequal:
        st.info(escape_markdown(comparison.budget_if_unequal), icon=":material/straighten:")
