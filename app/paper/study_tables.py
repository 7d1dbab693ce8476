"""The paper's studies as tables: μ̄_w of the embedders by merge radius, win rate by augmentation."""

from collections.abc import Callable, Iterable, Sequence

import pandas as pd

from app.paper.studies import AUGMENTATION, DELTA, EMBEDDER, EMBEDDER_NAMES, SHARES
from app.paper.study_runs import StudyRun, group_runs, known, list_tasks, quote, read_study, show_value
from storage.engine import Database
from storage.queries.runs import get_run, list_runs
from storage.runs import RunRow

_EVERY_RUN = 100_000
_IGNORED = ("seed", "train.device", "train.threads")
_NOT_LEARNING = ("record.", "checkpoint.", "eval.")


def make_embedders_table(db: Database, rows: Sequence[RunRow] | None = None) -> pd.DataFrame:
    """Give μ̄_w over seeds: task and merge radius × training time and embedder; gate off."""
    runs = _find_study(db, rows, (EMBEDDER, DELTA), lambda run: not run.settings.get("gate.enabled"))
    columns = [f"{share:.0%} · {EMBEDDER_NAMES[each]}" for share in SHARES for each in EMBEDDER_NAMES]
    table, best = [], []
    for task in list_tasks(runs):
        for (delta,), cell in group_runs((run for run in runs if run.task == task), DELTA).items():
            means: dict[str, float] = {}
            row = {"task": task, "δ": show_value(delta)}
            for share in SHARES:
                for each, name in EMBEDDER_NAMES.items():
                    numbers = known(r.mu_w_at(share) for r in cell if r.settings.get(EMBEDDER) == each)
                    row[f"{share:.0%} · {name}"] = quote(numbers)
                    if len(numbers):
                        means[f"{share:.0%} · {name}"] = round(float(numbers.mean()), 3)
                best += [(len(table), column) for column in _best_of(means, f"{share:.0%} · ")]
            table.append(row)
    caption = "μ̄_w after a third, two thirds and all of the training, mean ± standard deviation over seeds, gate off."
    return _describe(pd.DataFrame(table, columns=["task", "δ", *columns]), caption, best)


def make_augmentation_table(db: Database, rows: Sequence[RunRow] | None = None) -> pd.DataFrame:
    """Give the final win rate over seeds of every measured combination of masking and noise, one column per task."""
    runs = _find_study(db, rows, AUGMENTATION, lambda run: run.settings.get(EMBEDDER) == "tcse")
    tasks = list_tasks(runs)
    table, means = [], {task: {} for task in tasks}
    for (p_mask, sigma), cell in group_runs(runs, *AUGMENTATION).items():
        row = {"p_mask": show_value(p_mask), "σ": show_value(sigma)}
        for task in tasks:
            finals = known(run.final for run in cell if run.task == task)
            row[task] = quote(finals)
            if len(finals):
                means[task][len(table)] = round(float(finals.mean()), 3)
        table.append(row)
    best = [(at, task) for task in tasks for at, mean in means[task].items() if mean == max(means[task].values())]
    caption = "Final greedy win rate, mean ± standard deviation over seeds; combinations without a run are not listed."
    return _describe(pd.DataFrame(table, columns=["p_mask", "σ", *tasks]), caption, best)


def _find_study(
    db: Database, rows: Sequence[RunRow] | None, keys: Sequence[str], fits: Callable[[StudyRun], bool]
) -> list[StudyRun]:
    """Take the finished runs that belong to a study: those whose like, but for `keys` and seed, ran at two points."""
    if rows is None:
        frame = list_runs(db, limit=_EVERY_RUN)
        rows = [get_run(db, str(run_id)) for run_id in frame.loc[frame["status"] == "finished", "id"]][::-1]
    runs = [run for run in read_study(db, rows) if run.is_finished and fits(run)]
    kinds: dict[tuple[object, ...], dict[tuple[object, ...], StudyRun]] = {}
    for run in runs:
        same = (
            (key, value)
            for key, value in sorted(run.settings.items())
            if key not in (*keys, *_IGNORED) and not key.startswith(_NOT_LEARNING)
        )
        point = (*(run.settings.get(key) for key in keys), run.seed)
        kinds.setdefault(tuple(same), {})[point] = run  # the newest: the same seed again is no second sample
    studies = (list(kind.values()) for kind in kinds.values())
    return [run for study in studies if len(group_runs(study, *keys)) > 1 for run in study]


def _best_of(means: dict[str, float], prefix: str) -> Iterable[str]:
    own = {name: mean for name, mean in means.items() if name.startswith(prefix)}
    return [name for name, mean in own.items() if mean == max(own.values())]


def _describe(frame: pd.DataFrame, caption: str, best: Sequence[tuple[int, str]]) -> pd.DataFrame:
    frame.attrs = {"caption": caption, "best": [[row, name] for row, name in best]}
    return frame


TABLES: dict[str, Callable[[Database], pd.DataFrame]] = {
    "mu-w-embedders": make_embedders_table,
    "augmentation": make_augmentation_table,
}
