"""One recorded stream under every reading: the same numbers as were recorded, and words that fit the curves."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from app.figures.readings import Reading, describe_shape, draw_readings
from app.runs.readings import READINGS, configure, make_gate_readings
from emtc_core.config.resolve import resolve
from emtc_core.envs.registry import get_env_info
from emtc_core.errors import ConfigError
from emtc_core.readings import read_stream
from emtc_core.recorder import ListRecorder
from tests.core.test_trainer import make_trainer


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
    sentence = describe_shape(Reading("r", _points(delta, beta)))
    assert words in sentence
    assert "50.0% of states merged, 25.0% of gates below 0.5" in sentence


def test_a_stream_too_short_to_have_a_shape_is_said_to_be_so() -> None:
    assert "too few points" in describe_shape(Reading("r", _points(np.ones(5), np.ones(5))))


def test_each_reading_has_its_row_and_stands_in_the_caption() -> None:
    readings = [Reading(name, _points(np.ones(30), np.ones(30))) for name in READINGS]
    chart = draw_readings(readings, run="a run")
    assert [panel.title.rpartition(" ")[2] for panel in chart.panels[::2]] == list(READINGS)
    assert all(f"{name}: " in chart.caption for name in READINGS)


@pytest.mark.parametrize("preset", READINGS)
def test_a_reading_takes_the_method_from_its_preset_and_the_rest_from_the_run(preset: str) -> None:
    run = resolve(map="2s3z", algo="qplex", steps=9000, seed=4, overrides=["train.gamma=0.9", "memory.delta=0.5"])
    config, own = configure(run, preset, steps=7000), resolve(map="2s3z", preset=preset, steps=7000)
    assert (config.memory, config.embed, config.gate) == (own.memory, own.embed, own.gate)
    assert (config.train.gamma, config.train.t_max, config.seed, config.algo) == (0.9, 7000, 4, "emtc-qplex")


def test_the_runs_own_reading_repeats_what_the_run_recorded(tmp_path: Path) -> None:
    config = resolve(map="3m", steps=600, overrides=["embed.min_episodes=4", "embed.interval=200", "train.burn_in=999"])
    trainer, recorder = make_trainer(config, tmp_path)
    trainer.run()
    assert isinstance(recorder, ListRecorder)
    episodes = [_as_episode(record) for record in recorder.episodes]
    points = read_stream(config, get_env_info(config.env), episodes, points=600)
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
    with pytest.raises(ConfigError, match="judges the episodes of one run, got 2 runs"):
        make_gate_readings(None, [None, None], on_progress=print)  # type: ignore[arg-type]
