"""Create runs, and start and kill their trainers.

A trainer is a process that trains one run. It continues when the app ends. App and trainer communicate only through the
database.

A process claims a run before it trains it: it writes a random text, the owner token, to the row of the run. Only the
process that has this token may train the run. A launch token is another random text. It identifies one click on Start.

A worker is a process that takes runs from the queue and starts a trainer for each of them.
"""

import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from app.analysis.provenance import library_versions
from app.jobs.gpu import check_mps, find_gpu
from emtc_core.config.resolve import resolve
from emtc_core.config.run import RunConfig
from emtc_core.envs.registry import check_available, check_importable
from emtc_core.errors import RunStateError, StorageError, make_cuda_error
from emtc_core.kernel_cache import check_kernel_cache
from emtc_core.user_modules import FOLDER_VARIABLE, get_user_folder
from storage.engine import Database, check_not_read_only, is_read_only
from storage.files import check_files_folder, run_folder
from storage.private_files import make_private_folder, open_private_append
from storage.runs.changes import create_run, find_launch, finish_run
from storage.runs.claims import ClaimedRun, make_token
from storage.runs.rows import RunRow, find_run
from storage.runs.status import check_allowed

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE_BUNDLE: Final = ROOT / "app" / "guide" / "first-study.emtc"
"""File with the exported runs of a study. Home opens it as an example."""
LOG_NAME = "log.txt"
WARM_UP_VARIABLE = "EMTC_WARM_UP"
"""Environment variable; 0 disables the compilation of kernels after the start of the app."""
TRAINER_NICENESS: Final = 10
"""Priority of trainers that the app or `--detach` starts, as in the command nice: 0 is normal, 19 is the lowest."""


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
    """Create a run and start its trainer.

    Args:
        db: An open database.
        config: Configuration of the run.
        name: Name of the run, or None.
        launch_token: Identifies one click on Start. A second call with the same token returns the run of the first
            call.

    Raises:
        ConfigError, EnvUnavailableError: If the run cannot start here. Nothing is created then.
        StorageError: If the run's folder is not writable.
    """
    check_startable(config)
    if launch_token and (launched_id := find_launch(db, launch_token)):
        return launched_id

    owner_token = make_token()
    try:
        run_id = create_run(
            db,
            config.model_dump(mode="json"),
            name=name,
            target_steps=config.train.t_max,
            launch_token=launch_token,
            versions=library_versions(),
            token=owner_token,
        )
    except RunStateError:
        if launch_token and (launched_id := find_launch(db, launch_token)):  # another call created it at the same time
            return launched_id
        raise
    start_trainer(db, ClaimedRun(run_id, resume=False, token=owner_token))
    return run_id


def launch_demo(db: Database, *, launch_token: str | None = None) -> str:
    """Start the demo run: EMTC(QPLEX) on 3m, about two minutes on two CPU cores."""
    return launch_run(db, resolve(preset="demo"), name="Demo: EMTC(QPLEX) on 3m", launch_token=launch_token)


def kill_run(db: Database, run_id: str) -> None:
    """Kill the trainer of a run that does not respond. The process must be the run's trainer on this machine.

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
    with suppress(psutil.NoSuchProcess):  # the process has just ended
        process.kill()


def find_trainer(row: RunRow) -> psutil.Process | None:
    """Find the process that trains a run on this machine, or return None.

    After the trainer has ended, the operating system can give its pid to another process. Therefore the process with
    the stored pid is checked. A trainer in the background has the run id among its arguments. A training in the
    foreground started before it claimed the run, but a process that reuses the pid started later.
    """
    if row.pid is None or row.host != socket.gethostname():
        return None
    try:
        process = psutil.Process(row.pid)
        began_before_claim = row.claimed_at is not None and process.create_time() < row.claimed_at.timestamp()
        is_trainer = row.id in process.cmdline() or began_before_claim
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # the process has ended, or belongs to another user
        return None
    return process if is_trainer else None


def spawn(arguments: list[str], log: Path, *, db: Database | None = None) -> subprocess.Popen[bytes]:
    """Start `python -m …` in a new session, so that it continues when this process ends. Its output goes to `log`.

    The URL of the database may contain a password. It is passed in the environment, not in the arguments.

    Raises:
        StorageError: If EMTC_READ_ONLY=1 is set.
        OSError: If the log cannot be written or the process cannot be started.
    """
    check_not_read_only("start a process")
    make_private_folder(log.parent)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", FOLDER_VARIABLE: str(get_user_folder())}
    if db:
        environment["EMTC_DB"] = db.url
    with open_private_append(log) as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            close_fds=True,
            env=environment,
        )
    # Wait for the process, because otherwise it would remain as a zombie after its end.
    threading.Thread(target=process.wait, daemon=True, name=f"reaper-{process.pid}").start()
    return process


def start_warmup(log: Path) -> bool:
    """Start a process that compiles all Numba kernels; see `app.warmup`, which lowers its own priority.

    Args:
        log: File for the output of the process.

    Returns:
        False if EMTC_WARM_UP=0 or EMTC_READ_ONLY=1 is set; then no process is started.
    """
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
    low_priority: bool = True,
) -> subprocess.Popen[bytes]:
    """Start the trainer of a claimed run and return its process. The trainer owns the run by the token of the claim.

    Args:
        db: An open database.
        claim: The run.
        for_worker: Whether this process is a worker. Then, if the trainer gets a signal or this process ends, the run
            is not stopped but returns to the queue.
        gpu_share: Fraction of the GPU's memory that the run may use, if `train.gpu_share` is auto.
        low_priority: Give the trainer a lower priority than the app and the browser.

    Raises:
        StorageError: If the process cannot be started. The run is marked failed then.
    """
    # The hidden command `train-worker` is the trainer. Its option `--worker` is the pid of the worker.
    command = ["app.cli.main", "train-worker", claim.run_id, "--token", claim.token]
    if claim.resume:
        command.append("--resume")
    if for_worker:
        command += ["--worker", str(os.getpid())]
    if gpu_share < 1:
        command += ["--gpu-share", str(gpu_share)]
    try:
        process = spawn(command, run_folder(db, claim.run_id) / LOG_NAME, db=db)
    except OSError as exc:
        message = f"The trainer of run {claim.run_id} could not be started: {exc.strerror or exc}."
        finish_run(db, claim.run_id, "failed", error=message, token=claim.token)
        raise StorageError(message) from exc
    if low_priority:
        _lower_priority(process.pid)
    return process


def _lower_priority(pid: int) -> None:
    """Give a trainer a lower priority than the app and the browser. It still uses idle cores fully."""
    if os.name != "posix":
        return
    with suppress(psutil.Error):  # the process has ended
        process = psutil.Process(pid)
        process.nice(max(TRAINER_NICENESS, process.nice()))
