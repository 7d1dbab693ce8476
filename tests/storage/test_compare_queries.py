"""Curves of several runs in one answer, on both databases."""

from collections.abc import Callable

import pytest
from sqlalchemy import update

from storage.engine import Database
from storage.models import Evaluation
from storage.queries import curves, runs
from storage.queries.run_search import runs_by_id
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import create_run
from tests.storage.records import CONFIG, make_evaluation


@pytest.fixture
def two_runs(db: Database) -> list[str]:
    ids = []
    for number in (1, 2):
        run_id = create_run(db, CONFIG | {"seed": number}, target_steps=1000, versions={})
        recorder = DatabaseRecorder(db, run_id)
        for step in (20, 10):
            recorder.record_evaluation(make_evaluation(step * number, wins=number))
            recorder.record_metrics(step * number, {"train/loss": float(step)})
        recorder.close()
        ids.append(run_id)
    return ids


def test_metrics_are_averaged_within_a_stretch_of_steps(db: Database, two_runs: list[str]) -> None:
    first = curves.metric_curves(db, two_runs[:1], "train/loss")
    assert first[["env_step", "value"]].to_numpy().tolist() == [[10, 10.0], [20, 20.0]]
    whole = curves.metric_curves(db, two_runs, "train/loss", interval_steps=100)
    assert sorted(whole[["env_step", "value"]].to_numpy().tolist()) == [[20, 15.0], [40, 15.0]]


def test_metrics_that_were_logged_are_offered_those_of_environments_and_users_last(
    db: Database, two_runs: list[str]
) -> None:
    run_id = create_run(db, CONFIG, target_steps=1000, versions={})
    recorder = DatabaseRecorder(db, run_id)
    recorder.record_metrics(10, {"user/best": 1.0, "env/distance": 2.0, "train/loss": 3.0})
    recorder.close()
    assert curves.list_logged_metrics(db, [*two_runs, run_id]) == ["train/loss", "env/distance", "user/best"]
    assert curves.list_logged_metrics(db, two_runs) == ["train/loss"]
    assert curves.list_logged_metrics(db, []) == []


def get_ids_of_rows(db: Database, run_ids: list[str]) -> list[str]:
    return [row.id for row in runs.get_rows(db, run_ids)]


def get_ids_of_table(db: Database, run_ids: list[str]) -> list[str]:
    return runs_by_id(db, run_ids)["id"].tolist()


@pytest.mark.parametrize("get_ids", [get_ids_of_rows, get_ids_of_table])
def test_runs_are_read_in_the_order_of_the_given_ids_without_unknown_ones(
    db: Database, two_runs: list[str], get_ids: Callable[[Database, list[str]], list[str]]
) -> None:
    asked = [two_runs[1], "unknown", two_runs[0]]
    assert get_ids(db, asked) == [two_runs[1], two_runs[0]]


def test_a_sparkline_has_few_points_robust_ones_if_all_evaluations_have_one(db: Database, two_runs: list[str]) -> None:
    first, second = two_runs
    assert curves.win_rate_sparklines(db, [*two_runs, "none"], points=40) == {first: [0.25], second: [0.25, 0.25]}
    with db.transaction() as connection:
        last = (Evaluation.run_id == second, Evaluation.env_step == 40)
        connection.execute(update(Evaluation).where(*last).values(robust_win_rate=None))
    assert curves.win_rate_sparklines(db, two_runs, points=40) == {first: [0.25], second: [0.5, 0.5]}


def test_progress_adds_the_steps_of_each_report_divided_by_its_value(db: Database) -> None:
    reports = {100: 50.0, 250: 10.0, 300: 0.0, 400: 30.0, 1000: 200.0}
    run_id, other = (create_run(db, CONFIG, target_steps=1000, versions={}) for _ in range(2))
    recorder = DatabaseRecorder(db, run_id)
    for step, value in reports.items():
        recorder.record_metrics(step, {"time/env_steps_per_second": value, "train/loss": 1.0})
    recorder.close()
    expected, before, total = {}, 0, 0.0
    for step, value in reports.items():
        if value > 0:
            total, before = total + (step - before) / value, step
            expected[step] = total
    frame = curves.cumulative_progress(db, [run_id, other], "time/env_steps_per_second")
    assert set(frame["run_id"]) == {run_id}
    assert dict(zip(frame["env_step"], frame["total"], strict=True)) == pytest.approx(expected)
    thinned = curves.cumulative_progress(db, [run_id], "time/env_steps_per_second", interval_steps=300)
    kept = {step: expected[step] for step in (250, 400, 1000)}
    assert dict(zip(thinned["env_step"], thinned["total"], strict=True)) == pytest.approx(kept)
