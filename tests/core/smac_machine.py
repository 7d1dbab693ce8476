"""A machine on which StarCraft's parts are installed one after the other, the packages being doubles."""

import stat
import sys
import time
from pathlib import Path

import psutil
import pytest

from emtc_core.config.train import EnvConfig
from emtc_core.envs.registry import make_env
from emtc_core.envs.smac import game_link
from emtc_core.envs.smac.env import SmacEnv
from tests.core.smac_double import DOES_VARIABLE, LOG_VARIABLE

ROOT = Path(__file__).resolve().parents[2]


class Machine:
    """A machine on which things are installed one after the other, with an interpreter for the game of its own."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch):
        self.folder, self.patch = folder, patch
        self.site, self.game, self.python = folder / "site", folder / "StarCraftII", folder / "python"
        self.log = folder / "double.log"
        self.site.mkdir()
        patch.setenv("SC2PATH", str(self.game))
        patch.setenv(LOG_VARIABLE, str(self.log))
        patch.setenv("VIRTUAL_ENV", "x")  # one of the variables that the game's interpreter must not get
        isolated = f'PYTHONPATH="{self.site}:{ROOT}" exec "{sys.executable}" "$@"'
        self.make_python(f'[ -z "$PYTHONPATH$VIRTUAL_ENV" ] || exit 9\n{isolated}')
        patch.setenv(game_link.PYTHON_VARIABLE, str(self.python))

    def make_python(self, script: str) -> None:
        self.python.write_text(f"#!/bin/sh\n{script}\n")
        self.python.chmod(self.python.stat().st_mode | stat.S_IXUSR)
        game_link._check_results.clear()

    def package(self, *path: str, text: str = "") -> None:
        folder = self.site
        for part in path:
            folder = folder / part
            folder.mkdir(exist_ok=True)
            (folder / "__init__.py").touch()
        (folder / "__init__.py").write_text(text)
        game_link._check_results.clear()

    def install_all(self, *maps: str) -> None:
        self.package("smac", "env", "starcraft2")
        self.package("smac", "env", text="from tests.core.smac_double import StarCraft2Env\n")
        self.package("smacv2", "env", "starcraft2")
        (self.site / "smacv2" / "env" / "starcraft2" / "distributions.py").touch()
        wrapper = self.site / "smacv2" / "env" / "starcraft2" / "wrapper.py"
        wrapper.write_text("from tests.core.smac_double import StarCraftCapabilityEnvWrapper\n")
        self.package("pysc2")
        (self.game / "Versions").mkdir(parents=True)
        self.add_maps(*maps)

    def add_maps(self, *maps: str) -> None:
        folder = self.game / "Maps" / "SMAC_Maps"
        folder.mkdir(parents=True, exist_ok=True)
        for name in maps:
            (folder / f"{name}.SC2Map").touch()

    def make(self, map: str = "3m", n_envs: int = 1, *, does: str = "", env: str = "smac") -> SmacEnv:
        self.patch.setenv(DOES_VARIABLE, does)
        made = make_env(EnvConfig(name=env, map=map), n_envs=n_envs)
        assert isinstance(made, SmacEnv)
        return made

    def events(self, word: str) -> list[list[str]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line.split() for line in lines if line.split()[1] == word]


def wait_until_gone(pid: int, seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False
