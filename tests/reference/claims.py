"""Recompute the claims table of a study from its database with plain SQL, NumPy and SciPy.

    python -m tests.reference.claims DATABASE --plan confirmatory

Nothing of the product is imported, so that the product's table can be compared with this one. The definitions are those
of confirmatory-study.md, first-study.md and parts-study.md. Details that they do not fix:

- Delta and beta are read from the sums over 1,000 env steps (`transition_summary`), also where the transitions are
  stored: a full database and a thin bundle then give the same numbers. The stretch from the first win on starts with
  the first bucket that lies wholly after the start of the first won episode. Bucket k of B belongs to tenth
  floor(10 k / B). The mean of a tenth is its sum divided by its number of transitions.
- Where nothing varies between seeds and the measure is not a win rate, the interval is the estimate, without a p value.
- Win rates are the robust ones on `skirmish` in all plans. The plan of the first study named the greedy ones:
  `mu_w_greedy` and `final_greedy`. R² of H (claims 4 and 8 of the first study) needs embeddings and is left out.
"""

import argparse
import json
import math
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.stats import ncf, t

BUCKET = 1000  # env steps of one row of transition_summary
FEWEST_SEEDS = 5
NEGLIGIBLE = 0.05
WIN_RATES = ("mu_w", "final", "mu_w_greedy", "final_greedy")


class Comparison(NamedTuple):
    """One variant, or the difference of two, with the measures of one claim."""

    claim: int
    sign: int
    first: str
    second: str | None
    primary: str | None
    others: tuple[str, ...] = ()


RATES = ("final", "falls")
GREEDY = ("final", "falls", "mu_w_greedy", "final_greedy")
PREWRITE = "EMTC with prewrite"
CLAIMS = {
    "confirmatory": (
        Comparison(1, 1, "EMTC", "EMU", "mu_w", RATES),
        Comparison(2, 1, "EMTC", "QPLEX", "mu_w", RATES),
        Comparison(3, 1, "EMTC", "No-TCGM", "mu_w", RATES),
        Comparison(3, 1, "EMTC", None, None, ("removed", "removed_whole")),
        Comparison(4, 1, PREWRITE, "No-TCGM", "mu_w", RATES),
        Comparison(4, 1, PREWRITE, None, None, ("removed", "removed_whole")),
        Comparison(5, -1, "EMTC", None, "delta_ratio", ("delta_ratio_whole",)),
        Comparison(5, -1, PREWRITE, None, None, ("delta_ratio", "delta_ratio_whole")),
        Comparison(6, 1, "EMTC", None, "beta_difference", ("beta_difference_whole",)),
        Comparison(6, 1, PREWRITE, None, None, ("beta_difference", "beta_difference_whole")),
        Comparison(7, -1, "EMTC", "No-TCGM", "q_error", ("overestimation",)),
        Comparison(8, 1, "EMTC", None, "closed_difference"),
        Comparison(8, 1, PREWRITE, None, None, ("closed_difference",)),
    ),
    "first": (
        Comparison(1, 1, "EMTC", "EMU", "mu_w", GREEDY),
        Comparison(2, 1, "EMTC", "QPLEX", "mu_w", GREEDY),
        Comparison(2, 1, "EMTC(CDS)", "CDS", "mu_w", GREEDY),
        Comparison(3, 1, "EMTC", "No-TCGM", "mu_w", GREEDY),
        Comparison(3, 1, "EMTC", None, None, ("removed", "removed_whole")),
        Comparison(3, 1, "EMTC(CDS)", None, None, ("removed", "removed_whole")),
        Comparison(4, 1, "EMTC", "No-TCSE", "mu_w", GREEDY),
        Comparison(5, -1, "EMTC", None, "delta_ratio", ("delta_ratio_whole",)),
        Comparison(5, -1, "EMTC(CDS)", None, "delta_ratio", ("delta_ratio_whole",)),
        Comparison(5, 1, "EMTC", None, "beta_difference", ("beta_difference_whole",)),
        Comparison(5, 1, "EMTC(CDS)", None, "beta_difference", ("beta_difference_whole",)),
        Comparison(6, -1, "EMTC", "No-TCGM", "q_error", ("overestimation",)),
        Comparison(7, 1, "EMTC", None, "closed_difference"),
        Comparison(7, 1, "EMTC(CDS)", None, "closed_difference"),
    ),
    "parts": (
        Comparison(1, 1, "EMTC", "EMU", "mu_w", RATES),
        Comparison(2, 1, "EMTC", "QPLEX", "mu_w", RATES),
        Comparison(3, 1, "EMTC", "No-TCGM", "mu_w", RATES),
        Comparison(4, 1, "EMTC", "No-TCSE", "mu_w", RATES),
    ),
}
SWEEPS = {
    "confirmatory": ("Confirmatory study: football", "Confirmatory study: 3s_vs_5z"),
    "first": ("First study ",),
    "parts": ("Study of the parts: 2s3z",),
}
"""How the names of a plan's sweeps begin. The corridor pilot has no claims."""


class Run(NamedTuple):
    """One run: its number by measure, and the evaluations and episodes behind its win rates."""

    task: str
    variant: str
    seed: int
    numbers: Mapping[str, float]
    evaluations: Mapping[str, int]
    episodes: int  # of one evaluation


class Estimate(NamedTuple):
    """An estimate over seeds; `se`, `df` and `p_randomization` are None with fewer than two seeds."""

    n: int
    fewest: int  # pairs or seeds of the smallest sample that it uses
    paired: bool
    unpaired_seeds: list[int]
    estimate: float
    se: float | None = None
    df: float | None = None
    p_randomization: float | None = None


def recompute(path: str | Path, plan: str) -> list[dict[str, Any]]:
    """Compute all rows of the claims table of a plan, per task and pooled over the tasks ("all").

    `n` counts pairs, or the seeds of the one variant, or without pairs those of the smaller variant; in a pooled row it
    is the sum over the tasks.
    """
    runs = read_runs(path, plan)
    tasks = sorted({run.task for run in runs})
    rows: list[dict[str, Any]] = []
    for comparison in CLAIMS[plan]:
        for measure in filter(None, (comparison.primary, *comparison.others)):
            estimates = {}
            for task in tasks:
                first, second = (
                    [run for run in runs if (run.task, run.variant) == (task, name) and measure in run.numbers]
                    for name in (comparison.first, comparison.second)
                )
                if first and (second or comparison.second is None):
                    estimates[task] = estimate(first, second or None, measure)
            if len(estimates) > 1:
                estimates["all"] = pool(list(estimates.values()))
            rows += [make_row(comparison, measure, task, each) for task, each in estimates.items()]
    for task in [*tasks, "all"]:
        family = [row for row in rows if row["task"] == task and row["primary"] and row["p"] is not None]
        for row, adjusted in zip(family, holm([row["p"] for row in family]), strict=True):
            row["p_adjusted"] = adjusted
    for row in rows:
        row["verdict"] = judge(row) if row["primary"] else None
    return rows


def read_runs(path: str | Path, plan: str) -> list[Run]:
    """Read the complete runs of a plan and measure each.

    Raises:
        ValueError: If a seed of a variant has two runs.
    """
    connection = sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro", uri=True)
    try:
        rows = connection.execute(
            """SELECT json_extract(sweeps.plan, '$.file.name'), runs.id, env, map, seed, target_steps, config
            FROM runs JOIN sweeps ON sweeps.id = runs.sweep_id
            WHERE runs.status = 'finished' OR env_steps >= target_steps ORDER BY map, runs.created_at, runs.id"""
        ).fetchall()
        runs = []
        for sweep, run_id, env, task, seed, target_steps, text in rows:
            config = json.loads(text)
            variant = name_variant(config)
            if variant is None or not str(sweep).startswith(SWEEPS[plan]):
                continue
            numbers, counts = measure_win_rates(connection, run_id, env, target_steps)
            numbers |= measure_q(connection, run_id, target_steps) | measure_gate(connection, run_id)
            runs.append(Run(task, variant, seed, numbers, counts, config["eval"]["episodes"]))
    finally:
        connection.close()
    keys = [(run.task, run.variant, run.seed) for run in runs]
    if len(set(keys)) < len(keys):
        raise ValueError(f"Two runs of one seed: {sorted({key for key in keys if keys.count(key) > 1})}")
    return runs


def name_variant(config: Mapping[str, Any]) -> str | None:
    """Name the variant of a run's settings; None if the plans do not compare it."""
    algo, gated, embedder = config["algo"], config["gate"]["enabled"], config["embed"]["type"]
    if algo == "emtc-qplex" and not gated:
        return "No-TCGM"
    if algo == "emtc-qplex" and config["preset"] == "prewrite":
        return PREWRITE
    if algo == "emtc-qplex":
        return {"tcse": "EMTC", "dcae": "No-TCSE"}.get(embedder)
    if algo == "emtc-cds":
        return "EMTC(CDS)" if gated and embedder == "tcse" else None
    return {"emu-qplex": "EMU", "qplex": "QPLEX", "cds": "CDS"}.get(algo)


def measure_win_rates(
    connection: sqlite3.Connection, run_id: str, env: str, target_steps: int
) -> tuple[dict[str, float], dict[str, int]]:
    """Compute the time averages, the final win rates and the falls of a run, and the evaluations behind each rate."""
    numbers: dict[str, float] = {}
    counts: dict[str, int] = {}
    for suffix, column in (("", "robust_win_rate" if env == "skirmish" else "win_rate"), ("_greedy", "win_rate")):
        statement = f"SELECT env_step, {column} FROM evaluations WHERE run_id = ? AND {column} IS NOT NULL ORDER BY 1"
        points = connection.execute(statement, (run_id,)).fetchall()
        if not points:
            continue
        numbers["mu_w" + suffix], counts["mu_w" + suffix] = time_average(points), len(points)
        last = [rate for step, rate in points if 10 * step > 9 * target_steps]
        if last:
            numbers["final" + suffix], counts["final" + suffix] = float(np.mean(last)), len(last)
        if not suffix:
            rates = [rate for _, rate in points]
            made = next((place for place, rate in enumerate(rates) if rate >= 0.9), None)
            if made is not None:
                numbers["falls"] = float(sum(rate < 0.5 for rate in rates[made + 1 :]))
    return numbers, counts


def time_average(points: Sequence[tuple[float, float]]) -> float:
    """Average a curve of (env step, value) over time by the trapezoidal rule."""
    area = sum((right[0] - left[0]) * (right[1] + left[1]) / 2 for left, right in pairwise(points))
    return area / (points[-1][0] - points[0][0]) if len(points) > 1 else points[0][1]


def measure_q(connection: sqlite3.Connection, run_id: str, target_steps: int) -> dict[str, float]:
    """Average |Q - return| and Q - return over the evaluations in the second half of the budget [return]."""
    absolute, signed = connection.execute(
        """SELECT avg(abs(value)), avg(value) FROM metrics
        WHERE run_id = ? AND name = 'eval/overestimation' AND 2 * env_step > ?""",
        (run_id, target_steps),
    ).fetchone()
    return {} if absolute is None else {"q_error": absolute, "overestimation": signed}


def measure_gate(connection: sqlite3.Connection, run_id: str) -> dict[str, float]:
    """Measure delta, beta, the closed share and the removed incentive, from the first win on and over the whole run."""
    numbers: dict[str, float | None] = {}
    first_win = connection.execute(
        "SELECT first_env_step, episode FROM episodes WHERE run_id = ? AND won ORDER BY episode LIMIT 1", (run_id,)
    ).fetchone()
    for suffix, start in (("_whole", 1), ("", first_win[0] if first_win else None)):
        if start is None:
            continue
        buckets = connection.execute(
            """SELECT delta_mem_sum, delta_mem_n, beta_sum, beta_n FROM transition_summary
            WHERE run_id = ? AND bucket >= ? ORDER BY bucket""",
            (run_id, math.ceil((start - 1) / BUCKET)),
        ).fetchall()
        tenth = 10 * np.arange(len(buckets)) // max(1, len(buckets))
        first, last = (np.array(buckets).reshape(-1, 4)[tenth == wanted].sum(axis=0) for wanted in (0, 9))
        if first[0] > 0 and last[0] > 0:
            numbers["delta_ratio" + suffix] = math.log((last[0] / last[1]) / (first[0] / first[1]))
        if first[3] and last[3]:
            numbers["beta_difference" + suffix] = float(last[2] / last[3] - first[2] / first[3])
        (numbers["removed" + suffix],) = connection.execute(
            "SELECT avg(value) FROM metrics WHERE run_id = ? AND name = 'gate/incentive_removed' AND env_step >= ?",
            (run_id, start),
        ).fetchone()
    if first_win:
        (numbers["closed_difference"],) = connection.execute(
            """SELECT total(closed) FILTER (WHERE NOT won) / sum(length) FILTER (WHERE NOT won)
                    - total(closed) FILTER (WHERE won) / sum(length) FILTER (WHERE won)
            FROM episodes WHERE run_id = ? AND episode >= ? AND closed IS NOT NULL""",
            (run_id, first_win[1]),
        ).fetchone()
    return {key: number for key, number in numbers.items() if number is not None}


def estimate(first: Sequence[Run], second: Sequence[Run] | None, measure: str) -> Estimate:
    """Estimate the mean of one variant, or the difference of two: by pairs of seeds if possible, else by Welch."""
    x = {run.seed: run.numbers[measure] for run in first}
    y = {run.seed: run.numbers[measure] for run in second or []}
    paired = second is not None and (x.keys() <= y.keys() or y.keys() <= x.keys())
    alone = [] if second is None else sorted(x.keys() ^ y.keys())
    sides = [first] if second is None else [first, second]
    if paired:
        sides = [[run for run in side if run.seed not in alone] for side in sides]
        samples = [np.array([x[seed] - y[seed] for seed in sorted(x.keys() & y.keys())])]
    else:
        samples = [np.array([run.numbers[measure] for run in side]) for side in sides]
    value = float(samples[0].mean() - (samples[1].mean() if len(samples) > 1 else 0.0))
    fewest = min(map(len, samples))
    if fewest < 2:
        return Estimate(fewest, fewest, paired, alone, value)
    parts = [float(sample.var(ddof=1)) / len(sample) for sample in samples]
    variance, df = sum(parts), float(sum(len(sample) - 1 for sample in samples))
    if len(samples) > 1 and variance:
        df = variance**2 / sum(part**2 / (len(sample) - 1) for part, sample in zip(parts, samples, strict=True))
    if measure in WIN_RATES:
        variance = max(variance, sum(episode_variance(side, measure) for side in sides))
    p = permute(*samples) if len(samples) > 1 else flip_signs(*samples)
    return Estimate(fewest, fewest, paired, alone, value, math.sqrt(variance), df, p)


def episode_variance(runs: Sequence[Run], measure: str) -> float:
    """Compute the sampling variance that the episodes alone give a mean win rate (Agresti and Coull 1998)."""
    share = float(np.mean([run.numbers[measure] for run in runs]))
    m = len(runs) * min(run.evaluations[measure] for run in runs) * min(run.episodes for run in runs)
    q = share + (0.5 - share) * 4 / (m + 4)
    return q * (1 - q) / m


def flip_signs(differences: np.ndarray) -> float:
    """Two-sided p value of the mean over all 2^n changes of signs."""
    n = len(differences)
    signs = 1 - 2 * (np.arange(2**n)[:, None] >> np.arange(n) & 1)
    return at_least(np.abs((signs * differences).mean(axis=1)), abs(differences.mean()))


def permute(x: np.ndarray, y: np.ndarray) -> float:
    """Two-sided p value of the difference of means over all ways to divide the seeds among the variants."""
    both = np.concatenate([x, y])
    chosen = np.array(list(combinations(range(len(both)), len(x))))
    sums = both[chosen].sum(axis=1)
    differences = sums / len(x) - (both.sum() - sums) / len(y)
    return at_least(np.abs(differences), abs(x.mean() - y.mean()))


def at_least(values: np.ndarray, observed: float) -> float:
    """Share of the values that are not below the observed one; values that differ by rounding are equal."""
    return float((values >= observed - 1e-12 * max(1.0, observed)).mean())


def pool(tasks: Sequence[Estimate]) -> Estimate:
    """Average the estimates of the tasks with equal weights; degrees of freedom by Welch and Satterthwaite."""
    n, fewest, paired = sum(each.n for each in tasks), min(each.fewest for each in tasks), all(e.paired for e in tasks)
    alone = sorted({seed for each in tasks for seed in each.unpaired_seeds})
    value = float(np.mean([each.estimate for each in tasks]))
    known = [(each.se**2, each.df) for each in tasks if each.se is not None and each.df is not None]
    total = sum(square for square, _ in known)
    if len(known) < len(tasks) or not total:
        return Estimate(n, fewest, paired, alone, value)
    df = total**2 / sum(square**2 / df for square, df in known)
    return Estimate(n, fewest, paired, alone, value, math.sqrt(total) / len(tasks), df)


def make_row(comparison: Comparison, measure: str, task: str, found: Estimate) -> dict[str, Any]:
    """Make a row of the table, as yet without the adjusted p value and the verdict."""
    low = high = p = detectable = None
    if found.se:  # differences that are equal for all seeds have no interval
        reach = float(t.ppf(0.975, found.df)) * found.se
        low, high = found.estimate - reach, found.estimate + reach
        p = float(2 * t.sf(abs(found.estimate) / found.se, found.df))
        detectable = detectable_effect(found.df) * found.se
    if measure in WIN_RATES and low is not None:
        low, high = max(low, -1.0), min(high, 1.0)
    names = {"first": comparison.first, "second": comparison.second, "sign": comparison.sign}
    place = {"claim": comparison.claim, "task": task, "measure": measure, "primary": measure == comparison.primary}
    test = {"low": low, "high": high, "p": p, "p_adjusted": None, "detectable": detectable, "verdict": None}
    return place | names | found._asdict() | test


def detectable_effect(df: float) -> float:
    """Compute the difference, in standard errors, that a two-sided t test at .05 detects with a power of .8.

    The power of the noncentral t test is read from the noncentral F distribution of its square: `scipy.stats.nct` is
    NaN for many effects above 7, which few degrees of freedom need.
    """
    critical = t.ppf(0.975, df) ** 2
    return float(brentq(lambda effect: ncf.sf(critical, 1, df, effect**2) - 0.8, 0.5, 100))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p values for their number (Holm 1979)."""
    adjusted, largest = [1.0] * len(p_values), 0.0
    for rank, place in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, (len(p_values) - rank) * p_values[place])
        adjusted[place] = min(1.0, largest)
    return adjusted


def judge(row: Mapping[str, Any]) -> str:
    """Give the verdict of the plan on a primary row."""
    if row["fewest"] < FEWEST_SEEDS:
        return "too few seeds"
    if row["p_adjusted"] is not None and row["p_adjusted"] < 0.05:
        return "supported" if row["sign"] * row["estimate"] > 0 else "contradicted"
    if row["measure"] in WIN_RATES and row["low"] >= -NEGLIGIBLE and row["high"] <= NEGLIGIBLE:
        return "no relevant difference"
    return "cannot tell"


def main() -> None:
    """Print the rows of a database as JSON."""
    parser = argparse.ArgumentParser(description="Recompute the claims table of a study from its SQLite database.")
    parser.add_argument("database")
    parser.add_argument("--plan", choices=sorted(CLAIMS), required=True)
    arguments = parser.parse_args()
    rows = recompute(arguments.database, arguments.plan)
    sys.stdout.write(json.dumps(rows, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
