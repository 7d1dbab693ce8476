"""`import emtc_lab` offers the public names, and names the file that hides a package of the project."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FACE = ROOT / "app" / "face"


def run_script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run a user's script, with the paths that an editable installation adds."""
    script = folder / "script.py"
    script.write_text(text)
    paths = os.pathsep.join([str(ROOT), str(FACE)])
    return subprocess.run(
        [sys.executable, str(script)],
        capture_output=True, text=True, check=False, cwd=folder, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip


def test_a_script_opens_a_database_without_torch(tmp_path: Path) -> None:
    text = (
        "import sys, emtc_lab, storage\n"
        "assert emtc_lab.open_database is storage.open_database\n"
        "from storage import open_database\n"
        "assert 'torch' not in sys.modules\n"
        "print(dir(emtc_lab), emtc_lab.load_policy.__module__)\n"
    )
    done = run_script(tmp_path, text)
    assert done.stderr == ""
    types = ["ConfigSection", "GateLaw", "Mixed", "RecordedRun"]
    names = [*types, "check_env", "load_policy", "open_database", "register"]
    assert done.stdout.strip() == f"{names} app.jobs.policies"


@pytest.mark.parametrize("name", ["storage", "app", "emtc_core"])
@pytest.mark.parametrize("first", ["", "import {name}\n"], ids=["alone", "after the file"])
def test_a_file_with_the_name_of_a_package_is_named(tmp_path: Path, name: str, first: str) -> None:
    (tmp_path / f"{name}.py").write_text("mine = 1\n")
    done = run_script(tmp_path, first.format(name=name) + "import emtc_lab\nprint(emtc_lab.open_database)\n")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == (
        f"ImportError: EMTC Lab cannot be imported here: {tmp_path / f'{name}.py'} has the name of a package of EMTC "
        "Lab. Rename the file, or start Python in another folder."
    )


def test_an_unknown_name_is_an_attribute_error(tmp_path: Path) -> None:
    done = run_script(tmp_path, "import emtc_lab\nemtc_lab.open_databse\n")
    assert "module 'emtc_lab' has no attribute 'open_databse'" in done.stderr


def test_wheel_and_editable_installation_both_have_it() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert "app/face" in build["dev-mode-dirs"]
    assert build["targets"]["wheel"]["sources"]["app/face"] == ""
    assert [each.name for each in FACE.glob("*.py")] == ["emtc_lab.py"], "all of it is importable at the top"
