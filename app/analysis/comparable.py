"""The common budget at which runs are compared, and the selection of runs for comparisons and studies.

A win rate after 4,000 env steps and one after 40,000 env steps are not comparable. The runs of a task are therefore
compared at one budget. By default only runs of the most common budget of the task are compared, and each run of another
budget is listed with this reason. If a budget is given, evaluations of longer runs after it are ignored, and each
caption states this. The runs of a study differ in a few varied settings only; `check_one_study` checks this.
`app.analysis.series` decides which runs count as results.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

from app.analysis.quantities import AUTO, RateName
from app.analysis.rates import read_rates
from app.analysis.series import Comparison, ExcludedRun, Group, SeedRun, join_seeds
from app.analysis.settings import LABEL, TASK, Settings, is_irrelevant_for_learning, learning_settings, parse_steps
from app.analysis.variants import SAME_LENGTH
from emtc_core.config.resolve import Value
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.queries.run_search import RunFilter, matching_ids
from storage.queries.runs import get_rows
from storage.runs.rows import RunRow, find_run

Budget = int | Literal["common", "own"]
"""Env steps; "common": the most common one of a task's runs; "own": the end of each run."""
COMMON: Final = "common"
OWN_END: Final = "own"
LAMBDAS = ("embed.lambda_rcon", "embed.lambda_cl")
AUGMENTATION = ("embed.p_mask", "embed.sigma")
TAUS = ("gate.tau_start", "gate.tau_end")
DELTA, EMBEDDER = "memory.delta", "embed.type"
BUDGET = "train.t_max"
_TOLERANCE: Final = 1 + SAME_LENGTH
"""Lengths count as equal if they differ by at most this factor, because a run ends with its last full round."""
_MAX_LISTED = 5
_IGNORED_DIFFERENCES = frozenset({"seed", "preset"}) | TASK
"""Settings that may always differ between the runs of a study. The values of a preset are compared one by one."""


def parse_budget(text: object) -> Budget:
    """Parse a budget of the command line, a link or a script: common, own, 20000, 0.8M.

    Raises:
        ValueError: If it is not a budget.
    """
    if text in (COMMON, OWN_END):
        return COMMON if text == COMMON else OWN_END
    steps = parse_steps(str(text))
    if len(steps) != 1:
        raise ValueError(f"a budget is common, own or a number of env steps such as 20000 or 0.8M, got {text!r}")
    return steps[0]


def get_run_length(seed: SeedRun) -> int:
    """Return the length of a run [env steps]: its budget if it has finished, otherwise the steps trained so far."""
    lengths = [steps for steps in (seed.target_steps, seed.env_steps) if steps > 0]
    return min(lengths) if lengths else _last_step(seed)


def list_budgets(comparison: Comparison) -> list[int]:
    """List the different lengths of the runs, ascending; equal lengths within the tolerance are listed once."""
    return _distinct_lengths(map(get_run_length, comparison.seeds))


def cut_to_budget(comparison: Comparison, budget: Budget = COMMON) -> Comparison:
    """Cut the curves of all runs to one budget per task.

    Args:
        comparison: Runs that count as results.
        budget: The budget. Shorter runs than a given number of env steps are left out. With "common" runs of another
            budget are left out; if unfinished runs are included, the curves are cut to the largest number that all
            reached. With "own" no curve is cut; tasks with runs of different lengths are then marked in
            `Comparison.mixed_length_tasks`.
    """
    if budget == OWN_END:
        return _compare_at_own_ends(comparison)
    if budget == COMMON:
        comparison = select_common_budget(comparison)

    def check_length(seed: SeedRun) -> str | None:
        if not isinstance(budget, int) or get_run_length(seed) * _TOLERANCE >= budget:
            return None
        return f"has {get_run_length(seed):,} of the {budget:,} env steps at which runs are compared"

    long_enough = _exclude(comparison, check_length)
    budgets, last_steps = {}, {}
    for task, seeds in _by_task(long_enough.groups).items():
        steps = budget if isinstance(budget, int) else min(map(get_run_length, seeds))
        budgets[task] = steps
        # runs of this length may have their last evaluation a little after the budget
        last_steps[task] = _TOLERANCE * max(
            [steps, *(_last_step(seed) for seed in seeds if get_run_length(seed) <= steps * _TOLERANCE)]
        )

    def cut(seed: SeedRun) -> SeedRun:
        steps = budgets[seed.task]
        return seed if seed.target_steps <= steps * _TOLERANCE else seed.up_to(steps, last_steps[seed.task])

    def check_evaluations(seed: SeedRun) -> str | None:
        return None if len(seed.curve.steps) else f"no evaluation up to {budgets[seed.task]:,} env steps"

    groups = tuple(_with_seeds(group, [cut(seed) for seed in group.seeds]) for group in long_enough.groups)
    result = _exclude(replace(long_enough, groups=groups), check_evaluations)
    sentences = [_describe_budget(long_enough.seeds, budgets, budget) if budgets else "", _list_imported(result)]
    return replace(result, budget_note=" ".join(filter(None, sentences)), mixed_length_tasks=frozenset())


def select_common_budget(comparison: Comparison) -> Comparison:
    """Leave out the runs whose budget is not the most frequent one of their task, or the greatest one of these."""

    def get_planned_length(seed: SeedRun) -> int:
        return get_run_length(seed) if seed.is_result else seed.target_steps

    def find_common(lengths: Sequence[int]) -> int:
        counts = {steps: sum(steps <= length <= steps * _TOLERANCE for length in lengths) for steps in lengths}
        return max(lengths, key=lambda steps: (counts[steps], steps))

    common = {
        task: find_common(list(map(get_planned_length, seeds))) for task, seeds in _by_task(comparison.groups).items()
    }

    def check_length(seed: SeedRun) -> str | None:
        steps, length = common[seed.task], get_planned_length(seed)
        if length <= steps * _TOLERANCE and steps <= length * _TOLERANCE:
            return None
        return f"has {length:,} env steps; most runs of its map have {steps:,}"

    return _exclude(comparison, check_length)


def _compare_at_own_ends(comparison: Comparison) -> Comparison:
    lengths = {
        task: _distinct_lengths(map(get_run_length, seeds)) for task, seeds in _by_task(comparison.groups).items()
    }
    mixed = {task: steps for task, steps in lengths.items() if len(steps) > 1}
    if not mixed:
        return cut_to_budget(comparison)
    ranges = "; ".join(f"{task} {steps[0]:,} to {steps[-1]:,}" for task, steps in mixed.items())
    warning = (
        f"RUNS OF DIFFERENT LENGTHS: each run is evaluated at its own end ({ranges} env steps), so the numbers are not "
        "comparable. Each cell states its length, and no cell is bold."
    )
    budget = " ".join(filter(None, (warning, _list_imported(comparison))))
    return replace(comparison, budget_note=budget, mixed_length_tasks=frozenset(mixed))


def _list_imported(comparison: Comparison) -> str:
    """List the variants that another program trained; empty if there are none."""
    names = sorted({group.variant.name for group in comparison.groups if LABEL in group.seeds[0].settings})
    return f"Imported, trained by another program: {'; '.join(names)}." if names else ""


def _by_task(groups: Iterable[Group]) -> dict[str, list[SeedRun]]:
    seeds: dict[str, list[SeedRun]] = {}
    for group in groups:
        seeds.setdefault(group.variant.task, []).extend(group.seeds)
    return seeds


def _distinct_lengths(lengths: Iterable[int]) -> list[int]:
    distinct: list[int] = []
    for steps in sorted(lengths):
        if not distinct or steps > distinct[-1] * _TOLERANCE:
            distinct.append(steps)
    return distinct


def _exclude(comparison: Comparison, find_reason: Callable[[SeedRun], str | None]) -> Comparison:
    """Exclude the runs for which there is a reason, and list them with it."""
    excluded = [
        ExcludedRun(seed.id, f"{group.variant.label}; seed {seed.seed_text}", reason)
        for group in comparison.groups
        for seed in group.seeds
        if (reason := find_reason(seed)) is not None
    ]
    ids = {run.run_id for run in excluded}
    groups = [_with_seeds(group, [seed for seed in group.seeds if seed.id not in ids]) for group in comparison.groups]
    return replace(
        comparison,
        groups=tuple(group for group in groups if group.seeds),
        excluded_runs=(*comparison.excluded_runs, *excluded),
    )


def _with_seeds(group: Group, seeds: Sequence[SeedRun]) -> Group:
    variant = replace(group.variant, run_ids=tuple(seed.id for seed in seeds))
    return Group(variant, tuple(seeds))


def _last_step(seed: SeedRun) -> int:
    return int(seed.curve.steps[-1]) if len(seed.curve.steps) else 0


def _describe_budget(seeds: Sequence[SeedRun], budgets: Mapping[str, int], budget: Budget) -> str:
    """Write the sentence of captions on the budget of each task and on the runs that are longer."""
    values = sorted(set(budgets.values()))
    if len(values) == 1:
        steps = f"{values[0]:,}"
    else:
        steps = "; ".join(f"{task} {task_steps:,}" for task, task_steps in budgets.items())
    shortest = [seed.id for seed in seeds if get_run_length(seed) <= budgets[seed.task] * _TOLERANCE]
    n_longer = len(seeds) - len(shortest)
    if not n_longer:
        return f"All runs at {steps} env steps." if len(values) == 1 else f"All runs at these env steps: {steps}."
    if isinstance(budget, int):
        reason = "the requested budget"
    else:
        ids = f" (shortest: run{'s' if len(shortest) > 1 else ''} {', '.join(shortest)})" if len(shortest) <= 3 else ""
        reason = f"the largest number that all runs reached{ids}"
    longer = "1 run is" if n_longer == 1 else f"{n_longer} runs are"
    return (
        f"Compared at {steps} env steps, {reason}. {longer} longer: later evaluations are ignored, and the schedules "
        "(ε, τ) were set for the full length."
    )


def select_runs(
    db: Database,
    names: Sequence[str] | None = None,
    *,
    maps: Collection[str] | None = None,
    algos: Collection[str] | None = None,
) -> list[RunRow]:
    """List the named runs in their order, or all evaluated runs, newest first. Unfinished runs are included.

    Args:
        db: An open database.
        names: Run ids or prefixes. Hidden and archived runs are listed only if they are named.
        maps: Only runs on these maps.
        algos: Only runs of these algorithms.

    Raises:
        RunNotFoundError: If a name is not the id of a run or a prefix of one.
    """
    if names:
        rows = [find_run(db, name) for name in dict.fromkeys(names)]
        rows = list({row.id: row for row in rows}.values())
    else:
        rows = get_rows(db, matching_ids(db, RunFilter(visibility="drawn", evaluated=True), sort="-created"))
    return [row for row in rows if (not maps or row.map in maps) and (not algos or row.algo in algos)]


def read_study(
    db: Database,
    rows: Sequence[RunRow],
    *,
    include_unfinished: bool = False,
    final: bool = True,
    rate: RateName = AUTO,
    budget: Budget = COMMON,
) -> Comparison:
    """Read the win rates of a study's runs and select the runs that count; see `join_seeds` and `cut_to_budget`.

    Args:
        db: An open database.
        rows: The runs.
        include_unfinished: Include runs that have not finished.
        final: Whether final numbers are needed. Only then the runs are cut to one budget.
        rate: Which win rate.
        budget: The budget of final numbers.
    """
    comparison = join_seeds(*read_rates(db, rows, rate), include_unfinished=include_unfinished, final=final)
    return cut_to_budget(comparison, budget) if final else comparison


def check_one_study(name: str, seeds: Sequence[SeedRun], keys: Iterable[str]) -> None:
    """Check that the runs of a study differ only in the settings that it varies.

    Args:
        name: Name of the study, for the message.
        seeds: The runs.
        keys: The varied settings.

    Raises:
        ConfigError: If another setting differs between two runs of a task.
    """
    varied = tuple(keys)
    first: dict[str, Settings] = {}
    for seed in seeds:
        reference = first.setdefault(seed.task, seed.settings)
        shared = reference.keys() & seed.settings.keys() - _IGNORED_DIFFERENCES - set(varied)
        for key in sorted(shared, key=lambda key: (key != BUDGET, key)):  # other settings follow from the budget
            if seed.settings[key] != reference[key] and not is_irrelevant_for_learning(key):
                rule = (
                    f"differs ({reference[key]} and {seed.settings[key]}), but {name} needs runs that differ only in "
                )
                hint = "Leave out one of the two groups."
                raise ConfigError(rule + ", ".join(varied), key=key, value=seed.settings[key], hint=hint)


def group_seeds(seeds: Iterable[SeedRun], *keys: str) -> dict[tuple[Value, ...], list[SeedRun]]:
    """Group runs by the values of settings, in ascending order: numbers, then text, then missing values."""
    groups: dict[tuple[Value, ...], list[SeedRun]] = {}
    for seed in seeds:
        groups.setdefault(tuple(seed.settings.get(key) for key in keys), []).append(seed)

    def sort_key(value: Value) -> tuple[bool, bool, float | str]:
        return value is None, isinstance(value, str), 0 if value is None else value

    return dict(sorted(groups.items(), key=lambda item: tuple(map(sort_key, item[0]))))


def find_studies(seeds: Sequence[SeedRun], keys: Sequence[str], fits: Callable[[SeedRun], bool]) -> list[SeedRun]:
    """Select the runs that belong to a study of `keys`.

    Args:
        seeds: The runs.
        keys: The varied settings.
        fits: Whether a run can belong to the study at all.

    Returns:
        Groups of runs that differ only in `keys` and the seed, and have at least two values of `keys`.
    """
    studies: dict[tuple[tuple[str, Value], ...], list[SeedRun]] = {}
    for seed in filter(fits, seeds):
        shared = {key: value for key, value in learning_settings(seed.settings).items() if key not in keys}
        studies.setdefault(tuple(sorted(shared.items())), []).append(seed)
    return [seed for study in studies.values() if len(group_seeds(study, *keys)) > 1 for seed in study]


def describe_excluded(excluded: Sequence[ExcludedRun]) -> str:
    """Write the sentence of a caption that lists the excluded runs; empty if there are none."""
    if not excluded:
        return ""
    runs = "; ".join(str(run) for run in excluded[:_MAX_LISTED])
    more = f"; and {len(excluded) - _MAX_LISTED} more" if len(excluded) > _MAX_LISTED else ""
    return f" Left out: {runs}{more}."
