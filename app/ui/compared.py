"""Cached curves of several runs together, those of opened bundles beside one's own. Shared values: never mutate.

A run of a bundle is `id@key` here, and its configuration says where it is from: so it never joins the seeds of one's
own variant, and every legend, table and exported file names its origin.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

from app.analysis.comparable import COMMON, Budget, at_budget, list_budgets
from app.analysis.quantities import RATES, Quantity, RateName, find_quantity, success_threshold
from app.analysis.series import Comparison, Seed, join_seeds, make_seeds, read_seeds
from app.analysis.settings import ORIGIN, with_code
from app.ui import data, view
from emtc_core.metrics import in_order
from storage.bundles.bundle_cache import Bundle
from storage.queries import curves as stored_curves
from storage.queries import runs
from storage.queries.runs import RunFilter
from storage.runs.rows import RunRow


@dataclass(frozen=True)
class Compared:
    """Several runs with the curve of each: their win rates, and the quantity that is drawn."""

    rows: dict[str, RunRow]
    win_rates: list[Seed]
    drawn: list[Seed]
    quantity: Quantity

    @property
    def configs(self) -> dict[str, dict[str, Any]]:
        """Run id → configuration as stored, with what the run stored of its code."""
        return {run_id: with_code(row.config, row.versions) for run_id, row in self.rows.items()}

    def curves(self, *, include_unfinished: bool) -> Comparison:
        """Put the drawn curves together by variant."""
        return join_seeds(self.drawn, self.quantity, include_unfinished=include_unfinished)

    def lengths(self, *, include_unfinished: bool) -> list[int]:
        """The lengths that the runs have which count, ascending."""
        return list_budgets(join_seeds(self.win_rates, include_unfinished=include_unfinished, final=True))

    def finals(self, *, include_unfinished: bool, budget: Budget = COMMON) -> Comparison:
        """Put the win rates together by variant, for numbers of the end, at one budget."""
        return at_budget(join_seeds(self.win_rates, include_unfinished=include_unfinished, final=True), budget)

    def ends(self, rate: Quantity, *, include_unfinished: bool, budget: Budget = COMMON) -> Comparison:
        """Put the drawn curves, which are such a win rate, together by variant, for numbers of the end."""
        return at_budget(join_seeds(self.drawn, rate, include_unfinished=include_unfinished, final=True), budget)


def read_finals(
    run_ids: Sequence[str], rate: RateName, *, include_unfinished: bool, budget: Budget = COMMON
) -> Comparison:
    """Put the win rates of several runs together, for numbers of the end: greedy, robust or of training."""
    read = read_compared(run_ids, RATES[rate].key)
    return read.ends(RATES[rate], include_unfinished=include_unfinished, budget=budget)


def read_compared(run_ids: Sequence[str], quantity: str) -> Compared:
    """Read the curves of several runs; at most five seconds old. One statement for each curve table of a database."""
    parts = [
        _read(url, tuple(ids), quantity, found.key if found else "", found.name if found else "")
        for url, found, ids in _sources(run_ids)
    ]
    if len(parts) == 1:
        return parts[0]
    rows = {run_id: row for part in parts for run_id, row in part.rows.items()}
    win_rates, drawn = ([seed for part in parts for seed in getattr(part, name)] for name in ("win_rates", "drawn"))
    return Compared(rows, win_rates, drawn, find_quantity(quantity))


@st.cache_resource(ttl=5, max_entries=32, show_spinner=False)
def _read(url: str, run_ids: tuple[str, ...], quantity: str, key: str, name: str) -> Compared:
    db, drawn = data.open_url(url), find_quantity(quantity)
    rows = runs.get_rows(db, run_ids)
    frame = stored_curves.evaluation_curves(db, [row.id for row in rows])
    curves = make_seeds(rows, frame, drawn) if drawn.is_evaluation else read_seeds(db, rows, drawn)
    found = Compared({row.id: row for row in rows}, make_seeds(rows, frame), curves, drawn)
    return _mark(found, key, name) if key else found


def _mark(found: Compared, key: str, name: str) -> Compared:
    """Mark the runs of a bundle as such, wherever they go from here."""

    def mark(seed: Seed) -> Seed:
        return replace(seed, id=view.address(seed.id, key), settings={**seed.settings, ORIGIN: name})

    rows = [
        replace(row, id=view.address(row.id, key), name=f"{row.name} · {name}", config={**row.config, ORIGIN: name})
        for row in found.rows.values()
    ]
    win_rates, drawn = ([mark(seed) for seed in each] for each in (found.win_rates, found.drawn))
    return Compared({row.id: row for row in rows}, win_rates, drawn, found.quantity)


def shared_metrics(run_ids: Sequence[str]) -> list[str]:
    """List every number that any of these runs logged."""
    logged = {name for url, _, ids in _sources(run_ids) for name in _shared_metrics(url, tuple(ids))}
    return in_order(logged)


@st.cache_data(ttl=5, show_spinner=False)
def _shared_metrics(url: str, run_ids: tuple[str, ...]) -> list[str]:
    return stored_curves.shared_metrics(data.open_url(url), run_ids)


def decided_by_return(run_ids: Sequence[str]) -> bool:
    """Whether in every one of these runs the return decides what a success is."""
    rules = [_are_decided_by_return(url, tuple(ids)) for url, _, ids in _sources(run_ids) if ids]
    return bool(rules) and all(rules)


@st.cache_data(ttl=5, show_spinner=False)
def _are_decided_by_return(url: str, run_ids: tuple[str, ...]) -> bool:
    configs = runs.run_configs(data.open_url(url), run_ids).values()
    return bool(configs) and all(success_threshold(config) is not None for config in configs)


def names_beside(run_ids: Sequence[str]) -> dict[str, str]:
    """Names of those of these runs that are in bundles, by `id@key`."""
    found: dict[str, str] = {}
    for url, bundle, ids in _sources(run_ids):
        if bundle is not None:
            names = data.names_in(url, ids)
            found |= {
                view.address(run_id, bundle.key): _name(names[run_id], bundle) for run_id in ids if run_id in names
            }
    return found


def runs_beside(bundle: Bundle, wanted: RunFilter) -> dict[str, str]:
    """Names of the runs of a bundle that match, by `id@key`, newest first."""
    names, _ = runs.run_names(data.open_url(bundle.url), wanted, limit=None)
    return {view.address(run_id, bundle.key): _name(name, bundle) for run_id, name in names.items()}


def _name(name: str, bundle: Bundle) -> str:
    return f"{name} · {bundle.name}"


def _sources(run_ids: Sequence[str]) -> Iterator[tuple[str, Bundle | None, list[str]]]:
    """Find the database of each part of the runs; those of a bundle that is not here are left out."""
    parts = view.split(run_ids)
    yield data.database_url(), None, parts.pop("", [])
    for key, ids in parts.items():
        if (found := view.find(key)) is not None:
            yield found.url, found, ids
