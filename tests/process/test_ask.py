"""A detached trainer is asked while it works and while it is paused; what it learns and records stays the same."""

import json
import subprocess
from pathlib import Path

import pytest

from storage.engine import Database, open_database
from storage.queries.episodes import get_playback, get_trajectory
from storage.runs.control import find_evaluation_request, send_command
from storage.runs.rows import find_run
from tests.process.trainers import (
    FAST,
    breaches,
    emtc,
    environment,
    read,
    recorded_steps,
    train,
    train_command,
    wait_until,
)

STEPS = 4000
SETS = (*FAST, "env.skirmish.spawn_jitter=0.5")


@pytest.mark.slow
def test_evaluations_on_request_change_nothing_that_a_run_learns(tmp_path: Path) -> None:
    path, unasked = tmp_path / "asked.db", tmp_path / "unasked.db"
    url = f"sqlite:///{path}"
    run_id = start_detached(url)
    wait_until(lambda: recorded_steps(path) > 200, what="step 200")
    db = open_database(url)
    numbers = [send_command(db, run_id, "evaluate"), send_command(db, run_id, "play", episode=2)]
    for number in numbers:
        wait_until(lambda number=number: is_answered(db, run_id, number), what="an answer")
    db.dispose()
    assert emtc("pause", run_id, "--db", url).returncode == 0
    wait_until(lambda: read(path, "select status from runs") == [("paused",)], what="the pause")
    steps = recorded_steps(path)
    asked = emtc("ask", run_id, "play", "--json", "--db", url)
    assert asked.returncode == 0, asked.stderr
    answer = json.loads(asked.stdout)["answer"]
    assert (answer["env_step"], answer["episodes"]) == (steps, 1)
    assert emtc("ask", run_id, "play", "--episode", "999999", "--db", url).returncode == 2
    assert emtc("resume", run_id, "--db", url).returncode == 0
    wait_until(lambda: read(path, "select status from runs") == [("finished",)], what="the end")
    assert breaches(path) == []
    assert emtc("ask", run_id, "evaluate", "--db", url).returncode == 2

    assert read(path, "select count(*) from asked_evaluations") == [(3,)]
    assert same_start(path, run_id, episode=2)
    train(f"sqlite:///{unasked}", steps=STEPS, sets=SETS)
    for table, order in (("transitions", "env_step"), ("evaluations", "env_step"), ("gate_stats", "env_step")):
        columns = ", ".join(name for name in columns_of(path, table) if name != "run_id")
        query = f"select {columns} from {table} order by {order}"
        assert read(path, query) == read(unasked, query), table
    regular = (
        "select env_step, episode, episode_return, trajectory from eval_episodes where episode < 1000 order by 1, 2"
    )
    assert read(path, regular) == read(unasked, regular)


def start_detached(url: str) -> str:
    command = [*train_command(url, steps=STEPS, sets=SETS), "--detach"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])["run_id"]


def is_answered(db: Database, run_id: str, number: int) -> bool:
    asked = find_evaluation_request(db, find_run(db, run_id), number)
    assert asked is not None
    assert asked.stage != "unanswered", "the run ended before it answered"
    return asked.stage == "answered"


def same_start(path: Path, run_id: str, *, episode: int) -> bool:
    db = open_database(f"sqlite:///{path}")
    try:
        ((step, number),) = read(
            path, "select env_step, 1000 * command_id from asked_evaluations where again_of = ?", episode
        )
        again, first = get_playback(db, run_id, step, number), get_trajectory(db, run_id, episode)
        return bool((again.state[0] == first.state[0]).all())
    finally:
        db.dispose()


def columns_of(path: Path, table: str) -> list[str]:
    return [row[1] for row in read(path, f"pragma table_info({table})")]
