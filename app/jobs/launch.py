"""Create runs, start and kill their trainers, and estimate the cost of a run.

A trainer is a process that continues when the app ends. App and trainer communicate only through the database. A
process owns a run by a token, which it writes to the row of the run when it claims the run.
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
"""A bundle (file with exported runs) that Home opens as an example."""
LOG_NAME = "log.txt"
WARM_UP_VARIABLE = "EMTC_WARM_UP"
TRAINER_NICENESS: Final = 10
"""Priority of trainers that the app or `--detach` starts, as in the command nice: 0 is normal, 19 is the lowest."""

TYPICAL_SPEED_SOURCE: Final = "a typical speed, because no run of this environment and algorithm has finished here yet"
_TYPICAL_STEPS_PER_S: Final = {"skirmish": 350.0, "grf": 200.0}
"""Typical speeds of a training on two cores [env steps/s]. The speed of skirmish includes its evaluations."""
_TYPICAL_STEPS_PER_S_OF_OTHERS = 200.0
_TYPICAL_EPISODE_S: Final = {"skirmish": 0.0, "grf": 1.25}
"""Typical durations of an evaluation episode on two cores [s].

Measured with football, 6,000 steps of the preset demo: 202 s = 10 s for the start + 30 s for the steps at 200 steps/s
+ 162 s for 128 evaluation episodes.
"""
_TYPICAL_EPISODE_S_OF_OTHERS = 1.25
_TYPICAL_START_S = 10.0
"""Typical time from the start of a trainer to its first env step on two cores [s], from the same measurement."""
_DISK_BYTES_PER_STEP = 150
_DISK_BYTES_PER_STATE_VALUE = 1.5
"""Each step stores its state, compressed."""
_SNAPSHOT_BYTES_PER_NODE = 60
"""A snapshot stores the nodes (stored states) of the episodic memory at one env step."""
_SNAPSHOT_BYTES_PER_STATE_VALUE = 2
_MEAN_FILLING = 0.5
"""The memory grows during the run, so a snapshot has on average half as many nodes as the last snapshot."""
_TYPICAL_STATE_DIM = 100
"""Size of the state of an environment whose sizes are unknown before its start."""


@dataclass(frozen=True)
class Estimate:
    """Estimated cost of a run."""

    seconds: float
    """Duration of the run."""
    disk_bytes: float
    speed_source: str
    """Where the assumed speed comes from, as a phrase: finished runs, or `TYPICAL_SPEED_SOURCE`."""
    memory_bytes: float
    """Upper bound of the host's memory."""
    gpu_bytes: float
    """Upper bound of the GPU's memory with the replay buffer. It has a meaning only if the run uses a GPU."""


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

    The operating system may have given the stored pid to a new process. The process is the trainer if the run id is
    among its arguments (a trainer in the background), or if it started before it claimed the run (a training in the
    foreground).
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


def estimate(db: Database | None, config: RunConfig) -> Estimate:
    """Estimate the duration, disk space and memory of a run, from finished runs of this machine if there are any."""
    seconds, speed_source = _estimate_duration(db, config)
    info = get_env_info(config.env)
    memory_bytes = estimate_memory(config, info)
    gpu_bytes = estimate_gpu_memory(config, info)
    return Estimate(
        seconds,
        _estimate_disk(config, state_dim=info.state_dim if info else _TYPICAL_STATE_DIM),
        speed_source,
        memory_bytes=sum(memory_bytes.values()),
        gpu_bytes=sum(gpu_bytes.values()) + memory_bytes.get("replay", 0),
    )


def describe_speed(speed_source: str) -> str:
    """Write the source of an assumed speed (`Estimate.speed_source`) as a sentence."""
    if speed_source == TYPICAL_SPEED_SOURCE:
        return "Rough estimate: no finished run to measure from."
    return f"Assumed speed: {speed_source}."


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
        for_worker: Whether this process is a worker. Then a signal to the trainer, or the end of this process, returns
            the run to the queue instead of stopping it.
        gpu_share: Fraction of the GPU's memory that the run may use, if `train.gpu_share` is auto.
        lowers_priority: Give the trainer a lower priority than the app and the browser.

    Raises:
        StorageError: If the process cannot be started. The run is marked failed then.
    """
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
    if lowers_priority:
        _lower_priority(process.pid)
    return process


def _lower_priority(pid: int) -> None:
    """Give a trainer a lower priority than the app and the browser. It still uses idle cores fully."""
    if os.name != "posix":
        return
    with suppress(psutil.Error):  # the process has ended
        process = psutil.Process(pid)
        process.nice(max(TRAINER_NICENESS, process.nice()))


def _estimate_disk(config: RunConfig, *, state_dim: int) -> float:
    """Estimate the disk space of the transitions and of the snapshots of the memory [bytes]."""
    steps = config.train.t_max
    n_nodes = min(steps, config.memory.capacity) if config.uses_memory else 0
    n_stored_states = min(n_nodes, config.record.snapshot_states)
    state_bytes = _SNAPSHOT_BYTES_PER_STATE_VALUE * state_dim * n_stored_states
    snapshot_bytes = _MEAN_FILLING * (n_nodes * _SNAPSHOT_BYTES_PER_NODE + state_bytes)
    step_bytes = _DISK_BYTES_PER_STEP + _DISK_BYTES_PER_STATE_VALUE * state_dim
    return steps * step_bytes + config.record.snapshots * snapshot_bytes


def _estimate_duration(db: Database | None, config: RunConfig) -> tuple[float, str]:
    """Estimate the duration [s] from comparable finished runs, or from typical values; return also the speed's source.

    The speed of a finished run includes its start and its evaluations.
    """
    steps = config.train.t_max
    env = config.env
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
        return _TYPICAL_START_S + steps / speed + n_episodes * episode_s, TYPICAL_SPEED_SOURCE
    speed_text = "the speed" if len(comparable) == 1 else "the median speed"
    kind = "map and algorithm" if speeds_of_map else "environment and algorithm, on other maps,"
    source = f"{speed_text} of {format_run_count(len(comparable))} of this {kind} that finished here"
    return steps / float(np.median(comparable)), source
