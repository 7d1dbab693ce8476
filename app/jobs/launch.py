"""Create runs and start their trainers, and estimate the cost of a run.

A trainer is a process that continues when the app ends. App and trainer communicate only through the database.
"""

import os
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

from app.analysis.format import format_run_count
from app.analysis.provenance import library_versions
from app.jobs.gpu import check_mps, find_gpu
from emtc_core.config.resolve import resolve
from emtc_core.config.run import RunConfig
from emtc_core.envs.registry import check_available, check_importable, get_env_info
from emtc_core.errors import EmtcError, RunStateError, StorageError, make_cuda_error
from emtc_core.kernel_cache import check_kernel_cache
from emtc_core.memory_estimate import estimate_gpu_memory, estimate_memory
from emtc_core.user_modules import FOLDER_VARIABLE, get_user_folder
from storage.engine import Database, check_not_read_only, is_read_only
from storage.files import check_files_folder, run_folder
from storage.private_files import make_private_folder, open_private_append
from storage.queries.runs import list_speeds
from storage.runs.changes import create_run, find_launch, finish_run
from storage.runs.claims import ClaimedRun, make_token
from storage.runs.rows import RunRow, find_run
from storage.runs.status import check_allowed

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE_STUDY: Final = ROOT / "app" / "guide" / "first-study.emtc"
LOG_NAME = "log.txt"
WARM_UP_VARIABLE = "EMTC_WARM_UP"
TRAINER_NICENESS: Final = 10
"""Priority of trainers that the app or `--detach` starts, as of the command nice: 0 is normal, 19 the lowest."""

TYPICAL_SPEED: Final = "a typical speed, because no run of this environment and algorithm has finished here yet"
_TYPICAL_STEPS_PER_S: Final = {"skirmish": 350.0, "grf": 200.0}
"""Typical speeds of a training on two cores [env steps/s]. That of skirmish includes its evaluations."""
_TYPICAL_STEPS_PER_S_OF_OTHERS = 200.0
_TYPICAL_EPISODE_S: Final = {"skirmish": 0.0, "grf": 1.25}
"""Typical durations of an evaluation episode on two cores [s].

Measured with football, 6,000 steps of the preset demo: 202 s, of which 30 s are the steps at 200 steps/s, 10 s the
start, and the others 4 evaluations of 32 episodes.
"""
_TYPICAL_EPISODE_S_OF_OTHERS = 1.25
_TYPICAL_START_S = 10.0
"""Typical time from the start of a trainer to its first env step on two cores [s]; of the same measurement."""
_DISK_BYTES_PER_STEP = 150
_DISK_BYTES_PER_STATE_VALUE = 1.5
"""A step stores its state, compressed."""
_SNAPSHOT_BYTES_PER_NODE = 60
_MEAN_FILLING = 0.5
"""The memory grows during the run: the mean number of nodes of a snapshot is half of the last one."""
_TYPICAL_STATE_DIM = 100
"""Size of the state of an environment whose sizes are unknown before its start."""


@dataclass(frozen=True)
class Estimate:
    """Estimated cost of a run: duration [s], disk space, source of the assumed speed, and upper bounds of memory."""

    seconds: float
    disk_bytes: float
    basis: str
    memory_bytes: float
    gpu_bytes: float
    """Memory of the GPU with the replay buffer, if the run uses a GPU."""


def check_startable(config: RunConfig) -> None:
    """Check that this machine can run a configuration, before anything is created.

    Raises:
        EnvUnavailableError: If the environment or its module is missing. The module is not imported here.
        StorageError: If EMTC_FILES is not a folder that can be written.
        ConfigError: If CUDA is required and not available, CUDA_MPS_PIPE_DIRECTORY is set and MPS does not run, or
            compiled kernels cannot be stored.
    """
    check_files_folder()
    check_kernel_cache()
    check_available(config.env)
    check_importable(config.env)
    train = config.train
    devices = {
        "train.device": train.device,
        "train.act_device": train.act_device,
        "train.replay_device": train.replay_device,
        "memory.index_device": config.memory.index_device,
    }
    for key, device in devices.items():
        if device == "cuda" and find_gpu() is None:
            raise make_cuda_error(key)
    if train.device != "cpu":
        check_mps()


def launch_run(db: Database, config: RunConfig, *, name: str | None = None, launch_token: str | None = None) -> str:
    """Create a run and start its trainer. With a token of an earlier launch, return the run of that launch.

    Raises:
        ConfigError, EnvUnavailableError: If the run cannot start here. Nothing is created then.
        StorageError: If the run's folder is not writable.
    """
    check_startable(config)
    if launch_token and (launched_id := find_launch(db, launch_token)):
        return launched_id

    token = make_token()
    try:
        run_id = create_run(
            db,
            config.model_dump(mode="json"),
            name=name,
            target_steps=config.train.t_max,
            launch_token=launch_token,
            versions=library_versions(),
            token=token,
        )
    except RunStateError:
        if launch_token and (launched_id := find_launch(db, launch_token)):  # a second click was faster
            return launched_id
        raise
    start_trainer(db, ClaimedRun(run_id, resume=False, token=token))
    return run_id


def launch_demo(db: Database, *, launch_token: str | None = None) -> str:
    """Start the demo run: EMTC(QPLEX) on 3m, about two minutes on two CPU cores."""
    return launch_run(db, resolve(preset="demo"), name="Demo: EMTC(QPLEX) on 3m", launch_token=launch_token)


def kill_run(db: Database, run_id: str) -> None:
    """End the process of a run that does not respond, after a check that it is the run's trainer on this machine.

    Raises:
        RunStateError: If the status of the run does not allow it, or its trainer is on another machine or has ended.
    """
    check_not_read_only("end a process")
    row = find_run(db, run_id)
    check_allowed(row.id, row.live_status, "kill")
    if row.host != socket.gethostname():
        raise RunStateError(f"Run {row.id} is trained on {row.host}. End its process there.")
    if (process := find_trainer(row)) is None:
        raise RunStateError(f"The process of run {row.id} has already ended.")
    with suppress(psutil.NoSuchProcess):  # it has just ended
        process.kill()


def find_trainer(row: RunRow) -> psutil.Process | None:
    """Find the process that trains a run on this machine, or return None.

    Pids are used again. A detached trainer has the id of the run among its arguments, and a training in the foreground
    is older than its claim.
    """
    if row.pid is None or row.host != socket.gethostname():
        return None
    try:
        process = psutil.Process(row.pid)
        is_older = row.claimed_at is not None and process.create_time() < row.claimed_at.timestamp()
        return process if row.id in process.cmdline() or is_older else None
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # it has ended, or belongs to another user
        return None


def estimate(db: Database | None, config: RunConfig) -> Estimate:
    """Estimate the duration, disk space and memory of a run, from finished runs of this machine if there are any."""
    seconds, basis = _estimate_duration(db, config)
    info = get_env_info(config.env)
    memory_bytes = estimate_memory(config, info)
    gpu_bytes = estimate_gpu_memory(config, info)
    return Estimate(
        seconds,
        _estimate_disk(config, state_dim=info.state_dim if info else _TYPICAL_STATE_DIM),
        basis,
        memory_bytes=sum(memory_bytes.values()),
        gpu_bytes=sum(gpu_bytes.values()) + memory_bytes.get("replay", 0),
    )


def describe_speed(basis: str) -> str:
    """Write the source of the speed of an estimate as a sentence.

    Args:
        basis: The source, as in `Estimate.basis`.
    """
    return "Rough estimate: no finished run to measure from." if basis == TYPICAL_SPEED else f"Assumed speed: {basis}."


def spawn(arguments: list[str], log: Path, *, db: Database | None = None) -> subprocess.Popen[bytes]:
    """Start `python -m …` in a new session, so that it continues when this process ends. Its output goes to `log`.

    The URL of the database may contain a password. It is passed in the environment, not in the arguments.

    Raises:
        StorageError: If EMTC_READ_ONLY=1 is set.
        OSError: If the log cannot be written or the process cannot be started.
    """
    check_not_read_only("start a process")
    make_private_folder(log.parent)
    with open_private_append(log) as output:
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
                FOLDER_VARIABLE: str(get_user_folder()),
                **({"EMTC_DB": db.url} if db else {}),
            },
        )
    threading.Thread(target=process.wait, daemon=True, name=f"reaper-{process.pid}").start()
    return process


def start_warmup(log: Path) -> bool:
    """Compile all kernels in low-priority processes; return False if EMTC_WARM_UP=0 or EMTC_READ_ONLY=1 is set."""
    if os.environ.get(WARM_UP_VARIABLE) == "0" or is_read_only():
        return False
    spawn(["app.warmup", "--all"], log)
    return True


def start_trainer(
    db: Database,
    claim: ClaimedRun,
    *,
    for_worker: bool = False,
    gpu_share: float = 1.0,
    lowers_priority: bool = True,
) -> subprocess.Popen[bytes]:
    """Start the trainer of a claimed run and return its process. The trainer owns the run by the token of the claim.

    Args:
        db: An open database.
        claim: The run.
        for_worker: A signal to the trainer, or the end of this process, returns the run to the queue instead of
            stopping it.
        gpu_share: Fraction of the GPU's memory that the run may plan with, if `train.gpu_share` is auto.
        lowers_priority: The app and the browser run before the trainer on the same machine.

    Raises:
        StorageError: If the process cannot be started. The run is marked failed then.
    """
    options = ["--token", claim.token, *(["--resume"] if claim.resume else [])]
    options += ["--worker", str(os.getpid())] if for_worker else []
    options += ["--gpu-share", str(gpu_share)] if gpu_share < 1 else []
    command = ["app.cli.main", "train-worker", claim.run_id, *options]
    try:
        process = spawn(command, run_folder(db, claim.run_id) / LOG_NAME, db=db)
    except OSError as exc:
        message = f"The trainer of run {claim.run_id} could not be started: {exc.strerror or exc}."
        finish_run(db, claim.run_id, "failed", error=message, token=claim.token)
        raise StorageError(message) from exc
    if lowers_priority:
        _lower_priority(process.pid)
    return process


def _lower_priority(pid: int) -> None:
    """Let the app and the browser run before a trainer on the same machine. A trainer still uses idle cores fully."""
    if os.name != "posix":
        return
    with suppress(psutil.Error):  # it has ended
        process = psutil.Process(pid)
        process.nice(max(TRAINER_NICENESS, process.nice()))


def _estimate_disk(config: RunConfig, *, state_dim: int) -> float:
    """Estimate the rows of the transitions and the snapshots of the memory [bytes]."""
    steps = config.train.t_max
    n_nodes = min(steps, config.memory.capacity) if config.uses_memory else 0
    state_bytes = 2 * state_dim * min(n_nodes, config.record.snapshot_states)
    snapshot_bytes = _MEAN_FILLING * (n_nodes * _SNAPSHOT_BYTES_PER_NODE + state_bytes)
    step_bytes = _DISK_BYTES_PER_STEP + _DISK_BYTES_PER_STATE_VALUE * state_dim
    return steps * step_bytes + config.record.snapshots * snapshot_bytes


def _estimate_duration(db: Database | None, config: RunConfig) -> tuple[float, str]:
    """Estimate the duration [s] from comparable finished runs, or from typical values; return also the source.

    The speed of a finished run includes its start and its evaluations.
    """
    steps, env = config.train.t_max, config.env
    speeds: list[tuple[str, float]] = []
    if db is not None:
        with suppress(EmtcError):
            speeds = list_speeds(db, env=env.name, map=env.map, algo=config.algo, host=socket.gethostname())
    speeds_of_map = [speed for map, speed in speeds if map == env.map]
    comparable = speeds_of_map or [speed for _, speed in speeds]
    if not comparable:
        speed = _TYPICAL_STEPS_PER_S.get(env.name, _TYPICAL_STEPS_PER_S_OF_OTHERS)
        episode_s = _TYPICAL_EPISODE_S.get(env.name, _TYPICAL_EPISODE_S_OF_OTHERS)
        n_episodes = (1 + steps // config.eval.interval) * config.eval.episodes
        return _TYPICAL_START_S + steps / speed + n_episodes * episode_s, TYPICAL_SPEED
    median = "the speed" if len(comparable) == 1 else "the median speed"
    kind = "map and algorithm" if speeds_of_map else "environment and algorithm, on other maps,"
    source = f"{median} of {format_run_count(len(comparable))} of this {kind} that finished here"
    return steps / float(np.median(comparable)), source
