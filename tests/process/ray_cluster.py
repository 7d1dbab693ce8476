"""A real Ray cluster of several nodes on this machine, and what a dead node takes along."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import psutil

from tests.process.trainers import wait_until
from tests.require import require

ROOT = Path(__file__).parents[2]
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
    "RAY_ENABLE_RECORD_ACTOR_TASK_LOGGING": "0",
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

    head: subprocess.Popen[bytes]
    folder: Path
    known: dict[int, psutil.Process] = field(default_factory=dict)

    def raylet(self) -> psutil.Process | None:
        return next((each for each in self._family() if "raylet" in each.name()), None)

    def kill(self) -> None:
        """End the node as a power cut would, with every process that it ever had."""
        family = self._family()
        for process in [self.head, *family]:
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                process.kill()
        self.head.wait()

    def _family(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.head.pid).children(recursive=True)
        return []


@dataclass
class Cluster:
    address: str
    nodes: list[Node]


@contextmanager
def cluster(*, nodes: int = 2, cpus: int = 2) -> Generator[Cluster]:
    """Start the nodes, each with its own port and its own folder, and end them all."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    with ExitStack() as stack:
        started = [
            stack.enter_context(_node(["--head", f"--port={port}", "--include-dashboard=false"], cpus)),
            *(stack.enter_context(_node([f"--address={address}"], cpus)) for _ in range(nodes - 1)),
        ]
        yield Cluster(address, started)


@contextmanager
def _node(options: list[str], cpus: int) -> Generator[Node]:
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:  # its sockets' paths must be short
        place = Path(folder)
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--num-cpus={cpus}",
                   f"--object-store-memory={_STORE}", *options]  # fmt: skip
        if "--head" in options:
            command.append(f"--temp-dir={folder}")
        with (place / "out").open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **QUIET})
        node = Node(process, place)
        try:
            wait_until(lambda: "Ray runtime started" in (place / "out").read_text(), timeout_s=60, what="a Ray node")
            yield node
        finally:
            node.kill()
