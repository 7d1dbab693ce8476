"""Greedy evaluations: how many of their episodes differ, and the robust one from shifted starts."""

from pathlib import Path

import numpy as np
import pytest

from app.analysis.intervals import compute_score_interval
from emtc_core.config.resolve import resolve
from emtc_core.envs.registry import make_env
from emtc_core.rollout.episode import Episode
from emtc_core.training.evaluation import count_distinct, make_record, make_robust_env_config
from tests.core.test_trainer import make_trainer, short_config


def episode(*actions: int, won: bool = False, episode_return: float = 0.0) -> Episode:
    T = len(actions)
    return Episode(
        obs=np.zeros((T + 1, 1, 2), np.float32), state=np.zeros((T + 1, 2), np.float32),
        avail=np.ones((T + 1, 1, 3), bool), action=np.array(actions)[:, None], reward=np.zeros(T, np.float32),
        terminated=True, truncated=False, won=won, episode_return=episode_return, epsilon=0.0,
    )  # fmt: skip


def test_episodes_differ_by_actions_or_by_outcome() -> None:
    copies = [episode(1, 2), episode(1, 2)]
    assert count_distinct(copies) == 1
    others = [episode(1, 1), episode(1, 2, won=True), episode(1, 2, episode_return=0.5), episode(1)]
    assert count_distinct([*copies, *others]) == 5
    assert count_distinct([]) == 0


def test_episodes_whose_returns_differ_by_rounding_are_not_distinct() -> None:
    different = [episode(1, n, won=True, episode_return=20.0) for n in range(8)]
    copies = [episode(1, n, won=True, episode_return=20.0 + 1e-7) for n in range(3)]
    record = make_record([*different, *copies], env_step=0)
    assert record.distinct == 8
    low, high = compute_score_interval(np.array(record.win_rate), record.distinct)
    assert (float(low), float(high)) == pytest.approx((0.676, 1.0), abs=5e-4)


@pytest.mark.parametrize(
    ("task", "overrides", "jitter"),
    [
        (("skirmish", "3m"), [], 0.05),
        (("skirmish", "3m"), ["env.skirmish.spawn_jitter=0.01"], 0.05),
        (("skirmish", "3m"), ["env.skirmish.spawn_jitter=0.05"], None),
        (("skirmish", "3m"), ["env.skirmish.random_start=reflect"], None),
        (("grf", "academy_3_vs_1_with_keeper"), [], None),
    ],
)
def test_starts_are_shifted_only_where_they_are_fixed(
    task: tuple[str, str], overrides: list[str], jitter: float | None
) -> None:
    env, map = task
    config = resolve(env=env, map=map, overrides=overrides)
    shifted = make_robust_env_config(config.env)
    assert (shifted and shifted.skirmish.spawn_jitter) == jitter


def test_the_robust_evaluation_changes_nothing_else(tmp_path: Path) -> None:
    config = short_config("eval.interval=200", steps=300)
    plain, without = make_trainer(config, tmp_path / "without")
    plain.run()
    shifted = make_robust_env_config(config.env)
    assert shifted is not None
    trainer, recorder = make_trainer(config, tmp_path / "with", robust_env=make_env(shifted, n_envs=4))
    trainer.run()
    assert [e.distinct for e in recorder.evaluations] == [e.distinct for e in without.evaluations]
    for one, other in zip(recorder.evaluations, without.evaluations, strict=True):
        assert other.robust is None
        assert one.robust is not None
        assert len(one.robust.won) == config.eval.episodes
        assert 1 <= one.robust.distinct <= config.eval.episodes
        assert one.returns.tolist() == other.returns.tolist()
    for one, other in zip(recorder.episodes, without.episodes, strict=True):
        assert (one.episode_return, one.length) == (other.episode_return, other.length)
        assert np.array_equal(one.beta, other.beta, equal_nan=True)
