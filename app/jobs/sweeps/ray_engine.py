"""The Ray engine: the cluster's nodes hold places for one sweep, and in each an `emtc worker` trains run after run.

Who trains what is decided in the database, as for every worker. So a task, a node or this driver may die at any moment:
a run whose trainer died with them is claimed again and goes on from its checkpoint, and trainers that live on finish
theirs. What a cluster cannot do is refused before any work starts: Ray itself waits minutes for a cluster that is not
there and speaks in many lines, here it is a few seconds and one sentence.
"""

import math
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from app.jobs.launch import find_trainer
from app.jobs.sweeps.ray_place import Held, hold_place, list_carried
from app.jobs.sweeps.scheduler import attached, tend
from app.jobs.sweeps.worker import NOTHING, leave_signals
from emtc_core.config.run import RunConfig
from emtc_core.errors import ClusterError, ConfigError
from emtc_core.install import how_to_install
from storage.engine import Database
from storage.runs.claims import count_work
from storage.runs.sweeps import Sweep, get_sweep

_ANSWER_S = 5.0
_SETTINGS_FRAME = b"\x04"
_HTTP2_OPENING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + _SETTINGS_FRAME + bytes(5)
_STORE_BYTES = 100 * 2**20  # the least that Ray takes is 75 MiB; workers hand over a few lines of text
_CLIENT = "ray://"


@dataclass(frozen=True)
class Cluster:
    """Which cluster, and what each run asks of it."""

    address: str | None = None
    """`host:port`, `ray://host:port` or `auto`; None starts a local one."""
    cpus: float = 1.0
    gpus: float = 0.0

    def as_options(self) -> list[str]:
        """Write it as options of the command line."""
        where = ["--address", self.address] if self.address else []
        return ["--engine", "ray", *where, "--cpus-per-run", str(self.cpus), "--gpus-per-run", str(self.gpus)]


def make_cluster(
    address: str | None, configs: Sequence[RunConfig], *, cpus: float | None, gpus: float | None
) -> Cluster:
    """Ask for what the runs' own settings want, unless told otherwise: their threads, and a GPU for `cuda`.

    Raises:
        ConfigError: If a number is one that Ray cannot share out.
    """
    from emtc_core.devices import choose_threads  # torch: most of the time of a command that asks no cluster

    for option, number in (("--cpus-per-run", cpus), ("--gpus-per-run", gpus)):
        if number is not None and not (number <= 1 or number % 1 == 0):  # infinity and NaN are neither
            rule = "must be a whole number, or a part of 1 that several runs share"
            raise ConfigError(rule, key=option, value=number)
    given = address or os.environ.get("RAY_ADDRESS") or "local"
    threads = max([choose_threads(config.train.threads, alone=False) for config in configs], default=1)
    wants_gpu = any(config.train.device == "cuda" for config in configs)
    return Cluster(
        None if given == "local" else given, cpus or float(threads), float(wants_gpu) if gpus is None else gpus
    )


def import_ray() -> Any:
    """Import ray.

    Raises:
        ConfigError: If it is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a study is nobody else's business
    try:
        return import_module("ray")
    except ImportError as exc:
        raise ConfigError("The Ray engine needs ray", hint=f"Install it with: {how_to_install('ray')}") from exc


@contextmanager
def connected(cluster: Cluster, url: str) -> Generator[Any]:
    """Connect to a cluster that can do the work, and give the module `ray`.

    Raises:
        ClusterError: If it is not there, runs other versions, has no node with what a run asks for, or has nodes that
            do not reach the database.
    """
    ray = import_ray()
    _init(ray, cluster.address)
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        check_database(url, nodes)
        _check_resources(cluster, nodes)
        yield ray
    finally:
        ray.shutdown()


def count_places(ray: Any, cluster: Cluster) -> int:
    """Count the runs that fit into a connected cluster as it is now, at least one."""
    offers = _list_offers(node for node in ray.nodes() if node["Alive"])
    return max(1, sum(_count_fits(cluster, cpus, gpus) for cpus, gpus in offers))


def _init(ray: Any, address: str | None) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address is None:
            ray.init(address="local", include_dashboard=False, object_store_memory=_STORE_BYTES, **quiet)
            return
        _knock(address)
        ray.init(address=address, **quiet)
    except ClusterError:
        raise
    except Exception as exc:
        raise ClusterError(_why_no_cluster(ray, address, exc)) from exc


def _knock(address: str) -> None:
    """Ask at the address, because Ray itself would wait minutes for nobody.

    Raises:
        ClusterError: If no Ray cluster answers.
    """
    if address == "auto":
        return
    host, _, port = address.removeprefix(_CLIENT).rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ClusterError(f"--address must be HOST:PORT, {_CLIENT}HOST:PORT or auto, got {address!r}.")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S) as connection:
            speaks_grpc = _speaks_grpc(connection)
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        raise ClusterError(
            f"No Ray cluster answers at {address}: {reason}. Start one there with: ray start --head --port={port}"
        ) from exc
    if not speaks_grpc:
        raise ClusterError(f"What answers at {address} is no Ray cluster. Its head says its address with: ray status")


def _speaks_grpc(connection: socket.socket) -> bool:
    """Open HTTP/2, which every server of Ray answers with its own settings; under TLS it is left to Ray to find out."""
    if os.environ.get("RAY_USE_TLS", "0") != "0":
        return True
    connection.sendall(_HTTP2_OPENING)
    try:
        return connection.recv(9)[3:4] == _SETTINGS_FRAME
    except TimeoutError:
        return False


def _why_no_cluster(ray: Any, address: str | None, error: BaseException) -> str:
    reason, within = str(error), error
    while within := within.__cause__ or within.__context__:  # Ray says at its outermost only that it failed
        reason += f"\n{within}"
    theirs = re.search(r"cluster was started with:\s+Ray: (\S+)\s+Python: (\S+)", reason)
    if theirs:
        mine = f"Ray {ray.__version__} and Python {'.'.join(map(str, sys.version_info[:3]))}"
        other_ray = f"Install its Ray here with: pip install 'ray=={theirs[1]}'"
        step = f"Start emtc with Python {theirs[2]}." if theirs[1] == ray.__version__ else other_ray
        return f"The cluster at {address} runs Ray {theirs[1]} and Python {theirs[2]}, this program {mine}. {step}"
    if "AuthToken" in reason or "AuthenticationError" in reason:
        return f"The cluster at {address} asks for its token. Put it into RAY_AUTH_TOKEN, with RAY_AUTH_MODE=token."
    if "Method not found" in reason:
        return (
            f"What answers at {address} is a part of Ray, but not its head. The head says its address with: ray status"
        )
    first = next(iter(reason.strip().splitlines()), "it says nothing").rstrip(".")
    if address is None:
        return f"A local Ray could not be started: {first}. See: ray status"
    return f"The Ray cluster at {address} could not be joined: {first}. See what it is with: ray status"


def check_database(url: str, nodes: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a database that not every node reaches.

    Raises:
        ClusterError: If it is a file, and a node is on another machine.
    """
    others = sorted({node["NodeManagerHostname"] for node in nodes} - {socket.gethostname()})
    if url.startswith("sqlite") and others:
        shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if others[3:] else "")
        raise ClusterError(
            f"A SQLite database is a file of one machine, and the cluster has nodes on others ({shown}). "
            "Choose a PostgreSQL URL with --db.",
            reason="sqlite",
            subject=shown,
        )


def _check_resources(cluster: Cluster, nodes: Sequence[Mapping[str, Any]]) -> None:
    """One node must have what one run asks for; an autoscaler's nodes that are not there yet do not count."""
    offers = _list_offers(nodes)
    if any(_count_fits(cluster, cpus, gpus) for cpus, gpus in offers):
        return
    best = ", ".join(f"{cpus:g} CPU and {gpus:g} GPU" for cpus, gpus in sorted(set(offers), reverse=True)[:3])
    raise ClusterError(
        f"A run asks for {cluster.cpus:g} CPU and {cluster.gpus:g} GPU, and no node of the cluster has them (there is "
        f"{best}). Ask for less with --cpus-per-run and --gpus-per-run."
    )


def _list_offers(nodes: Iterable[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """List the CPUs and GPUs of each node."""
    return [(node["Resources"].get("CPU", 0.0), node["Resources"].get("GPU", 0.0)) for node in nodes]


def _count_fits(cluster: Cluster, cpus: float, gpus: float) -> int:
    by_gpu = gpus / cluster.gpus if cluster.gpus else math.inf
    return math.floor(min(cpus / cluster.cpus, by_gpu) + 1e-9)  # 1 / 0.1 of a GPU is ten


MOST_FAILURES = 6
_LONGEST_REST_S = 60.0
_LEAVE_S = 120.0


def run_sweep_on_ray(
    ray: Any,
    cluster: Cluster,
    db: Database,
    sweep_id: str,
    *,
    jobs: int,
    say: Callable[[str], None],
    on_progress: Callable[[Sweep], None] = lambda sweep: None,
) -> Sweep:
    """Keep up to `jobs` places of a cluster at a sweep until its runs have ended or it is stopped.

    Args:
        ray: The module, connected.
        cluster: What each place asks for.
        db: An open database, which every node reaches by the same URL.
        sweep_id: The sweep.
        jobs: Runs at once.
        say: Is given one sentence at a time.
        on_progress: Is given the sweep every now and then.

    Raises:
        StorageError: If there is no such sweep.
        ClusterError: If no worker can be kept at work.
        KeyboardInterrupt: At a signal; the workers have given their runs back then.
    """
    with leave_signals() as leave, attached(db, sweep_id, jobs):
        places = Places(ray, cluster, db, sweep_id, jobs=jobs, say=say)
        try:
            return tend(db, sweep_id, places.tend, on_progress=on_progress, leave=leave)
        except KeyboardInterrupt:
            say("Leaving: each worker gives its run back with a checkpoint. A second signal leaves them to themselves.")
            raise
        finally:
            places.close()


class Places:
    """The places of a cluster where workers of one sweep are, or will be once there is room."""

    def __init__(
        self, ray: Any, cluster: Cluster, db: Database, sweep_id: str, *, jobs: int, say: Callable[[str], None]
    ) -> None:
        """Hold none yet; `say` is given one sentence at a time."""
        self._ray, self._db, self._sweep_id, self._jobs, self._say = ray, db, sweep_id, jobs, say
        # Ray's own retries would hide what happened, and its queue knows nothing of what the database does.
        options = {
            "num_cpus": cluster.cpus,
            "num_gpus": cluster.gpus,
            "max_retries": 0,
            "scheduling_strategy": "SPREAD",
        }
        self._task = ray.remote(**options)(hold_place)
        self._arguments = {"at_most": jobs, "gpus": cluster.gpus, "carried": list_carried()}
        self._held: list[Any] = []
        self._said: set[str] = set()
        self._in_vain = self._failures = 0
        self._rest_until = self._done_before = 0.0

    def tend(self) -> None:
        """Note which places were left, and take as many as there are runs to claim.

        Raises:
            ClusterError: If one place after the other fails.
            StorageError: If the database does not answer.
        """
        self._collect()
        free, working = count_work(self._db, self._sweep_id, has_trainer=find_trainer)
        idle = len(self._held) - min(len(self._held), working)
        wanted = min(free, self._jobs - working) - idle
        if time.monotonic() < self._rest_until:
            return
        for _ in range(wanted):
            self._held.append(self._task.remote(self._db.url, self._sweep_id, **self._arguments))

    def close(self) -> None:
        """Cancel what is left; each worker gives its run back with a checkpoint."""
        for place in self._held:
            self._ray.cancel(place)
        if self._held:
            self._ray.wait(self._held, num_returns=len(self._held), timeout=_LEAVE_S)

    def _collect(self) -> None:
        if not self._held:
            return
        left, self._held = self._ray.wait(self._held, num_returns=len(self._held), timeout=0)
        for place in left:
            try:
                self._note(self._ray.get(place))
            except self._ray.exceptions.RayError as error:  # a dead task, node or owner, or a node without EMTC Lab
                self._fail(_explain(error))

    def _note(self, held: Held) -> None:
        last = held.said[-1] if held.said else "it said nothing."
        if held.code:
            self._fail(f"A worker on {held.host} ended with code {held.code}: {last}")
        elif last == NOTHING:
            for sentence in held.said[:-1]:
                self._say_once(sentence)
            self._rest()
        else:
            self._in_vain = self._failures = 0

    def _fail(self, sentence: str) -> None:
        """Write it to the log, and give up when it is the only thing that happens.

        Raises:
            ClusterError: If it is.
        """
        self._say_once(sentence)
        if not self._rest():
            return
        done = get_sweep(self._db, self._sweep_id).done
        self._failures = 1 if done > self._done_before else self._failures + 1
        self._done_before = done
        if self._failures >= MOST_FAILURES:
            raise ClusterError(f"Places failed {MOST_FAILURES} times, and no run went on. {sentence}")

    def _rest(self) -> bool:
        """Take no place for a while, each time for longer; False if this was the case already."""
        now = time.monotonic()
        if now < self._rest_until:
            return False
        self._rest_until = now + min(_LONGEST_REST_S, 2.0**self._in_vain)
        self._in_vain += 1
        return True

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self._say(sentence)


def _explain(error: Exception) -> str:
    """Why a place was lost, in a sentence instead of Ray's many lines."""
    text = str(error)
    if node := re.search(r"node it was running on is dead.*?Node IP: ([^,\s]+)", text):
        return f"A node of the cluster is lost ({node[1]}). What its trainers cannot finish goes on elsewhere."
    cause = getattr(error, "cause", None)  # what the task itself raised
    words = f"{type(cause).__name__}: {cause}" if cause is not None else text
    return f"A place of the cluster is lost: {next(iter(words.strip().splitlines()), type(error).__name__)[:300]}"
