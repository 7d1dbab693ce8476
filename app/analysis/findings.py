"""What a study found: each claim of its plan, measured on each map, with what its seeds can tell.

The claims, their measures and what counts as held stand in `app/jobs/sweeps/templates/first-study.md`, which is older
than its runs. A seed is the unit. What lives here: one number per run and measure, and the verdicts. What does not:
how a table of them looks (`app.figures.named.comparisons`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from app.analysis.collapse import measure_collapse
from app.analysis.comparable import keep_usual_length
from app.analysis.finals import LAST_TENTH, MADE_IT, count_falls, final_rate
from app.analysis.quantities import ROBUST, find_quantity
from app.analysis.series import Comparison, Group, Seed, join_seeds, read_seeds
from app.analysis.significance import probability_of_improvement
from app.analysis.statistics import LEVEL, Values, mu_w
from emtc_core.config.resolve import Value
from emtc_core.metrics import CLOSED_BELOW
from storage.engine import Database
from storage.queries.gate import closed_by_outcome, gate_parts
from storage.queries.memory import find_embedding, get_snapshot, list_snapshots
from storage.runs.rows import RunRow

Verdict = Literal["held", "not held", "cannot tell"]
Numbers = Mapping[str, float]
"""A measure's number of each run that has one, by run id."""

OWN: Final = "own"
EMBEDDERS: Final = (OWN, "tcse", "dcae", "random")
PARTS: Final = 10
NEGLIGIBLE: Final = 0.05
"""Win rates that differ by less, as the whole interval says, do not differ in practice."""
FEWEST_SEEDS: Final = 3
"""With fewer on a map nothing is called held or not held there."""


class Arm(NamedTuple):
    """One side of a comparison: an algorithm, with settings that tell it from others of that algorithm."""

    name: str
    algo: str
    settings: Mapping[str, Value] = {}

    def has(self, seed: Seed) -> bool:
        """Whether a run belongs to it."""
        known = seed.settings
        return known.get("algo") == self.algo and all(known.get(key) == value for key, value in self.settings.items())


EMTC = Arm("EMTC(QPLEX)", "emtc-qplex", {"gate.enabled": True, "embed.type": "tcse"})
NO_TCGM = Arm("No-TCGM", "emtc-qplex", {"gate.enabled": False, "embed.type": "tcse"})
NO_TCSE = Arm("No-TCSE", "emtc-qplex", {"gate.enabled": True, "embed.type": "dcae"})
EMU = Arm("EMU(QPLEX)", "emu-qplex")
QPLEX = Arm("QPLEX", "qplex")
EMTC_CDS = Arm("EMTC(CDS)", "emtc-cds", {"gate.enabled": True, "embed.type": "tcse"})
CDS = Arm("CDS", "cds")


class Measure(NamedTuple):
    """One number per run."""

    key: str
    title: str
    meaning: str
    is_rate: bool = False


MU_W = Measure("mu_w", "μ̄_w", "time average of the greedy win rate to the end of the budget", True)
FINAL = Measure("final", "final win rate", "mean of the greedy evaluations in the last tenth of the budget", True)
ROBUST_FINAL = Measure("robust", "robust final", "the same of episodes from shifted starts", True)
FALLS = Measure("falls", "falls", "evaluations below .5 after the first of at least .9")
FIRST = Measure("first", "first .9 [steps]", "env steps of the first evaluation of at least .9; else the whole budget")
OVERESTIMATION = Measure(
    "overestimation", "overestimation [return]", "greedy Q_tot(s₀) − return, mean over the second half of training"
)
DELTA_RATIO = Measure("delta_ratio", "ln Δ̄ last / first tenth", "of new transitions, as they were judged")
BETA_RISE = Measure("beta_rise", "β̄ last − first tenth", "of new transitions, as they were judged")
CLOSED_MORE = Measure(
    "closed_more", "closed: lost − won",
    f"share of transitions with β < {CLOSED_BELOW:g} in lost episodes minus that in won ones, from the first win on"
)  # fmt: skip
R2_OF_H = Measure("r2", "R² of H", "H of a node predicted by its nearest nodes of other episodes, last snapshot")
R2_OVER_DCAE = Measure("r2_dcae", "R² of H: TCSE − dCAE", "both fitted anew to the states of a run's last snapshot")
R2_OVER_RANDOM = Measure("r2_random", "R² of H: TCSE − random", "the same against a fixed random projection")
REMOVED = Measure("removed", "incentive removed", "Σ|(1 − β) r_p| / Σ|r_p|, mean over the run")


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and the difference whose sign decides it."""

    number: int
    text: str
    pairs: tuple[tuple[Arm, Arm | None], ...]
    """Who is compared; without a second arm the measure itself is held against 0."""
    measures: tuple[Measure, ...]
    """The first decides, the others stand beside it."""
    sign: int = 1


CLAIMS: Final = (
    Claim(1, "EMTC learns better than EMU", ((EMTC, EMU),), (MU_W, FINAL, ROBUST_FINAL)),
    Claim(2, "EMTC learns better than its backbone", ((EMTC, QPLEX), (EMTC_CDS, CDS)), (MU_W, FINAL, ROBUST_FINAL)),
    Claim(3, "The gate helps", ((EMTC, NO_TCGM),), (MU_W, FINAL, ROBUST_FINAL, FALLS)),
    Claim(4, "The contrastive embedder helps", ((EMTC, NO_TCSE),), (MU_W, FINAL, R2_OF_H)),
    Claim(5, "Δ̄ falls while it learns", ((EMTC, None),), (DELTA_RATIO,), -1),
    Claim(5, "β̄ rises while it learns", ((EMTC, None),), (BETA_RISE,)),
    Claim(6, "The gate curbs overestimation", ((EMTC, NO_TCGM),), (OVERESTIMATION,), -1),
    Claim(7, "The gate closes on misleading memories", ((EMTC, None),), (CLOSED_MORE,)),
    Claim(8, "TCSE tells states apart better than dCAE", ((EMTC, None),), (R2_OVER_DCAE,)),
    Claim(8, "TCSE tells states apart better than random", ((EMTC, None),), (R2_OVER_RANDOM,)),
)


@dataclass(frozen=True)
class Finding:
    """One measure of one claim on one map."""

    claim: Claim
    task: str
    first: str
    second: str
    measure: Measure
    n: tuple[int, ...]
    difference: float
    low: float
    high: float
    improvement: float
    """Share of pairs of seeds in which the first is the better; NaN where there is no second."""

    @property
    def decides(self) -> bool:
        """Whether the claim rests on it."""
        return self.measure is self.claim.measures[0]

    @property
    def verdict(self) -> Verdict:
        """What its seeds can tell about the claim on this map."""
        if min(self.n) < FEWEST_SEEDS or not np.isfinite(self.low):
            return "cannot tell"
        low, high = sorted((self.claim.sign * self.low, self.claim.sign * self.high))
        if low > 0:
            return "held"
        negligible = self.measure.is_rate and max(abs(low), abs(high)) < NEGLIGIBLE
        return "not held" if high < 0 or negligible else "cannot tell"


def find_all(db: Database, rows: Sequence[RunRow]) -> tuple[list[Finding], Comparison]:
    """Measure every claim on every map that has runs for it.

    Returns:
        The findings in the order of the claims, and the runs that they are of.
    """
    comparison = keep_usual_length(join_seeds(read_seeds(db, rows), final=True))
    numbers = measure_runs(db, rows, comparison.seeds)
    found = [
        finding
        for claim in CLAIMS
        for pair in claim.pairs
        for task in comparison.tasks
        for measure in claim.measures
        if (finding := _find(claim, task, pair, measure, numbers, comparison))
    ]
    return found, comparison


def judge(findings: Iterable[Finding]) -> dict[str, Verdict]:
    """Each claim's verdict by its text: held on every map with enough seeds, not held on one of them, or neither."""
    verdicts: dict[str, list[Verdict]] = {}
    for finding in findings:
        if finding.decides:
            verdicts.setdefault(finding.claim.text, []).append(finding.verdict)
            if min(finding.n) < FEWEST_SEEDS:
                verdicts[finding.claim.text].pop()
    return {text: _over_maps(each) for text, each in verdicts.items()}


def measure_runs(db: Database, rows: Sequence[RunRow], seeds: Sequence[Seed]) -> dict[str, Numbers]:
    """Every measure's number of each run that has one, by measure and run id."""
    kept = {seed.id for seed in seeds}
    rows = [row for row in rows if row.id in kept]
    robust = read_seeds(db, rows, ROBUST)
    gap = read_seeds(db, rows, find_quantity("eval/overestimation"))
    falls = {seed.id: count for seed in seeds if (count := count_falls(seed.curve)) is not None}
    numbers: dict[str, Numbers] = {
        MU_W.key: {seed.id: float(mu_w(seed.curve)[-1]) for seed in seeds},
        FINAL.key: {seed.id: final_rate(seed, LAST_TENTH) for seed in seeds},
        ROBUST_FINAL.key: {seed.id: final_rate(seed, LAST_TENTH) for seed in robust if len(seed.curve.steps)},
        FALLS.key: {run_id: float(count.falls) for run_id, count in falls.items()},
        FIRST.key: {seed.id: _first_success(seed) for seed in seeds},
        OVERESTIMATION.key: _finite({seed.id: _second_half(seed) for seed in gap}),
        REMOVED.key: {row.id: row.gate_removed for row in rows if row.gate_removed is not None},
    }
    ids = [row.id for row in rows]
    gate = _gate_numbers(gate_parts(db, ids, PARTS)) | _closed_numbers(closed_by_outcome(db, ids))
    return numbers | gate | _embedding_numbers(db, rows)


def _first_success(seed: Seed) -> float:
    made = np.flatnonzero(seed.curve.values >= MADE_IT)
    return float(seed.curve.steps[made[0]]) if len(made) else float(seed.target_steps)


def _second_half(seed: Seed) -> float:
    late = seed.curve.values[2 * seed.curve.steps > seed.target_steps]
    return float(late.mean()) if len(late) else np.nan


def _gate_numbers(frame: pd.DataFrame) -> dict[str, Numbers]:
    delta, beta = (_by_run(frame, "part", name) for name in ("delta_mem", "beta"))
    ends = 0, PARTS - 1
    return {
        DELTA_RATIO.key: _finite({key: np.log(part[ends[1]] / part[ends[0]]) for key, part in _with(delta, *ends)}),
        BETA_RISE.key: _finite({key: part[ends[1]] - part[ends[0]] for key, part in _with(beta, *ends)}),
    }


def _closed_numbers(frame: pd.DataFrame) -> dict[str, Numbers]:
    shares = _by_run(frame.assign(share=frame["closed"] / frame["steps"]), "won", "share")
    return {CLOSED_MORE.key: _finite({key: share[False] - share[True] for key, share in _with(shares, False, True)})}


def _embedding_numbers(db: Database, rows: Sequence[RunRow]) -> dict[str, Numbers]:
    """R² of H by a run's own embedder, and by those that were fitted anew to the same nodes where there are any."""
    r2 = {row.id: predict_returns(db, row) for row in rows}
    own, tcse, dcae, random = ({run: each[kind] for run, each in r2.items() if kind in each} for kind in EMBEDDERS)
    return {
        R2_OF_H.key: _finite(own),
        R2_OVER_DCAE.key: _finite({run: tcse[run] - dcae[run] for run in tcse.keys() & dcae.keys()}),
        R2_OVER_RANDOM.key: _finite({run: tcse[run] - random[run] for run in tcse.keys() & random.keys()}),
    }


def predict_returns(db: Database, row: RunRow) -> Numbers:
    """R² of H at a run's last snapshot by embedder: `OWN`, and the types that were fitted anew and are stored."""
    snapshots = list_snapshots(db, row.id)["id"]
    if not len(snapshots):
        return {}
    snapshot = get_snapshot(db, int(snapshots.iloc[-1]))
    fitted = {kind: find_embedding(db, snapshot.id, kind, seed=0) for kind in EMBEDDERS[1:]}
    memory = row.config["memory"]
    space: Literal["raw", "normalized"] = "raw" if memory.get("delta_space") == "raw" else "normalized"
    return {
        kind: measure_collapse(
            snapshot, delta=float(memory["delta"]), delta_space=space, embedding=found and found.coordinates
        )["h_r2_knn"].value
        for kind, found in {OWN: None, **fitted}.items()
        if kind == OWN or found
    }


def _by_run(frame: pd.DataFrame, key: str, value: str) -> dict[str, dict[int, float]]:
    """A column by run and by another column."""
    found: dict[str, dict[int, float]] = {}
    for run_id, place, number in zip(frame["run_id"], frame[key], frame[value], strict=True):
        found.setdefault(str(run_id), {})[int(place)] = float(number)
    return found


def _with(found: Mapping[str, dict[int, float]], *keys: int) -> list[tuple[str, dict[int, float]]]:
    return [(run_id, here) for run_id, here in found.items() if all(key in here for key in keys)]


def _finite(numbers: Numbers) -> Numbers:
    return {run_id: float(number) for run_id, number in numbers.items() if np.isfinite(number)}


def _find(
    claim: Claim,
    task: str,
    pair: tuple[Arm, Arm | None],
    measure: Measure,
    numbers: Mapping[str, Numbers],
    comparison: Comparison,
) -> Finding | None:
    first, second = pair
    x = _of(first, task, numbers[measure.key], comparison.groups)
    y = _of(second, task, numbers[measure.key], comparison.groups) if second else None
    if not len(x) or (y is not None and not len(y)):
        return None
    sizes = (len(x),) if y is None else (len(x), len(y))
    value = float(x.mean() - (0.0 if y is None else y.mean()))
    low, high = welch_interval(x, y)
    better = np.nan if y is None else probability_of_improvement([claim.sign * x], [claim.sign * y]).value
    names = first.name, second.name if second else ""
    return Finding(claim, task, *names, measure, sizes, value, low, high, better)


def _of(arm: Arm, task: str, numbers: Numbers, groups: Sequence[Group]) -> Values:
    seeds = (seed for group in groups if group.variant.task == task for seed in group.seeds)
    return np.array([numbers[seed.id] for seed in seeds if arm.has(seed) and seed.id in numbers], np.float64)


def welch_interval(x: Values, y: Values | None) -> tuple[float, float]:
    """95 % t interval of the mean of x, or of its difference to that of y without assuming equal spread (Welch).

    Returns:
        Its edges; NaN with fewer than two seeds on a side, the difference itself where nothing varies.
    """
    sides: list[Values] = [x] if y is None else [x, y]
    if min(map(len, sides)) < 2:
        return np.nan, np.nan
    value = float(x.mean() - (0.0 if y is None else y.mean()))
    parts = np.array([side.var(ddof=1) / len(side) for side in sides])
    if not parts.sum():
        return value, value
    freedom = parts.sum() ** 2 / (parts**2 / [len(side) - 1 for side in sides]).sum()
    reach = float(stdtrit(freedom, (1 + LEVEL) / 2) * np.sqrt(parts.sum()))
    return value - reach, value + reach


def _over_maps(verdicts: Sequence[Verdict]) -> Verdict:
    if verdicts and all(each == "held" for each in verdicts):
        return "held"
    return "not held" if "not held" in verdicts else "cannot tell"
