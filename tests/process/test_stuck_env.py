"""A trainer whose environment does not return ends on a signal, and the run is complete up to its last episode."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from storage.engine import open_database
from storage.maintenance.check import check_run
from storage.runs.rows import find_run
from tests.process.trainers import environment, read, wait_until

pytestmark = pytest.mark.ci

MODULE = """
import ctypes, os, time
from pathlib import Path
from emtc_core.plugins import register
from tests.core.lab_example import Guess, GuessSettings

class Stuck(Guess):
    n_resets = 0

    def reset(self, seed=None):
        Stuck.n_resets += 1
        if Stuck.n_resets > 30:
            Path(os.environ["STUCK"]).touch()
            {hang}
        return super().reset(seed)

register("environment", "stuck", Stuck, settings=GuessSettings)
"""
LOCK_TWICE = "mutex, c = ctypes.create_string_buffer(64), ctypes.CDLL(None); c.pthread_mutex_lock(mutex)"
COMMAND = """
import sys
from app.jobs import signals

signals.ENV_LIMIT_S = float(sys.argv.pop(1))
from app.cli.main import main

main()
"""
HANGS = {"in Python": "while True: time.sleep(3600)", "in C": f"{LOCK_TWICE}; c.pthread_mutex_lock(mutex)"}


@pytest.mark.parametrize(
    ("hang", "n_signals"),
    [("in C", 1), ("in C", 2), pytest.param("in Python", 1, marks=pytest.mark.slow)],
)
def test_a_reset_that_does_not_return_is_ended_by_sigterm(tmp_path: Path, hang: str, n_signals: int) -> None:
    """One signal and a time limit, or a second signal."""
    (tmp_path / "stuck_env.py").write_text(MODULE.format(hang=HANGS[hang]))
    env, path, reached = environment(), tmp_path / "lab.db", tmp_path / "reached"
    env |= {"PYTHONPATH": f"{env.get('PYTHONPATH', '')}:{tmp_path}:{Path.cwd()}", "EMTC_PLUGINS": "stuck_env"}
    options = ["--set", "train.burn_in=4", "--set", "train.batch=4", "--set", "train.n_envs=1"]
    program = [sys.executable, "-c", COMMAND, "2" if n_signals == 1 else "3600"]
    command = [*program, "train", "--env", "stuck", "--algo", "qmix", "--steps", "5000", "--db", f"sqlite:///{path}"]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(
            [*command, *options, "--json"], stdout=log, stderr=log, env=env | {"STUCK": str(reached)}
        ) as process,
    ):
        try:
            wait_until(reached.exists, what="the reset that does not return")
            for _ in range(n_signals):
                process.send_signal(signal.SIGTERM)
                time.sleep(1)  # pending signals of one kind are merged
            process.wait(60)
        finally:
            process.kill()
    db = open_database(f"sqlite:///{path}")
    row = find_run(db, read(path, "select id from runs")[0][0])
    assert row.live_status == "stopped", (tmp_path / "log").read_text()
    assert "The environment did not return from reset" in (row.error or "")
    assert row.env_steps > 0
    assert check_run(db, row.id) == []
    db.dispose()
