"""What every test has: one thread that computes, examples without a deadline, a PostgreSQL server, an empty database.

Each worker of pytest-xdist is a process of its own: its session fixtures, its server, its browser and its `tmp_path`
are nobody else's, and ports are asked of the system. So nothing here depends on how many workers there are.
"""

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from storage.engine import open_database
from tests.postgres import SERVER_VARIABLE, is_server_available, open_server
from tests.require import require

# Before anything loads OpenMP, as in the trainers that `emtc` starts. A core has one test at a time, and a sum over
# two threads is another sum than over one: results must not depend on the machine's size.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# readline, where pytest loads it, tells every worker of a terminal of 80 columns; tables are tested as files have them.
os.environ.pop("COLUMNS", None)
os.environ.setdefault("EMTC_WARM_UP", "0")  # an app that compiles in the background does so beside the next tests

ROOT = Path(__file__).resolve().parents[1]
MEMORY = Path("/dev/shm")
ROOM = 4 * 2**30
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM:
    # Most of what a test of a database waits for is its disk, and a PostgreSQL database is made five times as fast.
    os.environ.setdefault("TMPDIR", str(MEMORY))

settings.register_profile("busy", deadline=None)  # a busy machine is no fault of an example
settings.load_profile("busy")


def pytest_configure(config: pytest.Config) -> None:
    """Hide the GPUs of this machine from all tests but those of the group `gpu`: they train on the CPU everywhere.

    Processes that tests start inherit the variable. The slow tests of a file of the group `ci` are not in that group.
    """
    if config.getoption("markexpr") == "ci":
        config.option.markexpr = "ci and not slow"
    if config.getoption("markexpr") != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the kernels before all tests of a new checkout: else each process compiles them for itself."""
    is_worker, source = hasattr(session.config, "workerinput"), session.config.args_source
    if is_worker or source is not pytest.Config.ArgsSource.TESTPATHS or "NUMBA_CACHE_DIR" in os.environ:
        return
    if not any((ROOT / "emtc_core").rglob("*.nbi")):
        subprocess.run([sys.executable, "-m", "app.warmup", "--all"], cwd=ROOT, check=False)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Import all tests without looking for garbage, and never look through what they imported: it stays to the end.

    The oldest of what the tests leave is looked through more seldom, too: that alone took a tenth of their time.
    """
    gc.disable()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, 100)
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the ids of the skipped tests to the file EMTC_SKIPPED_IDS, one per line: `pytest @FILE` runs them.

    Fail a run that skipped another number of tests than EMTC_SKIPS: a component appeared or disappeared.
    Each worker of pytest-xdist has its own session; only the process that collects their reports counts.
    """
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(session.config, "workerinput"):
        return
    skipped = [report.nodeid for report in reporter.stats.get("skipped", [])]
    if file := os.environ.get("EMTC_SKIPPED_IDS"):
        Path(file).write_text("".join(f"{test}\n" for test in skipped))
    expected = os.environ.get("EMTC_SKIPS")
    if expected is not None and len(skipped) != int(expected):
        reporter.write_line(f"EMTC_SKIPS={expected}, but {len(skipped)} tests were skipped (reasons below).", red=True)
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of a server's `postgres` database: EMTC_TEST_POSTGRES, or a private one on a Unix socket."""
    require("postgres", is_server_available(), f"no PostgreSQL server is installed and {SERVER_VARIABLE} is unset")
    with open_server(fsync=False) as url:
        yield url


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed database with tables and no rows, to be copied: making the tables takes longer than most tests."""
    path = tmp_path_factory.mktemp("template") / "emtc.db"
    open_database(f"sqlite:///{path}").dispose()
    return path
