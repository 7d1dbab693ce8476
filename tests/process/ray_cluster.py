"""A real Ray cluster of several nodes on this machine, and what a dead node takes along."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil

from tests.process.trainers import wait_until
from tests.require import require

ROOT = Path(__file__).parents[2]
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",  # else Ray leaves a token in the home of whoever tests
    "RAY_worker_niceness": "0",  # else whatever runs beside it goes first
    "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
}
_STORE = str(100 * 2**20)


def require_ray() -> None:
    require("ray", find_spec("ray") is not None, "it is not installed")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass
class Node:
    """One node: `ray start --block` and the processes under it."""

    process: subprocess.Popen[bytes]

    def trainers(self) -> dict[str, int]:
        """The trainers under its workers, by their runs."""
        return trainers_under(self.process.pid)

    def kill(self) -> None:
        """End the node as a power cut would, with every process under it."""
        for each in [*_family(self.process.pid), self.process]:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self.process.wait()


def trainers_under(pid: int) -> dict[str, int]:
    found = {}
    for each in _family(pid):
        with suppress(psutil.NoSuchProcess):
            words = each.cmdline()
            if "train-worker" in words:
                found[words[words.index("train-worker") + 1]] = each.pid
    return found


def _family(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


@dataclass
class Cluster:
    address: str
    nodes: list[Node]

    def trainers(self) -> dict[str, int]:
        return {run: pid for node in self.nodes for run, pid in node.trainers().items()}


@contextmanager
def cluster(*, nodes: int = 2, cpus: int = 2, gpus: int = 0, variables: Mapping[str, str] = {}) -> Generator[Cluster]:
    """Start the nodes, each with its own port and its own folder, and end them all."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    size = [f"--num-cpus={cpus}", f"--num-gpus={gpus}", f"--object-store-memory={_STORE}"]
    head = ["--head", f"--port={port}", f"--ray-client-server-port={free_port()}", "--include-dashboard=false"]
    with ExitStack() as stack:
        roles = [head, *([f"--address={address}"] for _ in range(nodes - 1))]
        started = [stack.enter_context(_node([*size, *options], variables)) for options in roles]
        yield Cluster(address, started)


@contextmanager
def _node(options: list[str], variables: Mapping[str, str]) -> Generator[Node]:
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:  # its sockets' paths must be short
        place = Path(folder)
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *options]
        if "--head" in options:
            command.append(f"--temp-dir={folder}")
        environment = {**os.environ, **QUIET, **variables}
        environment.pop("CUDA_VISIBLE_DEVICES", None)  # Ray refuses GPUs if it is empty, as in these tests
        with (place / "out").open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
        node = Node(process)

        def read_out() -> str:
            return (place / "out").read_text()

        try:
            wait_until(
                lambda: "Ray runtime started" in read_out() or process.poll() is not None,
                what="a Ray node",
            )
            assert process.poll() is None, read_out()
            yield node
        finally:
            node.kill()
