"""One contract for every environment: a class of tests, inherited once per environment.

An environment joins by subclassing `EnvContract` and saying how it is made.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from emtc_core.config.train import EnvConfig, GrfConfig, SkirmishConfig
from emtc_core.envs.base import EnvInfo, Observation, ResetNeededError, VectorEnv
from emtc_core.envs.checker import check_env, random_actions
from emtc_core.envs.registry import get_env_info, make_env, make_scene
from emtc_core.envs.scene import Scene
from tests.require import require_env

N_ENVS = 3


def play(env: VectorEnv, seed: int, *, limit: int = 10_000) -> list[Observation]:
    """Play one round at random until every copy is over."""
    rng = np.random.default_rng(seed)
    seen = [env.reset(seed)]
    while not (seen[-1].terminated | seen[-1].truncated).all() and len(seen) <= limit:
        seen.append(env.step(random_actions(seen[-1].avail, rng)))
    return seen


def make(case: "type[EnvContract]") -> VectorEnv:
    require_env(case.config.name)
    return make_env(case.config, n_envs=N_ENVS)


@pytest.fixture(scope="class")
def env(request: pytest.FixtureRequest) -> Iterator[VectorEnv]:
    """One for all tests of a class, which reset it: some take seconds to start, and none may remember a round."""
    env = make(request.cls)
    yield env
    env.close()


@pytest.fixture
def twin(env: VectorEnv, request: pytest.FixtureRequest) -> Iterator[VectorEnv]:
    twin = make(request.cls)
    yield twin
    twin.close()


class EnvContract:
    """What every environment promises; subclasses set `config`."""

    config = EnvConfig()
    steps = 200
    ends_early = False
    """Whether the game itself cuts episodes before `info.episode_limit`."""

    def test_it_keeps_every_rule_of_the_checker(self, env: VectorEnv):
        assert isinstance(env, VectorEnv)
        assert check_env(env, steps=self.steps, seed=5) == []

    def test_a_step_before_the_first_reset_is_refused(self, twin: VectorEnv):
        with pytest.raises(ResetNeededError):
            twin.step(np.zeros((N_ENVS, twin.info.n_agents), np.int64))

    def test_its_sizes_are_known_without_starting_it(self, env: VectorEnv):
        info = get_env_info(self.config)
        assert info is None or info == env.info
        assert env.n_envs == N_ENVS

    def test_two_instances_side_by_side_do_not_disturb_each_other(self, env: VectorEnv, twin: VectorEnv):
        alone = play(env, 11, limit=40)
        rng, other_rng = np.random.default_rng(11), np.random.default_rng(99)
        seen, other = env.reset(11), twin.reset(77)
        for expected in alone[1:]:
            other = twin.step(random_actions(other.avail, other_rng))
            seen = env.step(random_actions(seen.avail, rng))
            np.testing.assert_array_equal(seen.state, expected.state)
            np.testing.assert_array_equal(seen.obs, expected.obs)
            np.testing.assert_array_equal(seen.reward, expected.reward)

    def test_a_copy_is_the_same_in_a_smaller_batch(self, env: VectorEnv):
        single = make_env(self.config, n_envs=1)
        rng = np.random.default_rng(2)
        many, one = env.reset(21), single.reset(21)
        for _ in range(30):
            actions = random_actions(many.avail, rng)
            many, one = env.step(actions), single.step(actions[:1])
            np.testing.assert_array_equal(many.state[:1], one.state)
            np.testing.assert_array_equal(many.obs[:1], one.obs)
        single.close()

    def test_every_episode_ends_and_is_cut_at_the_limit_only(self, env: VectorEnv):
        rounds = play(env, 4)
        last = rounds[-1]
        assert len(rounds) - 1 <= env.info.episode_limit
        cut_early = last.truncated & (len(rounds) - 1 < env.info.episode_limit)
        assert not cut_early.any() or self.ends_early
        assert not (last.won & last.truncated & last.terminated).any()

    def test_an_episode_can_be_restarted_in_the_middle(self, env: VectorEnv):
        first = env.reset(8)
        env.step(random_actions(first.avail, np.random.default_rng(0)))
        again = env.reset(8)
        np.testing.assert_array_equal(first.obs, again.obs)
        np.testing.assert_array_equal(first.state, again.state)

    def test_a_replay_needs_the_states_alone(self, env: VectorEnv):
        states = np.stack([seen.state[0] for seen in play(env, 6, limit=20)])
        scene = make_scene(self.config.name, self.config.map, states)
        n_units = len(scene.kind)
        assert scene.position.shape == (len(states), n_units, 2)
        assert scene.health.shape == scene.shield.shape == scene.alive.shape == (len(states), n_units)
        assert scene.team.shape == scene.radius.shape == (n_units,)
        assert np.isfinite(scene.position).all()
        x0, y0, x1, y1 = scene.bounds
        assert x0 < x1
        assert y0 < y1

    def test_closing_twice_is_harmless_and_its_twin_plays_on(self, env: VectorEnv, twin: VectorEnv):
        twin.close()
        twin.close()
        assert len(play(env, 3, limit=2)) > 1


class TestSkirmish(EnvContract):
    config = EnvConfig(name="skirmish", map="3m")


class TestSkirmishWithMedivacs(EnvContract):
    config = EnvConfig(name="skirmish", map="MMM2")


class TestSkirmishWithTerrain(EnvContract):
    config = EnvConfig(name="skirmish", map="corridor")


class TestSkirmishSparse(EnvContract):
    config = EnvConfig(name="skirmish", map="2s3z", skirmish=SkirmishConfig(reward_sparse=True))


@pytest.mark.grf
class TestFootball(EnvContract):
    config = EnvConfig(name="grf", map="academy_3_vs_1_with_keeper")


@pytest.mark.grf
class TestFootballWithEmuRewards(EnvContract):
    config = EnvConfig(name="grf", map="academy_counterattack_hard", grf=GrfConfig(reward="emu", workers=2))
    steps = 100


class TestPettingZoo(EnvContract):
    config = EnvConfig(name="pettingzoo", map="tests.core.zoo_example:make_with_state")
    ends_early = True


@pytest.mark.ci
class TestSmax(EnvContract):
    config = EnvConfig(name="smax", map="3m")

    def test_standing_still_loses_and_all_steps_are_compiled_once(self, env: VectorEnv):
        seen = env.reset(0)
        for _ in range(env.info.episode_limit):
            seen = env.step(np.full((N_ENVS, 3), 4))
        assert (seen.terminated | seen.truncated).all()
        assert not seen.won.any()
        assert env._battles.step._cache_size() == 1


class Breaker:
    """A correct environment of two steps whose answers a test can spoil."""

    def __init__(self, **spoiled: object) -> None:
        self.info = EnvInfo("breaker", "toy", 2, 3, 4, 5, 2, (0.0, 1.0))
        self.n_envs = 1
        self._spoiled = spoiled
        self._t = 0

    def reset(self, seed: int | None = None) -> Observation:
        self._t = 0
        return self._see()

    def step(self, actions: np.ndarray) -> Observation:
        if self._t < 2 and (actions > 2).any():
            raise ValueError("no such action")
        self._t = min(self._t + 1, 2)
        return self._see()

    def scene(self, states: np.ndarray) -> Scene:
        raise NotImplementedError

    def close(self) -> None: ...

    def _see(self) -> Observation:
        fields = {
            "obs": np.full((1, 2, 4), self._t, np.float32),
            "state": np.full((1, 5), self._t, np.float32),
            "avail": np.ones((1, 2, 3), bool),
            "reward": np.zeros(1, np.float32),
            "terminated": np.zeros(1, bool),
            "truncated": np.array([self._t == 2]),
            "won": np.zeros(1, bool),
        }
        return Observation(**{**fields, **self._spoiled})  # type: ignore[arg-type]  # spoiled on purpose


def test_the_checker_passes_a_correct_environment():
    assert check_env(Breaker(), steps=9) == []


@pytest.mark.parametrize(
    ("spoiled", "rule"),
    [
        ({"obs": np.zeros((1, 2, 4))}, "obs must be float32"),
        ({"state": np.zeros((1, 6), np.float32)}, "state must have shape (1, 5)"),
        ({"obs": np.full((1, 2, 4), np.nan, np.float32)}, "obs must be finite"),
        ({"reward": np.full(1, 7, np.float32)}, "reward must stay in (0.0, 1.0)"),
        ({"terminated": np.ones(1, bool), "truncated": np.ones(1, bool)}, "never be true together"),
        ({"truncated": np.zeros(1, bool)}, "episode_limit must end all"),
        ({"won": np.ones(1, bool)}, "won may only be true once"),
        ({"avail": np.zeros((1, 2, 3), bool)}, "must have an available action"),
    ],
)
def test_the_checker_names_a_broken_rule(spoiled: dict[str, np.ndarray], rule: str):
    assert any(rule in fault for fault in check_env(Breaker(**spoiled), steps=5))


class Reuser(Breaker):
    """Returns the same array again for one entry of its observations, and writes into it in every step."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name, self._array = name, None

    def _see(self) -> Observation:
        fresh = super()._see()
        array = getattr(fresh, self._name)
        if self._array is None:
            self._array = np.zeros_like(array)
        self._array[:] = array if self._name in ("obs", "state", "truncated") else self._t > 0
        return replace(fresh, **{self._name: self._array})


@pytest.mark.parametrize("name", ["obs", "state", "avail", "reward", "terminated", "truncated", "won"])
def test_the_checker_finds_an_observation_that_changes_with_the_next_step(name: str):
    assert "An observation must not change when the next step is played." in check_env(Reuser(name), steps=5)


def test_random_actions_are_available_and_reach_every_choice():
    avail = np.zeros((400, 2, 5), bool)
    avail[:, 0, [1, 4]] = True
    avail[:, 1, 3] = True
    actions = random_actions(avail, np.random.default_rng(0))
    assert set(actions[:, 0]) == {1, 4}
    assert set(actions[:, 1]) == {3}
