"""The adapter of StarCraft II: what it says when something is missing, and that it adds nothing of its own."""

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from emtc_core.config.env import EnvConfig
from emtc_core.envs.base import VectorEnv
from emtc_core.envs.checker import check_env, random_actions
from emtc_core.envs.registry import doctor_rows, get_env_info, list_envs, make_env, make_scene
from emtc_core.envs.smac import SmacEnv, find_obstacle
from emtc_core.errors import EnvUnavailableError
from emtc_core.seeding import derive_seed
from tests.core.smac_double import StarCraft2Env
from tests.require import require

PAPER = {
    "1c3s5z": (270, 15), "3s5z": (216, 14), "3s_vs_5z": (68, 11), "5m_vs_6m": (98, 12), "MMM2": (322, 18),
    "6h_vs_8z": (140, 14), "3s5z_vs_3s6z": (230, 15), "corridor": (282, 30),
}  # fmt: skip


class Machine:
    """A machine on which things are installed one after the other."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch):
        self.site, self.game = folder / "site", folder / "StarCraftII"
        self.site.mkdir()
        patch.syspath_prepend(str(self.site))
        patch.setenv("SC2PATH", str(self.game))

    def package(self, *path: str, text: str = "") -> None:
        folder = self.site
        for part in path:
            folder = folder / part
            folder.mkdir(exist_ok=True)
            (folder / "__init__.py").touch()
        (folder / "__init__.py").write_text(text)

    def install_all(self, *maps: str) -> None:
        self.package("smac", "env", "starcraft2")
        self.package("smac", "env", "starcraft2", "maps")
        registry = self.site / "smac" / "env" / "starcraft2" / "maps" / "smac_maps.py"
        registry.write_text("def get_smac_map_registry():\n    return {'3m': {}, '25m': {}}\n")
        self.package("smac", "env", text="from tests.core.smac_double import StarCraft2Env\n")
        self.package("pysc2")
        (self.game / "Versions").mkdir(parents=True)
        folder = self.game / "Maps" / "SMAC_Maps"
        folder.mkdir(parents=True)
        for name in maps:
            (folder / f"{name}.SC2Map").touch()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    real = forget_packages()
    yield Machine(tmp_path, monkeypatch)
    forget_packages()
    sys.modules.update(real)


def forget_packages() -> dict[str, ModuleType]:
    """Take the game's packages out of the import system and hand them back."""
    names = [name for name in sys.modules if name.split(".")[0] in ("smac", "pysc2")]
    return {name: sys.modules.pop(name) for name in names}


@pytest.mark.parametrize(("map", "sizes"), PAPER.items())
def test_sizes_of_the_papers_maps_are_known_without_the_game(map: str, sizes: tuple[int, int]):
    info = get_env_info(EnvConfig(name="smac", map=map))
    assert info is not None
    assert (info.state_dim, info.n_actions) == sizes
    rows = {row.map: row for row in list_envs() if row.env == "smac"}
    assert (rows[map].state_dim, rows[map].n_actions) == sizes


class TestWhatIsMissing:
    def test_the_optimiser_of_that_name_is_recognised(self, machine: Machine):
        machine.package("smac", "facade")
        assert "hyperparameter optimiser" in find_obstacle()

    def test_then_the_engine_binding_then_the_game_then_the_maps(self, machine: Machine):
        machine.package("smac", "env", "starcraft2")
        if find_spec("pysc2") is None:
            assert find_obstacle() == "the package pysc2 is not installed."
        machine.package("pysc2")
        assert find_obstacle() == f"StarCraft II is not in {machine.game} (SC2PATH)."
        (machine.game / "Versions").mkdir(parents=True)
        assert "SMAC's maps are not in" in find_obstacle()
        (machine.game / "Maps").mkdir()
        (machine.game / "Maps" / "3m.SC2Map").touch()
        assert find_obstacle() == ""

    def test_the_refusal_names_what_is_missing_and_every_step(self, machine: Machine):
        machine.package("smac", "facade")
        with pytest.raises(EnvUnavailableError, match="optimiser") as refusal:
            make_env(EnvConfig(name="smac", map="3m"), n_envs=1)
        for step in ("pip uninstall -y smac", "oxwhirl/smac.git", "4.10", "SC2PATH", "SMAC_Maps"):
            assert step in str(refusal.value)

    def test_a_single_missing_map_is_named(self, machine: Machine):
        machine.install_all("3m")
        with pytest.raises(EnvUnavailableError, match=r"cannot find 8m\.SC2Map"):
            make_env(EnvConfig(name="smac", map="8m"), n_envs=1)

    def test_the_doctor_has_a_line_for_it(self, machine: Machine):
        machine.install_all("3m")
        assert {row.env: row.usable for row in doctor_rows()}["smac"]


class TestInstalled:
    def test_maps_beyond_the_papers_come_from_the_package(self, machine: Machine):
        machine.install_all("3m")
        rows = {row.map: row for row in list_envs() if row.env == "smac"}
        assert rows["25m"].available
        assert rows["25m"].obs_dim is None

    def test_it_keeps_the_contract(self, machine: Machine):
        machine.install_all("3m")
        env = make_env(EnvConfig(name="smac", map="3m"), n_envs=3)
        assert env.info == get_env_info(EnvConfig(name="smac", map="3m"))
        assert check_env(env, steps=150, reproducible=False) == []
        env.close()
        env.close()

    def test_it_shows_what_the_game_shows(self):
        env = SmacEnv(lambda seed: StarCraft2Env("2s3z", seed, continuing_episode=True), map="2s3z", n_envs=2)
        game = StarCraft2Env("2s3z", derive_seed(4, "smac", 1), continuing_episode=True)
        seen, rng, over = env.reset(4), np.random.default_rng(0), False
        game.reset()
        while not over:
            np.testing.assert_array_equal(seen.obs[1], np.stack(game.get_obs()))
            np.testing.assert_array_equal(seen.state[1], game.get_state())
            np.testing.assert_array_equal(seen.avail[1], np.array(game.get_avail_actions(), bool))
            actions = random_actions(seen.avail, rng)
            seen = env.step(actions)
            reward, over, info = game.step(actions[1].tolist())
            assert seen.reward[1] == np.float32(reward)
        assert seen.won[1] == info["battle_won"]
        assert seen.truncated[1] == info.get("episode_limit", False)
        env.close()

    def test_a_reset_in_the_first_battle_does_not_launch_a_second_game(self):
        StarCraft2Env.launched = 0
        env = SmacEnv(lambda seed: StarCraft2Env("3m", seed), map="3m", n_envs=1)
        env.reset(0)
        env.reset(0)
        assert StarCraft2Env.launched == 1
        env.close()

    def test_a_broken_connection_truncates_and_is_not_won(self):
        class Broken(StarCraft2Env):
            def step(self, actions):
                return 0, True, {}

        env = SmacEnv(lambda seed: Broken("3m", seed), map="3m", n_envs=1)
        seen = env.reset(0)
        seen = env.step(random_actions(seen.avail, np.random.default_rng(0)))
        assert seen.truncated[0]
        assert not seen.terminated[0]
        assert not seen.won[0]
        env.close()


def test_replays_are_drawn_from_states_alone():
    states = make_env(EnvConfig(map="3m"), n_envs=1).reset(0).state
    scene = make_scene("smac", "3m", states)
    assert scene.note == "StarCraft II."
    assert len(scene.kind) == 6
    assert make_scene("smac", "3m", states).walkable is None


@pytest.fixture
def real_package():
    missing = [name for name in ("smac", "pysc2", "s2clientprotocol") if find_spec(name) is None]
    require("smac", not missing, f"not installed: {', '.join(missing)}")


@pytest.mark.usefixtures("real_package")
class TestRealPackageOverAScriptedClient:
    """The public package itself, with a scripted game at the other end of its protocol."""

    @staticmethod
    def script(monkeypatch: pytest.MonkeyPatch, map: str, enemy_damage: float):
        from smac.env.starcraft2 import starcraft2 as module

        from tests.reference.sc2_client import ScriptedRunConfig

        config = ScriptedRunConfig(map, enemy_damage)
        monkeypatch.setattr(module.run_configs, "get", lambda version=None: config)
        return module.StarCraft2Env, config

    @pytest.mark.parametrize("map", ["3m", "2s3z"])
    @pytest.mark.parametrize(("enemy_damage", "fights", "end"), [(0.3, 1, "won"), (2, 1, "lost"), (0, 0, "cut")])
    def test_it_agrees_with_the_package_step_by_step(self, monkeypatch, map, enemy_damage, fights, end):
        starcraft, _ = self.script(monkeypatch, map, enemy_damage)
        env = SmacEnv(lambda seed: starcraft(map, seed=seed, continuing_episode=True), map=map, n_envs=2)
        assert env.info == get_env_info(EnvConfig(name="smac", map=map))
        game, rng = starcraft(map_name=map), np.random.default_rng(1)
        for _ in range(2):
            seen, over = env.reset(0), False
            game.reset()
            while not over:
                np.testing.assert_array_equal(seen.obs[0], np.stack(game.get_obs()))
                np.testing.assert_array_equal(seen.state[0], game.get_state().astype(np.float32))
                np.testing.assert_array_equal(seen.avail[0], np.array(game.get_avail_actions(), bool))
                actions = self.aggressive(seen.avail, rng) if fights else np.where(seen.avail[..., 1], 1, 0)
                actions[1] = actions[0]
                seen = env.step(actions)
                reward, over, info = game.step(actions[0].tolist())
                assert seen.reward[0] == np.float32(reward)
                assert (seen.terminated | seen.truncated)[0] == over
            assert seen.won[0] == info["battle_won"]
            assert end == ("won" if seen.won[0] else "cut" if seen.truncated[0] else "lost")
        env.close()
        game.close()

    def test_it_keeps_the_contract(self, monkeypatch):
        starcraft, config = self.script(monkeypatch, "3m", 0.3)
        env: VectorEnv = SmacEnv(lambda seed: starcraft("3m", seed=seed, continuing_episode=True), map="3m", n_envs=2)
        assert check_env(env, steps=150, reproducible=False) == []
        env.close()
        assert len(config.games) == 2
        assert all(game.closed for game in config.games)

    @staticmethod
    def aggressive(avail: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Shoot where possible, otherwise mostly walk east."""
        shots = avail.copy()
        shots[..., :6] = False
        can_shoot = shots.any(axis=-1)
        walk = np.where(avail[..., 4] & (rng.random(avail.shape[:2]) < 0.7), 4, random_actions(avail, rng))
        return np.where(can_shoot, random_actions(shots, rng), walk)
