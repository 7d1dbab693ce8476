"""The independent claims table: its parts against SciPy and by hand, and the whole on a small database."""

import ast
import json
import math
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, stats

from tests.reference import claims
from tests.reference.claims import Run

X = {1: 0.31, 2: 0.52, 3: 0.40, 4: 0.77, 5: 0.64}
Y = {1: 0.22, 2: 0.35, 3: 0.47, 4: 0.41, 5: 0.50}
ROW = {"fewest": 5, "p_adjusted": 0.2, "sign": 1, "estimate": 0.2, "measure": "mu_w", "low": -0.1, "high": 0.5}


def make_runs(numbers: dict[int, float], measure: str = "q_error", evaluations: int = 100) -> list[Run]:
    return [Run("m", "v", seed, {measure: number}, {measure: evaluations}, 16) for seed, number in numbers.items()]


def test_the_reference_imports_nothing_of_the_product() -> None:
    tree = ast.parse(Path(claims.__file__).read_text("utf-8"))
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert not {name.split(".")[0] for name in names} & {"app", "storage", "emtc_core", "pages", "tests"}


def test_a_time_average_weights_each_stretch_by_its_length() -> None:
    assert claims.time_average([(10, 0.0), (20, 1.0), (50, 1.0)]) == pytest.approx((5 + 30) / 40)
    assert claims.time_average([(10, 0.25)]) == 0.25


def test_equal_seeds_are_compared_by_pairs() -> None:
    found = claims.estimate(make_runs(X), make_runs(dict(reversed(Y.items()))), "q_error")
    x, y = np.array(list(X.values())), np.array(list(Y.values()))
    expected = stats.ttest_rel(x, y)
    row = claims.make_row(claims.CLAIMS["confirmatory"][0], "q_error", "m", found)
    assert (found.paired, found.n, found.unpaired_seeds) == (True, 5, [])
    assert (row["low"], row["high"]) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert row["p"] == pytest.approx(expected.pvalue)
    flips = stats.permutation_test((x - y,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert found.p_randomization == pytest.approx(flips.pvalue)


def test_seeds_that_only_one_variant_has_are_left_out_of_the_pairs() -> None:
    found = claims.estimate(make_runs(X | {9: 5.0}), make_runs(Y), "q_error")
    assert (found.paired, found.n, found.unpaired_seeds) == (True, 5, [9])
    assert found.estimate == claims.estimate(make_runs(X), make_runs(Y), "q_error").estimate


def test_seeds_that_do_not_match_are_compared_by_welch() -> None:
    other = {6: 0.22, 7: 0.35, 8: 0.47, 5: 0.41}
    found = claims.estimate(make_runs(X), make_runs(other), "q_error")
    x, y = np.array(list(X.values())), np.array(list(other.values()))
    expected = stats.ttest_ind(x, y, equal_var=False)
    row = claims.make_row(claims.CLAIMS["confirmatory"][0], "q_error", "m", found)
    assert (found.paired, found.n, found.unpaired_seeds) == (False, 4, [1, 2, 3, 4, 6, 7, 8])
    assert (row["low"], row["high"]) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert (row["p"], found.df) == pytest.approx((expected.pvalue, expected.df))
    permuted = stats.permutation_test(
        (x, y), lambda a, b: abs(a.mean() - b.mean()), n_resamples=np.inf, alternative="greater"
    )
    assert found.p_randomization == pytest.approx(permuted.pvalue)


def test_one_variant_is_compared_with_zero() -> None:
    numbers = {1: -0.2, 2: 0.5, 3: 0.4, 4: 0.1}
    found = claims.estimate(make_runs(numbers), None, "q_error")
    expected = stats.ttest_1samp(list(numbers.values()), 0.0)
    row = claims.make_row(claims.CLAIMS["confirmatory"][6], "q_error", "m", found)
    assert (found.paired, found.n) == (False, 4)
    assert (row["low"], row["high"]) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert row["p"] == pytest.approx(expected.pvalue)
    assert found.p_randomization == pytest.approx(6 / 16), "the sums 1.2, 1.0 and .8, and their negatives"


def test_one_pair_has_an_estimate_alone() -> None:
    found = claims.estimate(make_runs({1: 0.5}, "mu_w"), make_runs({1: 0.2}, "mu_w"), "mu_w")
    row = claims.make_row(claims.CLAIMS["confirmatory"][0], "mu_w", "m", found)
    assert row["estimate"] == pytest.approx(0.3)
    assert [row[key] for key in ("se", "low", "high", "p", "p_randomization", "detectable")] == [None] * 6


def test_equal_win_rates_keep_the_variance_of_their_episodes() -> None:
    ones = dict.fromkeys(range(1, 6), 1.0)
    shortest = [*make_runs({1: 1.0}, "mu_w", 3), *make_runs(dict.fromkeys(range(2, 6), 1.0), "mu_w", 9)]
    found = claims.estimate(shortest, make_runs(ones, "mu_w", 6), "mu_w")
    few, many = 5 * 3 * 16, 5 * 6 * 16
    misses = 0.5 * 4 / (few + 4), 0.5 * 4 / (many + 4)
    assert found.se == pytest.approx(math.sqrt(sum(q * (1 - q) / m for q, m in zip(misses, (few, many), strict=True))))
    assert (found.df, found.p_randomization) == (4, 1.0)
    assert claims.estimate(make_runs(ones), make_runs(ones), "q_error").se == 0.0, "other measures have no such bound"


def test_an_interval_of_win_rates_ends_at_one() -> None:
    x, y = {1: 1.0, 2: 1.0, 3: 0.2}, {1: 0.0, 2: 0.1, 3: 0.0}
    found = claims.estimate(make_runs(x, "mu_w"), make_runs(y, "mu_w"), "mu_w")
    assert claims.make_row(claims.CLAIMS["confirmatory"][0], "mu_w", "m", found)["high"] == 1.0


def test_p_values_are_adjusted_from_the_smallest_on() -> None:
    assert claims.holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert claims.holm([0.6, 0.7]) == [1.0, 1.0]
    assert claims.holm([]) == []


@pytest.mark.parametrize("df", [1, 2, 2.3, 4, 8, 60])
def test_a_detectable_effect_is_detected_with_the_power_of_eighty_percent(df: float) -> None:
    """T = (Z + effect) / S with a normal Z and df S² of a chi-squared distribution."""
    effect, critical = claims.detectable_effect(df), stats.t.ppf(0.975, df)

    def detected(quantile: float) -> float:
        spread = math.sqrt(stats.chi2.ppf(quantile, df) / df)
        return stats.norm.sf(critical * spread - effect) + stats.norm.cdf(-critical * spread - effect)

    assert integrate.quad(detected, 0, 1)[0] == pytest.approx(0.8, abs=1e-4)


def test_tasks_are_pooled_with_equal_weights() -> None:
    found = claims.pool(
        [
            claims.Estimate(5, 5, True, [], 0.4, 0.3, 4.0, 0.1),
            claims.Estimate(9, 9, True, [2], 0.1, 0.4, 8.0, 0.1),
        ]
    )
    assert (found.n, found.fewest, found.paired, found.unpaired_seeds) == (14, 5, True, [2])
    assert (found.estimate, found.se) == pytest.approx((0.25, 0.25))
    assert found.df == pytest.approx(0.25**2 / (0.09**2 / 4 + 0.16**2 / 8))
    alone = claims.pool([claims.Estimate(1, 1, True, [], 0.4), claims.Estimate(9, 9, True, [], 0.1, 0.4, 8.0)])
    assert (alone.estimate, alone.se, alone.fewest) == (0.25, None, 1)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "cannot tell"),
        ({"fewest": 4, "p_adjusted": 0.001}, "too few seeds"),
        ({"p_adjusted": 0.049}, "supported"),
        ({"p_adjusted": 0.051}, "cannot tell"),
        ({"p_adjusted": 0.049, "sign": -1}, "contradicted"),
        ({"low": -0.05, "high": 0.04}, "no relevant difference"),
        ({"low": -0.051, "high": 0.04}, "cannot tell"),
        ({"low": -0.05, "high": 0.04, "measure": "q_error"}, "cannot tell"),
        ({"p_adjusted": 0.01, "low": 0.01, "high": 0.04}, "supported"),
        ({"p_adjusted": None}, "cannot tell"),
    ],
)
def test_a_verdict_follows_the_plan(changes: dict, verdict: str) -> None:
    assert claims.judge(ROW | changes) == verdict


@pytest.fixture
def database(tmp_path: Path, sqlite_template: Path) -> sqlite3.Connection:
    """A database with the tables of the product and the three sweeps of the plan; its file is `study.db`."""
    shutil.copy(sqlite_template, tmp_path / "study.db")
    connection = sqlite3.connect(tmp_path / "study.db", isolation_level=None)
    for name in ("football", "3s_vs_5z", "corridor pilot"):
        plan = json.dumps({"file": {"name": f"Confirmatory study: {name}"}})
        insert(connection, "sweeps", id=name[:8], name="", status="", created_at="2030-01-01", jobs=1, plan=plan)
    return connection


def insert(connection: sqlite3.Connection, table: str, **values: object) -> None:
    places = ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({places})", tuple(values.values()))


def insert_run(
    connection: sqlite3.Connection,
    run_id: str,
    *,
    sweep: str = "3s_vs_5z",
    variant: str = "EMTC",
    seed: int = 4,
    rate: float = 0.5,
    status: str = "finished",
    env_steps: int = 1000,
) -> None:
    """Add a run of 1,000 env steps with five evaluations at one robust win rate; its greedy rate is one half of it."""
    algo = {"EMU": "emu-qplex", "QPLEX": "qplex"}.get(variant, "emtc-qplex")
    config = {
        "algo": algo,
        "preset": "prewrite" if variant == claims.PREWRITE else "paper",
        "gate": {"enabled": variant in ("EMTC", claims.PREWRITE)},
        "embed": {"type": "tcse"},
        "eval": {"episodes": 16},
    }
    place = {"env": "grf" if sweep == "football" else "skirmish", "map": sweep, "algo": algo, "seed": seed}
    steps = {"status": status, "env_steps": env_steps, "target_steps": 1000}
    texts = {"name": "", "tags": "[]", "notes": "", "versions": "{}", "created_at": "2030-01-01"}
    row = {"id": run_id, "config": json.dumps(config), "sweep_id": sweep[:8]}
    insert(connection, "runs", **row, **place, **steps, **texts)
    for step in (200, 400, 600, 901, 1000):
        values = {"robust_win_rate": None, "win_rate": rate} if sweep == "football" else {"robust_win_rate": rate}
        insert(connection, "evaluations", run_id=run_id, env_step=step, **({"win_rate": rate / 2} | values))


def test_each_variant_of_the_plan_is_recognized(database: sqlite3.Connection, tmp_path: Path) -> None:
    variants = ["EMTC", "No-TCGM", "EMU", "QPLEX", claims.PREWRITE]
    for number, variant in enumerate(variants):
        insert_run(database, f"r{number}", variant=variant)
    assert [run.variant for run in claims.read_runs(tmp_path / "study.db", "confirmatory")] == variants
    assert claims.read_runs(tmp_path / "study.db", "first") == []


def test_complete_runs_of_the_plan_count_and_no_others(database: sqlite3.Connection, tmp_path: Path) -> None:
    insert_run(database, "finished", seed=1, env_steps=10)
    insert_run(database, "stopped", seed=2, status="stopped")
    insert_run(database, "cut", seed=3, status="stopped", env_steps=999)
    insert_run(database, "pilot", sweep="corridor pilot", seed=4)
    assert sorted(run.seed for run in claims.read_runs(tmp_path / "study.db", "confirmatory")) == [1, 2]
    insert_run(database, "again", seed=1)
    with pytest.raises(ValueError, match="EMTC"):
        claims.read_runs(tmp_path / "study.db", "confirmatory")


def test_win_rates_are_robust_on_skirmish_and_greedy_on_football(database: sqlite3.Connection, tmp_path: Path) -> None:
    insert_run(database, "s", rate=0.5)
    insert_run(database, "f", sweep="football", rate=0.75)
    database.execute("UPDATE evaluations SET robust_win_rate = 0.9 WHERE run_id = 's' AND env_step = 400")
    database.execute("UPDATE evaluations SET robust_win_rate = 0.4 WHERE run_id = 's' AND env_step IN (600, 1000)")
    skirmish, football = claims.read_runs(tmp_path / "study.db", "confirmatory")
    area = 200 * 0.7 + 200 * 0.65 + 301 * 0.45 + 99 * 0.45
    assert skirmish.numbers["mu_w"] == pytest.approx(area / 800)
    assert (skirmish.numbers["final"], skirmish.numbers["falls"]) == pytest.approx((0.45, 2))
    assert (skirmish.evaluations["mu_w"], skirmish.evaluations["final"]) == (5, 2)
    assert (skirmish.numbers["mu_w_greedy"], skirmish.numbers["final_greedy"]) == pytest.approx((0.25, 0.25))
    assert football.numbers["mu_w"] == pytest.approx(0.75)
    assert "falls" not in football.numbers, "its win rate was never .9"


def test_q_is_averaged_over_the_second_half(database: sqlite3.Connection, tmp_path: Path) -> None:
    insert_run(database, "s")
    for step, value in ((200, 50.0), (500, 70.0), (600, -3.0), (1000, 1.0)):
        insert(database, "metrics", run_id="s", env_step=step, name="eval/overestimation", value=value)
    (run,) = claims.read_runs(tmp_path / "study.db", "confirmatory")
    assert (run.numbers["q_error"], run.numbers["overestimation"]) == (2.0, -1.0)


def test_the_gate_is_measured_from_the_first_win_on(database: sqlite3.Connection, tmp_path: Path) -> None:
    insert_run(database, "s")
    episodes = ((1, 1, 1500, 0, 900), (2, 1501, 500, 1, 20), (3, 2001, 1000, 0, 300), (4, 3001, 1000, 1, 100))
    for episode, start, length, won, closed in episodes:
        outcome = {"first_env_step": start, "length": length, "won": won, "closed": closed}
        insert(
            database, "episodes", run_id="s", episode=episode, episode_return=0, epsilon=0, trajectory=b"", **outcome
        )
    for bucket in range(23):  # 21 of them from env step 2001 on: tenths of 3 and 2 buckets
        delta = {0: (8.0, 2), 2: (4.0, 1), 3: (0.0, 0), 4: (2.0, 2), 21: (1.0, 1), 22: (1.0, 3)}.get(bucket, (9.0, 1))
        beta = {0: 100.0, 1: 300.0, 2: 400.0, 3: 500.0, 4: 600.0, 21: 900.0, 22: 70.0}.get(bucket, 0.0)
        n = 100 if bucket == 22 else 1000
        sums = {"delta_mem_sum": delta[0], "delta_mem_n": delta[1], "beta_sum": beta, "beta_n": n}
        insert(database, "transition_summary", run_id="s", bucket=bucket, n=n, tau_n=0, tau_sum=0, **sums)
    for step, value in ((1000, 0.0), (1500, 0.0), (1501, 0.1), (4000, 0.3)):
        insert(database, "metrics", run_id="s", env_step=step, name="gate/incentive_removed", value=value)
    (run,) = claims.read_runs(tmp_path / "study.db", "confirmatory")
    assert run.numbers["delta_ratio"] == pytest.approx(math.log((2 / 4) / (6 / 3)))
    assert run.numbers["beta_difference"] == pytest.approx(970 / 1100 - 1500 / 3000)
    assert run.numbers["delta_ratio_whole"] == pytest.approx(math.log((2 / 4) / (21 / 4)))
    assert run.numbers["beta_difference_whole"] == pytest.approx(970 / 1100 - 800 / 3000)
    assert (run.numbers["removed"], run.numbers["removed_whole"]) == pytest.approx((0.2, 0.1))
    assert run.numbers["closed_difference"] == pytest.approx(300 / 1000 - 120 / 1500)


def test_a_run_without_a_win_has_no_number_from_the_first_win_on(database: sqlite3.Connection, tmp_path: Path) -> None:
    insert_run(database, "s")
    for bucket in range(10):
        sums = {"delta_mem_sum": 1.0, "delta_mem_n": 1, "beta_sum": bucket, "beta_n": 1000}
        insert(database, "transition_summary", run_id="s", bucket=bucket, n=1000, tau_n=0, tau_sum=0, **sums)
    (run,) = claims.read_runs(tmp_path / "study.db", "confirmatory")
    assert (run.numbers["delta_ratio_whole"], run.numbers["beta_difference_whole"]) == pytest.approx((0.0, 0.009))
    assert not {"delta_ratio", "beta_difference", "removed", "closed_difference"} & run.numbers.keys()


def test_the_table_has_verdicts_per_task_and_pooled(database: sqlite3.Connection, tmp_path: Path) -> None:
    """EMTC exceeds EMU by .20 to .24 and QPLEX by 0, on football with five seeds and on 3s_vs_5z with four."""
    gaps = (0.20, 0.21, 0.22, 0.23, 0.24)
    for sweep, seeds in (("football", 5), ("3s_vs_5z", 4)):
        for seed, gap in zip(range(seeds), gaps, strict=False):
            for variant, rate in (("EMTC", 0.5 + seed / 100), ("EMU", 0.5 + seed / 100 - gap), ("QPLEX", 0.5)):
                insert_run(
                    database, f"{sweep[0]}{variant[:3]}{seed}", sweep=sweep, variant=variant, seed=seed, rate=rate
                )
    rows = claims.recompute(tmp_path / "study.db", "confirmatory")
    table = {(row["claim"], row["task"]): row for row in rows if row["measure"] == "mu_w"}
    assert sorted(table) == [(claim, task) for claim in (1, 2) for task in ("3s_vs_5z", "all", "football")]
    football, other, pooled = table[1, "football"], table[1, "3s_vs_5z"], table[1, "all"]
    variance = sum(claims.episode_variance(make_runs({0: share}, "mu_w", 25), "mu_w") for share in (0.52, 0.3))
    assert (football["estimate"], football["se"]) == pytest.approx((0.22, math.sqrt(variance)))
    assert football["p"] == pytest.approx(2 * stats.t.sf(0.22 / math.sqrt(variance), 4))
    assert (football["p_adjusted"], football["p_randomization"]) == pytest.approx((2 * football["p"], 2 / 32))
    assert (football["verdict"], other["verdict"], pooled["verdict"]) == ("supported", "too few seeds", "too few seeds")
    assert table[2, "football"]["verdict"] == "cannot tell"
    assert pooled["estimate"] == pytest.approx((0.22 + 0.215) / 2)
    assert pooled["se"] == pytest.approx(math.hypot(football["se"], other["se"]) / 2)
    assert all(row["verdict"] is None for row in rows if not row["primary"])
