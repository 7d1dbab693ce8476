"""Every command can be found, and none pays for another's imports."""

import subprocess
import sys
from pathlib import Path

import pytest

from app.cli.main import COMMANDS, run
from storage.engine import open_database

DRAWING = {"matplotlib", "openTSNE", "plotly", "sklearn", "streamlit", "umap"}
TINY = "--steps 60 --set train.burn_in=1 --set train.batch=1"


@pytest.mark.parametrize(
    ("words", "unneeded"),
    [
        ("--help", {"numpy", "pandas", "sqlalchemy", "torch", "streamlit"}),
        ("runs", {"numpy", "pandas"}),
        ("sweep tau-study-demo --dry-run", {*DRAWING, "torch"}),
        pytest.param(f"train --map 3m {TINY}", {*DRAWING, "pandas", "sympy"}, marks=pytest.mark.ci),
    ],
)
def test_a_command_does_not_import_what_it_does_not_need(tmp_path: Path, monkeypatch, words: str, unneeded) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    open_database(url).dispose()
    monkeypatch.setenv("EMTC_DB", url)
    code = f"""
import sys
from app.cli.main import run
assert run({words.split()}) == 0
print(*{{name.partition('.')[0] for name in sys.modules}})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = set(done.stdout.splitlines()[-1].split())
    assert "typer" in imported
    assert imported & unneeded == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_list_has_a_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    assert f"emtc {name}" in capsys.readouterr().out
