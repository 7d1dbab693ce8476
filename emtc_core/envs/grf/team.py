"""Several engines behind one call: in this process, or spread over worker processes.

What lives here: the board that both sides share (the pipes see to it that one at a time touches it), the group's
interface, the group inside this process, the one that starts workers, and the worker's side. What does not:
observations and rewards (`env.py`).

`WorkerGroup` starts `python -m emtc_core.envs.grf.team MEMORY COMMANDS REPLIES TASK`, where the first three are
inherited file descriptors. Such a process waits for a byte, plays its engines and answers with a byte. It ends when the
pipe of commands closes, and only then: an interrupt from the keyboard reaches it as well, but whether to stop is the
trainer's to decide.
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
from emtc_core.envs.grf.scenarios import Layout, Lineup, Player
from emtc_core.errors import EnvUnavailableError

_ROOT = Path(__file__).resolve().parents[3]
_CLOSE_TIMEOUT_S = 5.0
_WORKERS_PER_CORE = 4


@dataclass(frozen=True)
class Board:
    """Commands on the way in, the engines' numbers on the way out."""

    state: NDArray[np.float64]  # [B, S]
    seed: NDArray[np.int64]  # [B]
    action: NDArray[np.int64]  # [B, N]
    goal: NDArray[np.int64]  # [B] goals for minus goals against
    running: NDArray[np.bool_]  # [B]
    ended: NDArray[np.bool_]  # [B] by the engine's own rules


def memory_file(n_envs: int, squad: Squad) -> int:
    """Open an anonymous file as large as the board; it vanishes with its last user."""
    size = sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in _fields(n_envs, squad))
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("emtc-football")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def make_board(memory: int | None, n_envs: int, squad: Squad) -> Board:
    """Lay the board over a memory file, or over private memory when `memory` is None."""
    fields = _fields(n_envs, squad)
    if memory is None:
        return Board(*(np.zeros(shape, dtype) for shape, dtype in fields))
    buffer = mmap.mmap(memory, 0)
    arrays, offset = [], 0
    for shape, dtype in fields:
        count = int(np.prod(shape))
        arrays.append(np.frombuffer(buffer, dtype, count, offset).reshape(shape))
        offset += count * dtype.itemsize
    return Board(*arrays)


def _fields(n_envs: int, squad: Squad) -> list[tuple[tuple[int, ...], np.dtype]]:
    """Shapes in the order of Board's fields, the widest types first so that all stay aligned."""
    dim = Layout(squad.n_agents, squad.n_opponents).dim
    wide, flag = np.dtype(np.int64), np.dtype(np.bool_)
    return [
        ((n_envs, dim), np.dtype(np.float64)),
        ((n_envs,), wide),
        ((n_envs, squad.n_agents), wide),
        ((n_envs,), wide),
        ((n_envs,), flag),
        ((n_envs,), flag),
    ]


class EngineGroup(Protocol):
    """B engines whose states, goals and ends appear on `board`."""

    board: Board

    def reset(self) -> None:
        """Kick off in every engine with the seeds on the board."""
        ...

    def step(self) -> None:
        """Play the board's actions in every engine that the board marks as running."""
        ...

    def close(self) -> None:
        """Release the engines; idempotent."""
        ...


class LocalGroup:
    """All engines in this process, one after the other.

    Each step begins with the engine that ended the last one: its memory is still in the processor's cache.
    """

    def __init__(self, squad: Squad, board: Board, copies: range) -> None:
        self.board = board
        self._engines = [(copy, Engine(squad)) for copy in copies]

    def reset(self) -> None:
        for copy, engine in self._engines:
            engine.reset(int(self.board.seed[copy]), self.board.state[copy])

    def step(self) -> None:
        board = self.board
        self._engines.reverse()
        for copy, engine in self._engines:
            if board.running[copy]:
                goal, end = engine.step(board.action[copy].tolist(), board.state[copy])
                board.goal[copy] = goal
                board.ended[copy] = end == ENDED

    def close(self) -> None:
        for _, engine in self._engines:
            engine.close()


class WorkerGroup:
    """Engines in worker processes; the board lies in memory that all of them map.

    A worker is a fresh interpreter, never a fork, and needs nothing of the parent's main module. It waits on
    a pipe; when this process goes, in whatever way, the pipe closes and the worker ends.
    """

    def __init__(self, squad: Squad, *, n_envs: int, n_workers: int) -> None:
        memory = memory_file(n_envs, squad)
        self.board = make_board(memory, n_envs, squad)
        bounds = np.linspace(0, n_envs, n_workers + 1).astype(int).tolist()
        self._workers = [_Worker(squad, n_envs, share, memory) for share in pairwise(bounds)]
        os.close(memory)  # the board and every worker hold their own
        self._release = weakref.finalize(self, _close_all, self._workers)
        self._call(b"h", self._workers)

    def reset(self) -> None:
        self._call(b"r", self._workers)

    def step(self) -> None:
        running = self.board.running
        self._call(b"s", [worker for worker in self._workers if running[worker.copies].any()])

    def close(self) -> None:
        self._release()

    @staticmethod
    def _call(command: bytes, workers: "list[_Worker]") -> None:
        for worker in workers:
            worker.send(command)
        for worker in workers:
            worker.wait()


def _close_all(workers: "list[_Worker]") -> None:
    for worker in workers:
        worker.close()


class _Worker:
    def __init__(self, squad: Squad, n_envs: int, share: tuple[int, int], memory: int) -> None:
        command_out, self._command = os.pipe()
        self._reply, reply_in = os.pipe()
        self.copies = slice(*share)
        task = {"squad": asdict(squad), "n_envs": n_envs, "share": share}
        fds = [memory, command_out, reply_in]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "emtc_core.envs.grf.team", *map(str, fds), orjson.dumps(task).decode()],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=_environment(),
        )
        os.close(command_out)
        os.close(reply_in)
        self._open = True

    def send(self, command: bytes) -> None:
        try:
            os.write(self._command, command)
        except BrokenPipeError:
            self._fail()

    def wait(self) -> None:
        if not os.read(self._reply, 1):
            self._fail()

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

    def _fail(self) -> None:
        code = self._process.wait()
        raise EnvUnavailableError(
            f"A football engine's process ended with exit code {code}. Its message is in the log; see: emtc doctor",
            reason="worker_ended",
            subject=code,
        )


def _environment() -> dict[str, str]:
    """Let the worker find this package, keep numerical libraries from starting threads there, ask for huge pages.

    An engine wanders through some fifty megabytes; glibc, where it is the C library, takes them in huge pages.
    """
    path = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    memory = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    return {**memory, **os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def count_workers(n_envs: int, wanted: int) -> int:
    """Choose how many processes share `n_envs` engines; `wanted` 0 asks for up to four per usable core.

    Matches end at different times. With one process per core, the one whose matches ended first would leave
    its core idle for a fifth of a round; with more the operating system finds other work for it.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(n_envs, wanted or _WORKERS_PER_CORE * cores)


def make_group(squad: Squad, *, n_envs: int, workers: int) -> EngineGroup:
    """Start the engines: one alone runs in this process, more share worker processes."""
    if n_envs > 1:
        return WorkerGroup(squad, n_envs=n_envs, n_workers=count_workers(n_envs, workers))
    board = make_board(None, n_envs, squad)
    return LocalGroup(squad, board, range(n_envs))


def main(arguments: list[str]) -> None:
    """Serve until the parent is gone."""
    memory, commands, replies = (int(fd) for fd in arguments[:3])
    task = orjson.loads(arguments[3])
    squad = _squad(task["squad"])
    board = make_board(memory, task["n_envs"], squad)
    group = LocalGroup(squad, board, range(*task["share"]))
    while command := os.read(commands, 1):
        if command == b"r":
            group.reset()
        elif command == b"s":
            group.step()
        os.write(replies, b".")


def _squad(fields: dict[str, Any]) -> Squad:
    lineup = fields.pop("lineup")
    left, right = (tuple(Player(**player) for player in lineup[side]) for side in ("left", "right"))
    return Squad(Lineup(left, right, tuple(lineup["ball"])), **fields)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        main(sys.argv[1:])
    except BrokenPipeError:  # the parent went while an answer was under way
        sys.exit(0)
