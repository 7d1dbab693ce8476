"""A SQLite file on a file system without file locks, which a library that is loaded before the C library imitates."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.require import require
from tests.torture.c_library import compile_library

SOURCE = Path(__file__).with_name("no_locks.c")


@pytest.fixture(scope="module")
def library() -> Iterator[Path]:
    require("cc", sys.platform == "linux" and bool(shutil.which("cc")), "this is not Linux, or has no cc")
    with compile_library(SOURCE, "Tests of file locks") as path:
        yield path


def run_without_locks(library: Path, *arguments: str) -> str:
    """Run Python without file locks, and return what it writes to stderr."""
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode
    return " ".join(done.stderr.split())


def test_a_command_names_the_folder_without_file_locks_and_the_alternatives(
    library: Path, sqlite_template: Path, tmp_path: Path
) -> None:
    database = shutil.copy(sqlite_template, tmp_path / "old.db")
    message = run_without_locks(library, "-m", "app.cli.main", "runs", "--db", f"sqlite:///{database}")
    assert f"The file system of {tmp_path} has no file locks" in message
    assert "postgresql://" in message


def test_no_database_is_created_where_there_are_no_file_locks(library: Path, tmp_path: Path) -> None:
    code = "import sys; from storage.engine import open_database; open_database(sys.argv[1])"
    assert "has no file locks" in run_without_locks(library, "-c", code, f"sqlite:///{tmp_path / 'new.db'}")
    assert not list(tmp_path.iterdir())
