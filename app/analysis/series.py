"""One curve for each seed, and the seeds of one variant together: what every figure and table is made of.

What counts as a result is decided here and nowhere else: a run that has finished or has reached its env steps. Another
run is named with the reason why it was left out, or marked with a dagger where it is shown all the same.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pandas as pd

from app.analysis.quantities import ROBUST, WIN_RATE, WITHOUT, Quantity, say_rule
from app.analysis.settings import Settings, name_task, with_code
from app.analysis.statistics import MOST_POINTS, Curve, Values, mu_w, mu_w_curve
from app.analysis.variants import Variant, group_variants
from emtc_core.config.resolve import flatten_tree
from storage.engine import Database
from storage.queries.curves import evaluation_curves, metric_curves
from storage.runs.rows import RunRow

DAGGER = "†"
NO_CURVE = Curve(np.empty(0), np.empty(0))


@dataclass(frozen=True)
class Seed:
    """One run: what it set, how far it came, and its curve, which may be empty."""

    id: str
    settings: Settings
    curve: Curve = NO_CURVE
    status: str = "finished"
    env_steps: int = 0
    target_steps: int = 0
    made: float = 0.0
    """When it was made; of two runs with one seed the newer counts."""
    distinct: Values = field(default_factory=lambda: np.empty(0))
    """How many episodes of each evaluation differ; only where that was counted."""
    read_at: int = 0
    """The env steps at which it is read where that is before its end; 0 for its end."""
    robust: Curve = NO_CURVE
    """Its robust win rate, whatever `curve` is; empty where no evaluation had one (`app.analysis.rates`)."""

    @property
    def budget(self) -> int:
        """The env steps at which it is read."""
        return self.read_at or self.target_steps

    def up_to(self, budget: int, edge: float) -> "Seed":
        """Read it at a smaller budget: of its evaluations, those at `edge` env steps at most are left."""
        keep = self.curve.steps <= edge
        return replace(self, curve=Curve(*(part[keep] for part in self.curve)), read_at=budget)

    @property
    def is_result(self) -> bool:
        """Whether it has finished, or has come as far as it was asked to."""
        return self.status == "finished" or 0 < self.target_steps <= self.env_steps

    @property
    def progress(self) -> str:
        """How far it came: "stopped at 2,942 of 15,000 env steps"."""
        return f"{self.status} at {self.env_steps:,} of {self.target_steps:,} env steps"

    @property
    def task(self) -> str:
        """The map, with the environment where it is not the embedded one."""
        return name_task(self.settings)

    @property
    def number(self) -> str:
        """The seed of its random numbers; "−2" is the second run of an import that tells no seeds."""
        return str(self.settings.get("seed")).replace("-", "−")

    @property
    def t_max(self) -> float:
        """The env steps that it was to train, or at which it is read."""
        steps = self.read_at or self.settings.get("train.t_max")
        return float(steps) if isinstance(steps, int | float) else 0.0

    def mu_w_at(self, share: float) -> float:
        """The time average of the win rate up to a share of the training length; NaN if it has not come so far.

        A result whose last evaluation lies a little before its last step is read at that evaluation.
        """
        if not len(self.curve.steps):
            return np.nan
        t = share * self.t_max
        if self.is_result:
            t = min(t, float(self.curve.steps[-1]))
        return float(mu_w(self.curve, np.array([t]))[0])


@dataclass(frozen=True)
class LeftOut:
    """A run that was chosen and does not count, and why."""

    run_id: str
    label: str
    reason: str

    def __str__(self) -> str:
        return f"run {self.run_id} ({self.label}): {self.reason}"


@dataclass(frozen=True)
class Group:
    """One variant with those of its seeds that count."""

    variant: Variant
    seeds: tuple[Seed, ...]

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
        """How many seeds have a curve."""
        return len(self.seeds)

    @property
    def unfinished(self) -> tuple[Seed, ...]:
        """The seeds that are shown though they are no result."""
        return tuple(seed for seed in self.seeds if not seed.is_result)

    @property
    def mark(self) -> str:
        """A dagger if it rests on a run that has not finished."""
        return DAGGER if self.unfinished else ""


@dataclass(frozen=True)
class Comparison:
    """Several runs as variants: what every figure and table over seeds is drawn from."""

    groups: tuple[Group, ...]
    left_out: tuple[LeftOut, ...] = ()
    quantity: Quantity = WIN_RATE
    budget: str = ""
    """The sentence of every caption on the env steps at which its runs are read (`app.analysis.comparable`)."""
    mixed: frozenset[str] = frozenset()
    """Tasks on which runs of different lengths stand side by side, each at its own end."""

    @property
    def unequal(self) -> str:
        """The same sentence where its runs differ in length: what CSV, which has no caption, must say all the same."""
        return self.budget if self.mixed or any(seed.read_at for seed in self.seeds) else ""

    @cached_property
    def tasks(self) -> list[str]:
        """The tasks, each a panel or a column of its own, in order."""
        return list(dict.fromkeys(group.variant.task for group in self.groups))

    @cached_property
    def methods(self) -> dict[str, str]:
        """Every method's key and its name, in order."""
        return {group.variant.method: group.variant.name for group in self.groups}

    @property
    def seeds(self) -> list[Seed]:
        """Every seed that counts."""
        return [seed for group in self.groups for seed in group.seeds]

    @property
    def preset(self) -> str:
        """The preset that all lines share, if it is not the paper's: their names leave it out."""
        presets = {str(group.variant.changes.get("preset", "")) for group in self.groups}
        named = {", preset = " in group.variant.name for group in self.groups}
        return presets.pop() if len(presets) == 1 and named == {False} else ""

    def name_line(self, method: str) -> str:
        """A method's name with its number of seeds, the same in every panel: "QMIX (n = 5)", "QMIX (n = 3 to 5)"."""
        here = [group for group in self.groups if group.variant.method == method]
        low, high = min(group.n for group in here), max(group.n for group in here)
        mark = DAGGER if any(group.unfinished for group in here) else ""
        count = f"{low}" if low == high else f"{low} to {high}"
        return f"{self.methods[method]}{mark} (n = {count})"

    def without(self, methods: Iterable[str]) -> "Comparison":
        """Leave methods out of a figure."""
        hidden = set(methods)
        return replace(self, groups=tuple(each for each in self.groups if each.variant.method not in hidden))


def read_seeds(db: Database, rows: Sequence[RunRow], quantity: Quantity = WIN_RATE) -> list[Seed]:
    """Read the settings and the curve of each run, in their order. One statement."""
    ids = [row.id for row in rows]
    if quantity.is_evaluation:
        frame = evaluation_curves(db, ids)
    else:
        longest = max((row.env_steps for row in rows), default=0)
        frame = metric_curves(db, ids, quantity.key, stretch=max(1, longest // MOST_POINTS))
    return make_seeds(rows, frame, quantity)


def make_seeds(rows: Sequence[RunRow], frame: pd.DataFrame, quantity: Quantity = WIN_RATE) -> list[Seed]:
    """Give each run its curve out of rows of all of them."""
    curves, distinct = split_curves(frame, quantity), _split_distinct(frame, quantity)
    robust = split_curves(frame, ROBUST) if ROBUST.column in frame else {}
    return [
        Seed(
            row.id, flatten_tree(with_code(row.config, row.versions)), curves.get(row.id, NO_CURVE),
            row.live_status, row.env_steps, row.target_steps, row.created_at.timestamp(),
            distinct.get(row.id, NO_CURVE.values), robust=robust.get(row.id, NO_CURVE),
        )
        for row in rows
    ]  # fmt: skip


def split_curves(frame: pd.DataFrame, quantity: Quantity = WIN_RATE) -> dict[str, Curve]:
    """Split rows run_id, env_step and the quantity's column into the curve of each run; missing values are skipped."""
    values = column(frame, quantity.column)
    known = np.isfinite(values)
    codes, run_ids = pd.factorize(frame["run_id"].to_numpy()[known])
    order = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes[order], np.arange(1, len(run_ids)))
    parts = (np.split(part[known][order], ends) for part in (column(frame, "env_step"), values))
    curves = {str(run_id): Curve(*curve) for run_id, *curve in zip(run_ids, *parts, strict=False)}
    return {run_id: mu_w_curve(curve) for run_id, curve in curves.items()} if quantity.is_time_average else curves


def _split_distinct(frame: pd.DataFrame, quantity: Quantity) -> dict[str, Values]:
    """Split how many episodes of each greedy evaluation differ by run; nothing for another quantity than their wins."""
    if quantity.key != WIN_RATE.key or "distinct" not in frame:
        return {}
    counted = frame.loc[frame["distinct"].notna(), :]
    return {str(run_id): column(part, "distinct") for run_id, part in counted.groupby("run_id", sort=False)}


def join_seeds(
    seeds: Sequence[Seed],
    quantity: Quantity = WIN_RATE,
    *,
    include_unfinished: bool = False,
    final: bool = False,
) -> Comparison:
    """Put the seeds of each variant together and decide which of them count.

    Args:
        seeds: Runs with their curves.
        quantity: What the curves are.
        include_unfinished: Count runs that have not finished too.
        final: Whether numbers of the end are wanted. A curve may be drawn as far as it goes, so without `final` a
            variant of which nothing has finished yet is shown, with a dagger.
    """
    known = {seed.id: seed for seed in seeds}
    groups, left_out = [], []
    for variant in group_variants({seed.id: seed.settings for seed in seeds}):
        here = [known[run_id] for run_id in variant.run_ids]
        reasons = _find_reasons(
            here, WITHOUT.get(quantity.key, "no point yet"), include_unfinished=include_unfinished, final=final
        )
        kept = tuple(seed for seed in here if seed.id not in reasons)
        left_out += [
            LeftOut(seed.id, f"{variant.label}; seed {seed.number}", reasons[seed.id])
            for seed in here
            if seed.id in reasons
        ]
        if kept:
            groups.append(Group(replace(variant, run_ids=tuple(seed.id for seed in kept)), kept))
    shown = say_rule(quantity, (seed.settings for seed in seeds))
    return Comparison(tuple(groups), tuple(left_out), shown)


def _find_reasons(seeds: Sequence[Seed], without: str, *, include_unfinished: bool, final: bool) -> dict[str, str]:
    """Why each run of one variant that does not count does not."""
    reasons = {seed.id: f"{without}; {seed.progress}" for seed in seeds if not len(seed.curve.steps)}
    best: dict[str, Seed] = {}
    for seed in sorted(seeds, key=lambda each: (each.is_result, each.made, each.id)):
        if seed.id not in reasons:
            best[seed.number] = seed
    for seed in seeds:
        if seed.id not in reasons and (kept := best[seed.number]) is not seed:
            reasons[seed.id] = f"seed {seed.number} once more; run {kept.id} stands for it"
    unfinished = {seed.id: seed.progress for seed in best.values() if not seed.is_result}
    if include_unfinished or (not final and len(unfinished) == len(best)):
        return reasons
    return {**reasons, **unfinished}


def default_times(groups: Sequence[Group]) -> list[int]:
    """Choose where mu_w is read: the paper's 0.8M, 1.6M and 2.4M if every run reached them, else quarters.

    The quarters are of the stretch that every run reached: a quarter, a half and all of it.
    """
    reached = min((curve.steps[-1] for group in groups for curve in group.curves), default=0.0)
    paper = [800_000, 1_600_000, 2_400_000]
    if reached >= paper[-1]:
        return paper
    return [int(reached * share) for share in (0.25, 0.5, 1.0)] if reached else []


def seed_number(seed: Seed) -> int:
    """Return the seed of a run, -1 if the run names none."""
    number = seed.settings.get("seed")
    return number if isinstance(number, int) else -1


def column(frame: pd.DataFrame, name: str) -> Values:
    """Take a column as float64; missing values become NaN."""
    return frame[name].to_numpy(dtype=np.float64, na_value=np.nan)
