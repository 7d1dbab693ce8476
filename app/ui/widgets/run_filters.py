"""Widgets that search and filter runs, for the runs table and for Compare. The URL stores their values."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import get_args

import streamlit as st

from app.analysis.settings import name_algo
from app.ui import data
from app.ui.page_state import Choice, Choices, Text
from storage.queries.run_search import RunFilter, Visibility, list_filter_options
from storage.runs.status import Status

VISIBILITIES: dict[Visibility, str] = {"open": "Not archived", "hidden": "Hidden", "archived": "Archived", "all": "All"}
HELP = (
    "Words in name, id, note, tags, algorithm or map; a setting, for example `gate.enabled=false` or `train.lr<0.001`; "
    "a column, for example `final_rate>0.8`, `mu_w>0.5`, `gate=idle`, `status=lost`; one of several values, for "
    'example `tag=paper,pilot`. Words in "quotes" are one term. All conditions must be true.'
)
STATUSES = get_args(Status)
_SEARCH = Text("q", "home", "compare")
# "shelf" and "states" remain, because stored links contain these names.
_VISIBILITY = Choice("shelf", "home", "compare")
_STATUSES = Choices("states", "home", "compare")
_FIELDS = {name: Choices(name, "home", "compare") for name in ("envs", "maps", "algos", "presets", "tags")}
LIST_PARAMETERS = (_STATUSES, *_FIELDS.values())
"""The parameters of `statuses` and `lists`, each of which can have several values."""


def search(on_change: Callable[[], None] | None = None) -> str:
    """Draw the search field; return its text."""
    return (
        st.text_input(
            "Find",
            **_SEARCH.bind(on_change),
            type="search",
            placeholder="corridor final_rate>0.8",
            help=HELP,
        )
        or ""
    )


def visibility(on_change: Callable[[], None] | None = None) -> Visibility:
    """Draw the choice between runs that are not archived, hidden runs, archived runs, and all runs."""
    value = st.selectbox(
        "Show",
        **_VISIBILITY.bind(list(VISIBILITIES), VISIBILITIES.__getitem__, on_change=on_change),
        help="Hidden runs are not drawn in comparisons unless you select them. Archived runs are listed only here.",
    )
    return value or "open"


def statuses(counts: dict[str, int] | None = None, on_change: Callable[[], None] | None = None) -> tuple[str, ...]:
    """Draw the choice of several statuses; return the selected ones.

    Args:
        counts: Status → number of runs. The statuses are drawn as pills with these numbers, without those that no run
            has; nothing is drawn if all runs have the same status. None: a list of all statuses is drawn.
        on_change: Called when the selection changes.
    """
    if counts is None:
        return tuple(
            st.multiselect("Status", **_STATUSES.bind(STATUSES, on_change=on_change), placeholder="any", wrap=True)
        )
    selected = _STATUSES.read()
    options = [status for status in STATUSES if counts.get(status) or status in selected]
    if len(options) < 2 and not selected:
        return ()
    labels = {status: f"{status} {counts.get(status, 0):,}" for status in STATUSES}
    bound = _STATUSES.bind(options, labels.__getitem__, on_change=on_change)
    return tuple(st.pills("Status", **bound, selection_mode="multi", label_visibility="collapsed"))


def lists(run_filter: RunFilter, on_change: Callable[[], None] | None = None) -> RunFilter:
    """Draw lists of environments, maps, algorithms, presets and tags; return the filter with the selected values.

    Args:
        run_filter: The filter without these lists.
        on_change: Called when a selection changes.
    """
    options_of_runs = data.cached(list_filter_options, ttl=5)(run_filter.visibility)
    fields: tuple[tuple[str, str, Sequence[str]], ...] = (
        ("Environment", "envs", options_of_runs.envs),
        ("Map", "maps", options_of_runs.maps),
        ("Algorithm", "algos", options_of_runs.algos),
        ("Preset", "presets", options_of_runs.presets),
        ("Tag", "tags", options_of_runs.tags),
    )
    values: dict[str, tuple[str, ...]] = {}
    for label, key, options in fields:
        bound = _FIELDS[key].bind(options, name_algo if key == "algos" else str, on_change=on_change)
        values[key] = tuple(st.multiselect(label, **bound, placeholder="any", wrap=True))
    envs, maps, algos, presets, tags = (values[key] for _, key, _ in fields)
    return replace(run_filter, envs=envs, maps=maps, algos=algos, presets=presets, tags=tags)


def count_lists() -> int:
    """Count the choices of `visibility` and `lists` that the URL contains."""
    return sum(parameter.is_in_url for parameter in (_VISIBILITY, *_FIELDS.values()))


def is_any_set() -> bool:
    """Return whether the URL has a search or a value of one of the lists."""
    return any(parameter.is_in_url for parameter in (_SEARCH, *LIST_PARAMETERS))


def describe(run_filter: RunFilter) -> str:
    """Write the selected values of the lists in one line; empty if none is selected."""
    values_by_name = {
        "environment": run_filter.envs,
        "map": run_filter.maps,
        "algorithm": [name_algo(algo) for algo in run_filter.algos],
        "preset": run_filter.presets,
        "tag": run_filter.tags,
        "status": run_filter.statuses,
    }
    return "; ".join(f"{name} {' or '.join(values)}" for name, values in values_by_name.items() if values)


def has_conditions(run_filter: RunFilter) -> bool:
    """Return whether a filter has a condition other than visibility and `evaluated`, which no widget here sets."""
    return run_filter != RunFilter(visibility=run_filter.visibility, evaluated=run_filter.evaluated)
