"""The paper's published win rates, as data, to stand beside our own.

They were obtained on StarCraft II and on Google Research Football. `skirmish` is a simulator: its numbers are not
comparable, and every table here says so.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from app.comparison import Group, list_tasks
from app.results import quote
from app.seed_statistics import Reading
from app.tables import MISSING, NESTED, describe_table

WARNING = (
    "The paper's numbers come from StarCraft II 4.10 and Google Research Football. skirmish is a simulator: "
    "its win rates are not comparable with them."
)
_FILE = Path(__file__).with_name("published.toml")


@dataclass(frozen=True)
class Published:
    """One published win rate [%]: mean and standard deviation over five seeds."""

    mean: float
    std: float
    where: str

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.std:.1f}"


@cache
def read_published() -> Mapping[tuple[str, str, str], Published]:
    """Read every published win rate: (environment, map, algorithm) → number."""
    with _FILE.open("rb") as file:
        benchmarks: dict[str, Any] = tomllib.load(file)
    return {
        (env, map, algo): Published(mean, std, benchmark["label"])
        for benchmark in benchmarks.values()
        for algo, row in benchmark["win_rate"].items()
        for map, (mean, std) in zip(benchmark["maps"], row, strict=True)
        for env in benchmark["environments"]
    }


def list_published_maps() -> list[str]:
    """List the maps for which the paper prints win rates."""
    return list(dict.fromkeys(map for _, map, _ in read_published()))


def tabulate_beside_published(groups: Sequence[Group], reading: Reading | None = None) -> pd.DataFrame:
    """Put our last win rates [%] beside the paper's, for the maps that it has; empty when it has none of them.

    A variant with changed settings has no published number of its own. An algorithm of the paper that was not run
    has a row with the paper's number alone.
    """
    known, how = read_published(), reading or Reading()
    columns: dict[str, dict[str, str]] = {}
    for task in list_tasks(groups):
        here = [group for group in groups if group.variant.task == task]
        env, map = here[0].variant.env, here[0].variant.map
        paper = {algo: str(value) for (e, m, algo), value in known.items() if (e, m) == (env, map)}
        if not paper:
            continue
        columns[f"{task}{NESTED}ours"] = {
            group.variant.method: f"{quote(np.array([100 * c.values[-1] for c in group.curves]), how)} (n = {group.n})"
            for group in here
        }
        columns[f"{task}{NESTED}paper"] = paper
    methods = list(dict.fromkeys(method for column in columns.values() for method in column))
    texts = {name: [column.get(method, MISSING) for method in methods] for name, column in columns.items()}
    frame = pd.DataFrame({"variant": pd.Series(methods, dtype="object"), **texts})
    caption = f"Last test win rate [%]. Ours: {how}. Paper: mean ± standard deviation over five seeds. {WARNING}"
    return describe_table(frame, caption=caption)
