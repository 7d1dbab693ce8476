"""A trainer hangs, two users resume its run at the same time, and the first trainer continues: one process trains."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.process.trainers import (
    EMTC,
    FAST,
    PATIENCE_S,
    breaches,
    emtc,
    environment,
    read,
    recorded_steps,
    start,
    wait_until,
    wait_until_status,
)

pytestmark = pytest.mark.ci

STEPS = 3000
SETS = (*FAST, "checkpoint.interval=200", "eval.interval=3000")


def test_a_run_whose_trainer_hangs_is_resumed_once_and_its_first_trainer_writes_nothing_afterwards(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.db"
    url = f"sqlite:///{path}"
    with start(url, steps=STEPS, sets=SETS) as process:
        try:
            wait_until(lambda: any(tmp_path.rglob("checkpoint-*.pt")), what="a checkpoint to resume from")
            process.send_signal(signal.SIGSTOP)
            run_id = read(path, "select id from runs")[0][0]
            wait_until_status(url, run_id, "lost")
            listed = json.loads(emtc("runs", "--db", url, "--json", "--where", "status=lost").stdout)
            assert [row["id"] for row in listed] == [run_id]
            command = [*EMTC, "resume", run_id, "--detach", "--db", url]
            users = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) for _ in range(2)]
            messages = [user.communicate(timeout=PATIENCE_S)[1] for user in users]
            assert sorted(user.returncode for user in users) == [0, 2], messages
            refused = messages[[user.returncode for user in users].index(2)]
            assert "only a run that is stopped, failed or lost can be resumed" in refused
            wait_until_status(url, run_id, "running")  # the second trainer has started
            process.send_signal(signal.SIGCONT)
            assert process.wait(timeout=PATIENCE_S) != 0
            assert read(path, "select status from runs") != [("failed",)], "the first trainer recorded its end"
            wait_until_status(url, run_id, "finished")
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()
    assert breaches(path) == []
    assert recorded_steps(path) >= STEPS
    assert read(path, "select count(*) from resumes") == [(1,)]
