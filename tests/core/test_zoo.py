"""Wrapped games of PettingZoo: their sizes as told, their rules as made, their pictures as they are."""

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

from emtc_core.config.resolve import resolve
from emtc_core.config.train import EnvConfig
from emtc_core.envs.base import VectorEnv
from emtc_core.envs.checker import check_env, random_actions
from emtc_core.envs.registry import check_trusted, get_env_info, list_envs, make_env, make_scene
from emtc_core.envs.zoo import examples
from emtc_core.envs.zoo.examples import EXAMPLES
from emtc_core.envs.zoo.wrapped import DiscreteActions, RecreateAtReset, SmallPictures, WonAtEnd, shrink
from emtc_core.errors import EnvUnavailableError
from tests.require import require_game

WON = ("butterfly:pistonball", "sisl:pursuit")
PICTURES = [map for map, example in EXAMPLES.items() if example.picture]


def load(map: str) -> VectorEnv:
    require_game(map)
    return make_env(EnvConfig(name="pettingzoo", map=map), n_envs=1)


def play(env: VectorEnv, steps: int) -> tuple[np.ndarray, list]:
    rng = np.random.default_rng(0)
    seen = [env.reset(3)]
    while len(seen) <= steps and not (seen[-1].terminated | seen[-1].truncated)[0]:
        seen.append(env.step(random_actions(seen[-1].avail, rng)))
    return np.stack([each.state[0] for each in seen]), seen


@pytest.mark.parametrize("map", EXAMPLES)
def test_a_wrapped_game_has_the_sizes_that_are_told_and_keeps_the_contract(map: str):
    env = load(map)
    told = get_env_info(EnvConfig(name="pettingzoo", map=map))
    assert told is not None
    for name in ("n_agents", "n_actions", "obs_dim", "state_dim"):
        assert getattr(env.info, name) == getattr(told, name), name
    assert len(told.action_names) in (0, told.n_actions)
    assert check_env(env, steps=30, seed=1) == []
    env.close()


@pytest.mark.parametrize("map", EXAMPLES)
def test_a_wrapped_game_has_a_rule_for_success_and_may_be_drawn(map: str):
    check_trusted(EnvConfig(name="pettingzoo", map=map))
    config = resolve(env="pettingzoo", map=map)
    assert config.env.pettingzoo.episode_limit == EXAMPLES[map].sizes[4]
    assert config.memory.success == ("flag" if map in WON else "return_threshold")
    states = np.random.default_rng(0).random((6, EXAMPLES[map].sizes[3]), np.float32)
    scene = make_scene("pettingzoo", map, states)
    assert scene.position.size or scene.values is states
    assert scene.picture == EXAMPLES[map].picture


@pytest.mark.parametrize("map", PICTURES)
def test_what_agents_see_changes_as_they_play(map: str):
    env = load(map)
    states, seen = play(env, 12)
    assert states.std(axis=0).max() > 0
    assert any((each.obs != seen[0].obs).any() for each in seen)
    env.close()


def test_landmarks_stay_where_they_are_and_agents_move():
    env = load("mpe2:simple_spread")
    scene = env.scene(play(env, 25)[0])
    assert scene.kind == ("agent",) * 3 + ("landmark",) * 3
    np.testing.assert_allclose(scene.position[:, 3:], scene.position[:1, 3:].repeat(26, axis=0), atol=1e-5)
    assert np.ptp(scene.position[:, :3], axis=0).max() > 0.5
    env.close()


def test_who_is_not_there_is_outside_the_field_and_agents_lie_where_they_fell():
    states = np.zeros((4, 26, 4), np.float32)
    states[:2, 0] = (0.5, 0.25, 0, 1)  # an archer that falls after frame 1
    states[2:, 16] = (0.25, 0.75, 0, 1)  # a zombie that comes in frame 2
    scene = make_scene("pettingzoo", "butterfly:knights_archers_zombies", states.reshape(4, -1))
    assert scene.alive[:, 0].tolist() == [True, True, False, False]
    np.testing.assert_allclose(scene.position[:, 0], [[16, 13.5]] * 4)
    assert scene.kind[16] == "zombie"
    np.testing.assert_allclose(scene.position[:, 16], [[-5, -5], [8, 4.5], [8, 4.5], [8, 4.5]])


def test_a_missing_package_is_named_with_the_command_that_brings_it(monkeypatch):
    monkeypatch.setattr(examples, "find_spec", lambda name: None if name == "mpe2" else object())
    assert "mpe2:simple_spread" not in examples.list_installed()
    with pytest.raises(EnvUnavailableError, match="pettingzoo") as caught:
        make_env(EnvConfig(name="pettingzoo", map="mpe2:simple_spread"), n_envs=1)
    assert "mpe2" in caught.value.message
    assert "zoo" in caught.value.hint


def test_a_mistyped_game_is_answered_with_the_closest():
    with pytest.raises(EnvUnavailableError, match="mpe2:simple_spread"):
        check_trusted(EnvConfig(name="pettingzoo", map="mpe:simple_spread"))


def test_installed_games_are_listed_with_their_sizes(monkeypatch):
    monkeypatch.setattr(examples, "find_spec", lambda name: object())
    rows = {row.map: row for row in list_envs() if row.env == "pettingzoo"}
    for map, example in EXAMPLES.items():
        assert (rows[map].n_agents, rows[map].n_actions) == example.sizes[:2]


def test_shrinking_averages_grey_blocks():
    picture = np.zeros((5, 4, 3), np.uint8)
    picture[:2, :2] = 255
    picture[2:4, 2:, 0] = 255  # red
    np.testing.assert_allclose(shrink(picture, 2), [[1, 0], [0, 0.299]], atol=1e-6)
    noisy = np.random.default_rng(0).integers(0, 256, (60, 90, 3), np.uint8)
    grey = (noisy / 255) @ [0.299, 0.587, 0.114]
    slow = [[grey[20 * i : 20 * i + 20, 30 * 0 + 20 * j : 20 * j + 20].mean() for j in range(4)] for i in range(3)]
    np.testing.assert_allclose(shrink(noisy, 20), slow, atol=1e-5)
    np.testing.assert_allclose(shrink(np.rot90(noisy), 20).shape, (4, 3))


class Toy(ParallelEnv):
    """One agent pushes; the screen shows the push; a push of 1 ends the game."""

    metadata = {"name": "toy_v0", "render_modes": []}  # noqa: RUF012 (PettingZoo's form)
    made = 0

    def __init__(self, wide: int = 4):
        type(self).made += 1
        self.possible_agents = ["a"]
        self.agents = []
        self._spaces = spaces.Box(0, 255, (4, wide, 3), np.uint8), spaces.Box(-1, 1, (1,), np.float32)

    def observation_space(self, agent):
        return self._spaces[0]

    def action_space(self, agent):
        return self._spaces[1]

    def reset(self, seed=None, options=None):
        self.agents = ["a"]
        return {"a": np.zeros((4, 4, 3), np.uint8)}, {"a": {}}

    def step(self, actions):
        push = float(actions["a"][0])
        over, cut = push == 1, push == -1
        self.agents = [] if over or cut else ["a"]
        screen = np.full((4, 4, 3), 255 * abs(push), np.uint8)
        return {"a": screen}, {"a": push}, {"a": over}, {"a": cut}, {"a": {"pushed": push}}


def test_numbers_stand_for_chosen_actions_and_an_end_that_is_no_cut_is_won():
    env = WonAtEnd(DiscreteActions(SmallPictures(Toy(), block=2), choices=[[-1], [0.5], [1]]))
    assert env.action_space("a") == spaces.Discrete(3)
    assert env.observation_space("a").shape == (2, 2)
    for action, push, won in ((1, 0.5, False), (2, 1.0, True)):
        env.reset(seed=1)
        seen, rewards, _, _, infos = env.step({"a": action})
        assert (rewards["a"], infos["a"]) == (push, {"pushed": push, "won": won})
        assert seen["a"].shape == (2, 2)
    env.reset()
    assert env.step({"a": 0})[4]["a"]["won"] is False


def test_a_game_is_made_anew_at_every_reset():
    env = RecreateAtReset(Toy)
    before = Toy.made
    env.reset(seed=1)
    env.reset(seed=2)
    assert Toy.made == before + 2


@pytest.mark.parametrize(
    ("wrap", "name"),
    [
        (lambda: SmallPictures(Toy(), block=9), r"\b9\b"),
        (lambda: DiscreteActions(Toy(), choices=[[2]]), r"\bchoices?\b"),
        (
            lambda: SmallPictures(DiscreteActions(SmallPictures(Toy(), block=2), choices=[[0]]), block=2),
            "SmallPictures",
        ),
    ],
)
def test_a_wrapper_that_does_not_fit_is_a_sentence(wrap, name):
    with pytest.raises(ValueError, match=name):
        wrap()
