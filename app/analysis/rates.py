"""Which win rate are the runs of a task compared by: the greedy, the robust or the training win rate?

On skirmish the greedy episodes of an evaluation start from the same fixed positions and are near copies of each other,
so that the win rate of 16 episodes scatters as that of one or two independent ones does. Robust episodes start from
shifted positions and scatter as independent episodes do. Robust is therefore the default on each task of which every
run has robust evaluations. All runs of a task always have the same win rate; `choose_rates` is the only rule, and the
pages, `emtc export`, notebooks and `db.figure` use it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from app.analysis.quantities import (
    AUTO,
    CHOSEN_RATE,
    ROBUST,
    TRAINED,
    WIN_RATE,
    Quantity,
    RateName,
    average_over_time,
    explain_robust,
    find_quantity,
    find_rate,
    is_mu_w,
)
from app.analysis.series import NO_CURVE, Seed, read_seeds
from app.analysis.statistics import mu_w_curve
from storage.engine import Database
from storage.runs.rows import RunRow

WHY_ROBUST = "greedy episodes from fixed starts are near copies of each other"
_ASKED_GREEDY = "Win rates are of greedy episodes from the task's usual starts."
_JITTER = "eval.robust_jitter"
_MOST_NAMED = 3


class RatedSeeds(NamedTuple):
    """Runs with their curves, and the quantity that the curves are of: the first arguments of `join_seeds`."""

    seeds: list[Seed]
    quantity: Quantity


class TaskRate(NamedTuple):
    """The default win rate of one task."""

    rate: Literal["greedy", "robust"]
    why: str = ""
    """Why it is greedy although some run has robust evaluations; else empty."""


def choose_rates(seeds: Iterable[Seed]) -> dict[str, TaskRate]:
    """Choose the default win rate of each task: robust where every evaluated run has it, else greedy.

    A run without any evaluation does not decide. A run has robust evaluations if each of its evaluations has a robust
    one. Runs whose starts are shifted by different amounts are not comparable by the robust win rate.

    Args:
        seeds: Runs with their greedy curves.
    """
    by_task: dict[str, list[Seed]] = {}
    for seed in seeds:
        if len(seed.curve.steps):
            by_task.setdefault(seed.task, []).append(seed)
    return {task: _choose(here) for task, here in by_task.items()}


def _choose(seeds: Sequence[Seed]) -> TaskRate:
    if not any(len(seed.robust.steps) for seed in seeds):
        return TaskRate("greedy")
    without = [seed.id for seed in seeds if len(seed.robust.steps) < len(seed.curve.steps)]
    if without:
        named = ", ".join(without[:_MOST_NAMED])
        more = f" and {len(without) - _MOST_NAMED} more" if len(without) > _MOST_NAMED else ""
        runs, have = ("runs", "have") if len(without) > 1 else ("run", "has")
        return TaskRate("greedy", f"{runs} {named}{more} {have} evaluations without a robust one")
    shifts = {seed.settings.get(_JITTER) for seed in seeds}
    if len(shifts) > 1:
        return TaskRate("greedy", f"{_JITTER} differs between its runs ({', '.join(sorted(map(str, shifts)))})")
    return TaskRate("robust")


def apply_rate(seeds: Sequence[Seed], rate: Literal["auto", "greedy", "robust"] = "auto") -> RatedSeeds:
    """Give each run the curve of the win rate that it is compared by.

    Args:
        seeds: Runs with their greedy curves.
        rate: Greedy or robust for all runs, or the default of each task.
    """
    if rate == "greedy":
        return RatedSeeds(list(seeds), replace(WIN_RATE, note=_ASKED_GREEDY))
    if rate == "robust":
        return RatedSeeds([_with_robust(seed) for seed in seeds], ROBUST)
    chosen = choose_rates(seeds)
    robust = {task for task, found in chosen.items() if found.rate == "robust"}
    rated = [_with_robust(seed) if seed.task in robust else seed for seed in seeds]
    return RatedSeeds(rated, _describe(chosen, seeds))


def _with_robust(seed: Seed) -> Seed:
    return replace(seed, curve=seed.robust, distinct=NO_CURVE.values)


def _describe(chosen: dict[str, TaskRate], seeds: Sequence[Seed]) -> Quantity:
    """Make the quantity of the default win rates: one for all tasks, or one for each."""
    note, rates = _explain(chosen), {found.rate for found in chosen.values()}
    if "robust" not in rates:
        return replace(WIN_RATE, note=note)
    if rates == {"robust"}:
        return replace(ROBUST, meaning=explain_robust(seed.settings for seed in seeds), note=note)
    greedy = replace(WIN_RATE, title=f"greedy {WIN_RATE.title}")
    by_task = tuple(
        (
            task,
            replace(ROBUST, meaning=explain_robust(seed.settings for seed in seeds if seed.task == task))
            if found.rate == "robust"
            else greedy,
        )
        for task, found in sorted(chosen.items())
    )
    meaning = f"win rate of its task ({'; '.join(f'{task}: {each.meaning}' for task, each in by_task)})"
    return replace(WIN_RATE, key=CHOSEN_RATE, meaning=meaning, by_task=by_task, note=note)


def _explain(chosen: dict[str, TaskRate]) -> str:
    """Explain the default win rates in a caption; empty where no run has a robust evaluation."""
    robust = sorted(task for task, found in chosen.items() if found.rate == "robust")
    refused = sorted((task, found.why) for task, found in chosen.items() if found.why)
    plain = sorted(task for task, found in chosen.items() if found.rate == "greedy" and not found.why)
    if not (robust or refused):
        return ""
    said = []
    if robust:
        where = f" on {', '.join(robust)}" if len(robust) < len(chosen) else ""
        said.append(f"Robust win rates (shifted starts){where}, because {WHY_ROBUST}.")
    said += [f"Greedy win rates on {task}, because {why}." for task, why in refused]
    if plain:
        said.append(f"Greedy win rates on {', '.join(plain)}, because no run has a robust evaluation.")
    return " ".join(said)


def average_curves(rated: RatedSeeds) -> RatedSeeds:
    """Replace the curve of each run by its time average so far, mu_w."""
    seeds = [replace(seed, curve=mu_w_curve(seed.curve), distinct=NO_CURVE.values) for seed in rated.seeds]
    return RatedSeeds(seeds, average_over_time(rated.quantity))


def read_rates(db: Database, rows: Sequence[RunRow], rate: RateName = AUTO) -> RatedSeeds:
    """Read the win rates that some runs are compared by. One statement."""
    if rate == "training":
        return RatedSeeds(read_seeds(db, rows, TRAINED), TRAINED)
    return apply_rate(read_seeds(db, rows), rate)


def read_drawn(db: Database, rows: Sequence[RunRow], key: str, rate: RateName = AUTO) -> RatedSeeds:
    """Read the curves that a key draws.

    Args:
        db: An open database.
        rows: The runs.
        key: Of a win rate or of its time average, of another evaluated quantity, or of a logged metric.
        rate: Which win rate, for the keys that leave it open.
    """
    wanted = find_rate(key, rate)
    if wanted is None:
        quantity = find_quantity(key)
        return RatedSeeds(read_seeds(db, rows, quantity), quantity)
    rated = read_rates(db, rows, wanted)
    return average_curves(rated) if is_mu_w(key) else rated
