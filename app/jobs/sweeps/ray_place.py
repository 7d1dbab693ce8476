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
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from emtc_core.plugins import FOLDER_VARIABLE, home_folder
from emtc_core.plugins import VARIABLE as PLUGINS

ROOT = Path(__file__).resolve().parents[3]
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


def list_carried() -> dict[str, str]:
    """List the variables by which a driver tells a node's worker of the user's own modules and where the files are."""
    files = {name: os.environ[name] for name in ("EMTC_FILES", PLUGINS) if name in os.environ}
    return {FOLDER_VARIABLE: str(home_folder()), **files}


def hold_place(url: str, sweep_id: str, *, at_most: int, gpus: float, carried: Mapping[str, str]) -> Held:
    """Let a worker train runs of one sweep until it finds none.

    Args:
        url: Of the database; it may hold a password, so it never stands in a list of processes.
        sweep_id: The sweep.
        at_most: Runs of the sweep that may train at once, wherever.
        gpus: What Ray gave to this place.
        carried: The driver's variables; a node's own go first.

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
            env=_environment(url, gpus, carried),
        )
        _wait(shell)
        log.seek(0)
        said = log.read().decode(errors="replace").splitlines()
    return Held(socket.gethostname(), shell.returncode, tuple(said[-20:]))


def _environment(url: str, gpus: float, carried: Mapping[str, str]) -> dict[str, str]:
    known = {**carried, **os.environ, "EMTC_DB": url, "PYTHONUNBUFFERED": "1"}
    if not Path(known[FOLDER_VARIABLE]).is_dir():  # a folder of the driver's machine
        del known[FOLDER_VARIABLE]
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
