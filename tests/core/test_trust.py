"""A row of a foreign database names a module: nothing is imported unless this machine lists it."""

import sys
from pathlib import Path

import numpy as np
import pytest

from emtc_core.config.train import EnvConfig
from emtc_core.envs import trust
from emtc_core.envs.registry import check_trusted, make_scene
from emtc_core.errors import EnvUnavailableError

STATES = np.zeros((5, 4), np.float32)


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module beside the user that leaves a mark when it is imported; returns where the mark would be."""
    mark = tmp_path / "imported"
    (tmp_path / "trap_of_a_row.py").write_text(f"open({str(mark)!r}, 'w').close()\ndef make(): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("EMTC_ENV_MODULES", raising=False)
    yield mark
    sys.modules.pop("trap_of_a_row", None)


def test_a_replay_imports_no_module_that_only_a_row_names(trap: Path):
    scene = make_scene("pettingzoo", "trap_of_a_row:make", STATES)
    assert not trap.exists()
    assert "trap_of_a_row" not in sys.modules
    assert scene.position.shape == (5, 0, 2)
    assert "EMTC_ENV_MODULES of this machine does not list it" in scene.note


def test_a_listed_module_is_imported(trap: Path, monkeypatch):
    monkeypatch.setenv("EMTC_ENV_MODULES", "other, trap_of_a_row:make")
    assert "cannot draw its states" in make_scene("pettingzoo", "trap_of_a_row:make", STATES).note
    assert trap.exists()


@pytest.mark.parametrize(
    ("listed", "map", "allowed"),
    [
        ("", "os:getcwd", False),
        ("games", "games:make", True),
        ("games", "games.chess:make", True),
        ("games", "games_of_others:make", False),
        ("games.chess", "games:make", False),
        ("a b,c", "b:make", True),
        (":", ":make", False),
        ("", "emtc_core.envs.pettingzoo_export:parallel_env", True),
        ("", "emtc_core.training.trainer:Trainer", False),
    ],
)
def test_a_listed_package_brings_its_modules_and_nothing_else(monkeypatch, listed: str, map: str, allowed: bool):
    monkeypatch.setenv("EMTC_ENV_MODULES", listed)
    assert trust.is_allowed(map) is allowed


def test_only_environments_that_import_are_asked_for(monkeypatch):
    monkeypatch.delenv("EMTC_ENV_MODULES", raising=False)
    check_trusted(EnvConfig(map="3m"))
    with pytest.raises(EnvUnavailableError, match="EMTC_ENV_MODULES") as caught:
        check_trusted(EnvConfig(name="pettingzoo", map="os:getcwd"))
    assert "EMTC_ENV_MODULES=os" in str(caught.value)


def test_what_a_user_types_is_allowed_for_this_process_and_its_children(monkeypatch):
    monkeypatch.setenv("EMTC_ENV_MODULES", "games")
    trust.allow("mine:make")
    check_trusted(EnvConfig(name="pettingzoo", map="mine:make"))
    check_trusted(EnvConfig(name="pettingzoo", map="games:make"))
