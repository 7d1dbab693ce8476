"""What runs on a node of a Ray cluster: one `emtc worker`, for as long as the sweep has runs for it.

The worker is not Ray's child: Ray kills those when their task's driver or node manager dies, and a worker that lives
on brings its runs to their end. Nothing here loads more than Ray's own worker process has already.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from emtc_core.envs.trust import FOLDER_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
_POLL_S = 0.2
_LEAVE_S = 120.0
# The shell waits, so that the worker's end is known here; when Ray kills the shell, the worker goes on.
_SHELL = '"$@" >&2 & echo $!; wait $!'


@dataclass(frozen=True)
class Held:
    """How a place was held: by which machine, the worker's exit code, and what it said."""

    host: str
    code: int
    said: tuple[str, ...]


def hold_place(url: str, sweep_id: str, *, at_most: int, gpus: float, folder: str) -> Held:
    """Let a worker train runs of one sweep until it finds none.

    Args:
        url: Of the database; it may hold a password, so it never stands in a list of processes.
        sweep_id: The sweep.
        at_most: Runs of the sweep that may train at once, wherever.
        gpus: What Ray gave to this place.
        folder: Where the user's own modules are, on machines that have it.

    Raises:
        KeyboardInterrupt: If Ray cancels it; its worker has given its run back then.
    """
    command = [sys.executable, "-m", "app.cli.main", "worker", "--once", "--sweep", sweep_id, "--at-most", str(at_most)]
    with tempfile.TemporaryFile() as log:
        shell = subprocess.Popen(
            ["sh", "-c", _SHELL, "sh", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=ROOT,
            start_new_session=True,
            env=_environment(url, gpus, folder),
        )
        _wait(shell)
        log.seek(0)
        said = log.read().decode(errors="replace").splitlines()
    return Held(socket.gethostname(), shell.returncode, tuple(said[-20:]))


def _environment(url: str, gpus: float, folder: str) -> dict[str, str]:
    known = {**os.environ, "EMTC_DB": url, "PYTHONUNBUFFERED": "1"}
    if Path(folder).is_dir():
        known[FOLDER_VARIABLE] = folder
    if not gpus:  # newer versions of Ray leave all GPUs to a task that asked for none
        known["CUDA_VISIBLE_DEVICES"] = ""
    return known


def _wait(shell: "subprocess.Popen[bytes]") -> None:
    """Wait in short sleeps: what interrupts a task is heard only between two of Python's own steps."""
    assert shell.stdout is not None
    worker = int(shell.stdout.readline())
    try:
        while shell.poll() is None:
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGTERM)
        shell.wait(timeout=_LEAVE_S)
        raise
