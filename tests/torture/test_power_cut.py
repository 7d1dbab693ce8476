"""After a power cut the database has every row before each checkpoint, and every run with a checkpoint resumes."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from storage.engine import Database, open_database
from storage.recording.writer import DatabaseRecorder
from storage.retry import retry_transient
from storage.runs.changes import create_run
from storage.runs.rows import find_run
from tests.postgres import (
    SERVER_VARIABLE,
    find_server_binaries,
    open_server,
    outage,
    temporary_postgres_database,
)
from tests.require import require
from tests.storage.records import CONFIG, record_episodes
from tests.torture.c_library import compile_library
from tests.torture.power_cut import SOURCE, find_lost
from tests.torture.power_disk import ENDS, suspended
from tests.torture.power_machines import (
    FILES,
    FILES_VARIABLE,
    NOT_WAITING,
    Machine,
    PostgresMachine,
    SqliteMachine,
)

RECORDS = """
import sys
from pathlib import Path
from emtc_core.checkpoint_file import name_checkpoint, write_checkpoint
from storage.engine import Database, open_database
from storage.files import run_folder
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import create_run
from tests.storage.records import CONFIG, record_episodes

url, syncs = sys.argv[1], sys.argv[2] == "True"
if not syncs:
    transaction = Database.transaction
    Database.transaction = lambda self, *, durable=False: transaction(self)
db = open_database(url)
run_id = create_run(db, CONFIG, target_steps=1000, versions={})
recorder = DatabaseRecorder(db, run_id, linger_s=0.0)
for n in range(3):
    record_episodes(recorder, 5, start=5 * n + 1)
    recorder.flush()
    path = run_folder(db, run_id) / name_checkpoint(50 * (n + 1))
    write_checkpoint(path, run_id=run_id, env_step=50 * (n + 1), parts=[])
    print(n, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def library() -> Iterator[Path]:
    require("cc", sys.platform == "linux" and bool(shutil.which("cc")), "this is not Linux, or has no cc")
    with compile_library(SOURCE, "Power cuts") as path:
        yield path


@contextmanager
def recording(machine: Machine, url: str, *, syncs: bool) -> Generator[subprocess.Popen[str]]:
    """Start a process that records and writes a checkpoint, three times, and waits for a line after each."""
    command = [sys.executable, "-c", RECORDS, url, str(syncs)]
    environment = os.environ | machine.environment | {FILES_VARIABLE: str(machine.files)}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def cut_power(machine: Machine, parent: Path, *, syncs: bool, ends: Sequence[str] = ENDS) -> list[str]:
    """Cut the power after each of three checkpoints, with each end of the log; return what is lost."""
    rng = random.Random(0)
    lost: list[str] = []
    with machine.started(rng) as started, recording(machine, started, syncs=syncs) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number in range(3):
            assert process.stdout.readline() == f"{number}\n"
            for end in ends:
                after = parent / f"{number}-{end}"
                with suspended(*machine.list_servers(), process.pid):
                    machine.take(after, end, rng)
                with machine.opened(after) as url:
                    n, sentences = find_lost(url, after / FILES)
                assert n == 1
                lost += sentences
            process.stdin.write("\n")
            process.stdin.flush()
    return lost


def test_every_row_before_a_checkpoint_survives_a_power_cut(tmp_path: Path, library: Path) -> None:
    assert cut_power(SqliteMachine(tmp_path, library), tmp_path, syncs=True) == []


def test_the_same_cuts_find_a_recorder_that_does_not_sync(tmp_path: Path, library: Path) -> None:
    assert len(cut_power(SqliteMachine(tmp_path, library), tmp_path, syncs=False)) >= 3


@pytest.mark.ci
@pytest.mark.postgres
def test_cuts_of_a_server_find_a_recorder_that_does_not_sync(library: Path) -> None:
    require("postgres", find_server_binaries() is not None, "no PostgreSQL server is installed")
    lost: dict[bool, list[str]] = {}
    for syncs in (True, False):
        with tempfile.TemporaryDirectory() as folder:  # which the user postgres can read
            machine = PostgresMachine(Path(folder), library, waits=False)
            lost[syncs] = cut_power(machine, Path(folder), syncs=syncs, ends=["none"])
    assert lost[True] == []
    assert lost[False]


@pytest.mark.ci
def test_a_training_whose_power_is_cut_resumes_and_records_the_same_rows() -> None:
    require("cc", sys.platform == "linux" and bool(shutil.which("cc")), "this is not Linux, or has no cc")
    command = [sys.executable, "-m", "tests.torture.power_cut", "--cuts", "4", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    results = {row["name"]: row["value"] for row in json.loads(done.stdout)["figures"]}
    assert results == {"power_cut.cuts": 4, "power_cut.lost": 0, "power_cut.wrong": 0}


@pytest.mark.postgres
def test_a_server_that_does_not_wait_for_its_disk_has_the_rows_before_a_checkpoint(tmp_path: Path) -> None:
    require("postgres", find_server_binaries() is not None, "no PostgreSQL server is installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(SERVER_VARIABLE, raising=False)
        patch.setenv("XDG_DATA_HOME", str(tmp_path))
        with open_server(fsync=False) as server_url, temporary_postgres_database(server_url) as url:
            _turn_off_waiting(url)
            assert _record_and_crash(open_database(url), url) == 50


def _turn_off_waiting(url: str) -> None:
    """Let commits of this server wait for nothing, and its log stay in memory for ten seconds."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for name, value in NOT_WAITING.items():
            connection.execute(text(f"ALTER SYSTEM SET {name} = '{value}'"))
        connection.execute(text("SELECT pg_reload_conf()"))
    engine.dispose()


def _record_and_crash(db: Database, url: str) -> int:
    run_id = create_run(db, CONFIG, target_steps=1000, versions={})
    recorder = DatabaseRecorder(db, run_id)
    record_episodes(recorder, 5)
    recorder.flush()
    with outage(url):
        pass
    steps = retry_transient(db, lambda: find_run(db, run_id)).env_steps
    recorder.close()
    db.dispose()
    return steps
