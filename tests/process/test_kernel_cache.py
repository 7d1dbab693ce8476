"""A read-only installation without a home folder: numba has no folder for compiled kernels."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from emtc_core.errors import ConfigError
from emtc_core.kernel_cache import check_kernel_cache

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy in which a file takes the place of each `__pycache__`: also root cannot write there."""
    folder = tmp_path_factory.mktemp("installation")
    for package in ("app", "emtc_core", "storage"):
        unneeded = shutil.ignore_patterns("__pycache__", "*.emtc", "*.png")
        shutil.copytree(ROOT / package, folder / package, ignore=unneeded)
        for part in [folder / package, *(path for path in (folder / package).rglob("*") if path.is_dir())]:
            (part / "__pycache__").touch()
    return folder


def emtc(installation: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    home = str(installation / "app" / "__pycache__")
    env = os.environ | {"PYTHONPATH": str(installation), "HOME": home, "XDG_CACHE_HOME": home, "NUMBA_CACHE_DIR": ""}
    command = [sys.executable, "-m", "app.cli.main", *arguments]
    return subprocess.run(command, cwd=installation, env=env, capture_output=True, text=True)


def test_a_command_that_needs_kernels_is_refused_before_anything_is_created(installation: Path) -> None:
    done = emtc(installation, "train", "--map", "3m", "--db", str(installation / "x.db"))
    assert done.returncode == 2
    assert "Set NUMBA_CACHE_DIR to a writable folder." in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (installation / "x.db").exists()


def test_the_folder_in_the_variable_is_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("emtc_core.kernel_cache.find_spec", lambda package: None)
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    with pytest.raises(ConfigError, match="NUMBA_CACHE_DIR"):
        check_kernel_cache()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))
    check_kernel_cache()
