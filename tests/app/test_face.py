"""`import emtc_lab` offers the public names, and names the file that hides a package of the project."""

import os
import subprocess
import sys
from importlib import import_module
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
    )
    assert run_script(tmp_path, text).stderr == ""


def test_every_public_name_can_be_imported_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FACE)
    module = import_module("emtc_lab")
    assert dir(module) == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)
    assert not hasattr(module, "open_databse")


@pytest.mark.parametrize(("name", "first"), [("storage", ""), ("emtc_core", ""), ("app", "import app\n")])
def test_a_file_with_the_name_of_a_package_is_named(tmp_path: Path, name: str, first: str) -> None:
    (tmp_path / f"{name}.py").write_text("mine = 1\n")
    done = run_script(tmp_path, first + "import emtc_lab\nprint(emtc_lab.open_database)\n")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == (
        f"ImportError: EMTC Lab cannot be imported here: {tmp_path / f'{name}.py'} has the name of a package of EMTC "
        "Lab. Rename the file, or start Python in another folder."
    )
