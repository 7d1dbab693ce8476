"""The independent claims table: its parts against SciPy and by hand, and the whole on a small database."""

import json
import math
import shutil
import sqlite3
from pathlib import Path

import pytest
from scipy import stats

from tests.reference import claims
from tests.reference.claims import Run


def make_runs(numbers: dict[int, float], measure: str = "q_error", evaluations: int = 100) -> list[Run]:
    return [Run("m", "v", seed, {measure: number}, {measure: evaluations}, 16) for seed, number in numbers.items()]


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
