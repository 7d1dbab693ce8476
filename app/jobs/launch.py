"""Start trainers as processes of their own, which outlive the app, and say what a run will cost.

The run's row is made first; the process takes it, and from then on both meet only in the database.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import psutil

from app.analysis.format import runs_of
from app.analysis.provenance import library_versions
from app.jobs.env_probe import Probe, check_fits, needs_rule, probe, why_blind, why_no_success
from emtc_core.config.resolve import resolve
from emtc_core.config.run import RunConfig
from emtc_core.envs.base import EnvInfo
from emtc_core.envs.registry import check_available, check_trusted, get_env_info, is_tried
from emtc_core.errors import EmtcError, RunStateError, StorageError, missing_cuda
from emtc_core.plugins import FOLDER_VARIABLE, home_folder
from storage.engine import Database, is_read_only, refuse_when_read_only
from storage.files.places import check_place, run_folder
from storage.private_files import append_private, make_private_folder
from storage.queries.runs import list_runs
from storage.retry import retry_transient
from storage.runs.changes import create_run, find_launch, finish_run
from storage.runs.lifecycle import get_process_created_at, mark_launched, this_process
from storage.runs.rows import find_run

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE_STUDY: Final = ROOT / "app" / "guide" / "first-study.emtc"
LOG_NAME = "log.txt"
WARM_UP_VARIABLE = "EMTC_WARM_UP"

GUESSED: Final = "a guess, as no run of this map and algorithm has finished here yet"
_GUESSED_STEPS_PER_SECOND = 350.0
_BYTES_PER_STEP = 150
_BYTES_OF_A_TRAINER = 600e6
_BYTES_OF_A_NODE = 61
_PAGE = 16
"""Rows of the replay buffer that an episode takes together."""
_BYTES_PER_NODE = 60


@dataclass(frozen=True)
class Estimate:
    """What a run will take: seconds, bytes of disk, where the speed comes from, and at most so much main memory."""

    seconds: float
    disk_bytes: float
    basis: str
    memory_bytes: float


def check_startable(config: RunConfig) -> None:
    """Refuse what this machine cannot run, before anything is created.

    Raises:
        EnvUnavailableError: If the environment is not here, or is a module that this machine's user does not list, or
            fails when it is tried.
        StorageError: If EMTC_FILES names a place that cannot be written from here.
        ConfigError: If CUDA is asked for and there is none, or the replay buffer would not fit into memory.
    """
    check_place()
    check_available(config.env)
    check_trusted(config.env)
    if is_tried(config.env):
        check_fits(config, probe(config.env))
    for key in ("device", "replay_device"):
        if getattr(config.train, key) == "cuda" and not _has_cuda():
            raise missing_cuda(f"train.{key}")


def doubt_success(config: RunConfig) -> str:
    """A warning where no or any episode of a startable run would count as a success, with what to set; else empty."""
    return why_no_success(config, probe(config.env)) if is_tried(config.env) else ""


def doubt_observations(config: RunConfig) -> str:
    """A warning where the agents of a startable run observe nothing that changes; else empty."""
    return why_blind(config, probe(config.env)) if is_tried(config.env) else ""


def find_unruled(config: RunConfig) -> Probe | None:
    """What random play showed of an environment that never says who won, where a run needs to know.

    Raises:
        EnvUnavailableError: If it fails when it is tried, or this machine's user does not list its module.
    """
    if not is_tried(config.env):
        return None
    check_trusted(config.env)
    seen = probe(config.env)
    return seen if needs_rule(config, seen) else None


def _has_cuda() -> bool:
    """Whether torch finds a CUDA device; another process asks it, because the app never loads torch."""
    question = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", question], cwd=ROOT, capture_output=True, check=False).returncode == 0


def launch_run(db: Database, config: RunConfig, *, name: str | None = None, launch_token: str | None = None) -> str:
    """Queue a run and start its trainer; the same token again returns the run that it made before.

    Raises:
        ConfigError, EnvUnavailableError: If the run cannot start here; nothing is created.
        StorageError: If the run's folder cannot be written.
    """
    check_startable(config)
    if launch_token and (known := find_launch(db, launch_token)):
        return known
    owner = this_process()
    try:
        run_id = create_run(
            db,
            config.model_dump(mode="json"),
            name=name,
            target_steps=config.train.t_max,
            launch_token=launch_token,
            versions=library_versions(),
            owner=owner,
        )
    except RunStateError:
        if launch_token and (known := find_launch(db, launch_token)):  # the other press was faster
            return known
        raise
    start_trainer(db, run_id, token=owner.token)
    return run_id


def launch_demo(db: Database, *, launch_token: str | None = None) -> str:
    """Start the demo run: EMTC(QPLEX) on 3m, about two minutes on two CPU cores."""
    return launch_run(db, resolve(preset="demo"), name="Demo: EMTC(QPLEX) on 3m", launch_token=launch_token)


def kill_run(db: Database, run_id: str) -> None:
    """End the process of a run that answers to nothing, if it is certainly that process on this machine.

    Raises:
        RunStateError: If it is not.
    """
    refuse_when_read_only("end a process")
    row = find_run(db, run_id)
    if row.host != socket.gethostname() or row.pid is None or row.pid_created_at is None:
        raise RunStateError(
            f"Run {row.id} works on {row.host or 'no machine'}; end it there.", reason="other_host", subject=row.id
        )
    try:
        process = psutil.Process(row.pid)
        if abs(process.create_time() - row.pid_created_at) > 2:
            raise RunStateError(f"The process of run {row.id} has already ended.", reason="ended", subject=row.id)
        process.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess as exc:
        raise RunStateError(f"The process of run {row.id} has already ended.", reason="ended", subject=row.id) from exc


def estimate(db: Database | None, config: RunConfig) -> Estimate:
    """Estimate a run's duration and disk use, from earlier runs of the same map and algorithm where there are any."""
    speed, basis = _known_speed(db, config)
    steps = config.train.t_max
    info = get_env_info(config.env)
    state_dim = info.state_dim if info else 100
    nodes = min(steps, config.memory.capacity) if config.uses_memory else 0
    snapshots = config.record.snapshots * (nodes * _BYTES_PER_NODE / 2 + 0.5 * 2 * state_dim * min(nodes, 20_000))
    disk = steps * (_BYTES_PER_STEP + 1.5 * state_dim) + snapshots
    return Estimate(steps / speed, disk, basis, _expected_memory(config, info))


def _expected_memory(config: RunConfig, info: EnvInfo | None) -> float:
    """Bound what a trainer holds at the end of a run on the CPU: itself, the replayed episodes and the memory's nodes.

    `emtc_core.training.memory_plan` counts them exactly when a run starts; this knows no learner.
    """
    if info is None:
        return _BYTES_OF_A_TRAINER
    steps = config.train.t_max + info.episode_limit
    episode = _PAGE * -(-(info.episode_limit + 1) // _PAGE)
    most = min(steps + _PAGE * config.train.replay, config.train.replay * episode)
    rows = 0 if config.backbone == "mappo" else most
    row = info.n_agents * (4 * info.obs_dim + info.n_actions + 8) + 4 * info.state_dim + 8
    nodes = min(config.memory.capacity, 2 * steps) if config.uses_memory else 0
    return _BYTES_OF_A_TRAINER + rows * row + nodes * (_BYTES_OF_A_NODE + 4 * info.state_dim + 12 * config.embed.dim)


def find_trainer(run_id: str) -> bool:
    """Whether this machine has a trainer of a run, whatever its row says."""
    processes = (process.info for process in psutil.process_iter(["cmdline", "status"]))
    return any(
        {"train-worker", run_id} <= set(info["cmdline"] or ()) and info["status"] != psutil.STATUS_ZOMBIE
        for info in processes
    )


def spawn(arguments: list[str], log: Path, *, db: Database | None = None) -> subprocess.Popen[bytes]:
    """Start `python -m …` in a session of its own, deaf to this process's end; its output goes to `log`.

    The database's URL may hold a password: it goes through the environment, never into the list of processes.

    Raises:
        StorageError: If EMTC_READ_ONLY=1 forbids to start anything.
        OSError: If the log cannot be written or the process not be started.
    """
    refuse_when_read_only("start a process")
    make_private_folder(log.parent)
    with append_private(log) as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            close_fds=True,
            env={
                **os.environ,
                "PYTHONUNBUFFERED": "1",
                FOLDER_VARIABLE: str(home_folder()),
                **({"EMTC_DB": db.url} if db else {}),
            },
        )
    threading.Thread(target=process.wait, daemon=True, name=f"reaper-{process.pid}").start()
    return process


def start_warmup(log: Path) -> bool:
    """Compile all kernels in low-priority processes, unless EMTC_WARM_UP=0 forbids it."""
    if os.environ.get(WARM_UP_VARIABLE) == "0" or is_read_only():
        return False
    spawn(["app.warmup", "--all"], log)
    return True


def start_trainer(
    db: Database, run_id: str, *, token: str, resume: bool = False, give_back: bool = False
) -> subprocess.Popen[bytes] | None:
    """Start the process that trains a run which this one has taken, and hand it over.

    Args:
        db: An open database.
        run_id: The run.
        token: By which this process owns it.
        resume: Go on from its newest usable checkpoint.
        give_back: A signal to the trainer, or the end of this process, gives the run back to the queue instead of
            stopping it.

    Returns:
        The process, or None if it ended at once.

    Raises:
        StorageError: If it cannot be started; the run is marked failed then.
    """
    options = ["--token", token, *(["--resume"] if resume else [])]
    options += ["--worker", str(os.getpid())] if give_back else []
    command = ["app.cli.main", "train-worker", run_id, *options]
    try:
        process = spawn(command, run_folder(db, run_id) / LOG_NAME, db=db)
    except OSError as exc:
        sentence = f"The trainer of run {run_id} could not be started: {exc.strerror or exc}."
        finish_run(db, run_id, "failed", error=sentence, token=token)
        raise StorageError(sentence) from exc
    try:
        created_at = get_process_created_at(process.pid)
    except psutil.NoSuchProcess:
        with suppress(RunStateError):  # it said itself how it ended
            finish_run(db, run_id, "failed", error="Its trainer ended at once. The log says more.", token=token)
        return None
    host = socket.gethostname()
    pid = process.pid
    retry_transient(db, lambda: mark_launched(db, run_id, pid=pid, pid_created_at=created_at, host=host, token=token))
    return process


def _known_speed(db: Database | None, config: RunConfig) -> tuple[float, str]:
    try:
        frame = list_runs(db, limit=100) if db else None
    except EmtcError:
        frame = None
    speeds = [
        row["env_steps"] / seconds
        for row in ([] if frame is None else frame.to_dict("records"))
        if (row["env"], row["map"], row["algo"], row["status"])
        == (config.env.name, config.env.map, config.algo, "finished")
        and row["env_steps"] > 0
        and (seconds := (row["ended_at"] - row["started_at"]).total_seconds()) > 0
    ]
    if speeds:
        measured = f"the speed of {runs_of(1)}" if len(speeds) == 1 else f"the median speed of {runs_of(len(speeds))}"
        return float(np.median(speeds)), f"{measured} of this map and algorithm that finished here"
    return _GUESSED_STEPS_PER_SECOND, GUESSED
