"""The Ray engine: a Ray task on each node of a cluster runs an `emtc worker` for one sweep.

The database decides which worker trains which run, as for every worker. So a task, a node or the driver may end at any
moment: a run whose trainer ended with it is claimed again and resumes from its checkpoint.
"""

import math
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from app.jobs.sweeps.ray_place import WorkerExit, list_passed_variables, run_worker
from app.jobs.sweeps.worker import NOTHING, POLL_S, LeaveRequest
from emtc_core.config.run import RunConfig
from emtc_core.errors import ClusterError, ConfigError, StorageError
from emtc_core.install import get_install_command
from storage.engine import Database
from storage.retry import retry_transient
from storage.runs.claims import RunClaimer
from storage.runs.status import HEARTBEAT_S
from storage.runs.sweeps import Sweep, get_sweep, write_worker_heartbeat

MAX_FAILURES = 6
_ANSWER_TIMEOUT_S = 5.0
_OBJECT_STORE_BYTES = 100 * 2**20
"""Ray's minimum is 75 MiB. Tasks return only a few lines of text."""
_CLIENT = "ray://"
_RETRY_S = 10.0
"""Time without a new task after one has failed or found no run."""
_CANCEL_TIMEOUT_S = 120.0


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

    Args:
        address: Address of the cluster. None: RAY_ADDRESS, or a local cluster if that is not set.
        configs: Configurations of the runs.
        cpus: CPUs per run instead of the default.
        gpus: GPUs per run instead of the default.

    Raises:
        ConfigError: If Ray cannot reserve this number of CPUs or GPUs.
    """
    from emtc_core.threads import choose_threads  # loads torch, which takes most of the time of a short command

    for option, number in (("--cpus-per-run", cpus), ("--gpus-per-run", gpus)):
        if number is not None and not (number <= 1 or number % 1 == 0):  # refuses infinity and NaN, too
            rule = "must be a whole number, or a fraction below 1 if several runs share one"
            raise ConfigError(rule, key=option, value=number)
    selected = address or os.environ.get("RAY_ADDRESS") or "local"
    threads = max([choose_threads(config.train.threads, may_use_all=False) for config in configs], default=1)
    needs_gpu = any(config.train.device == "cuda" for config in configs)
    return Cluster(
        None if selected == "local" else selected, cpus or float(threads), float(needs_gpu) if gpus is None else gpus
    )


def import_ray() -> Any:
    """Import Ray, with its usage statistics switched off.

    Raises:
        ConfigError: If Ray is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return import_module("ray")
    except ImportError as exc:
        raise ConfigError("The Ray engine needs ray", hint=f"Install it with: {get_install_command('ray')}") from exc


@contextmanager
def connect(cluster: Cluster, url: str) -> Generator[Any]:
    """Connect to a cluster, check that it can train the runs, and yield the module `ray`.

    Args:
        cluster: The cluster and the resources of a run.
        url: URL of the database.

    Raises:
        ClusterError: If the cluster does not answer, has another version of Ray or Python, has no node with the
            resources of a run, or has a node that cannot reach the database.
    """
    ray = import_ray()
    _connect(ray, cluster.address)
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        check_database(url, nodes)
        _check_resources(cluster, nodes)
        yield ray
    finally:
        ray.shutdown()


def count_slots(ray: Any, cluster: Cluster) -> int:
    """Count the runs that fit into a connected cluster at the same time; at least 1."""
    nodes = _list_resources(node for node in ray.nodes() if node["Alive"])
    return max(1, sum(_count_fits(cluster, cpus, gpus) for cpus, gpus in nodes))


def check_database(url: str, nodes: Sequence[Mapping[str, Any]]) -> None:
    """Check that every node can reach the database.

    Args:
        url: URL of the database.
        nodes: Nodes as `ray.nodes()` describes them.

    Raises:
        ClusterError: If the database is a SQLite file and a node is another machine.
    """
    others = sorted({node["NodeManagerHostname"] for node in nodes} - {socket.gethostname()})
    if url.startswith("sqlite") and others:
        hosts = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if others[3:] else "")
        raise ClusterError(
            f"Only this machine can read its SQLite database, and the cluster has nodes on other machines ({hosts}). "
            "Choose a PostgreSQL URL with --db.",
            reason="sqlite",
            subject=hosts,
        )


def run_sweep_on_ray(
    ray: Any,
    cluster: Cluster,
    db: Database,
    sweep_id: str,
    *,
    jobs: int,
    leave: LeaveRequest,
    announce: Callable[[str], None],
    on_progress: Callable[[Sweep], None] = lambda sweep: None,
    env_modules: Collection[str] = (),
) -> Sweep:
    """Keep up to `jobs` workers running on a cluster until the runs of a sweep have ended or it is stopped.

    Args:
        ray: The module `ray`, connected.
        cluster: Resources of each run.
        db: An open database, which every node reaches by the same URL.
        sweep_id: The sweep.
        jobs: Number of runs at once.
        leave: Ends the loop when it is set. The workers give their runs back then.
        announce: Called with messages for the user.
        on_progress: Called with the sweep after each poll.
        env_modules: Modules of environments that the workers may import.

    Returns:
        The sweep at the end.

    Raises:
        StorageError: If there is no such sweep.
        ClusterError: If MAX_FAILURES tasks fail and no run finishes meanwhile.
        KeyboardInterrupt: On a second signal.
    """
    tasks = _TaskPool(ray, cluster, db, sweep_id, jobs=jobs, announce=announce, env_modules=env_modules)
    heartbeat_at = -math.inf
    try:
        while True:
            with suppress(StorageError):  # a locked database: try again at the next poll
                if time.monotonic() - heartbeat_at >= HEARTBEAT_S:
                    write_worker_heartbeat(db, sweep_id)
                    heartbeat_at = time.monotonic()
                tasks.update()
            sweep = retry_transient(db, lambda: get_sweep(db, sweep_id))
            on_progress(sweep)
            if sweep.has_nothing_to_start or leave.is_requested:
                return sweep
            time.sleep(POLL_S)
    finally:
        if leave.is_requested:
            announce(
                "Stopping: each worker writes a checkpoint and gives its run back. A second signal ends this at once."
            )
        tasks.close()


class _TaskPool:
    """The Ray tasks of one sweep, each with one worker. Ray queues a task until a node has free resources."""

    def __init__(
        self,
        ray: Any,
        cluster: Cluster,
        db: Database,
        sweep_id: str,
        *,
        jobs: int,
        announce: Callable[[str], None],
        env_modules: Collection[str],
    ) -> None:
        self._ray, self._db, self._sweep_id, self._jobs, self._announce = ray, db, sweep_id, jobs, announce
        # No retries by Ray: they would hide failures, and Ray does not know which runs the database still has to do.
        options = {
            "num_cpus": cluster.cpus,
            "num_gpus": cluster.gpus,
            "max_retries": 0,
            "scheduling_strategy": "SPREAD",
        }
        self._task = ray.remote(**options)(run_worker)
        self._arguments = {
            "at_most": jobs,
            "gpus": cluster.gpus,
            "variables": list_passed_variables(),
            "env_modules": sorted(env_modules),
        }
        self._claimer = RunClaimer(db)
        self._tasks: list[Any] = []
        self._messages: set[str] = set()
        self._wait_until = 0.0
        self._n_failures = 0
        self._progress = 0.0

    def update(self) -> None:
        """Read the results of ended tasks, and submit as many tasks as there are runs to claim.

        Raises:
            ClusterError: If MAX_FAILURES tasks fail and no run finishes meanwhile.
            StorageError: If the database does not answer.
        """
        self._collect_ended()
        n_free, n_training = self._claimer.count_free_and_active(self._sweep_id)
        n_idle = len(self._tasks) - min(len(self._tasks), n_training)
        if time.monotonic() < self._wait_until:
            return
        for _ in range(min(n_free, self._jobs - n_training) - n_idle):
            self._tasks.append(self._task.remote(self._db.url, self._sweep_id, **self._arguments))

    def close(self) -> None:
        """Cancel the remaining tasks. Each worker writes a checkpoint and gives its run back."""
        for task in self._tasks:
            self._ray.cancel(task)
        if self._tasks:
            self._ray.wait(self._tasks, num_returns=len(self._tasks), timeout=_CANCEL_TIMEOUT_S)

    def _collect_ended(self) -> None:
        if not self._tasks:
            return
        ended, self._tasks = self._ray.wait(self._tasks, num_returns=len(self._tasks), timeout=0)
        failures, has_idle = list[str](), False
        for task in ended:
            try:
                worker: WorkerExit = self._ray.get(task)
            except self._ray.exceptions.RayError as error:  # a task or node has ended, or lacks EMTC Lab
                failures.append(_describe_task_error(error))
                continue
            last = worker.messages[-1] if worker.messages else "it printed no message."
            if worker.code:
                failures.append(f"A worker on {worker.host} ended with code {worker.code}: {last}")
            elif last == NOTHING:
                has_idle = True
                for message in worker.messages[:-1]:
                    self._announce_once(message)
        for message in failures:
            self._announce_once(message)
        now = time.monotonic()
        if failures and now >= self._wait_until:  # tasks that fail at the same time count once
            self._count_failure(failures[-1])
        if failures or has_idle:
            self._wait_until = now + _RETRY_S

    def _count_failure(self, message: str) -> None:
        """Give up after MAX_FAILURES failures without progress of a run.

        Raises:
            ClusterError: If it gives up.
        """
        progress = get_sweep(self._db, self._sweep_id).progress
        self._n_failures = 1 if progress > self._progress else self._n_failures + 1
        self._progress = progress
        if self._n_failures >= MAX_FAILURES:
            raise ClusterError(f"Workers failed {MAX_FAILURES} times, and no run made progress. {message}")

    def _announce_once(self, message: str) -> None:
        if message not in self._messages:
            self._messages.add(message)
            self._announce(message)


def _connect(ray: Any, address: str | None) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address is None:
            ray.init(address="local", include_dashboard=False, object_store_memory=_OBJECT_STORE_BYTES, **quiet)
            return
        _check_address(address)
        ray.init(address=address, **quiet)
    except ClusterError:
        raise
    except Exception as exc:
        raise ClusterError(_describe_connection_error(ray, address, exc)) from exc


def _check_address(address: str) -> None:
    """Check that a server answers, because Ray itself would wait for minutes and print many lines.

    Raises:
        ClusterError: If none answers.
    """
    if address == "auto":
        return
    host, _, port = address.removeprefix(_CLIENT).rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ClusterError(f"--address must be HOST:PORT, {_CLIENT}HOST:PORT or auto, got {address!r}.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_TIMEOUT_S).close()
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        raise ClusterError(
            f"No Ray cluster answers at {address}: {reason}. Start one there with: ray start --head --port={port}"
        ) from exc


def _describe_connection_error(ray: Any, address: str | None, error: BaseException) -> str:
    """Describe in one or two sentences why Ray cannot connect. Ray has only text errors, so their text is searched."""
    text, inner = str(error), error
    while inner := inner.__cause__ or inner.__context__:  # the outermost error of Ray does not contain the reason
        text += f"\n{inner}"
    remote = re.search(r"cluster was started with:\s+Ray: (\S+)\s+Python: (\S+)", text)
    if remote:
        local = f"Ray {ray.__version__} and Python {'.'.join(map(str, sys.version_info[:3]))}"
        install_ray = f"Install its Ray here with: pip install 'ray=={remote[1]}'"
        fix = f"Start emtc with Python {remote[2]}." if remote[1] == ray.__version__ else install_ray
        return f"The cluster at {address} runs Ray {remote[1]} and Python {remote[2]}, this program {local}. {fix}"
    first_line = next(iter(text.strip().splitlines()), "no reason given").rstrip(".")
    if address is None:
        return f"A local Ray cluster could not be started: {first_line}. See: ray status"
    return f"Could not connect to the Ray cluster at {address}: {first_line}. Check it with: ray status"


def _check_resources(cluster: Cluster, nodes: Sequence[Mapping[str, Any]]) -> None:
    """Check that one node has the resources of a run. Nodes that an autoscaler could add do not count."""
    resources = _list_resources(nodes)
    if any(_count_fits(cluster, cpus, gpus) for cpus, gpus in resources):
        return
    best = ", ".join(f"{cpus:g} CPU and {gpus:g} GPU" for cpus, gpus in sorted(set(resources), reverse=True)[:3])
    raise ClusterError(
        f"A run needs {cluster.cpus:g} CPU and {cluster.gpus:g} GPU, and no node of the cluster has them (available: "
        f"{best}). Set a smaller number with --cpus-per-run and --gpus-per-run."
    )


def _list_resources(nodes: Iterable[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """List the CPUs and GPUs of each node."""
    return [(node["Resources"].get("CPU", 0.0), node["Resources"].get("GPU", 0.0)) for node in nodes]


def _count_fits(cluster: Cluster, cpus: float, gpus: float) -> int:
    """Count the runs that fit into a node with these CPUs and GPUs."""
    by_gpu = gpus / cluster.gpus if cluster.gpus else math.inf
    return math.floor(min(cpus / cluster.cpus, by_gpu) + 1e-9)  # rounding: 1 / 0.1 GPU must give 10


def _describe_task_error(error: Exception) -> str:
    """Describe in one sentence why a task failed. Ray has only text errors of many lines."""
    text = str(error)
    if node := re.search(r"node it was running on is dead.*?Node IP: ([^,\s]+)", text):
        return f"A node of the cluster is lost ({node[1]}). Other nodes resume its runs."
    cause = getattr(error, "cause", None)  # the error that the task raised
    description = f"{type(cause).__name__}: {cause}" if cause is not None else text
    first_line = next(iter(description.strip().splitlines()), type(error).__name__)
    return f"A task of the cluster failed: {first_line[:300]}"
