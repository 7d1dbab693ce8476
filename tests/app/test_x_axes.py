"""Learning curves over training episodes and over wall time, against episodes that are counted one by one."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from app.analysis.x_axes import X_AXES, read_x_values
from app.cli.main import run
from app.figures.named.curves import LearningCurveOptions
from app.figures.registry import FIGURES
from storage.engine import Database, open_database
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import create_run
from storage.runs.rows import find_run
from tests.app.curve_cases import stored
from tests.storage.records import make_evaluation


@dataclass
class Trainer:
    """Plays episodes of random lengths and durations. Reports and evaluates as a trainer does."""

    seed: int
    seconds: float = 0.0
    episodes: int = 0
    steps: int = 0
    log: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Env step of an evaluation → ended episodes, active time [s]."""

    def train(self, recorder: DatabaseRecorder, until: int) -> None:
        rng, window, started = np.random.default_rng(self.seed), [], self.seconds
        while self.steps < until:
            window.append(int(rng.integers(20, 60)))
            self.steps, self.episodes = self.steps + window[-1], self.episodes + 1
            self.seconds += window[-1] * float(rng.uniform(0.5, 2.0))
            if len(window) == 7:
                speed = sum(window) / (self.seconds - started)
                metrics = {"time/env_steps_per_second": speed, "rollout/length": sum(window) / len(window)}
                recorder.record_metrics(self.steps, metrics)
                recorder.record_evaluation(make_evaluation(self.steps, wins=int(rng.integers(5))))
                self.log[self.steps] = self.episodes, self.seconds
                window, started = [], self.seconds


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    yield db
    db.dispose()


def add_run(db: Database, seed: int, *, has_metrics: bool = True) -> tuple[str, Trainer]:
    run_id, trainer = create_run(db, stored(seed=seed), target_steps=1000, versions={}), Trainer(seed)
    recorder = DatabaseRecorder(db, run_id)
    if has_metrics:
        trainer.train(recorder, 1500)
    else:
        recorder.record_evaluation(make_evaluation(500, wins=1))
    recorder.close()
    return run_id, trainer


def test_each_evaluation_is_at_its_counted_episodes_and_at_its_active_time(database: Database) -> None:
    run_id, trainer = add_run(database, 1)
    steps = np.array(list(trainer.log), float)
    for name, expected in {
        "episodes": [episodes for episodes, _ in trainer.log.values()],
        "minutes": [seconds / 60 for _, seconds in trainer.log.values()],
        "hours": [seconds / 3600 for _, seconds in trainer.log.values()],
    }.items():
        x = read_x_values(database, [find_run(database, run_id)], name)
        assert x.convert(run_id, steps) == pytest.approx(np.array(expected))
        first, last = expected[0], expected[-1]
        slope = (last - expected[-2]) / (steps[-1] - steps[-2])
        beyond = x.convert(run_id, np.array([0.0, steps[0] / 2, steps[-1] + 100]))
        assert beyond == pytest.approx([0.0, first / 2, last + 100 * slope])


def export(db: Database, out: Path, *arguments: str) -> int:
    return run(["export", *arguments, "--out", str(out), "--db", db.url])


@pytest.mark.parametrize("axis", ["episodes", "minutes"])
def test_seeds_are_averaged_at_equal_values_of_the_axis(database: Database, tmp_path: Path, axis: str) -> None:
    runs = dict(add_run(database, seed) for seed in (1, 2))
    out = tmp_path / "x.csv"
    options = ("--x-axis", axis, "--include-unfinished")
    assert export(database, out, "--figure", "learning-curves", "--rate", "greedy", *options) == 0
    frame = pd.read_csv(out)
    curves = {}
    with database.read() as connection:
        for run_id, trainer in runs.items():
            query = f"SELECT env_step, win_rate FROM evaluations WHERE run_id = '{run_id}' ORDER BY env_step"
            points = connection.exec_driver_sql(query).all()
            places = [trainer.log[step][0] if axis == "episodes" else trainer.log[step][1] / 60 for step, _ in points]
            curves[run_id] = (places, [rate for _, rate in points])
    first, last = max(x[0] for x, _ in curves.values()), min(x[-1] for x, _ in curves.values())
    grid = sorted({place for x, _ in curves.values() for place in x if first - 1e-9 <= place <= last + 1e-9})
    assert frame["x"].to_numpy() == pytest.approx(np.array(grid))
    expected = [np.mean([np.interp(place, *curve) for curve in curves.values()]) for place in grid]
    assert frame["value"].to_numpy() == pytest.approx(np.array(expected), abs=1e-6)


def test_a_run_without_a_recorded_speed_is_left_out_with_the_reason(database: Database, tmp_path: Path, capsys) -> None:
    runs = [add_run(database, 1)[0], imported := add_run(database, 2, has_metrics=False)[0]]
    options = LearningCurveOptions(x_axis="hours", include_unfinished=True)
    chart = FIGURES["learning-curves"].make(database, [find_run(database, run_id) for run_id in runs], options)
    assert chart.x_label == "wall time of the training [h]"
    assert f"run {imported} (EMTC(QPLEX) on 3m; seed 2): {X_AXES['hours'].missing_reason}" in chart.caption
    assert export(database, tmp_path / "y.svg", imported, "--figure", "learning-curves", "--x-axis", "hours") == 2
    assert f"Run {imported} has no wall time, because its speed was not recorded" in capsys.readouterr().err
    assert not (tmp_path / "y.svg").exists()


@pytest.mark.parametrize("figure", ["outcomes", "metrics"])
def test_a_figure_of_one_run_has_the_axis_too(database: Database, tmp_path: Path, figure: str) -> None:
    run_id, trainer = add_run(database, 1)
    out = tmp_path / "x.csv"
    assert export(database, out, run_id, "--figure", figure, "--x-axis", "episodes") == 0
    counted = sorted(episodes for episodes, _ in trainer.log.values())
    frame = pd.read_csv(out)
    x = frame.loc[frame["panel"] == ("win rate" if figure == "outcomes" else "env steps per second"), "x"]
    assert sorted(set(x.round(6))) == pytest.approx(counted)
