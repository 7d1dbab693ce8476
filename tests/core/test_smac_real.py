"""The public packages themselves, in their interpreter, with a scripted game at the other end of their protocol.

They are in the interpreter that EMTC_TEST_SMAC_PYTHON names, or in the one that `emtc_core.envs.smac.install` made.
"""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from emtc_core.envs.checker import check_env
from emtc_core.envs.smac import game_link
from emtc_core.envs.smac.env import HOW_TO_GET, SmacEnv
from emtc_core.envs.smac.game_link import GameLink, GameSpec
from emtc_core.envs.smac.maps import SMAC_MAPS, SMACV2_MAPS, smac_arguments, smacv2_arguments
from tests.core.smac_machine import ROOT
from tests.reference.smac_play import choose
from tests.require import require

REAL = Path(os.environ.get("EMTC_TEST_SMAC_PYTHON", game_link.default_python()))


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Wrap the packages' interpreter so that a scripted game stands where StarCraft II would."""
    missing = REAL.is_file() and (
        game_link.find_package_obstacle(REAL, "smac") or game_link.find_package_obstacle(REAL, "smacv2")
    )
    require("smac", REAL.is_file() and not missing, missing or f"no interpreter {REAL}; run: {HOW_TO_GET}")
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("from tests.reference.sc2_client import install\ninstall()\n")
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH="{site}:{ROOT}" exec "{REAL}" "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


def make(python: Path, package: str, map: str, n_envs: int = 1) -> SmacEnv:
    arguments = smac_arguments(map) if package == "smac" else smacv2_arguments(map)
    play = GameSpec(package, map, arguments)
    return SmacEnv(lambda: GameLink(python, play), env=package, map=map, n_envs=n_envs, draw=lambda *_: None)  # pyright: ignore


@pytest.mark.parametrize("map", ["3m", "2s3z"])
@pytest.mark.parametrize(("damage", "fight", "end"), [("0.3", True, "won"), ("2", True, "lost"), ("0", False, "cut")])
def test_it_shows_what_the_package_shows_step_by_step(python, monkeypatch, tmp_path, map, damage, fight, end):
    monkeypatch.setenv("SC2_SCRIPT", f"{map}:{damage}")
    script, out = ROOT / "tests" / "reference" / "smac_play.py", tmp_path / "truth.npz"
    command = [str(python), str(script), map, "2", str(fight), str(out)]
    subprocess.run(command, check=True, env=game_link.isolated_environ(), capture_output=True)
    truth, env, at = np.load(out), make(python, "smac", map, 2), 0
    for episode in range(2):
        seen, start = env.reset(episode), at
        while True:
            assert seen.obs[1].tobytes() == truth["obs"][at].astype(np.float32).tobytes()
            assert seen.state[1].tobytes() == truth["state"][at].astype(np.float32).tobytes()
            np.testing.assert_array_equal(seen.avail[1], truth["avail"][at].astype(bool))
            assert seen.reward[1] == np.float32(truth["reward"][at])
            over = bool(seen.terminated[1] | seen.truncated[1])
            assert (over, seen.won[1], seen.truncated[1]) == (truth["over"][at], truth["won"][at], truth["cut"][at])
            at += 1
            if over:
                break
            seen = env.step(np.stack([choose(avail, fight) for avail in seen.avail]))
        assert at - start >= 5
        assert end == ("won" if seen.won[1] else "cut" if seen.truncated[1] else "lost")
    assert at == len(truth["over"])
    env.close()


@pytest.mark.parametrize(
    ("package", "map"), [("smac", "3m"), *(("smacv2", f"{race}_5_vs_5") for race in ("terran", "protoss", "zerg"))]
)
def test_it_keeps_the_contract(python, monkeypatch, package, map):
    monkeypatch.setenv("SC2_SCRIPT", f"{map}:0.3")
    env = make(python, package, map, 2)
    assert check_env(env, steps=150, reproducible=False) == []
    env.close()


def test_every_map_has_the_sizes_that_its_package_tells(python, monkeypatch):
    monkeypatch.setenv("SC2_SCRIPT", "3m:1")
    links = [GameLink(python, GameSpec("smac", map, smac_arguments(map))) for map in SMAC_MAPS]
    links += [GameLink(python, GameSpec("smacv2", map, smacv2_arguments(map))) for map in SMACV2_MAPS]
    for link, known in zip(links, [*SMAC_MAPS.values(), *SMACV2_MAPS.values()], strict=True):
        link.receive_hello()
        link.request_make(0)
        assert link.receive_sizes() == known.sizes()
        link.kill()


def test_teams_and_places_of_smacv2_follow_the_seed(python, monkeypatch):
    monkeypatch.setenv("SC2_SCRIPT", "terran:0.3")

    def starts(seed: int) -> list[bytes]:
        env = make(python, "smacv2", "terran_10_vs_11")
        states = [env.reset(seed).state[0].tobytes() for _ in range(4)]
        env.close()
        return states

    first = starts(1)
    assert len(set(first)) == 4
    assert starts(1) == first
    assert not set(starts(2)) & set(first)
