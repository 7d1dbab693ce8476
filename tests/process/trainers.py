"""Real trainer processes for the tests that start, watch and kill them, and commands run in this process."""

import contextlib
import gc
import io
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.cli.main import run
from storage.engine import open_database
from storage.runs.rows import find_run

PATIENCE_S = 240.0
"""How long anything here may take: a busy machine is slow, and pytest ends a test that hangs."""
EMTC = [sys.executable, "-m", "app.cli.main"]
TRAIN = [sys.executable, "-c", "import tests.frequent_checkpoints; from app.cli.main import main; main()"]
FAST = (
    "train.burn_in=8", "train.batch=8", "eval.episodes=4", "eval.interval=1000", "checkpoint.interval=400",
    "embed.min_entries=64", "embed.batch=64", "memory.delta=0.02", "record.gate_interval=200",
)  # fmt: skip


def train_command(url: str, *, steps: int, seed: int = 1, sets: tuple[str, ...] = FAST) -> list[str]:
    options = [part for text in sets for part in ("--set", text)]
    return [*TRAIN, "train", "--env", "skirmish", "--map", "3m", "--algo", "emtc-qplex", "--steps", str(steps),
            "--seed", str(seed), "--db", url, "--json", *options]  # fmt: skip


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def train(url: str, *, steps: int, seed: int = 1, sets: tuple[str, ...] = FAST) -> dict[str, Any]:
    """Train in this process, which has the learner's libraries loaded."""
    import tests.frequent_checkpoints  # noqa: F401

    done = emtc(*train_command(url, steps=steps, seed=seed, sets=sets)[len(TRAIN) :])
    gc.collect()  # closes its connections, as a process does that ends: the file is whole then
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def start(url: str, *, steps: int, sets: tuple[str, ...] = FAST) -> subprocess.Popen[str]:
    return subprocess.Popen(
        train_command(url, steps=steps, sets=sets),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment(),
    )  # fmt: skip


def emtc(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this process: one of its own would spend its time on imports."""
    content, err = io.BytesIO(), io.StringIO()
    out = io.TextIOWrapper(content, encoding="utf-8", errors="backslashreplace", write_through=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(list(arguments))
    return subprocess.CompletedProcess(arguments, code, content.getvalue().decode(), err.getvalue())


def emtc_process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, where that is what is tested."""
    return subprocess.run([*EMTC, *arguments], capture_output=True, text=True, check=False, env=environment())


def wait_until(ready: Callable[[], bool], *, what: str, timeout_s: float = PATIENCE_S) -> float:
    started = time.monotonic()
    while time.monotonic() - started < timeout_s:
        if ready():
            return time.monotonic() - started
        time.sleep(0.05)
    raise AssertionError(f"{what} did not happen within {timeout_s} s")


def wait_until_lost(url: str, run_id: str) -> None:
    """Wait until a run whose trainer was killed can be resumed."""
    wait_until_status(url, run_id, "lost")


def wait_until_status(url: str, run_id: str, expected: str) -> None:
    """Wait until a run has a status. A command that is repeated until then would use as much time as the trainer."""
    db = open_database(url)
    wait_until(lambda: find_run(db, run_id).live_status == expected, what=f"the status {expected}")
    db.dispose()


def read(path: Path, sql: str, *values: Any) -> list[tuple]:
    """Read with plain SQL, as somebody outside would; an unborn database answers nothing."""
    if not path.exists():
        return []
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)
    try:
        return connection.execute(sql, values).fetchall()
    except sqlite3.OperationalError:
        return []
    finally:
        connection.close()


def recorded_steps(path: Path) -> int:
    rows = read(path, "select max(env_step) from transitions")
    return rows[0][0] or 0 if rows else 0


def breaches(path: Path) -> list[str]:
    """The invariants of the contract, by plain SQL."""
    found = []
    for run_id, env_steps, config in read(path, "select id, env_steps, config from runs"):
        gamma = json.loads(config)["train"]["gamma"]
        n, low, high = read(
            path, "select count(*), min(env_step), max(env_step) from transitions where run_id = ?", run_id
        )[0]
        if (low, high, env_steps) != (1, n, n):
            found.append(f"{run_id}: {n} rows, {low}..{high}, env_steps {env_steps}")
        bad = read(
            path,
            """select count(*) from transitions where run_id = ? and delta_mem is not null
               and (abs(delta_mem - abs(reward + ? * h_next - h)) > 1e-5 * max(1, abs(h))
                    or abs(beta - exp(-delta_mem * delta_mem / (2 * tau * tau))) > 1e-5)""",
            run_id, gamma,
        )[0][0]  # fmt: skip
        if bad:
            found.append(f"{run_id}: {bad} rows break the gate's equations")
        for table, key in (("episodes", "first_env_step"), ("metrics", "env_step"), ("evaluations", "env_step")):
            past = read(path, f"select count(*) from {table} where run_id = ? and {key} > ?", run_id, env_steps)[0][0]
            if past:
                found.append(f"{run_id}: {past} rows of {table} lie past the last step")
        gaps = read(
            path,
            """select count(*) from (select first_env_step, length, lead(first_env_step)
               over (order by episode) as following from episodes where run_id = ?)
               where following is not null and following != first_env_step + length""",
            run_id,
        )[0][0]  # fmt: skip
        if gaps:
            found.append(f"{run_id}: {gaps} gaps between episodes")
    return found
