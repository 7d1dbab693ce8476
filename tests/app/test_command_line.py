"""Every command can be found, and none pays for another's imports."""

import subprocess
import sys
from pathlib import Path

import pytest
import typer

from app.cli.main import COMMANDS, run
from emtc_core import __version__
from storage.engine import open_database

HEAVY = {"matplotlib", "openTSNE", "plotly", "sklearn", "streamlit", "umap"}


def imported(code: str) -> set[str]:
    """Run code in a new interpreter; name the packages that it imported."""
    ask = f"import sys\n{code}\nprint('|'.join(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split("|"))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_listed_command_is_where_the_list_says(name: str) -> None:
    loaded = COMMANDS[name].load()
    assert isinstance(loaded, typer.Typer) or loaded.__doc__
    assert COMMANDS[name].summary.endswith(".")


@pytest.mark.parametrize("arguments", [["--help"], ["runs", "--help"]], ids=" ".join)
def test_help_waits_for_no_figure(arguments: list[str]) -> None:
    assert not imported(f"from app.cli.main import run\nrun({arguments})") & HEAVY


def test_the_list_of_commands_needs_neither_numbers_nor_a_database() -> None:
    assert not imported("from app.cli.main import run\nrun(['--help'])") & {"numpy", "pandas", "sqlalchemy", "torch"}


def test_a_list_of_runs_waits_for_no_frame_and_no_setting(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    open_database(url).dispose()
    assert not imported(f"from app.cli.main import run\nassert run(['runs', '--db', '{url}']) == 0") & {
        "numpy",
        "pandas",
    }


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"emtc-lab {__version__}\n"


def test_a_plan_of_a_sweep_waits_for_no_learner(tmp_path: Path) -> None:
    arguments = ["sweep", "tau-study-demo", "--dry-run", "--db", f"sqlite:///{tmp_path / 'x.db'}"]
    assert not imported(f"from app.cli.main import run\nassert run({arguments}) == 0") & (HEAVY | {"torch"})


def test_a_trainer_starts_without_what_draws_projects_and_compiles(tmp_path: Path) -> None:
    small = ["--steps", "60", "--set", "train.burn_in=1", "--set", "train.batch=1"]
    arguments = ["train", "--map", "3m", *small, "--db", f"sqlite:///{tmp_path / 'x.db'}"]
    found = imported(f"from app.cli.main import run\nassert run({arguments}) == 0")
    assert "torch" in found
    assert not found & (HEAVY | {"pandas", "sympy"})
