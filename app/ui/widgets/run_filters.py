"""Search and filters over all runs, in the URL: the runs table and the comparison ask the same way, by `page`."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import streamlit as st

from app.analysis.settings import name_algo
from app.ui import data, in_url
from storage.queries.runs import RunFilter, Shelf

SHELVES: dict[Shelf, str] = {"open": "All but archived", "hidden": "Hidden", "archived": "Archived", "all": "All"}
HELP = (
    "Words of name, id, note, tags, algorithm and map; a setting as `gate.enabled=false` or `train.lr<0.001`; "
    'a column as `win_rate>0.8`, `mu_w>0.5`, `gate=idle`, `status=lost`, `tag=paper`. "Quotes" keep words together. '
    "All of it must hold."
)
STATUSES = ("running", "paused", "queued", "finished", "stopped", "failed", "lost")


def search(page: str, on_change: Callable[[], None] | None = None) -> str:
    """Draw the search box; return what stands in it."""
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


def shelf(page: str, on_change: Callable[[], None] | None = None) -> Shelf:
    """Draw the choice between what is listed and what was put aside."""
    chosen = st.selectbox(
        "Show",
        **in_url.one(page, "shelf", list(SHELVES), on_change),
        format_func=SHELVES.__getitem__,
        help="A hidden run is drawn only where you choose it; an archived one is listed only here.",
    )
    return chosen or "open"


def statuses(page: str, counts: dict[str, int], on_change: Callable[[], None] | None = None) -> tuple[str, ...]:
    """Draw the statuses with how many runs have each; return those that are wanted."""
    return tuple(
        st.pills(
            "Status",
            **in_url.several(page, "states", [status for status in STATUSES if counts.get(status)], on_change),
            selection_mode="multi",
            format_func=lambda status: f"{status} {counts.get(status, 0):,}",
        )
    )


def lists(page: str, wanted: RunFilter, on_change: Callable[[], None] | None = None, *, across: int = 5) -> RunFilter:
    """Draw a list for each thing that the runs of a shelf differ in; return the filter with what was chosen.

    Args:
        page: Whose widgets they are.
        wanted: What is asked for already.
        on_change: Called when something was chosen.
        across: Lists beside each other.
    """
    choices = data.run_choices(wanted.shelf)
    asked: tuple[tuple[str, str, Sequence[str]], ...] = (
        ("Environment", "envs", choices.envs),
        ("Map", "maps", choices.maps),
        ("Algorithm", "algos", choices.algos),
        ("Preset", "presets", choices.presets),
        ("Tag", "tags", choices.tags),
    )
    found: dict[str, tuple[str, ...]] = {}
    places = st.columns(across)
    for i, (label, key, options) in enumerate(asked):
        place, shown = places[i % across], name_algo if key == "algos" else str
        bound = in_url.several(page, key, options, on_change)
        found[key] = tuple(place.multiselect(label, **bound, format_func=shown, placeholder="any", wrap=True))
    envs, maps, algos, presets, tags = (found[key] for _, key, _ in asked)
    return replace(wanted, envs=envs, maps=maps, algos=algos, presets=presets, tags=tags)


def describe(wanted: RunFilter) -> str:
    """Which lists ask for what, in a line; nothing where none does."""
    chosen = {
        "environment": wanted.envs,
        "map": wanted.maps,
        "algorithm": [name_algo(algo) for algo in wanted.algos],
        "preset": wanted.presets,
        "tag": wanted.tags,
        "status": wanted.statuses,
    }
    return "; ".join(f"{name} {' or '.join(values)}" for name, values in chosen.items() if values)


def is_asking(wanted: RunFilter) -> bool:
    """Whether a filter asks anything of a run."""
    return wanted != RunFilter(shelf=wanted.shelf, evaluated=wanted.evaluated)
