"""The paper's studies as tables: μ̄_w of the embedders by merge radius, win rate by augmentation."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pandas as pd

from app.analysis.finals import FinalRule, caption_final, final_rate, name_final, rate_of, rate_of_final
from app.analysis.intervals import Rate
from app.analysis.names import EMBEDDERS
from app.analysis.series import DAGGER, Comparison, Seed
from app.analysis.settings import show_value
from app.analysis.statistics import Reading, finite
from app.analysis.study import AUGMENTATION, DELTA, EMBEDDER, find_studies, group_seeds, read_study
from app.analysis.tables import NESTED, describe_table
from app.analysis.win_rates import find_best, quote
from app.figures.figure import AT_A_BUDGET, AT_THE_END, Options, TableKind
from storage.engine import Database
from storage.runs.rows import RunRow

SHARES = (1 / 3, 2 / 3, 1.0)


def _embedders(db: Database, rows: Sequence[RunRow], options: Options) -> pd.DataFrame:
    """Give μ̄_w over seeds: task and merge radius × training time and embedder; gate off."""
    reading = options.reading or Reading()
    comparison = read_study(db, rows, include_unfinished=options.include_unfinished, budget=options.read_at)
    fits = [seed for seed in comparison.seeds if not seed.settings.get("gate.enabled")]
    seeds = find_studies(fits, (EMBEDDER, DELTA), lambda seed: EMBEDDER in seed.settings)
    table, best = [], []
    for task in dict.fromkeys(seed.task for seed in seeds):
        for (delta,), here in group_seeds((seed for seed in seeds if seed.task == task), DELTA).items():
            cells = _cells_over_time(here, reading)
            for share in SHARES:
                names = [name for name in cells if name.startswith(f"{share:.0%}{NESTED}")]
                best += [(len(table), names[place]) for place in find_best([cells[name] or None for name in names])]
            table.append({"task": task, "δ": show_value(delta), **cells})
    columns = ["task", "δ", *(_time_column(share, name) for share in SHARES for name in EMBEDDERS.values())]
    caption = f"μ̄_w after a third, two thirds and all of the training, {reading.say(share=True)}, gate off."
    return _describe(table, columns, f"{caption} {comparison.budget}", best, comparison, [comparison.unequal])


def _cells_over_time(seeds: Sequence[Seed], reading: Reading) -> dict[str, str]:
    return {
        _time_column(share, name): _quote(
            [seed for seed in seeds if seed.settings.get(EMBEDDER) == each],
            partial(Seed.mu_w_at, share=share),
            reading,
            rate_of(seeds, evaluations=max(1.0, share * min((len(seed.curve.steps) for seed in seeds), default=1))),
            of="μ̄_w",
        )
        for share in SHARES
        for each, name in EMBEDDERS.items()
    }


def _time_column(share: float, embedder: str) -> str:
    return f"{share:.0%}{NESTED}{embedder}"


def _augmentation(db: Database, rows: Sequence[RunRow], options: Options) -> pd.DataFrame:
    """Give the final win rate over seeds of every measured combination of masking and noise, one column per task."""
    reading = options.reading or Reading()
    comparison = read_study(db, rows, include_unfinished=options.include_unfinished, budget=options.read_at)
    seeds = find_studies(comparison.seeds, AUGMENTATION, lambda seed: seed.settings.get(EMBEDDER) == "tcse")
    tasks, final = list(dict.fromkeys(seed.task for seed in seeds)), options.final_rule
    table = [
        {"p_mask": show_value(p_mask), "σ": show_value(sigma)}
        | {task: _quote_final([seed for seed in here if seed.task == task], final, reading) for task in tasks}
        for (p_mask, sigma), here in group_seeds(seeds, *AUGMENTATION).items()
    ]
    best = [(at, task) for task in tasks for at in find_best([row[task] or None for row in table])]
    said = f"A cell is the {reading.say(share=True)}; combinations without a run are not listed."
    caption, about = caption_final(seeds, final, said, at=comparison)
    return _describe(table, ["p_mask", "σ", *tasks], caption, best, comparison, about)


def _quote_final(seeds: Sequence[Seed], final: FinalRule, reading: Reading) -> str:
    number = partial(final_rate, rule=final)
    return _quote(seeds, number, reading, rate_of_final(seeds, final), of=name_final(final))


def _quote(seeds: Sequence[Seed], number: Callable[[Seed], float], reading: Reading, rate: Rate, *, of: str) -> str:
    """Quote one number over seeds: "0.920 ± 0.010 (n = 5)"; an empty text when there is none."""
    numbers = finite(map(number, seeds))
    mark = "" if all(seed.is_result for seed in seeds) else DAGGER
    if not len(numbers):
        return ""
    quoted = quote(numbers, reading, digits=3, rate=rate, of=of)
    return quoted.followed_by(f"{mark} (n = {len(numbers)})")


def _describe(
    table: Sequence[Mapping[str, str]],
    columns: Sequence[str],
    caption: str,
    best: Sequence[tuple[int, str]],
    comparison: Comparison,
    about: Sequence[str] = (),
) -> pd.DataFrame:
    frame = pd.DataFrame(table, columns=pd.Index(columns))
    cells = {name: [row.get(name) for row in table] for name in columns}
    said: Mapping[bool, str] = {True: f" {DAGGER} rests on a run that has not finished and is never bold.", False: ""}
    marked = any(group.unfinished for group in comparison.groups)
    left_out, best = [str(each) for each in comparison.left_out], [] if comparison.mixed else best
    return describe_table(frame, caption=caption + said[marked], best=best, left_out=left_out, about=about, cells=cells)


TABLES = (
    TableKind(
        "mu-w-embedders", _embedders, AT_A_BUDGET,
        needs="finished runs with the gate off that differ in embed.type or memory.delta and in nothing else",
    ),
    TableKind(
        "augmentation", _augmentation, AT_THE_END,
        needs="finished runs with embed.type = tcse that differ in embed.p_mask or embed.sigma and in nothing else",
    ),
)  # fmt: skip
