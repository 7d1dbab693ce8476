"""The storm injects real faults, finds wrong rows, and a short one loses nothing."""

import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import psutil
import pytest

from app.jobs.launch import LOG_NAME
from app.jobs.train_process import train_detached
from emtc_core.errors import ConfigError, StorageError
from storage.engine import Database, open_database
from storage.files import run_folder
from storage.private_files import make_private_folder
from storage.retry import retry_transient
from storage.runs.changes import create_run
from storage.runs.claims import claim_to_train, make_token
from storage.runs.rows import find_run
from storage.runs.sweeps import get_sweep
from tests.errors import raises
from tests.hostile import tamper
from tests.postgres import (
    SERVER_VARIABLE,
    find_server_binaries,
    is_private,
    open_server,
    outage,
    temporary_postgres_database,
)
from tests.require import require
from tests.storage.records import CONFIG, record_everything
from tests.torture.c_library import compile_library
from tests.torture.fleet import full_disk, lock_database, storm_config
from tests.torture.growth import Gauge
from tests.torture.machines import SKEWS_S, SOURCE, SWEEP, Machine, Machines, queue_runs
from tests.torture.storm import RowWatch, count_rows, find_wrong, main, run, run_storm

GROW = "open({!r}, 'ab', 0).write(bytes(200_000))"


@pytest.fixture
def recorded(tmp_path: Path, sqlite_template: Path) -> Database:
    db = open_database(f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'x.db')}")
    for _ in range(2):
        record_everything(db, create_run(db, CONFIG, target_steps=100, versions={}))
    return db


def describe_wrong(db: Database) -> str:
    return "; ".join(find_wrong(db, storm_config()))


@pytest.mark.parametrize(
    ("sql", "violation"),
    [
        ("delete from transitions where env_step = 7", "the transitions are not 1…env_steps"),
        ("update runs set env_steps = env_steps + 1", "the transitions are not 1…env_steps"),
        ("update transitions set beta = 0.5 * beta where env_step = 7", "violate the equation of β"),
        ("update transitions set h = h + 1 where env_step = 7", "violate the equation of Δ_mem"),
        ("update transitions set t = t + 1 where env_step = 7", "have no episode"),
        ("delete from episodes where episode = 2", "the sum of the episode lengths is not env_steps"),
        ("update metrics set env_step = 10000", "of metrics are after the end"),
        ("update transitions set slot = 1 where env_step = 7 and run_id = (select min(id) from runs)", "differ from"),
    ],
)
def test_a_wrong_row_is_found(recorded: Database, sql: str, violation: str) -> None:
    assert violation not in describe_wrong(recorded)
    assert recorded.path is not None
    tamper(recorded.path, sql)
    assert violation in describe_wrong(recorded)
    recorded.dispose()


def test_a_step_that_disappears_is_lost_unless_it_was_superseded(recorded: Database) -> None:
    watch = RowWatch(recorded)
    watch.update()
    assert recorded.path is not None
    tamper(recorded.path, "update runs set env_steps = env_steps - 5")
    watch.update()
    assert (watch.n_lost, watch.superseded) == (10, 0)
    tamper(
        recorded.path,
        "insert into resumes (run_id, env_step, reached_env_step, resumed_at) "
        "select id, 0, env_steps, created_at from runs",
        "update runs set env_steps = 3",
    )
    watch.update()
    assert watch.n_lost == 10
    assert watch.superseded == count_rows(recorded) - 10
    recorded.dispose()


def test_a_lock_blocks_other_writers(recorded: Database) -> None:
    assert recorded.path is not None
    with closing(sqlite3.connect(recorded.path, timeout=0)) as other:
        with lock_database(recorded), pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("update runs set notes = 'x'")
        other.execute("update runs set notes = 'x'")
    recorded.dispose()


@pytest.mark.skipif(not hasattr(psutil.Process, "rlimit"), reason="this system cannot limit another process")
def test_a_full_disk_limits_files_until_its_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    waiting = f"import sys; sys.stdin.read(1); {GROW.format(str(path))}"
    for is_full in (True, False):
        with subprocess.Popen(
            [sys.executable, "-c", waiting], stdin=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdin is not None
            with full_disk(iter([process.pid])):
                if is_full:
                    process.communicate(b"x")
            if not is_full:
                process.communicate(b"x")
        assert (path.stat().st_size < 200_000) == is_full


def test_growth_is_the_slope_after_the_warm_up() -> None:
    steady = [(60.0 * minute, 300.0 + 0.5 * minute, 40.0) for minute in range(20)]
    gauge = Gauge("app", psutil.Process(), [(-60.0 * minute, 100.0, 10.0) for minute in range(9, 0, -1)] + steady)
    memory, handles = gauge.compute_slopes()
    assert memory == pytest.approx(30.0)
    assert handles == pytest.approx(0.0, abs=1e-6)
    assert gauge.describe() == "100 MB, 10 handles → 300 MB, 40 handles → 310 MB, 40 handles"


def test_a_gauge_with_too_few_samples_has_no_slope() -> None:
    gauge = Gauge("app", psutil.Process())
    gauge.measure()
    gauge.measure()  # too soon for a second sample
    assert len(gauge.samples) == 1
    assert np.isnan(gauge.compute_slopes()).all()


@pytest.mark.postgres
def test_a_server_has_its_rows_after_an_outage() -> None:
    require("postgres", find_server_binaries() is not None, "no PostgreSQL server is installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(SERVER_VARIABLE, raising=False)
        with open_server(fsync=False) as server_url, temporary_postgres_database(server_url) as url:
            db = open_database(url)
            run_id = create_run(db, CONFIG, target_steps=100, versions={})
            with outage(url), pytest.raises(StorageError):
                find_run(db, run_id)
            assert retry_transient(db, lambda: find_run(db, run_id)).id == run_id
            db.dispose()


def test_only_a_private_server_can_have_an_outage() -> None:
    assert not is_private("postgresql+psycopg://me@dbhost/emtc")
    assert not is_private("sqlite:///x.db")
    with pytest.raises(ValueError, match="dbhost"), outage("postgresql+psycopg://me@dbhost/emtc"):
        pass


def test_a_machine_has_its_own_host_name_and_clock_and_a_kill_ends_its_trainers(tmp_path: Path) -> None:
    has_tools = shutil.which("cc") is not None and shutil.which("unshare") is not None
    require("cc", has_tools, "no C compiler, or no unshare")
    with compile_library(SOURCE, "Machines with a wrong clock") as compiled:
        library = Path(shutil.copy(compiled, tmp_path))
    child = "import socket, sys, time; print(socket.gethostname(), time.time(), flush=True); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    before = time.time()
    machine = Machine("storm-slow", SKEWS_S["storm-slow"], [sys.executable, "-c", parent], library)
    while not (words := (tmp_path / "storm-slow.log").read_text().split()):
        time.sleep(0.05)
    (trainer,) = psutil.Process(machine.process.pid).children()
    machine.kill()
    host, clock = words
    assert host == "storm-slow"
    assert before - 600 <= float(clock) <= time.time() - 600
    trainer.wait(30)


def test_a_trainer_that_lost_its_run_to_another_owner_is_counted(recorded: Database) -> None:
    queue_runs(recorded, 2)
    run_id = get_sweep(recorded, SWEEP).runs[0].run_id
    claim_to_train(recorded, run_id, make_token())
    lines: list[str] = []
    assert train_detached(recorded.url, run_id, announce=lines.append, token="of another owner") == 1
    make_private_folder(folder := run_folder(recorded, run_id))
    (folder / LOG_NAME).write_text("\n".join(["Training starts.", *lines, ""]))
    machines = Machines(recorded, [])
    assert machines.count_ownership_lost() == 1
    assert "1 queued, 1 starting" in machines.summarize_sweep()
    recorded.dispose()


def test_a_storm_needs_an_empty_database(recorded: Database) -> None:
    with raises(ConfigError, key=recorded.safe_url):
        run(minutes=0.05, db=recorded.url, pages=0)
    recorded.dispose()


def test_the_command_line_of_the_storm_checks_its_options(recorded: Database) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--minutes", "0"])
    assert caught.value.code == 2
    assert main(["--db", recorded.url, "--pages", "0"]) == 2
    recorded.dispose()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_storm_of_a_minute_loses_no_row(tmp_path: Path) -> None:
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    outcome = run_storm(db, minutes=1, trainers=3)
    assert (outcome.n_lost, outcome.wrong) == (0, [])
    assert outcome.fault_counts["kill"] > 0
    assert outcome.rows > 0
    db.dispose()
