"""B football engines behind one interface: in this process, or in worker processes.

Contents: `SharedArrays`, the interface `EngineGroup`, the group in this process, the group of worker processes, and the
program that a worker runs. Observations and rewards are in `env.py`.

`WorkerGroup` starts `python -m emtc_core.envs.grf.engine_group MEMORY COMMANDS REPLIES TASK`. The first three arguments
are inherited file descriptors. A worker reads one byte, steps or resets its engines and writes one byte. It ends only
when the pipe of commands is closed. It ignores Ctrl+C, which also reaches it, because the trainer decides whether to
stop.
"""

import mmap
import os
import signal
import subprocess
import sys
import tempfile
import weakref
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from emtc_core.envs.grf.engine import ENDED, Engine, Squad
from emtc_core.envs.grf.scenarios import Lineup, Player, StateLayout
from emtc_core.errors import EnvUnavailableError

_ROOT = Path(__file__).resolve().parents[3]
_CLOSE_TIMEOUT_S = 5.0
_WORKERS_PER_CORE = 4

_WAIT_UNTIL_STARTED, _RESET, _STEP = b"h", b"r", b"s"
"""Commands to a worker. The reply to each is `_DONE`. `_WAIT_UNTIL_STARTED` waits until the worker has started."""
_DONE = b"."


@dataclass(frozen=True)
class SharedArrays:
    """Arrays that the environment and the engines share. The pipes ensure that only one side uses them at a time.

    Source: implementation detail.
    """

    state: NDArray[np.float64]  # [B, S] [state features], written by the engines
    seed: NDArray[np.int64]  # [B] seed of the next match, dimensionless, read at a reset
    action: NDArray[np.int64]  # [B, N] action indices, read at a step
    goal: NDArray[np.int64]  # [B] goals for minus goals against, dimensionless, written by the engines
    running: NDArray[np.bool_]  # [B] boolean, whether a step advances the match
    ended: NDArray[np.bool_]  # [B] boolean, whether the match has ended by the engine's rules, written by the engines


class EngineGroup(Protocol):
    """B engines that read and write the arrays `shared`."""

    shared: SharedArrays

    def reset(self) -> None:
        """Start a match in every engine with the seeds in `shared`."""
        ...

    def step(self) -> None:
        """Play the actions in `shared` in every engine whose match is running."""
        ...

    def close(self) -> None:
        """Release the engines. A second call has no effect."""
        ...


class LocalGroup:
    """Engines in this process, stepped one after the other.

    Each step starts with the engine that was last in the step before, because its memory is still in the CPU cache.
    """

    def __init__(self, squad: Squad, shared: SharedArrays, copies: range) -> None:
        self.shared = shared
        self._engines = [(copy, Engine(squad)) for copy in copies]

    def reset(self) -> None:
        """Start a new match in every engine, with the seeds in `shared`."""
        for copy, engine in self._engines:
            engine.reset(int(self.shared.seed[copy]), self.shared.state[copy])

    def step(self) -> None:
        """Advance every running match by one step with the actions in `shared`."""
        shared = self.shared
        self._engines.reverse()
        for copy, engine in self._engines:
            if shared.running[copy]:
                goal, end = engine.step(shared.action[copy].tolist(), shared.state[copy])
                shared.goal[copy] = goal
                shared.ended[copy] = end == ENDED

    def close(self) -> None:
        """Return the engines to this process for reuse."""
        for _, engine in self._engines:
            engine.close()


class WorkerGroup:
    """Engines in worker processes that share the memory of `shared`.

    A worker is a new interpreter, not a fork, and does not import this process's main module. It waits on a pipe. When
    this process ends for any reason, the pipe closes and the worker ends.
    """

    def __init__(self, squad: Squad, *, n_envs: int, n_workers: int) -> None:
        memory = make_memory_file(n_envs, squad)
        self.shared = make_shared_arrays(memory, n_envs, squad)
        bounds = np.linspace(0, n_envs, n_workers + 1).astype(int).tolist()
        self._workers = [_Worker(squad, n_envs, share, memory) for share in pairwise(bounds)]
        os.close(memory)  # `shared` and every worker have their own reference to it
        self._release = weakref.finalize(self, _close_all, self._workers)
        self._call(_WAIT_UNTIL_STARTED, self._workers)

    def reset(self) -> None:
        """Start a new match in every worker, with the seeds in `shared`."""
        self._call(_RESET, self._workers)

    def step(self) -> None:
        """Advance every running match by one step. Workers without a running match do nothing."""
        running = self.shared.running
        self._call(_STEP, [worker for worker in self._workers if running[worker.copies].any()])

    def close(self) -> None:
        """End the worker processes."""
        self._release()

    @staticmethod
    def _call(command: bytes, workers: "list[_Worker]") -> None:
        for worker in workers:
            worker.send(command)
        for worker in workers:
            worker.wait()


def make_group(squad: Squad, *, n_envs: int, workers: int) -> EngineGroup:
    """Start the engines: a single one in this process, several in worker processes.

    Args:
        squad: Settings of the scenario.
        n_envs: Number of engines.
        workers: Number of worker processes; 0 selects it from the number of cores.
    """
    if n_envs > 1:
        return WorkerGroup(squad, n_envs=n_envs, n_workers=count_workers(n_envs, workers))
    shared = make_shared_arrays(None, n_envs, squad)
    return LocalGroup(squad, shared, range(n_envs))


def count_workers(n_envs: int, workers: int) -> int:
    """Return the number of processes for `n_envs` engines: `workers`, or with 0 four per usable core; at most n_envs.

    Matches end at different times. With one process per core, the core whose matches end first would be idle for a
    fifth of a round. With more processes per core, the operating system runs another one there.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(n_envs, workers or _WORKERS_PER_CORE * cores)


def make_memory_file(n_envs: int, squad: Squad) -> int:
    """Open an anonymous file as large as the shared arrays; return its descriptor. It is deleted with its last user."""
    size = sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in _list_fields(n_envs, squad))
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("emtc-football")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def make_shared_arrays(memory: int | None, n_envs: int, squad: Squad) -> SharedArrays:
    """Make the arrays that the environment and the engines share.

    Args:
        memory: Descriptor of the shared memory file; None for arrays in private memory.
        n_envs: Number of engines, B.
        squad: Settings of the scenario; they give the array sizes N and S.
    """
    fields = _list_fields(n_envs, squad)
    if memory is None:
        return SharedArrays(*(np.zeros(shape, dtype) for shape, dtype in fields))
    buffer = mmap.mmap(memory, 0)
    arrays, offset = [], 0
    for shape, dtype in fields:
        count = int(np.prod(shape))
        arrays.append(np.frombuffer(buffer, dtype, count, offset).reshape(shape))
        offset += count * dtype.itemsize
    return SharedArrays(*arrays)


def main(arguments: list[str]) -> None:
    """Run a worker: execute commands until the pipe of commands is closed."""
    memory, commands, replies = (int(fd) for fd in arguments[:3])
    task = orjson.loads(arguments[3])
    squad = _parse_squad(task["squad"])
    shared = make_shared_arrays(memory, task["n_envs"], squad)
    group = LocalGroup(squad, shared, range(*task["share"]))
    while command := os.read(commands, 1):
        if command == _RESET:
            group.reset()
        elif command == _STEP:
            group.step()
        os.write(replies, _DONE)


def _parse_squad(fields: dict[str, Any]) -> Squad:
    lineup = fields.pop("lineup")
    left, right = (tuple(Player(**player) for player in lineup[side]) for side in ("left", "right"))
    return Squad(Lineup(left, right, tuple(lineup["ball"])), **fields)


def _list_fields(n_envs: int, squad: Squad) -> list[tuple[tuple[int, ...], np.dtype]]:
    """List the shapes and types of the shared arrays. The widest types are first, so that all arrays are aligned."""
    dim = StateLayout(squad.n_agents, squad.n_opponents).dim
    integer, flag = np.dtype(np.int64), np.dtype(np.bool_)
    return [
        ((n_envs, dim), np.dtype(np.float64)),
        ((n_envs,), integer),
        ((n_envs, squad.n_agents), integer),
        ((n_envs,), integer),
        ((n_envs,), flag),
        ((n_envs,), flag),
    ]


class _Worker:
    """The trainer's side of one worker process. `copies`: the engines that it runs."""

    def __init__(self, squad: Squad, n_envs: int, share: tuple[int, int], memory: int) -> None:
        command_out, self._command = os.pipe()
        self._reply, reply_in = os.pipe()
        self.copies = slice(*share)
        task = {"squad": asdict(squad), "n_envs": n_envs, "share": share}
        fds = [memory, command_out, reply_in]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "emtc_core.envs.grf.engine_group", *map(str, fds), orjson.dumps(task).decode()],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=_make_environ(),
        )
        os.close(command_out)
        os.close(reply_in)
        self._open = True

    def send(self, command: bytes) -> None:
        try:
            os.write(self._command, command)
        except BrokenPipeError:
            self._raise_exit()

    def wait(self) -> None:
        if not os.read(self._reply, 1):
            self._raise_exit()

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        os.close(self._command)
        try:
            self._process.wait(timeout=_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._reply)

    def _raise_exit(self) -> None:
        code = self._process.wait()
        raise EnvUnavailableError(
            f"A football engine's process ended with exit code {code}. Its message is in the log; see: emtc doctor"
        )


def _close_all(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.close()


def _make_environ() -> dict[str, str]:
    """Make a worker's environment variables: it finds this package, and numerical libraries start no threads in it.

    It also asks glibc for huge pages, because an engine accesses about 50 MB of memory in random order.
    """
    path = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    memory = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    return {**memory, **os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        main(sys.argv[1:])
    except BrokenPipeError:  # the parent process ended before it read the reply
        sys.exit(0)
