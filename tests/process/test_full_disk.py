"""Ctrl-C while the disk is full: the first one explains, the second one ends."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.trainers import EMTC, breaches, environment, read, train_command, wait_until

FULL = """
import sys
from sqlalchemy import event
from sqlalchemy.pool import Pool

@event.listens_for(Pool, "checkout")
def limit(connection, *_):
    connection.execute("PRAGMA max_page_count=90").close()

from app.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_second_ctrl_c_ends_a_trainer_that_waits_for_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    command = [sys.executable, "-c", FULL, *train_command(f"sqlite:///{path}", steps=50_000)[len(EMTC) :]]
    told = (tmp_path / "stderr.txt").open("w+")
    with told, subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=told, env=environment()) as process:
        states = lambda: [file.read_text() for file in path.with_suffix(".files").glob("*/recorder.state")]  # noqa: E731
        wait_until(lambda: any("full" in text for text in states()), what="the disk being full")
        process.send_signal(signal.SIGINT)
        text = lambda: (tmp_path / "stderr.txt").read_text()  # noqa: E731
        wait_until(lambda: "Stopping" in text(), what="an explanation")
        assert "Press Ctrl-C again" in text()
        assert "disk is full" in text()
        process.send_signal(signal.SIGINT)
        process.wait(120)
    assert process.returncode == 1
    assert "ended at once, without a checkpoint" in text()
    assert "could not be written" in text()
    assert "Traceback" not in text()
    assert read(path, "select status from runs") == [("stopped",)]
    assert breaches(path) == []
