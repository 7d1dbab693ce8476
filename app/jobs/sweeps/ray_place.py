"""The task that Ray runs on a node: it starts one `emtc worker` and waits until the sweep has no run left for it.

If the driver or the node manager ends, Ray kills the child processes of the task. The worker is not one of them, so it
continues until its runs have ended. This module imports only small modules, because Ray's process imports it as well.
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

from emtc_core.plugins import VARIABLE as PLUGINS_VARIABLE
from emtc_core.user_modules import FOLDER_VARIABLE, get_user_folder

ROOT = Path(__file__).resolve().parents[3]
_POLL_S = 0.2
_WORKER_STOP_TIMEOUT_S = 120.0
_SHELL = '"$@" >&2 & echo $!; wait $!'
"""The shell waits for the worker, so that its exit code is known. If Ray kills the shell, the worker continues."""


@dataclass(frozen=True)
class WorkerExit:
    """Result of a worker: the host, its exit code and its last messages."""

    host: str
    code: int
    messages: tuple[str, ...]


def list_passed_variables() -> dict[str, str]:
    """List the environment variables that the driver passes to workers.

    They are the list of plug-ins, the user's folder and the folder of the stored files.
    """
    files = {name: os.environ[name] for name in ("EMTC_FILES", PLUGINS_VARIABLE) if name in os.environ}
    return {FOLDER_VARIABLE: str(get_user_folder()), **files}


def run_worker(url: str, sweep_id: str, *, at_most: int, gpus: float, variables: Mapping[str, str]) -> WorkerExit:
    """Run a worker that trains runs of one sweep until it finds none.

    Args:
        url: URL of the database. It may contain a password, so it is never a command-line argument.
        sweep_id: The sweep.
        at_most: Number of runs of the sweep that may train at once, on all nodes together.
        gpus: Number of GPUs that Ray has reserved for this task.
        variables: Environment variables of the driver. Variables that the node sets itself take precedence.

    Raises:
        KeyboardInterrupt: If Ray cancels the task. Before, the worker has put its run back into the queue.
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
            env=_make_environment(url, gpus, variables),
        )
        _wait(shell)
        log.seek(0)
        messages = log.read().decode(errors="replace").splitlines()
    return WorkerExit(socket.gethostname(), shell.returncode, tuple(messages[-20:]))


def _make_environment(url: str, gpus: float, variables: Mapping[str, str]) -> dict[str, str]:
    environment = {**variables, **os.environ, "EMTC_DB": url, "PYTHONUNBUFFERED": "1"}
    if not Path(environment[FOLDER_VARIABLE]).is_dir():  # this folder exists only on the driver's machine
        del environment[FOLDER_VARIABLE]
    if not gpus:  # newer versions of Ray show all GPUs to a task that reserved none
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return environment


def _wait(shell: "subprocess.Popen[bytes]") -> None:
    """Wait in short sleeps. Ray cancels a task by a KeyboardInterrupt, which cannot interrupt a blocking `wait()`."""
    assert shell.stdout is not None
    worker = int(shell.stdout.readline())
    try:
        while shell.poll() is None:
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGTERM)
        shell.wait(timeout=_WORKER_STOP_TIMEOUT_S)
        raise
