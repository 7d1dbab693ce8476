"""One recorded stream under every reading: the same numbers as were recorded, and words that fit the curves."""

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from app.analysis import gate_readings
from app.analysis.gate_readings import READINGS, GateReading, evaluate_readings, make_reading_config
from app.figures.kinds.chart import Chart
from app.figures.named.gate_readings import describe_shape, draw_readings
from emtc_core.config.resolve import config_from_stored, resolve
from emtc_core.envs.registry import get_env_info
from emtc_core.errors import ConfigError
from emtc_core.recorder import ListRecorder
from emtc_core.training.readings import replay_readings
from storage.engine import Database, open_database
from storage.queries.episodes import iter_trajectories, list_episodes
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import create_run
from storage.runs.rows import RunRow, find_run
from tests.core.test_trainer import make_trainer
from tests.errors import raises


def _points(delta: np.ndarray, beta: np.ndarray) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(
            env_step=i, tau=1.0, delta_new=(d, d, d), beta_new=(b, b, b), delta_links=d, beta_links=b,
            merge_rate=0.5, closed=0.25, size=i,
        )
        for i, (d, b) in enumerate(zip(delta, beta, strict=True))
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("delta", "beta", "words"),
    [
        (np.linspace(4, 0, 50), np.linspace(0, 1, 50), "both halves of the published shape"),
        (np.linspace(4, 0, 50), np.full(50, 0.9), "Δ̄ falls, β̄ does not rise"),
        (np.full(50, 2.0), np.linspace(0, 1, 50), "β̄ rises, Δ̄ does not fall"),
        (np.zeros(50), np.ones(50), "not the published shape"),
        (np.linspace(0, 4, 50), np.linspace(1, 0, 50), "not the published shape"),
    ],
)
def test_the_words_say_what_the_curves_do(delta: np.ndarray, beta: np.ndarray, words: str) -> None:
    sentence = describe_shape(GateReading("r", _points(delta, beta)))
    assert words in sentence
    assert "50.0 % of states merged, 25.0 % of gates below 0.5" in sentence


def test_a_stream_too_short_to_have_a_shape_is_said_to_be_so() -> None:
    assert "too few points" in describe_shape(GateReading("r", _points(np.ones(5), np.ones(5))))


def test_each_reading_has_its_row_and_stands_in_the_caption() -> None:
    readings = [GateReading(name, _points(np.ones(30), np.ones(30))) for name in READINGS]
    chart = draw_readings(readings, run="a run")
    assert [panel.title.rpartition(" ")[2] for panel in chart.panels[::2]] == list(READINGS)
    assert all(f"{name}: " in chart.caption for name in READINGS)


@pytest.mark.parametrize("preset", READINGS)
def test_a_reading_takes_the_method_from_its_preset_and_the_rest_from_the_run(preset: str) -> None:
    run = resolve(map="2s3z", algo="qplex", steps=9000, seed=4, overrides=["train.gamma=0.9", "memory.delta=0.5"])
    config, own = make_reading_config(run, preset, steps=7000), resolve(map="2s3z", preset=preset, steps=7000)
    assert (config.memory, config.embed, config.gate) == (own.memory, own.embed, own.gate)
    assert (config.train.gamma, config.train.t_max, config.seed, config.algo) == (0.9, 7000, 4, "emtc-qplex")


def test_the_runs_own_reading_repeats_what_the_run_recorded(tmp_path: Path) -> None:
    config = resolve(map="3m", steps=600, overrides=["embed.min_episodes=4", "embed.interval=200", "train.burn_in=999"])
    trainer, recorder = make_trainer(config, tmp_path)
    trainer.run()
    assert isinstance(recorder, ListRecorder)
    episodes = [_as_episode(record) for record in recorder.episodes]
    points = replay_readings([config], get_env_info(config.env), episodes, points=600)[0]
    assert [point.env_step for point in points] == [r.first_env_step + r.length - 1 for r in recorder.episodes]
    for point, record in zip(points, recorder.episodes, strict=True):
        assert point.tau == pytest.approx(record.tau)
        assert point.delta_new[0] == pytest.approx(np.nanmean(record.delta_mem))
        assert point.beta_new[0] == pytest.approx(record.beta.mean())


def _as_episode(record):  # the recorder keeps no observations, and nothing here reads them
    from emtc_core.rollout.episode import Episode

    steps, n = record.action.shape
    return Episode(
        obs=np.zeros((steps + 1, n, 1), np.float32), state=record.state, avail=np.ones((steps + 1, n, 1), bool),
        action=record.action, reward=record.reward, terminated=True, truncated=False, won=record.won,
        episode_return=record.episode_return,
    )  # fmt: skip


def test_more_than_one_run_is_refused() -> None:
    with raises(ConfigError, key="gate-readings"):
        evaluate_readings(None, [None, None], on_progress=print)  # type: ignore[arg-type]


# ---- the whole figure ----


@pytest.fixture
def recorded(tmp_path: Path, sqlite_template: Path) -> tuple[Database, list[RunRow]]:
    """A run of 600 steps in a database."""
    db = open_database(f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'x.db')}")
    config = resolve(map="3m", steps=600, overrides=["train.burn_in=999"])
    trainer, recorder = make_trainer(config, tmp_path)
    trainer.run()
    run_id = create_run(db, config.model_dump(mode="json"), target_steps=600, versions={}, name="a run")
    with closing(DatabaseRecorder(db, run_id)) as into:
        for record in recorder.episodes:
            into.record_episode(record)
    return db, [find_run(db, run_id)]


def _draw(recorded: tuple[Database, list[RunRow]], **options: int) -> tuple[Chart, list[tuple[str, float, float]]]:
    """The figure, and what was heard of its progress."""
    heard: list[tuple[str, float, float]] = []
    readings = evaluate_readings(*recorded, on_progress=lambda *told: heard.append(told), **options)
    return draw_readings(readings, run="a run", **options), heard


def _values(chart: Chart) -> list[np.ndarray]:
    return [line.y for panel in chart.panels for line in panel.lines]


def test_each_curve_is_what_its_reading_says_alone(recorded: tuple[Database, list[RunRow]]) -> None:
    chart, _ = _draw(recorded)
    db, (row,) = recorded
    run = config_from_stored(row.config)
    episodes = [
        _as_episode(told) for told in iter_trajectories(db, row.id, range(1, 1 + len(list_episodes(db, row.id))))
    ]
    for preset, panel in zip(READINGS, chart.panels[::2], strict=True):
        points = replay_readings(
            [make_reading_config(run, preset, steps=row.env_steps)], get_env_info(run.env), episodes
        )[0]
        np.testing.assert_array_equal(panel.lines[0].y, [point.delta_new[0] for point in points])
        assert np.isfinite(panel.lines[0].y).any() or preset == "emu_index"  # whose index is not built in 600 steps


def test_progress_names_the_readings_and_their_share(recorded: tuple[Database, list[RunRow]]) -> None:
    _, heard = _draw(recorded)
    assert list(dict.fromkeys(names for names, _, _ in heard)) == [
        "paper, prewrite",
        "emu_index",
        "literal_raw",
        "wide",
    ]
    of_all = [share for _, _, share in heard]
    assert of_all == sorted(of_all)
    assert (of_all[0] < 0.05, of_all[-1]) == (True, 1.0)
    assert [share for names, share, _ in heard if names == "wide"][-1] == 1.0


@pytest.mark.ci
def test_processes_side_by_side_say_the_same(recorded: tuple[Database, list[RunRow]], monkeypatch) -> None:
    alone, _ = _draw(recorded)
    shutil.rmtree(recorded[0].path.with_name("x.files"))
    monkeypatch.setattr(gate_readings, "_POLL_INTERVAL_S", 0.001)
    heard: list[tuple[str, float, float]] = []
    together = evaluate_readings(*recorded, on_progress=lambda *told: heard.append(told), jobs=2)
    assert all(map(np.array_equal, _values(alone), _values(draw_readings(together, run="a run")), [True] * 100))
    assert {name for names, _, _ in heard for name in names.split(", ")} <= set(READINGS)
    of_all = [share for _, _, share in heard]
    assert of_all == sorted(of_all)
    assert 0 < of_all[0] <= of_all[-1] <= 1


def test_an_interrupted_export_goes_on_where_it_was(recorded: tuple[Database, list[RunRow]]) -> None:
    def interrupt(names: str, share: float, of_all: float) -> None:
        if of_all > 0.6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate_readings(*recorded, on_progress=interrupt)
    later, heard = _draw(recorded)
    assert {names for names, _, _ in heard} == {"literal_raw", "wide"}
    again, nothing = _draw(recorded)
    assert nothing == []
    shutil.rmtree(recorded[0].path.with_name("x.files"))
    fresh, _ = _draw(recorded)
    for chart in (later, again):
        assert chart.caption == fresh.caption
        assert all(map(np.array_equal, _values(chart), _values(fresh), [True] * 100))


def test_what_was_kept_is_of_no_use_to_other_options_or_a_longer_run(
    recorded: tuple[Database, list[RunRow]], monkeypatch: pytest.MonkeyPatch
) -> None:
    db, (row,) = recorded
    _draw(recorded)
    assert _draw(recorded, refit_every=100)[1]
    assert _draw((db, [replace(row, env_steps=row.env_steps - 1)]))[1]
    monkeypatch.setattr(gate_readings, "hash_core", lambda: "other code")
    assert _draw(recorded)[1]


def test_a_damaged_file_is_judged_again(recorded: tuple[Database, list[RunRow]]) -> None:
    fresh, _ = _draw(recorded)
    for file in recorded[0].path.parent.rglob("gate-reading-*-wide-*.json"):
        file.write_text(file.read_text()[:-20])
    again, heard = _draw(recorded)
    assert {names for names, _, _ in heard} == {"wide"}
    assert again.caption == fresh.caption


def test_nothing_is_kept_where_this_process_may_only_read(
    recorded: tuple[Database, list[RunRow]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMTC_READ_ONLY", "1")
    _draw(recorded)
    assert list(recorded[0].path.parent.rglob("gate-reading-*")) == []


def test_coarser_refits_are_refits_at_that_interval_and_stand_in_the_caption(
    recorded: tuple[Database, list[RunRow]],
) -> None:
    run = config_from_stored(recorded[1][0].config)
    assert make_reading_config(run, "wide", steps=600).embed.interval == 1000
    assert make_reading_config(run, "wide", steps=600, refit_every=250).embed.interval == 250
    assert "refitted every 250 env steps (--refit-every)" in _draw(recorded, refit_every=250)[0].caption
    assert "refitted" not in _draw(recorded)[0].caption
