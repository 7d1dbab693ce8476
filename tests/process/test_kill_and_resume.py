"""A killed trainer: its death is seen, and it is resumed without a gap or a duplicate."""

import json
import random
import signal
from pathlib import Path

import pytest

from tests.process.trainers import FAST, breaches, emtc, read, recorded_steps, start, train, wait_until, wait_until_lost

pytestmark = pytest.mark.ci

STEPS = 1500
SETS = (*FAST, "eval.interval=400")


def status(url: str, run_id: str) -> str:
    return json.loads(emtc("show", run_id, "--db", url, "--json").stdout)["status"]


def test_a_killed_run_is_seen_and_resumed_to_the_same_end(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    url = f"sqlite:///{path}"
    moment = random.Random().randint(300, 800)
    with start(url, steps=STEPS, sets=SETS) as process:
        wait_until(lambda: recorded_steps(path) > moment, what=f"step {moment}")
        wait_until(lambda: any(tmp_path.rglob("checkpoint-*.pt")), what="a checkpoint to go on from")
        process.send_signal(signal.SIGKILL)
        process.wait()
    run_id = read(path, "select id from runs")[0][0]
    assert breaches(path) == []
    wait_until_lost(url, run_id)
    assert status(url, run_id) == "lost"
    done = emtc("resume", run_id, "--db", url, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["status"] == "finished"
    assert breaches(path) == []
    whole = tmp_path / "whole.db"
    train(f"sqlite:///{whole}", steps=STEPS, sets=SETS)
    columns = "env_step, episode, t, reward, h, h_next, delta_mem, beta, tau, slot, next_slot"
    assert read(path, f"select {columns} from transitions order by env_step") == read(
        whole, f"select {columns} from transitions order by env_step"
    )
    evaluated = "select env_step from evaluations order by win_rate, return_mean, env_step"
    for each in (path, whole):
        (best,) = each.parent.glob(f"{each.stem}.files/*/best-*.pt")
        assert int(best.stem[-12:]) == read(each, evaluated)[-1][0]


@pytest.mark.slow
def test_a_stopped_run_leaves_a_checkpoint_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    url = f"sqlite:///{path}"
    with start(url, steps=STEPS, sets=SETS) as process:
        wait_until(lambda: recorded_steps(path) > 300, what="step 300")
        run_id = read(path, "select id from runs")[0][0]
        assert emtc("stop", run_id, "--db", url).returncode == 0
        out, _ = process.communicate(timeout=60)
    assert json.loads(out.splitlines()[-1])["status"] == "stopped"
    assert status(url, run_id) == "stopped"
    steps = recorded_steps(path)
    assert steps < STEPS
    assert breaches(path) == []
    assert emtc("resume", run_id, "--db", url, "--json").returncode == 0
    assert recorded_steps(path) >= STEPS
    assert breaches(path) == []


def test_sigterm_stops_gracefully(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with start(f"sqlite:///{path}", steps=50_000) as process:
        wait_until(lambda: recorded_steps(path) > 200, what="step 200")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert read(path, "select status from runs") == [("stopped",)]
    assert breaches(path) == []
