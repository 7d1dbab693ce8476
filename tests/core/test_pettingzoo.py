"""PettingZoo in both directions: anyone's environment here, skirmish as one of theirs."""

import math
from pathlib import Path

import numpy as np
import pytest
from pettingzoo.test import parallel_api_test, parallel_seed_test

from emtc_core.arrays import derive_seed
from emtc_core.config.train import EnvConfig, PettingZooConfig
from emtc_core.envs.base import VectorEnv
from emtc_core.envs.checker import random_actions
from emtc_core.envs.pettingzoo_export import parallel_env
from emtc_core.envs.registry import make_env, make_scene
from emtc_core.errors import EnvDataError, EnvUnavailableError
from emtc_core.rollout.collector import Collector
from tests.core.zoo_example import Corridor

HERE = "tests.core.zoo_example"
WIN = np.array([[1, 1]])  # both walk right by one cell


def load(factory: str, *, n_envs: int = 1, **settings: object) -> VectorEnv:
    config = EnvConfig(name="pettingzoo", map=f"{HERE}:{factory}", pettingzoo=PettingZooConfig.model_validate(settings))
    return make_env(config, n_envs=n_envs)


@pytest.mark.parametrize(("factory", "state"), [("make_with_state", [1, 1, 1]), ("make", [1, 0, 1, 1])])
def test_the_state_is_the_environments_own_or_all_observations(factory: str, state: list[float]):
    env = load(factory)
    env.reset(0)
    seen = env.step(WIN)
    assert seen.state.tolist() == [state]


def test_masks_come_from_infos_and_missing_actions_are_never_available():
    env = load("make")
    seen = env.reset(0)
    assert seen.avail[0].tolist() == [[True, True, False], [True, True, False]]
    seen = env.step(WIN)
    assert seen.avail[0].tolist() == [[True, True, False], [True, True, True]]


def test_an_agent_that_left_observes_nothing_and_can_do_nothing():
    env = load("make")
    seen = env.reset(0)
    for _ in range(4):
        seen = env.step(np.where(seen.avail[..., 1], 1, 0))
    assert seen.avail[0, 0].tolist() == [True, False, False]
    assert seen.obs[0, 0].tolist() == [0, 0]
    assert not seen.terminated[0]


@pytest.mark.parametrize(("rule", "reward"), [("mean", 0.25), ("sum", 0.5)])
def test_the_teams_reward_is_the_mean_or_the_sum(rule: str, reward: float):
    env = load("make", team_reward=rule)
    env.reset(0)
    assert env.step(WIN).reward[0] == reward


def test_an_episode_is_won_when_an_agents_info_says_so():
    env = load("make")
    seen = env.reset(0)
    while not (seen.terminated | seen.truncated)[0]:
        assert not seen.won[0]
        seen = env.step(np.where(seen.avail[..., 1], 1, 0))
    assert seen.terminated[0]
    assert seen.won[0]


@pytest.mark.parametrize(
    ("settings", "length"), [({}, 30), ({"episode_limit": 7}, 7)], ids=["its own", "env.pettingzoo"]
)
def test_a_time_limit_truncates_every_episode(settings: dict[str, int], length: int):
    env, lengths = load("make", **settings), []
    for _ in range(2):
        seen, t = env.reset(0), 0
        while not (seen.terminated | seen.truncated)[0]:
            seen, t = env.step(np.zeros((1, 2), int)), t + 1
        assert seen.truncated[0]
        lengths.append(t)
    assert lengths == [length, length]


def test_a_replay_does_not_import_the_module_and_shows_the_state_values():
    scene = make_scene("pettingzoo", "no_such_module:make", np.ones((5, 4), np.float32))
    assert scene.position.shape == (5, 0, 2)
    assert scene.note == "No picture for this environment."
    assert scene.values is not None


@pytest.mark.parametrize(
    ("map", "word"),
    [
        ("no_colon", "no_colon"),
        ("..:make", r"\.\.:make"),
        ("a game:make", "a game:make"),
        ("no_such_module:make", "no_such_module"),
        (f"{HERE}:missing", "missing"),
        (f"{HERE}:not_callable", "not_callable"),
        (f"{HERE}:make_continuous", "discrete"),
        (f"{HERE}:make_turns", "make_turns"),
        ("os:getcwd", "os:getcwd"),
        ("zoo_of_faults:make", r"env\.map"),
    ],
)
def test_an_unusable_map_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, map: str, word: str):
    (tmp_path / "zoo_of_faults.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EnvUnavailableError, match=word):
        make_env(EnvConfig(name="pettingzoo", map=map), n_envs=1)


class TestExport:
    def test_skirmish_passes_pettingzoos_own_tests(self):
        parallel_api_test(parallel_env("3m"), num_cycles=200)
        parallel_seed_test(lambda: parallel_env("3m"), num_cycles=50)

    def test_an_exported_environment_comes_back_as_the_original(self):
        there = EnvConfig(name="pettingzoo", map="emtc_core.envs.pettingzoo_export:parallel_env")
        back, original = make_env(there, n_envs=1), make_env(EnvConfig(map="3m"), n_envs=1)
        rng = np.random.default_rng(0)
        a, b = back.reset(4), original.reset(derive_seed(4, "pettingzoo", 0))
        while not (b.terminated | b.truncated)[0]:
            np.testing.assert_array_equal(a.obs, b.obs)
            np.testing.assert_array_equal(a.state, b.state)
            np.testing.assert_array_equal(a.avail, b.avail)
            actions = random_actions(b.avail, rng)
            a, b = back.step(actions), original.step(actions)
            np.testing.assert_allclose(a.reward, b.reward, rtol=1e-6)
        assert (a.terminated[0], a.truncated[0], a.won[0]) == (b.terminated[0], b.truncated[0], b.won[0])


@pytest.mark.parametrize("agent", ["guest", "short"])
def test_an_agent_that_is_not_declared_or_has_no_observation_is_named(monkeypatch: pytest.MonkeyPatch, agent: str):
    class Faulty(Corridor):
        def step(self, actions):
            observations, *rest = super().step(actions)
            if self._t == 2 and agent == "guest":
                self.agents.append("guest")
            elif self._t == 2:
                del observations["short"]
            return observations, *rest

    monkeypatch.setattr("tests.core.zoo_example.Corridor", Faulty)
    env = load("make")
    env.reset(0)
    stay = np.array([[0, 0]])
    env.step(stay)
    with pytest.raises(EnvDataError, match=agent):
        env.step(stay)


@pytest.mark.parametrize(
    ("field", "step", "fault"),
    [("reward", 3, math.nan), ("obs", 3, math.nan), ("state", 1, math.inf)],
    ids=["reward", "observation", "state"],
)
def test_a_value_that_is_not_finite_is_an_error_of_the_environment(field: str, step: int, fault: float):
    env = load("make", n_envs=2)

    class Faulty:
        info, n_envs, n_steps = env.info, 2, 0

        def reset(self, seed):
            self.n_steps = 0
            return env.reset(seed)

        def step(self, actions):
            self.n_steps += 1
            result = env.step(actions)
            if self.n_steps == step:
                getattr(result, field)[1] = fault
            return result

    class Walkers:
        def start_episodes(self, n_envs):
            pass

        def act(self, obs, avail, *, epsilon, rng):
            return random_actions(avail, rng)

    collector = Collector(Faulty(), reward_scale=1.0, seed=0, stream="test")
    names = {"obs": "observation"}
    with pytest.raises(EnvDataError, match=names.get(field, field)) as caught:
        collector.collect(Walkers(), epsilon=0.0, round=(0,))
    assert f"step {step}" in str(caught.value)
