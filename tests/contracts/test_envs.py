"""One contract for every environment; an environment joins by a line in `CASES`."""

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
ZOO = "tests.core.zoo_example"
GRF, CI = pytest.mark.grf, pytest.mark.ci
CASES = [
    pytest.param(EnvConfig(map="3m"), id="skirmish"),
    pytest.param(EnvConfig(map="MMM2"), id="skirmish-medivacs"),
    pytest.param(EnvConfig(map="corridor"), id="skirmish-terrain"),
    pytest.param(EnvConfig(map="2s3z", skirmish=SkirmishConfig(reward_sparse=True)), id="skirmish-sparse"),
    pytest.param(EnvConfig(name="grf", map="academy_3_vs_1_with_keeper"), id="grf", marks=GRF),
    pytest.param(
        EnvConfig(name="grf", map="academy_counterattack_hard", grf=GrfConfig(reward="emu", workers=2)),
        id="grf-workers",
        marks=GRF,
    ),
    pytest.param(EnvConfig(name="pettingzoo", map=f"{ZOO}:make"), id="pettingzoo"),
    pytest.param(EnvConfig(name="pettingzoo", map=f"{ZOO}:make_with_state"), id="pettingzoo-state"),
    pytest.param(EnvConfig(name="smax", map="3m"), id="smax", marks=CI),
]
STEPS = {"academy_counterattack_hard": 100}
"""Vector steps of the checker on a map that is slow; 200 on any other."""


def play(env: VectorEnv, seed: int, *, limit: int = 10_000) -> list[Observation]:
    """Play one round at random until every copy is over."""
    rng = np.random.default_rng(seed)
    seen = [env.reset(seed)]
    while not (seen[-1].terminated | seen[-1].truncated).all() and len(seen) <= limit:
        seen.append(env.step(random_actions(seen[-1].avail, rng)))
    return seen


@pytest.fixture(scope="module", params=CASES)
def config(request: pytest.FixtureRequest) -> EnvConfig:
    require_env(request.param.name)
    return request.param


@pytest.fixture(scope="module")
def env(config: EnvConfig) -> Iterator[VectorEnv]:
    """One for all tests of a case, which reset it: some take seconds to start."""
    env = make_env(config, n_envs=N_ENVS)
    yield env
    env.close()


@pytest.fixture
def twin(config: EnvConfig) -> Iterator[VectorEnv]:
    twin = make_env(config, n_envs=N_ENVS)
    yield twin
    twin.close()


def test_an_environment_follows_every_rule_of_the_checker(config: EnvConfig, env: VectorEnv) -> None:
    assert isinstance(env, VectorEnv)
    assert check_env(env, steps=STEPS.get(config.map, 200), seed=5) == []


def test_the_sizes_that_are_known_before_the_start_are_those_of_the_environment(
    config: EnvConfig, env: VectorEnv
) -> None:
    assert env.n_envs == N_ENVS
    assert get_env_info(config) in (env.info, None)


def test_a_step_before_the_first_reset_is_refused(twin: VectorEnv) -> None:
    with pytest.raises(ResetNeededError):
        twin.step(np.zeros((N_ENVS, twin.info.n_agents), np.int64))


def test_another_instance_that_plays_and_is_closed_twice_changes_nothing(env: VectorEnv, twin: VectorEnv) -> None:
    alone = play(env, 11, limit=40)
    rng, other_rng = np.random.default_rng(11), np.random.default_rng(99)
    seen, other = env.reset(11), twin.reset(77)
    for t, expected in enumerate(alone[1:]):
        if t < 30:
            other = twin.step(random_actions(other.avail, other_rng))
        elif t < 32:
            twin.close()
        seen = env.step(random_actions(seen.avail, rng))
        np.testing.assert_array_equal(seen.state, expected.state)
        np.testing.assert_array_equal(seen.obs, expected.obs)
        np.testing.assert_array_equal(seen.reward, expected.reward)


def test_a_copy_is_the_same_in_a_smaller_batch(config: EnvConfig, env: VectorEnv) -> None:
    single = make_env(config, n_envs=1)
    rng = np.random.default_rng(2)
    many, one = env.reset(21), single.reset(21)
    for _ in range(30):
        actions = random_actions(many.avail, rng)
        many, one = env.step(actions), single.step(actions[:1])
        np.testing.assert_array_equal(many.state[:1], one.state)
        np.testing.assert_array_equal(many.obs[:1], one.obs)
    single.close()


def test_an_episode_is_truncated_at_the_limit_only(config: EnvConfig, env: VectorEnv) -> None:
    rounds = play(env, 4)
    assert len(rounds) - 1 <= env.info.episode_limit
    may_end_early = config.name == "pettingzoo"  # its own limit
    assert not rounds[-1].truncated.any() or len(rounds) - 1 == env.info.episode_limit or may_end_early


def test_a_replay_is_drawn_from_the_states_alone(config: EnvConfig, env: VectorEnv) -> None:
    states = np.stack([seen.state[0] for seen in play(env, 6, limit=20)])
    scene = make_scene(config.name, config.map, states)
    n_units = len(scene.kind)
    assert scene.position.shape == (len(states), n_units, 2)
    assert scene.health.shape == scene.shield.shape == scene.alive.shape == (len(states), n_units)
    assert scene.team.shape == scene.radius.shape == (n_units,)
    assert np.isfinite(scene.position).all()
    x0, y0, x1, y1 = scene.bounds
    assert x0 < x1
    assert y0 < y1


@pytest.mark.ci
def test_smax_compiles_its_step_once_and_loses_without_actions() -> None:
    require_env("smax")
    env = make_env(EnvConfig(name="smax", map="3m"), n_envs=N_ENVS)
    seen = env.reset(0)
    for _ in range(env.info.episode_limit):
        seen = env.step(np.full((N_ENVS, 3), 4))
    assert (seen.terminated | seen.truncated).all()
    assert not seen.won.any()
    assert env._battles.step._cache_size() == 1  # type: ignore[attr-defined]


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


class Reuser(Breaker):
    """Returns the same array again for one entry of its observations, and writes into it in every step."""

    NAMES = ("obs", "state", "avail", "reward", "terminated", "truncated", "won")

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


def test_the_checker_passes_a_correct_environment() -> None:
    assert check_env(Breaker(), steps=9) == []


@pytest.mark.parametrize(
    ("env", "rule"),
    [
        (Breaker(obs=np.zeros((1, 2, 4))), "obs must be float32"),
        (Breaker(state=np.zeros((1, 6), np.float32)), "state must have shape (1, 5)"),
        (Breaker(obs=np.full((1, 2, 4), np.nan, np.float32)), "obs must be finite"),
        (Breaker(reward=np.full(1, 7, np.float32)), "reward must stay in (0.0, 1.0)"),
        (Breaker(terminated=np.ones(1, bool), truncated=np.ones(1, bool)), "never be true together"),
        (Breaker(truncated=np.zeros(1, bool)), "episode_limit must end all"),
        (Breaker(won=np.ones(1, bool)), "won may only be true once"),
        (Breaker(avail=np.zeros((1, 2, 3), bool)), "must have an available action"),
        *((Reuser(name), "An observation must not change") for name in Reuser.NAMES),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_checker_names_a_broken_rule(env: Breaker, rule: str) -> None:
    assert any(rule in fault for fault in check_env(env, steps=5))


def test_random_actions_are_available_and_reach_every_choice() -> None:
    avail = np.zeros((400, 2, 5), bool)
    avail[:, 0, [1, 4]] = True
    avail[:, 1, 3] = True
    actions = random_actions(avail, np.random.default_rng(0))
    assert set(actions[:, 0]) == {1, 4}
    assert set(actions[:, 1]) == {3}
