"""A copy of a database that is killed while it is written leaves nothing under its name, and nothing for long."""

import os
import signal
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from app.jobs.launch import ROOT
from storage.engine import find_schema
from storage.migrations.upgrade import copy_database
from tests.process.trainers import emtc, environment, wait_until

HALFWAY = """
import sqlite3, sys, time
from functools import partial
from pathlib import Path
from storage.migrations import upgrade

class Halting(sqlite3.Connection):
    def backup(self, target, *, pages):
        target.execute("PRAGMA cache_size=1")  # else nothing is written before all of it
        file = Path(target.execute("PRAGMA database_list").fetchone()[2])
        super().backup(target, pages=1, progress=lambda *_: time.sleep(600 if file.stat().st_size else 0))

upgrade.sqlite3.connect = partial(sqlite3.connect, factory=Halting)

from app.cli.main import run
sys.exit(run(sys.argv[1:]))
"""
OLD = ROOT / "tests" / "assets" / "schema_0010.db"


def kill_copying(folder: Path, *command: str) -> None:
    """Kill a command once a part of its copy is written."""
    child = [sys.executable, "-c", HALFWAY, *command]
    with subprocess.Popen(child, cwd=ROOT, env=environment(), stderr=subprocess.DEVNULL) as process:
        begun = lambda: any(place.stat().st_size for place in folder.glob(".begun-copy.*"))  # noqa: E731
        wait_until(lambda: begun() or process.poll() is not None, what="a begun copy")
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("command", [("db", "backup", "{path}"), ("db", "upgrade", "{path}")])
def test_a_copy_that_was_killed_is_not_there_and_the_next_one_has_its_name(tmp_path: Path, command):
    path = tmp_path / "x.db"
    path.write_bytes(OLD.read_bytes())
    if command[1] == "backup":
        assert emtc("db", "upgrade", str(path)).returncode == 0
        next(tmp_path.glob("x.schema-*.db")).unlink()
    asked = [word.format(path=path) for word in command]
    kill_copying(tmp_path, *asked)
    assert [place.name for place in tmp_path.glob("x.*.db")] == []
    done = emtc(*asked)
    assert done.returncode == 0, done.stderr
    (copy,) = tmp_path.glob("x.*.db")
    if command[1] == "upgrade":
        assert copy.name == "x.schema-0010.db"
        assert find_schema(f"sqlite:///{copy}") == ("0010", True)
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA journal_mode").fetchall() == [("delete",)]
        assert connection.execute("SELECT count(*) FROM runs").fetchall() == [(1,)]
    assert list(tmp_path.glob(".begun-copy.*")) == [], "what the killed one had begun takes room for ever"


def test_a_copy_is_deleted_only_if_its_process_of_this_host_has_ended(tmp_path: Path) -> None:
    path, host = tmp_path / "x.db", socket.gethostname()
    path.write_bytes(OLD.read_bytes())
    names = {"mine": f"{host}.{os.getpid()}", "ended": f"{host}.{2**22 + 1}", "elsewhere": f"elsewhere.{2**22 + 1}"}
    files = {name: tmp_path / f".begun-copy.{process}.x.db" for name, process in names.items()}
    for file in files.values():
        file.touch()
    copy_database(path)
    assert [name for name, file in files.items() if file.exists()] == ["mine", "elsewhere"]
