"""Every command can be found, and none pays for another's imports."""

import subprocess
import sys

import pytest
import typer

from app.cli.main import COMMANDS

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
    assert COMMANDS[name].about.endswith(".")


@pytest.mark.parametrize("arguments", [["--help"], ["runs", "--help"]], ids=" ".join)
def test_help_waits_for_no_figure(arguments: list[str]) -> None:
    assert not imported(f"from app.cli.main import run\nrun({arguments})") & HEAVY


def test_the_list_of_commands_needs_neither_numbers_nor_a_database() -> None:
    assert not imported("from app.cli.main import run\nrun(['--help'])") & {"numpy", "pandas", "sqlalchemy", "torch"}


def test_a_trainer_starts_without_what_draws_and_projects() -> None:
    found = imported("from app.cli.main import COMMANDS\nCOMMANDS['train-worker'].load()\nimport app.jobs.training")
    assert "torch" in found
    assert not found & HEAVY
