"""Widgets that search and filter runs, for the runs table and for Compare. The URL stores their values, by `page`."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import streamlit as st

from app.analysis.settings import name_algo
from app.ui import data, in_url
from storage.queries.run_search import RunFilter, Visibility

VISIBILITIES: dict[Visibility, str] = {"open": "Not archived", "hidden": "Hidden", "archived": "Archived", "all": "All"}
HELP = (
    "Words in name, id, note, tags, algorithm or map; a setting, for example `gate.enabled=false` or `train.lr<0.001`; "
    "a column, for example `win_rate>0.8`, `mu_w>0.5`, `gate=idle`, `status=lost`, `tag=paper`. Words in "
    '"quotes" are one term. All conditions must be true.'
)
STATUSES = ("running", "paused", "queued", "finished", "stopped", "failed", "lost")


def search(page: str, on_change: Callable[[], None] | None = None) -> str:
    """Draw the search field; return its text."""
    return (
        st.text_input(
            "Find",
            **in_url.text(page, "q", on_change),
            type="search",
            placeholder="corridor win_rate>0.8",
            help=HELP,
        )
        or ""
    )


def visibility(page: str, on_change: Callable[[], None] | None = None) -> Visibility:
    """Draw the choice between runs that are not archived, hidden, archived, and all."""
    value = st.selectbox(
        "Show",
        **in_url.one(page, "shelf", list(VISIBILITIES), on_change),
        format_func=VISIBILITIES.__getitem__,
        help="Hidden runs are not drawn in comparisons unless you select them. Archived runs are listed only here.",
    )
    return value or "open"


def statuses(page: str, counts: dict[str, int], on_change: Callable[[], None] | None = None) -> tuple[str, ...]:
    """Draw the statuses with their number of runs; return the selected ones."""
    return tuple(
        st.pills(
            "Status",
            **in_url.several(page, "states", [status for status in STATUSES if counts.get(status)], on_change),
            selection_mode="multi",
            format_func=lambda status: f"{status} {counts.get(status, 0):,}",
        )
    )


def lists(
    page: str, run_filter: RunFilter, on_change: Callable[[], None] | None = None, *, across: int = 5
) -> RunFilter:
    """Draw lists of environments, maps, algorithms, presets and tags; return the filter with the selected values.

    Args:
        page: The page of the widgets.
        run_filter: The filter without these lists.
        on_change: Called when a selection changes.
        across: Number of columns.
    """
    options_of_runs = data.run_choices(run_filter.visibility)
    fields: tuple[tuple[str, str, Sequence[str]], ...] = (
        ("Environment", "envs", options_of_runs.envs),
        ("Map", "maps", options_of_runs.maps),
        ("Algorithm", "algos", options_of_runs.algos),
        ("Preset", "presets", options_of_runs.presets),
        ("Tag", "tags", options_of_runs.tags),
    )
    values: dict[str, tuple[str, ...]] = {}
    columns = st.columns(across)
    for i, (label, key, options) in enumerate(fields):
        bound = in_url.several(page, key, options, on_change)
        format_option = name_algo if key == "algos" else str
        values[key] = tuple(
            columns[i % across].multiselect(label, **bound, format_func=format_option, placeholder="any", wrap=True)
        )
    envs, maps, algos, presets, tags = (values[key] for _, key, _ in fields)
    return replace(run_filter, envs=envs, maps=maps, algos=algos, presets=presets, tags=tags)


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
    """Whether a filter has a condition other than its visibility."""
    return run_filter != RunFilter(visibility=run_filter.visibility, evaluated=run_filter.evaluated)
