"""The paper's own numbers, as data, to stand beside ours: win rates by map, and what it reports for each study.

They were obtained on StarCraft II and on Google Research Football. `skirmish` is a simulator: its numbers are not
comparable, and every table here says so.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import pandas as pd

from app.analysis.finals import LAST_TENTH, FinalRule, caption_final, final_rates, name_final, rate_of_final
from app.analysis.names import name_algo, name_method
from app.analysis.series import Comparison
from app.analysis.statistics import Reading
from app.analysis.tables import MISSING, NESTED, Cell, Number, describe_table
from app.analysis.win_rates import quote

WARNING = (
    "The paper's numbers come from StarCraft II 4.10 and Google Research Football. skirmish is a simulator: "
    "its win rates are not comparable with them."
)


@dataclass(frozen=True)
class PublishedRate:
    """One published win rate [%]: mean and standard deviation over five seeds."""

    mean: float
    std: float
    where: str

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.std:.1f}"


@dataclass(frozen=True)
class PublishedStudy:
    """What the paper reports for a study: where it was measured, a sentence, and a table that may be empty."""

    source: str
    note: str
    table: pd.DataFrame


@cache
def read_published() -> Mapping[tuple[str, str, str], PublishedRate]:
    """Read every published win rate: (environment, map, algorithm) → number."""
    return {
        (env, map, algo): PublishedRate(mean, std, benchmark["label"])
        for benchmark in _read("published.toml").values()
        for algo, row in benchmark["win_rate"].items()
        for map, (mean, std) in zip(benchmark["maps"], row, strict=True)
        for env in benchmark["environments"]
    }


@cache
def published_studies() -> dict[str, PublishedStudy]:
    """Read every study's published numbers by the study's name."""
    return {
        name: PublishedStudy(part["source"], part["note"], pd.DataFrame(part.get("rows"), columns=part.get("columns")))
        for name, part in _read("published_studies.toml").items()
    }


def find_published(study: str, env: str) -> PublishedStudy | None:
    """Find what the paper reports for a study in an environment."""
    known = published_studies()
    return known.get(f"{study}-football" if env == "grf" else study) or known.get(study)


def list_published_maps() -> list[str]:
    """List the maps for which the paper prints win rates."""
    return list(dict.fromkeys(map for _, map, _ in read_published()))


def tabulate_beside_published(
    comparison: Comparison, reading: Reading | None = None, final: FinalRule = LAST_TENTH
) -> pd.DataFrame:
    """Put our final win rates [%] beside the paper's, for the maps that it has; empty when it has none of them.

    A variant with changed settings has no published number of its own. An algorithm of the paper that was not run
    has a row with the paper's number alone.
    """
    rates, how = read_published(), reading or Reading()
    columns: dict[str, dict[str, str]] = {}
    at_end = name_final(final, unit="%")
    for task in comparison.tasks:
        here = [group for group in comparison.groups if group.variant.task == task]
        place = (here[0].variant.env, here[0].variant.map)
        paper = {algo: value for (env, map, algo), value in rates.items() if (env, map) == place}
        if not paper:
            continue
        columns[f"{task}{NESTED}ours"] = {
            group.variant.method: quote(
                100 * final_rates(group.seeds, final), how, rate=rate_of_final(group.seeds, final, top=100), of=at_end
            ).followed_by(f"{group.mark} (n = {group.n})")
            for group in here
        }
        columns[f"{task}{NESTED}paper"] = {algo: Cell(str(rate), _quoted(rate)) for algo, rate in paper.items()}
    methods = list(dict.fromkeys(method for column in columns.values() for method in column))
    ours = {each.variant.method: name_method(each.variant.algo, each.variant.changes) for each in comparison.groups}
    names = [ours.get(method) or name_algo(method) for method in methods]
    texts = {name: [column.get(method, MISSING) for method in methods] for name, column in columns.items()}
    frame = pd.DataFrame({"variant": pd.Series(names, dtype="object"), **texts})
    ours_alone = [seed for seed in comparison.seeds if f"{seed.task}{NESTED}ours" in columns]
    said = f"Ours: {how.say(share=True)}. Paper: mean ± standard deviation over five seeds. {WARNING}"
    caption, about = caption_final(ours_alone, final, said, unit="%", at=comparison)
    left_out = [str(each) for each in comparison.left_out]
    return describe_table(frame, caption=caption, left_out=left_out, about=about, cells=texts)


def _quoted(rate: PublishedRate) -> Number:
    low, high = rate.mean - rate.std, rate.mean + rate.std
    return Number(rate.mean, low, high, 5, "published test win rate [%], mean over seeds", "standard deviation")


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(files("app.analysis").joinpath(name).read_text(encoding="utf-8"))
