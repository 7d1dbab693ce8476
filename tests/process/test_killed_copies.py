"""A copy of a database that is killed while it is written leaves nothing under its name, and nothing for long."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
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


def test_a_copy_is_deleted_only_if_its_process_has_ended_or_it_was_not_written_for_a_day(tmp_path: Path) -> None:
    me, path = get_process_id(), tmp_path / "x.db"
    path.write_bytes(OLD.read_bytes())
    assert me.key is not None
    space, _, start = me.key.rpartition("/")
    files = {}
    for name, key in (("mine", me.key), ("reused pid", f"{space}/{int(start) - 1}"), ("container", f"boot/1/{start}")):
        files[name] = tmp_path / f".begun-copy.{me.host}.{me.pid}.{key.replace('/', '~')}.x.db"
        files[name].touch()
    files["old container"] = tmp_path / f".begun-copy.{me.host}.1.boot~1~7.x.db"
    files["old container"].touch()
    two_days_ago = time.time() - 2 * 86_400
    os.utime(files["old container"], (two_days_ago, two_days_ago))
    os.utime(files["mine"], (two_days_ago, two_days_ago))
    files["elsewhere"] = tmp_path / ".begun-copy.elsewhere.1.boot~1~7.x.db"
    files["elsewhere"].touch()
    copy_database(path)
    assert [name for name, file in files.items() if file.exists()] == ["mine", "container", "elsewhere"]
