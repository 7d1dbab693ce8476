"""Published results of the paper, and a table of its win rates next to those of the runs here ("ours").

The published numbers were measured on StarCraft II and Google Research Football. `skirmish` is a simulator: its numbers
are not comparable with them, and tables with published numbers state this.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import pandas as pd

from app.analysis.aggregates import Aggregation
from app.analysis.curves import Curves
from app.analysis.finals import LAST_TENTH, FinalRule, caption_final, compute_final_rates, make_final_scale, name_final
from app.analysis.format import format_seed_count
from app.analysis.settings import name_algo, name_method
from app.analysis.tables import MISSING, Cell, Column, Table, make_table
from app.analysis.win_rates import format_aggregate

PUBLISHED_WARNING = (
    "The paper's numbers come from StarCraft II 4.10 and Google Research Football. skirmish is a simulator: "
    "its win rates are not comparable with them."
)

PUBLISHED_ENVIRONMENTS = frozenset({"smac", "grf"})
"""The environments on which the published numbers were measured."""


@dataclass(frozen=True)
class PublishedRate:
    """One published win rate [%]: mean and standard deviation over five seeds."""

    mean: float
    std: float

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.std:.1f}"


@dataclass(frozen=True)
class PublishedStudy:
    """Published results of a study: the source, a note, and a table that may be empty."""

    source: str
    note: str
    table: pd.DataFrame


@cache
def read_published() -> Mapping[tuple[str, str, str], PublishedRate]:
    """Read all published win rates by (environment, map, algorithm)."""
    rates = {}
    for benchmark in _read_toml("published.toml").values():
        for algo, row in benchmark["win_rate"].items():
            for map, (mean, std) in zip(benchmark["maps"], row, strict=True):
                for env in benchmark["environments"]:
                    rates[env, map, algo] = PublishedRate(mean, std)
    return rates


@cache
def read_published_studies() -> dict[str, PublishedStudy]:
    """Read the published results of all studies by name of the study."""
    studies = {}
    for name, part in _read_toml("published_studies.toml").items():
        table = pd.DataFrame(part.get("rows"), columns=part.get("columns"))
        studies[name] = PublishedStudy(part["source"], part["note"], table)
    return studies


def find_published(study: str, env: str) -> PublishedStudy | None:
    """Find the published results of a study: those on Google Research Football if `env` is "grf" and they exist."""
    studies = read_published_studies()
    if env == "grf" and f"{study}-football" in studies:
        return studies[f"{study}-football"]
    return studies.get(study)


def list_published_maps() -> list[str]:
    """List the maps with published win rates."""
    return list(dict.fromkeys(map for _, map, _ in read_published()))


def tabulate_with_published(
    curves: Curves, aggregation: Aggregation | None = None, final: FinalRule = LAST_TENTH
) -> Table:
    """Tabulate our final greedy win rates [%] next to the published ones; empty if no map has published win rates.

    A variant with changed settings has no published number. A published algorithm without runs has a row with only its
    published number.
    """
    aggregation = aggregation or Aggregation()
    columns: list[Column] = []
    columns_of_cells: list[dict[str, Cell]] = []
    for task in curves.tasks:
        groups = [group for group in curves.by_variant if group.variant.task == task]
        paper = _list_published_rates(groups[0].variant.env, groups[0].variant.map)
        if not paper:
            continue
        ours = {group.variant.method: _make_our_cell(group, aggregation, final) for group in groups}
        columns += [Column("ours", group=task), Column("paper", group=task)]
        columns_of_cells += [ours, {algo: _make_published_cell(rate) for algo, rate in paper.items()}]
    # the key of a variant without changed settings is its algorithm, so both kinds of cells are in one row
    methods = list(dict.fromkeys(method for cells_of_column in columns_of_cells for method in cells_of_column))
    our_names = {
        group.variant.method: name_method(group.variant.algo, group.variant.changes) for group in curves.by_variant
    }
    rows: list[list[Cell | str]] = []
    for method in methods:
        name = our_names.get(method) or name_algo(method)
        rows.append([name, *(cells_of_column.get(method, MISSING) for cells_of_column in columns_of_cells)])
    published_tasks = {column.group for column in columns}
    published_curves = curves.keep(run for run in curves.runs if run.task in published_tasks)
    sources = (
        f"Ours: always greedy episodes, as in the paper; {aggregation.describe(is_fraction=True)}. "
        f"Paper: mean ± standard deviation over five seeds. {PUBLISHED_WARNING}"
    )
    caption = caption_final(published_curves, final, sources, unit="%")
    return make_table(["variant", *columns], rows, caption=caption, excluded=curves.excluded)


def _list_published_rates(env: str, map: str) -> dict[str, PublishedRate]:
    """Return the published win rates of one map by algorithm."""
    published = read_published().items()
    return {algo: rate for (rate_env, rate_map, algo), rate in published if (rate_env, rate_map) == (env, map)}


def _make_our_cell(group: Curves, aggregation: Aggregation, final: FinalRule) -> Cell:
    cell = format_aggregate(
        100 * compute_final_rates(group, final),
        aggregation,
        scale=make_final_scale(group, final, top=100),
        name=name_final(final, unit="%"),
    )
    return cell.append(f"{group.mark} ({format_seed_count(group.n)})", includes_unfinished=bool(group.unfinished))


def _make_published_cell(rate: PublishedRate) -> Cell:
    low, high = rate.mean - rate.std, rate.mean + rate.std
    statistic = "published test win rate [%], mean over seeds"
    return Cell(str(rate), rate.mean, low, high, 5, statistic, "standard deviation")


def _read_toml(name: str) -> dict[str, Any]:
    return tomllib.loads(files("app.analysis").joinpath(name).read_text(encoding="utf-8"))
