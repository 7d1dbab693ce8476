"""Curves of runs, grouped by variant: the input of all figures and tables over seeds.

Only this module decides which runs are results: runs that have finished or have reached their env steps. Other runs are
listed with the reason why they are left out, or marked with a dagger if they are included.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from app.analysis.aggregates import MAX_POINTS, Curve, compute_mu_w, compute_mu_w_curve
from app.analysis.intervals import Values
from app.analysis.quantities import REASONS_WITHOUT_VALUE, ROBUST, WIN_RATE, Quantity, add_success_rule
from app.analysis.settings import Settings, name_task, with_code, write_value
from app.analysis.variants import Variant, group_variants
from emtc_core.config.resolve import flatten_tree
from storage.engine import Database
from storage.queries.curves import evaluation_curves, metric_curves
from storage.runs.rows import RunRow

DAGGER = "†"
NO_CURVE = Curve(np.empty(0), np.empty(0))
PAPER_MU_W_STEPS = (800_000, 1_600_000, 2_400_000)
_EVALUATION_COLUMNS = ("env_step", "win_rate", "robust_win_rate", "return_mean", "length_mean", "episodes")


class EvaluationDigest(NamedTuple):
    """All evaluations of a run in short. Runs with equal seeds and equal hashes have identical evaluations."""

    hash: int
    has_win: bool
    """Whether an episode of any evaluation was won."""


@dataclass(frozen=True)
class SeedRun:
    """One run: its settings, its progress and its curve, which may be empty."""

    id: str
    settings: Settings
    curve: Curve = NO_CURVE
    status: str = "finished"
    env_steps: int = 0
    target_steps: int = 0
    created_s: float = 0.0
    """Creation time [s]. Of two runs of a variant with the same seed the newer one counts."""
    distinct_episodes: Values = field(default_factory=lambda: np.empty(0))
    """Number of different episodes per evaluation; only for runs that counted them."""
    comparison_budget: int = 0
    """Budget [env steps] at which the run is compared; 0 if it is compared at its end."""
    robust: Curve = NO_CURVE
    """Its robust win rate, whichever quantity `curve` has; empty without robust evaluations (`app.analysis.rates`)."""
    evaluations: EvaluationDigest | None = None
    """Digest of all its evaluations, to find identical runs; None if it cannot identify them: `_digest_evaluations`."""

    @property
    def budget(self) -> int:
        """Env steps at which the run is compared."""
        return self.comparison_budget or self.target_steps

    def up_to(self, budget: int, edge: float) -> "SeedRun":
        """Cut the curve to a smaller budget: only evaluations up to `edge` env steps remain."""
        keep = self.curve.steps <= edge
        return replace(self, curve=Curve(*(part[keep] for part in self.curve)), comparison_budget=budget)

    @property
    def is_result(self) -> bool:
        """Whether it has finished or has reached its target steps."""
        return self.status == "finished" or 0 < self.target_steps <= self.env_steps

    @property
    def progress(self) -> str:
        """Progress in words: "stopped at 2,942 of 15,000 env steps"."""
        return f"{self.status} at {self.env_steps:,} of {self.target_steps:,} env steps"

    @property
    def task(self) -> str:
        """The map, with the environment unless it is the embedded one."""
        return name_task(self.settings)

    @property
    def seed_text(self) -> str:
        """The random seed. "−2" is the second run of an import without seeds."""
        return str(self.settings.get("seed")).replace("-", "−")

    @property
    def t_max(self) -> float:
        """The configured training length, or the budget at which the run is compared [env steps]."""
        steps = self.comparison_budget or self.settings.get("train.t_max")
        return float(steps) if isinstance(steps, int | float) else 0.0

    def mu_w_at(self, share: float) -> float:
        """Compute mu_w at a fraction of the training length; NaN if the run has not reached it.

        For a result whose last evaluation was a little before its last step, mu_w at that evaluation is returned.
        """
        if not len(self.curve.steps):
            return np.nan
        t = share * self.t_max
        if self.is_result:
            t = min(t, float(self.curve.steps[-1]))
        return float(compute_mu_w(self.curve, np.array([t]))[0])


@dataclass(frozen=True)
class ExcludedRun:
    """A selected run that is left out, with the reason."""

    run_id: str
    label: str
    reason: str

    def __str__(self) -> str:
        return f"run {self.run_id} ({self.label}): {self.reason}"


@dataclass(frozen=True)
class Group:
    """One variant with its included runs."""

    variant: Variant
    seeds: tuple[SeedRun, ...]

    @property
    def curves(self) -> tuple[Curve, ...]:
        """The curve of each seed."""
        return tuple(seed.curve for seed in self.seeds)

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The run of each seed."""
        return tuple(seed.id for seed in self.seeds)

    @property
    def n(self) -> int:
        """Number of seeds."""
        return len(self.seeds)

    @property
    def unfinished(self) -> tuple[SeedRun, ...]:
        """The included seeds that are not results."""
        return tuple(seed for seed in self.seeds if not seed.is_result)

    @property
    def mark(self) -> str:
        """A dagger if an unfinished run is included."""
        return DAGGER if self.unfinished else ""


@dataclass(frozen=True)
class Comparison:
    """Runs grouped by variant: the input of all figures and tables over seeds."""

    groups: tuple[Group, ...]
    excluded_runs: tuple[ExcludedRun, ...] = ()
    quantity: Quantity = WIN_RATE
    budget_note: str = ""
    """Sentence for captions: at which env steps the runs are compared (`app.analysis.comparable`)."""
    mixed_length_tasks: frozenset[str] = frozenset()
    """Tasks whose runs have different lengths and are compared at their own ends."""
    hidden: tuple[Variant, ...] = ()
    """Variants that were removed with `without`. They still count when the styles of lines are chosen."""

    @property
    def budget_if_unequal(self) -> str:
        """`budget_note` if the runs differ in length, otherwise empty."""
        return self.budget_note if self.mixed_length_tasks or any(seed.comparison_budget for seed in self.seeds) else ""

    @cached_property
    def tasks(self) -> list[str]:
        """The tasks in order. Each is a panel of a figure or a column of a table."""
        return list(dict.fromkeys(group.variant.task for group in self.groups))

    @cached_property
    def methods(self) -> dict[str, str]:
        """Names of the methods by key, in order."""
        return {group.variant.method: group.variant.name for group in self.groups}

    @property
    def seed_counts(self) -> list[int]:
        """The number of seeds of each variant."""
        return [group.n for group in self.groups]

    @property
    def seeds(self) -> list[SeedRun]:
        """All included runs."""
        return [seed for group in self.groups for seed in group.seeds]

    @property
    def shared_note(self) -> str:
        """Note with the changed settings that all runs share and their names omit: "All with preset = demo."."""
        shared = self.groups[0].variant.shared if self.groups else {}
        text = ", ".join(f"{key} = {write_value(value)}" for key, value in sorted(shared.items()))
        return f"All with {text}." if text else ""

    def name_line(self, method: str) -> str:
        """Name a method with its number of seeds, equal in all panels: "QMIX (n = 5)", "QMIX (n = 3 to 5)"."""
        groups = [group for group in self.groups if group.variant.method == method]
        low, high = min(group.n for group in groups), max(group.n for group in groups)
        mark = DAGGER if any(group.unfinished for group in groups) else ""
        count = f"{low}" if low == high else f"{low} to {high}"
        return f"{self.methods[method]}{mark} (n = {count})"

    def without(self, methods: Iterable[str]) -> "Comparison":
        """Remove methods."""
        names = set(methods)
        hidden = tuple(group.variant for group in self.groups if group.variant.method in names)
        groups = tuple(group for group in self.groups if group.variant.method not in names)
        return replace(self, groups=groups, hidden=(*self.hidden, *hidden))


def read_seeds(db: Database, rows: Sequence[RunRow], quantity: Quantity = WIN_RATE) -> list[SeedRun]:
    """Read the settings and the curve of each run, in the order of the rows, with one SQL statement."""
    ids = [row.id for row in rows]
    if quantity.is_evaluation:
        frame = evaluation_curves(db, ids)
    else:
        longest = max((row.env_steps for row in rows), default=0)
        frame = metric_curves(db, ids, quantity.key, stretch=max(1, longest // MAX_POINTS))
    return make_seeds(rows, frame, quantity)


def make_seeds(rows: Sequence[RunRow], frame: pd.DataFrame, quantity: Quantity = WIN_RATE) -> list[SeedRun]:
    """Make the seeds of runs from one frame with the points of all their curves."""
    curves, distinct = split_curves(frame, quantity), _split_distinct(frame, quantity)
    robust = split_curves(frame, ROBUST) if ROBUST.column in frame else {}
    digests = _digest_evaluations(frame)
    return [
        SeedRun(
            row.id, flatten_tree(with_code(row.config, row.versions)), curves.get(row.id, NO_CURVE),
            row.live_status, row.env_steps, row.target_steps, row.created_at.timestamp(),
            distinct.get(row.id, NO_CURVE.values), robust=robust.get(row.id, NO_CURVE),
            evaluations=digests.get(row.id),
        )
        for row in rows
    ]  # fmt: skip


def split_curves(frame: pd.DataFrame, quantity: Quantity = WIN_RATE) -> dict[str, Curve]:
    """Split a frame with run_id, env_step and the quantity's column into curves by run; missing values are skipped."""
    frame = frame.loc[np.isfinite(read_float_column(frame, quantity.column)), :]
    curves = {run_id: Curve(*part) for run_id, part in split_by_run(frame, ("env_step", quantity.column)).items()}
    if quantity.is_time_average:
        return {run_id: compute_mu_w_curve(curve) for run_id, curve in curves.items()}
    return curves


def split_by_run(frame: pd.DataFrame, columns: Sequence[str]) -> dict[str, Values]:
    """Return the values of columns for each run, [columns, rows of the run], in the order of the frame."""
    values = np.stack([read_float_column(frame, name) for name in columns])
    codes, run_ids = pd.factorize(frame["run_id"].to_numpy())
    order = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes[order], np.arange(1, len(run_ids)))
    return dict(zip(map(str, run_ids), np.split(values[:, order], ends, axis=1), strict=False))


def _split_distinct(frame: pd.DataFrame, quantity: Quantity) -> dict[str, Values]:
    """Return the numbers of different episodes per evaluation by run; empty unless the quantity is the win rate."""
    if quantity.key != WIN_RATE.key or "distinct" not in frame:
        return {}
    counted = frame.loc[frame["distinct"].notna(), :]
    return {run_id: counts for run_id, (counts,) in split_by_run(counted, ("distinct",)).items()}


def _digest_evaluations(frame: pd.DataFrame) -> dict[str, EvaluationDigest]:
    """Digest the evaluations of each run; empty for a frame of a logged metric.

    Runs whose returns are whole numbers or missing have no digest: two different runs of a task with sparse rewards may
    both have a return of 0 in every evaluation, and two imported runs may both have a win rate of 0.
    """
    if not set(_EVALUATION_COLUMNS) <= set(frame.columns):
        return {}
    win_rates = [_EVALUATION_COLUMNS.index(name) for name in ("win_rate", "robust_win_rate")]
    digests = {}
    for run_id, values in split_by_run(frame, _EVALUATION_COLUMNS).items():
        returns = values[_EVALUATION_COLUMNS.index("return_mean")]
        if np.all(~np.isfinite(returns) | (returns == np.round(returns))):
            continue
        has_win = bool(np.any(values[win_rates] > 0))
        digests[run_id] = EvaluationDigest(hash((values + 0.0).tobytes()), has_win)  # + 0.0: -0.0 becomes 0.0
    return digests


def join_seeds(
    seeds: Sequence[SeedRun],
    quantity: Quantity = WIN_RATE,
    *,
    include_unfinished: bool = False,
    final: bool = False,
) -> Comparison:
    """Group runs by variant and select the runs that count.

    Args:
        seeds: Runs with their curves.
        quantity: Quantity of the curves.
        include_unfinished: Include unfinished runs.
        final: Whether final numbers are needed. A curve can be drawn before its run has finished, so without `final` a
            variant that has only unfinished runs is included, with a dagger.
    """
    by_id = {seed.id: seed for seed in seeds}
    groups, excluded = [], []
    for variant in group_variants({seed.id: seed.settings for seed in seeds}):
        candidates = [by_id[run_id] for run_id in variant.run_ids]
        reasons = _find_reasons(
            candidates,
            REASONS_WITHOUT_VALUE.get(quantity.key, "no point yet"),
            include_unfinished=include_unfinished,
            final=final,
        )
        included = tuple(seed for seed in candidates if seed.id not in reasons)
        excluded += [
            ExcludedRun(seed.id, f"{variant.label}; seed {seed.seed_text}", reasons[seed.id])
            for seed in candidates
            if seed.id in reasons
        ]
        if included:
            groups.append(Group(replace(variant, run_ids=tuple(seed.id for seed in included)), included))
    return Comparison(tuple(groups), tuple(excluded), add_success_rule(quantity, (seed.settings for seed in seeds)))


def _find_reasons(seeds: Sequence[SeedRun], no_curve: str, *, include_unfinished: bool, final: bool) -> dict[str, str]:
    """Find the reason for each run of one variant that is left out; `no_curve` is the reason for an empty curve."""
    reasons = {seed.id: f"{no_curve}; {seed.progress}" for seed in seeds if not len(seed.curve.steps)}
    best: dict[str, SeedRun] = {}
    for seed in sorted(seeds, key=lambda seed: (seed.is_result, seed.created_s, seed.id)):
        if seed.id not in reasons:
            best[seed.seed_text] = seed
    for seed in seeds:
        if seed.id not in reasons and (other := best[seed.seed_text]) is not seed:
            reasons[seed.id] = f"duplicate of seed {seed.seed_text}; run {other.id} is used"
    unfinished = {seed.id: seed.progress for seed in best.values() if not seed.is_result}
    if include_unfinished or (not final and len(unfinished) == len(best)):
        return reasons
    return {**reasons, **unfinished}


def choose_mu_w_steps(groups: Sequence[Group]) -> dict[str, tuple[int, ...]]:
    """Choose the env steps of the table of mu_w for each task; tasks without a curve are missing.

    They are the paper's 0.8M, 1.6M and 2.4M if every run of the task reached them; otherwise a quarter, a half and all
    of the env steps that every run of the task reached.
    """
    shortest: dict[str, float] = {}
    for group in groups:
        last_steps = [float(curve.steps[-1]) for curve in group.curves]
        shortest[group.variant.task] = min([*last_steps, shortest.get(group.variant.task, np.inf)])
    return {
        task: PAPER_MU_W_STEPS if steps >= PAPER_MU_W_STEPS[-1] else (int(steps / 4), int(steps / 2), int(steps))
        for task, steps in shortest.items()
        if 0 < steps < np.inf
    }


def get_seed(seed: SeedRun) -> int:
    """Return the random seed of a run, -1 if it has none."""
    number = seed.settings.get("seed")
    return number if isinstance(number, int) else -1


def read_float_column(frame: pd.DataFrame, name: str) -> Values:
    """Return a column as float64 with NaN for missing values."""
    return frame[name].to_numpy(dtype=np.float64, na_value=np.nan)
