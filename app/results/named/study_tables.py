"""The paper's studies as tables: μ̄_w of the embedders by merge radius, win rate by augmentation."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pandas as pd

from app.results.kinds import OVER_SEEDS, Options, TableKind
from app.results.names import EMBEDDERS
from app.results.series import DAGGER, Comparison, Seed
from app.results.settings import show_value
from app.results.statistics import Reading, finite
from app.results.study import AUGMENTATION, DELTA, EMBEDDER, find_studies, group_seeds, read_study
from app.results.win_rates import find_best, quote
from app.tables import NESTED, describe_table
from storage.engine import Database
from storage.runs import RunRow

SHARES = (1 / 3, 2 / 3, 1.0)


def _embedders(db: Database, rows: Sequence[RunRow], options: Options) -> pd.DataFrame:
    """Give μ̄_w over seeds: task and merge radius × training time and embedder; gate off."""
    reading = options.reading or Reading()
    comparison = read_study(db, rows, include_unfinished=options.include_unfinished)
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
    caption = f"μ̄_w after a third, two thirds and all of the training, {reading}, gate off."
    return _describe(pd.DataFrame(table, columns=pd.Index(columns)), caption, best, comparison)


def _cells_over_time(seeds: Sequence[Seed], reading: Reading) -> dict[str, str]:
    return {
        _time_column(share, name): _quote(
            [seed for seed in seeds if seed.settings.get(EMBEDDER) == each],
            partial(Seed.mu_w_at, share=share),
            reading,
        )
        for share in SHARES
        for each, name in EMBEDDERS.items()
    }


def _time_column(share: float, embedder: str) -> str:
    return f"{share:.0%}{NESTED}{embedder}"


def _augmentation(db: Database, rows: Sequence[RunRow], options: Options) -> pd.DataFrame:
    """Give the final win rate over seeds of every measured combination of masking and noise, one column per task."""
    reading = options.reading or Reading()
    comparison = read_study(db, rows, include_unfinished=options.include_unfinished)
    seeds = find_studies(comparison.seeds, AUGMENTATION, lambda seed: seed.settings.get(EMBEDDER) == "tcse")
    tasks = list(dict.fromkeys(seed.task for seed in seeds))
    table = [
        {"p_mask": show_value(p_mask), "σ": show_value(sigma)}
        | {task: _quote([s for s in here if s.task == task], lambda seed: seed.final, reading) for task in tasks}
        for (p_mask, sigma), here in group_seeds(seeds, *AUGMENTATION).items()
    ]
    best = [(at, task) for task in tasks for at in find_best([row[task] or None for row in table])]
    caption = f"Final greedy win rate, {reading}; combinations without a run are not listed."
    return _describe(pd.DataFrame(table, columns=pd.Index(["p_mask", "σ", *tasks])), caption, best, comparison)


def _quote(seeds: Sequence[Seed], number: Callable[[Seed], float], reading: Reading) -> str:
    """Quote one number over seeds: "0.920 ± 0.010 (n = 5)"; an empty text when there is none."""
    numbers = finite(map(number, seeds))
    mark = "" if all(seed.is_result for seed in seeds) else DAGGER
    return f"{quote(numbers, reading, digits=3)}{mark} (n = {len(numbers)})" if len(numbers) else ""


def _describe(
    frame: pd.DataFrame, caption: str, best: Sequence[tuple[int, str]], comparison: Comparison
) -> pd.DataFrame:
    said: Mapping[bool, str] = {True: f" {DAGGER} rests on a run that has not finished and is never bold.", False: ""}
    marked = any(group.unfinished for group in comparison.groups)
    left_out = [str(each) for each in comparison.left_out]
    return describe_table(frame, caption=caption + said[marked], best=best, left_out=left_out)


TABLES = (
    TableKind("mu-w-embedders", _embedders, OVER_SEEDS),
    TableKind("augmentation", _augmentation, OVER_SEEDS),
)
