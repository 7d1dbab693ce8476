"""A storm over one database: what it does is real, what it looks for is found, and a short one costs nothing."""

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

from app.bench.records import GIVEN, find_server_binaries, is_private, made_database, outage, server
from app.bench.storm import RowWatch, count_rows, find_wrong, run, run_storm
from app.bench.storms.bystanders import Gauge
from app.bench.storms.fleet import full_disk, hold_lock, storm_config
from app.bench.storms.machines import SWEEP, Machine, Machines, compile_skew, queue_runs
from app.cli.main import run as emtc
from app.jobs.launch import LOG_NAME
from emtc_core.errors import ConfigError, StorageError
from storage.engine import Database, open_database
from storage.files.places import run_folder
from storage.private_files import make_private_folder
from storage.retry import retry_transient
from storage.runs.changes import create_run
from storage.runs.lifecycle import make_ownership_error
from storage.runs.rows import find_run
from storage.runs.sweeps import get_sweep
from tests.errors import raises
from tests.hostile import tamper
from tests.require import require
from tests.storage.records import CONFIG, record_everything

GROW = "open({!r}, 'ab', 0).write(bytes(200_000))"


@pytest.fixture
def recorded(tmp_path: Path, sqlite_template: Path) -> Database:
    db = open_database(f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'x.db')}")
    for _ in range(2):
        record_everything(db, create_run(db, CONFIG, target_steps=100, versions={}))
    return db


def wrong(db: Database) -> str:
    return "; ".join(find_wrong(db, storm_config()))


@pytest.mark.parametrize(
    ("act", "said"),
    [
        ("delete from transitions where env_step = 7", "the transitions are not 1…env_steps"),
        ("update runs set env_steps = env_steps + 1", "the transitions are not 1…env_steps"),
        ("update transitions set beta = 0.5 * beta where env_step = 7", "break the equation of β"),
        ("update transitions set h = h + 1 where env_step = 7", "break the equation of Δ_mem"),
        ("update transitions set t = t + 1 where env_step = 7", "have no episode"),
        ("delete from episodes where episode = 2", "the episodes do not add up"),
        ("update metrics set env_step = 10000", "of metrics lie past the end"),
        ("update transitions set slot = 1 where env_step = 7 and run_id = (select min(id) from runs)", "differ from"),
    ],
)
def test_what_is_wrong_is_found_by_plain_sql(recorded: Database, act: str, said: str) -> None:
    before = wrong(recorded)
    assert said not in before
    assert recorded.path is not None
    tamper(recorded.path, act)
    assert said in wrong(recorded)
    recorded.dispose()


def test_a_step_that_was_seen_and_is_gone_is_lost_unless_it_was_superseded(recorded: Database) -> None:
    watch = RowWatch(recorded)
    watch.look()
    assert recorded.path is not None
    tamper(recorded.path, "update runs set env_steps = env_steps - 5")
    watch.look()
    assert (watch.lost, watch.superseded) == (10, 0)
    tamper(
        recorded.path,
        "insert into resumes (run_id, env_step, reached_env_step, resumed_at) "
        "select id, 0, env_steps, created_at from runs",
        "update runs set env_steps = 3",
    )
    watch.look()
    assert watch.lost == 10
    assert watch.superseded == count_rows(recorded) - 10
    recorded.dispose()


def test_a_lock_keeps_other_writers_out(recorded: Database) -> None:
    assert recorded.path is not None
    with closing(sqlite3.connect(recorded.path, timeout=0)) as other:
        with hold_lock(recorded), pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("update runs set notes = 'x'")
        other.execute("update runs set notes = 'x'")
    recorded.dispose()


@pytest.mark.skipif(not hasattr(psutil.Process, "rlimit"), reason="this system limits no other process")
def test_a_full_disk_takes_no_more_and_then_has_room_again(tmp_path: Path) -> None:
    place = tmp_path / "file"
    waiting = f"import sys; sys.stdin.read(1); {GROW.format(str(place))}"
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
        assert (place.stat().st_size < 200_000) == is_full


def test_growth_is_read_from_what_was_held_once_it_had_settled() -> None:
    steady = [(60.0 * minute, 300.0 + 0.5 * minute, 40.0) for minute in range(20)]
    gauge = Gauge("app", psutil.Process(), [(-60.0 * minute, 100.0, 10.0) for minute in range(9, 0, -1)] + steady)
    memory, handles = gauge.slopes()
    assert memory == pytest.approx(30.0)
    assert handles == pytest.approx(0.0, abs=1e-6)
    assert gauge.tell() == "100 MB, 10 handles → 300 MB, 40 handles → 310 MB, 40 handles"


def test_a_gauge_that_saw_too_little_says_nothing() -> None:
    gauge = Gauge("app", psutil.Process())
    gauge.look()
    gauge.look()  # too soon
    assert len(gauge.seen) == 1
    assert np.isnan(gauge.slopes()).all()


@pytest.mark.postgres
def test_a_server_that_was_taken_down_comes_back_with_its_rows() -> None:
    require("postgres", find_server_binaries() is not None, "no PostgreSQL server is installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(GIVEN, raising=False)
        with server(fsync=False) as server_url, made_database(server_url) as url:
            db = open_database(url)
            run_id = create_run(db, CONFIG, target_steps=100, versions={})
            with outage(url), pytest.raises(StorageError):
                find_run(db, run_id)
            assert retry_transient(db, lambda: find_run(db, run_id)).id == run_id
            db.dispose()


def test_no_other_server_is_taken_down() -> None:
    assert not is_private("postgresql+psycopg://me@dbhost/emtc")
    assert not is_private("sqlite:///x.db")
    with pytest.raises(ValueError, match="dbhost"), outage("postgresql+psycopg://me@dbhost/emtc"):
        pass


def test_a_machine_has_a_name_and_a_clock_of_its_own_and_dies_with_its_trainers(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    require("cc", compiler is not None and shutil.which("unshare") is not None, "no C compiler, or no unshare")
    library = compile_skew(str(compiler), tmp_path)
    child = "import socket, sys, time; print(socket.gethostname(), time.time(), flush=True); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    before = time.time()
    machine = Machine("storm-slow", [sys.executable, "-c", parent], library)
    while not (said := (tmp_path / "storm-slow.log").read_text().split()):
        time.sleep(0.05)
    (trainer,) = psutil.Process(machine.process.pid).children()
    machine.kill()
    assert said[0] == "storm-slow"
    assert before - 600 <= float(said[1]) <= time.time() - 600
    trainer.wait(30)


def test_a_trainer_that_lost_its_run_while_it_lived_is_counted(recorded: Database) -> None:
    queue_runs(recorded, 2)
    (one, _) = (run.run_id for run in get_sweep(recorded, SWEEP).runs)
    make_private_folder(folder := run_folder(recorded, one))
    (folder / LOG_NAME).write_text(f"begins\n{make_ownership_error(find_run(recorded, one))}\n")
    told = Machines(recorded, []).tell()
    assert (told["robbed"], "2 queued" in told["machines"]) == (1, True)
    recorded.dispose()


def test_a_storm_is_refused_where_runs_are_kept(recorded: Database) -> None:
    with raises(ConfigError, key=recorded.safe_url):
        run(minutes=0.05, db=recorded.url, pages=0)
    recorded.dispose()


def test_options_of_a_storm_belong_to_no_other_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert emtc(["bench", "queries", "--minutes", "1"]) == 2
    assert "--minutes belongs to storm" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_minute_of_storm_costs_nothing(tmp_path: Path) -> None:
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    toll = run_storm(db, minutes=1, trainers=3)
    assert (toll.lost, toll.wrong) == (0, [])
    assert toll.blows["kill"] > 0
    assert toll.rows > 0
    db.dispose()
