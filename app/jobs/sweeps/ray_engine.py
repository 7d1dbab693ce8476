"""The Ray engine: train the runs of a sweep on a Ray cluster. Each task of the cluster runs `emtc worker --once`.

Such a worker trains runs of the sweep until none waits. To claim a run, it writes a token to the row of the run, so
that no other worker trains it. Workers claim runs in the database, so Ray does not know the runs. If a node fails, its
runs get the status "lost" when their heartbeats are too old. New tasks on other nodes then resume them from their
checkpoints.
"""

import math
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from app.jobs.sweeps.worker import POLL_S, LeaveRequest
from emtc_core.config.run import RunConfig
from emtc_core.errors import ClusterError, ConfigError
from emtc_core.install import get_install_command
from emtc_core.plugins import VARIABLE as PLUGINS_VARIABLE
from emtc_core.user_modules import FOLDER_VARIABLE, get_user_folder
from storage.engine import Database
from storage.files import FILES_VARIABLE
from storage.retry import retry_transient
from storage.runs.sweeps import Sweep, get_sweep

MAX_RETRIES = 5
"""Maximum number of replacement tasks for each of the parallel runs: at most (1 + MAX_RETRIES) · jobs tasks in all."""
_ROOT = Path(__file__).resolve().parents[3]
_ANSWER_TIMEOUT_S = 5.0
_CANCEL_TIMEOUT_S = 120.0
_OBJECT_STORE_BYTES = 100 * 2**20
"""A small object store, because tasks return nothing. Ray's minimum is 75 MiB."""


@dataclass(frozen=True)
class Cluster:
    """Address of a cluster, and the resources of each run."""

    address: str | None = None
    """`host:port`, `ray://host:port` or `auto`; None starts a local cluster."""
    cpus: float = 1.0
    gpus: float = 0.0

    def as_options(self) -> list[str]:
        """Return the command-line options that select this cluster."""
        resources = ["--cpus-per-run", str(self.cpus), "--gpus-per-run", str(self.gpus)]
        return ["--engine", "ray", "--address", self.address or "local", *resources]


def make_cluster(
    address: str | None, configs: Sequence[RunConfig], *, cpus: float | None, gpus: float | None
) -> Cluster:
    """Make a cluster description. By default, a run gets one CPU per thread, and a GPU if its device is `cuda`.

    Raises:
        ConfigError: If Ray cannot reserve this number of CPUs or GPUs.
    """
    from emtc_core.threads import choose_threads  # loads torch, which takes most of the time of a short command

    for option, number in (("--cpus-per-run", cpus), ("--gpus-per-run", gpus)):
        if number is not None and not (number <= 1 or number % 1 == 0):  # infinity and NaN are invalid too
            rule = "must be a whole number, or a fraction below 1 if several runs share one"
            raise ConfigError(rule, key=option, value=number)
    selected = address or os.environ.get("RAY_ADDRESS") or "local"
    # `is_alone=False`: other runs of the sweep train on the same machine.
    threads = max([choose_threads(config.train.threads, is_alone=False) for config in configs], default=1)
    needs_gpu = any(config.train.device == "cuda" for config in configs)
    return Cluster(
        address=None if selected == "local" else selected,
        cpus=cpus or float(threads),
        gpus=float(needs_gpu) if gpus is None else gpus,
    )


@contextmanager
def connect(cluster: Cluster, url: str) -> Generator[Any]:
    """Connect to a cluster, check that it can train runs of the database at `url`, and yield the module `ray`.

    Raises:
        ConfigError: If Ray is not installed.
        ClusterError: If the cluster does not answer, has another version of Ray or Python, has no node with the
            resources of a run, or has a node on another machine and the database is a SQLite file.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray = import_module("ray")
    except ImportError as exc:
        raise ConfigError("The Ray engine needs ray", hint=f"Install it with: {get_install_command('ray')}") from exc
    if cluster.address is None:
        options = {"address": "local", "include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
    else:
        _check_answers(cluster.address)
        options = {"address": cluster.address}
    try:
        ray.init(logging_level="ERROR", **options)
    except Exception as exc:
        raise ClusterError(f"Could not connect to the Ray cluster at {options['address']}: {_describe(exc)}") from exc
    try:
        count_slots(ray, cluster)
        hosts = {node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
        other_hosts = sorted(hosts - {socket.gethostname()})
        if url.startswith("sqlite") and other_hosts:
            raise ClusterError(
                f"Only this machine can read its SQLite database, and the cluster has nodes on other machines "
                f"({', '.join(other_hosts[:3])}). Choose a PostgreSQL URL with --db."
            )
        yield ray
    finally:
        ray.shutdown()


def count_slots(ray: Any, cluster: Cluster) -> int:
    """Count the runs that fit into a connected cluster at the same time.

    Raises:
        ClusterError: If no node has the resources of a run. Ray would wait for such a node.
    """
    slots = 0
    for node in ray.nodes():
        if node["Alive"]:
            by_cpu = node["Resources"].get("CPU", 0.0) / cluster.cpus
            by_gpu = node["Resources"].get("GPU", 0.0) / cluster.gpus if cluster.gpus else math.inf
            slots += math.floor(min(by_cpu, by_gpu) + 1e-9)  # rounding: 1 / 0.1 GPU must give 10
    if not slots:
        raise ClusterError(
            f"A run needs {cluster.cpus:g} CPU and {cluster.gpus:g} GPU, and no node of the cluster has them. Set a "
            "smaller number with --cpus-per-run and --gpus-per-run."
        )
    return slots


def run_sweep_on_ray(
    ray: Any,
    cluster: Cluster,
    db: Database,
    sweep_id: str,
    *,
    jobs: int,
    leave: LeaveRequest,
    announce: Callable[[str], None],
    on_progress: Callable[[Sweep], None],
    env_modules: Collection[str],
) -> Sweep:
    """Keep up to `jobs` workers on a cluster until all runs of the sweep have ended.

    A task is submitted for each waiting run, up to `jobs` tasks. If a task fails, its run gets the status "lost" later.
    Such a run waits again, so a new task is submitted.

    Args:
        ray: The module `ray`, connected.
        cluster: Resources of each run.
        db: An open database, which every node reaches by the same URL.
        sweep_id: The sweep.
        jobs: Number of parallel runs.
        leave: When a signal has arrived, the tasks are cancelled. Each worker then returns its run to the queue.
        announce: Called with messages for the user.
        on_progress: Called with the sweep after each poll.
        env_modules: Modules of environments that the workers may import.
    """

    def read() -> Sweep:
        return retry_transient(db, lambda: get_sweep(db, sweep_id))

    resources = {"num_cpus": cluster.cpus, "num_gpus": cluster.gpus}
    task = ray.remote(max_retries=0, scheduling_strategy="SPREAD", **resources)(run_worker)
    variables = {name: os.environ[name] for name in (FILES_VARIABLE, PLUGINS_VARIABLE) if name in os.environ}
    variables[FOLDER_VARIABLE] = str(get_user_folder())
    tasks: list[Any] = []
    n_submitted = 0
    max_submitted = (1 + MAX_RETRIES) * jobs
    try:
        while True:
            sweep = read()
            on_progress(sweep)
            n_waiting = sweep.counts["queued"] + sweep.counts["lost"]
            # An active run is in training. A task without an active run has not claimed its run yet.
            n_idle_tasks = max(0, len(tasks) - sweep.n_active)
            n_free_slots = jobs - sweep.n_active
            n_new = min(n_waiting, n_free_slots) - n_idle_tasks
            for _ in range(min(n_new, max_submitted - n_submitted)):
                tasks.append(task.remote(db.url, sweep_id, cluster.gpus, variables, sorted(env_modules)))
                n_submitted += 1
            can_continue = bool(tasks) or sweep.n_active > 0
            if leave.is_requested or sweep.has_nothing_to_start or not can_continue:
                break
            ended_tasks = []
            if tasks:
                ended_tasks, tasks = ray.wait(tasks, num_returns=len(tasks), timeout=0)
            for ended_task in ended_tasks:
                try:
                    ray.get(ended_task)
                except ray.exceptions.RayError as error:  # for example, the node has failed
                    announce(f"A task of the cluster failed: {_describe(error)}")
            time.sleep(POLL_S)
    finally:
        for running_task in tasks:
            ray.cancel(running_task)
        if tasks:
            ray.wait(tasks, num_returns=len(tasks), timeout=_CANCEL_TIMEOUT_S)
    return read()


def run_worker(url: str, sweep_id: str, gpus: float, variables: Mapping[str, str], env_modules: Sequence[str]) -> None:
    """Train runs of a sweep until none waits. This function is the Ray task.

    Ray sends the messages of the worker to the driver, the process that has submitted the task.

    Args:
        url: URL of the database. It may contain a password, so it is never a command-line argument.
        sweep_id: The sweep.
        gpus: Number of GPUs that Ray has reserved for this task.
        variables: Environment variables of the driver. The node's own value of a variable takes precedence.
        env_modules: Modules of environments that the worker may import.

    Raises:
        ClusterError: If the worker fails.
        KeyboardInterrupt: If Ray cancels the task. The worker first returns its run to the queue.
    """
    environment = {**variables, **os.environ, "EMTC_DB": url}
    if not gpus:  # newer versions of Ray show all GPUs to a task that reserved none
        environment["CUDA_VISIBLE_DEVICES"] = ""
    command = [sys.executable, "-m", "app.cli.main", "worker", "--once", "--sweep", sweep_id]
    command += [f"--env-module={module}" for module in env_modules]
    worker = subprocess.Popen(command, cwd=_ROOT, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        while worker.poll() is None:
            time.sleep(POLL_S)  # Ray's KeyboardInterrupt cannot interrupt a blocking `wait()`
    except KeyboardInterrupt:
        worker.terminate()
        worker.wait()
        raise
    if worker.returncode:
        raise ClusterError(f"The worker on {socket.gethostname()} ended with code {worker.returncode}.")


def _check_answers(address: str) -> None:
    """Check that a server answers, because Ray itself would wait for minutes and print many lines.

    Raises:
        ClusterError: If none answers.
    """
    if address == "auto":
        return
    match = re.fullmatch(r"(?:ray://)?\[?(.+?)\]?:(\d+)", address)
    if match is None:
        raise ClusterError(f"--address must be HOST:PORT, ray://HOST:PORT or auto, got {address!r}.")
    try:
        socket.create_connection((match[1], int(match[2])), timeout=_ANSWER_TIMEOUT_S).close()
    except (OSError, OverflowError) as exc:  # OverflowError: a port above 65535
        reason = getattr(exc, "strerror", None) or exc
        raise ClusterError(
            f"No Ray cluster answers at {address}: {reason}. Start one there with: ray start --head --port={match[2]}"
        ) from exc


def _describe(error: BaseException) -> str:
    """Return the text of Ray's innermost error as one line; its outer errors do not contain the reason."""
    while True:
        inner = getattr(error, "cause", None) or error.__cause__  # `cause` is Ray's attribute, `__cause__` Python's
        if inner is None:
            break
        error = inner
    return f"{' '.join(str(error).split())[:400].rstrip('.')}."
