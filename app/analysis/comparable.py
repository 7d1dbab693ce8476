"""Which runs may be compared, and at how many env steps? At the most that all of them reached, unless asked otherwise.

A win rate after 4,000 env steps and one after 40,000 are two quantities. So the runs of a task are read at one common
budget: of a longer run only the evaluations up to there count, and a sentence in every caption says so. Which runs:
named ones, or every run there is, on some maps and of some algorithms. A study is runs that differ in a few named
settings, and it is checked that they differ in nothing else. What does not live here: which runs count at all
(`app.analysis.series`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

from app.analysis.quantities import AUTO, RateName
from app.analysis.rates import read_rates
from app.analysis.series import Comparison, Group, LeftOut, Seed, join_seeds
from app.analysis.settings import LABEL, TASK, Settings, is_harmless, learning_settings, parse_steps
from emtc_core.config.resolve import Value
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.queries.runs import RunFilter, get_rows, matching_ids
from storage.runs.rows import RunRow, find_run

Budget = int | Literal["common", "own"]
"""Env steps; or the most that all runs of a task reached; or the end of each run, whatever its length."""
COMMON: Final = "common"
OWN: Final = "own"
_ALIKE: Final = 1.01
"""Runs whose lengths differ by less than this factor are of one length: each ends with the round it was in."""
_MEANING = "its schedules (ε, τ) were set for its own length"


def read_budget(text: object) -> Budget:
    """Read a budget as the command line, a link or a script gives it: common, own, 20000, 0.8M.

    Raises:
        ValueError: If it is none.
    """
    if text in (COMMON, OWN):
        return COMMON if text == COMMON else OWN
    steps = parse_steps(str(text))
    if len(steps) != 1:
        raise ValueError(f"a budget is common, own or a number of env steps as 20000 or 0.8M, got {text!r}")
    return steps[0]


def reach(seed: Seed) -> int:
    """How many env steps a run has to show: its budget if it is a result, else as far as it came."""
    known = [steps for steps in (seed.target_steps, seed.env_steps) if steps > 0]
    return min(known) if known else _last(seed)


def list_budgets(comparison: Comparison) -> list[int]:
    """List the lengths that the runs have, ascending; those that are alike once, as the shortest of them."""
    return _distinct(map(reach, comparison.seeds))


def at_budget(comparison: Comparison, budget: Budget = COMMON) -> Comparison:
    """Read every run at one budget per task.

    Args:
        comparison: Runs that count.
        budget: Which. At a number of env steps the runs that did not get there are left out; with "own" nothing is
            cut, and where the lengths of a task differ the comparison is marked as mixed.
    """
    if budget == OWN:
        return _each_at_its_end(comparison)
    long = _keep(comparison, lambda seed: _why_short(seed, budget))
    at = {task: _steps_of(seeds, budget) for task, seeds in _by_task(long.groups).items()}
    edges = {task: _edge(seeds, at[task]) for task, seeds in _by_task(long.groups).items()}
    cut = _change(long, lambda seed: _cut(seed, at[seed.task], edges[seed.task]))
    kept = _keep(cut, lambda seed: "" if len(seed.curve.steps) else f"no evaluation up to {at[seed.task]:,} env steps")
    said = _join(_say(long.seeds, at, budget) if at else "", tell_imported(kept))
    return replace(kept, budget=said, mixed=frozenset())


def keep_usual_length(comparison: Comparison) -> Comparison:
    """Leave out the runs that are not as long as most of their map: for numbers of whole runs, which cannot be cut."""
    usual = {task: _usual(list(map(reach, seeds))) for task, seeds in _by_task(comparison.groups).items()}

    def why_not(seed: Seed) -> str:
        steps = usual[seed.task]
        alike = reach(seed) <= steps * _ALIKE and steps <= reach(seed) * _ALIKE
        return "" if alike else f"{reach(seed):,} env steps long, where most runs of its map have {steps:,}"

    return _keep(comparison, why_not)


def _usual(lengths: Sequence[int]) -> int:
    """The length that most have, of several the greatest."""
    return max(lengths, key=lambda steps: (sum(steps <= each <= steps * _ALIKE for each in lengths), steps))


def _each_at_its_end(comparison: Comparison) -> Comparison:
    lengths = {task: _distinct(map(reach, seeds)) for task, seeds in _by_task(comparison.groups).items()}
    mixed = {task: steps for task, steps in lengths.items() if len(steps) > 1}
    if not mixed:
        return at_budget(comparison)
    told = "; ".join(f"{task} {steps[0]:,} to {steps[-1]:,}" for task, steps in mixed.items())
    said = (
        f"RUNS OF DIFFERENT LENGTHS: each is read at its own end ({told} env steps), so that these numbers do not "
        "compare; every cell names its length, and none of them is bold."
    )
    return replace(comparison, budget=_join(said, tell_imported(comparison)), mixed=frozenset(mixed))


def tell_imported(comparison: Comparison) -> str:
    """Which lines another program trained, for every caption; empty where there is none."""
    names = sorted({each.variant.name for each in comparison.groups if LABEL in each.seeds[0].settings})
    return f"Imported, trained by another program: {'; '.join(names)}." if names else ""


def _join(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


def _by_task(groups: Iterable[Group]) -> dict[str, list[Seed]]:
    found: dict[str, list[Seed]] = {}
    for group in groups:
        found.setdefault(group.variant.task, []).extend(group.seeds)
    return found


def _distinct(lengths: Iterable[int]) -> list[int]:
    found: list[int] = []
    for steps in sorted(lengths):
        if not found or steps > found[-1] * _ALIKE:
            found.append(steps)
    return found


def _why_short(seed: Seed, budget: Budget) -> str:
    """Why a run cannot be read at so many env steps; empty if it can."""
    if not isinstance(budget, int) or reach(seed) * _ALIKE >= budget:
        return ""
    return f"has {reach(seed):,} of the {budget:,} env steps at which runs are compared"


def _keep(comparison: Comparison, why_not: Callable[[Seed], str]) -> Comparison:
    """Leave out the runs that there is a reason against, and say so."""
    left_out = [
        LeftOut(seed.id, f"{group.variant.label}; seed {seed.number}", reason)
        for group in comparison.groups
        for seed in group.seeds
        if (reason := why_not(seed))
    ]
    lost = {each.run_id for each in left_out}
    groups = [_with_seeds(group, [seed for seed in group.seeds if seed.id not in lost]) for group in comparison.groups]
    kept = tuple(group for group in groups if group.seeds)
    return replace(comparison, groups=kept, left_out=(*comparison.left_out, *left_out))


def _change(comparison: Comparison, change: Callable[[Seed], Seed]) -> Comparison:
    groups = (_with_seeds(group, list(map(change, group.seeds))) for group in comparison.groups)
    return replace(comparison, groups=tuple(groups))


def _with_seeds(group: Group, seeds: Sequence[Seed]) -> Group:
    variant = replace(group.variant, run_ids=tuple(seed.id for seed in seeds))
    return Group(variant, tuple(seeds))


def _steps_of(seeds: Sequence[Seed], budget: Budget) -> int:
    return budget if isinstance(budget, int) else min(map(reach, seeds))


def _edge(seeds: Sequence[Seed], steps: int) -> float:
    """The last env step whose evaluation counts: where the runs of just this length had their last one, or as near."""
    return _ALIKE * max([steps, *(_last(seed) for seed in seeds if _is_alike(seed, steps))])


def _is_alike(seed: Seed, steps: int) -> bool:
    return reach(seed) <= steps * _ALIKE


def _cut(seed: Seed, steps: int, edge: float) -> Seed:
    return seed if seed.target_steps <= steps * _ALIKE else seed.up_to(steps, edge)


def _last(seed: Seed) -> int:
    return int(seed.curve.steps[-1]) if len(seed.curve.steps) else 0


def _say(seeds: Sequence[Seed], at: Mapping[str, int], budget: Budget) -> str:
    """At how many env steps the runs of each task are read, and what that leaves of the longer ones."""
    steps = sorted(set(at.values()))
    told = f"{steps[0]:,}" if len(steps) == 1 else "; ".join(f"{task} {each:,}" for task, each in at.items())
    longer = [seed for seed in seeds if not _is_alike(seed, at[seed.task])]
    if not longer:
        return f"All runs at {told} env steps." if len(steps) == 1 else f"All runs at these env steps: {told}."
    why = "as was asked for" if isinstance(budget, int) else f"the most that all of them reached{_shortest(seeds, at)}"
    how_many = "1 run is" if len(longer) == 1 else f"{len(longer)} runs are"
    return (
        f"Read at {told} env steps, {why}. {how_many} longer: only the evaluations up to there count, and of such a "
        f"run {_MEANING}."
    )


def _shortest(seeds: Sequence[Seed], at: Mapping[str, int]) -> str:
    """Which runs hold the others back, where they are few enough to name."""
    ids = [seed.id for seed in seeds if _is_alike(seed, at[seed.task])]
    return f" (shortest: run{'s' if len(ids) > 1 else ''} {', '.join(ids)})" if len(ids) <= 3 else ""


def select_runs(
    db: Database,
    names: Sequence[str] | None = None,
    *,
    maps: Collection[str] | None = None,
    algos: Collection[str] | None = None,
) -> list[RunRow]:
    """Find the named runs in their order, or every evaluated one, newest first; whether one counts is not asked here.

    Hidden and archived runs are found by name alone.

    Raises:
        RunNotFoundError: If a name is no run's id or its beginning.
    """
    if names:
        rows = [find_run(db, name) for name in dict.fromkeys(names)]
        rows = list({row.id: row for row in rows}.values())
    else:
        drawn = RunFilter(shelf="drawn", evaluated=True)
        rows = get_rows(db, matching_ids(db, drawn, sort="-created"))
    return [row for row in rows if (not maps or row.map in maps) and (not algos or row.algo in algos)]


LAMBDAS = ("embed.lambda_rcon", "embed.lambda_cl")
AUGMENTATION = ("embed.p_mask", "embed.sigma")
TAUS = ("gate.tau_start", "gate.tau_end")
DELTA, EMBEDDER = "memory.delta", "embed.type"
BUDGET = "train.t_max"
_FREE = frozenset({"seed", "preset"}) | TASK
"""What may differ between the runs of any study: the seed; the name of a preset whose values are compared anyway."""


def read_study(
    db: Database,
    rows: Sequence[RunRow],
    *,
    include_unfinished: bool = False,
    final: bool = True,
    rate: RateName = AUTO,
    budget: Budget = COMMON,
) -> Comparison:
    """Read the win rates of a study's runs and decide which of them count; for numbers of the end, at one budget."""
    comparison = join_seeds(*read_rates(db, rows, rate), include_unfinished=include_unfinished, final=final)
    return at_budget(comparison, budget) if final else comparison


def check_one_study(name: str, seeds: Sequence[Seed], keys: Iterable[str]) -> None:
    """Refuse runs that differ in more than the settings that a study varies.

    Raises:
        ConfigError: Naming the setting and two of its values.
    """
    varied = tuple(keys)
    first: dict[str, Settings] = {}
    for seed in seeds:
        usual = first.setdefault(seed.task, seed.settings)
        shared = usual.keys() & seed.settings.keys() - _FREE - set(varied)
        for key in sorted(shared, key=lambda each: (each != BUDGET, each)):  # other settings follow from the budget
            if seed.settings[key] != usual[key] and not is_harmless(key):
                rule = f"differs ({usual[key]} and {seed.settings[key]}), but {name} needs runs that differ only in "
                hint = "Leave one of the two groups out."
                raise ConfigError(rule + ", ".join(varied), key=key, value=seed.settings[key], hint=hint)


def group_seeds(seeds: Iterable[Seed], *keys: str) -> dict[tuple[Value, ...], list[Seed]]:
    """Group seeds by the values of some settings, in ascending order of the values."""
    groups: dict[tuple[Value, ...], list[Seed]] = {}
    for seed in seeds:
        groups.setdefault(tuple(seed.settings.get(key) for key in keys), []).append(seed)
    return dict(sorted(groups.items(), key=lambda item: tuple(map(_place, item[0]))))


def _place(value: Value) -> tuple[bool, bool, float | str]:
    """Where a value stands among others: numbers, then words, then what a run does not say."""
    return value is None, isinstance(value, str), 0 if value is None else value


def find_studies(seeds: Sequence[Seed], keys: Sequence[str], fits: Callable[[Seed], bool]) -> list[Seed]:
    """Keep the seeds that belong to a study: those whose like, but for `keys` and seed, ran at two points."""
    kinds: dict[tuple[tuple[str, Value], ...], list[Seed]] = {}
    for seed in filter(fits, seeds):
        same = {key: value for key, value in learning_settings(seed.settings).items() if key not in keys}
        kinds.setdefault(tuple(sorted(same.items())), []).append(seed)
    return [seed for study in kinds.values() if len(group_seeds(study, *keys)) > 1 for seed in study]


def tell_left_out(left_out: Sequence[LeftOut]) -> str:
    """The sentence of a caption on the runs that do not count; empty when all do."""
    if not left_out:
        return ""
    shown = "; ".join(str(each) for each in left_out[:5])
    more = f"; and {len(left_out) - 5} more" if len(left_out) > 5 else ""
    return f" Left out: {shown}{more}."
