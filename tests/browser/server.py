"""The real app on a free port with its own database, and a real browser in front of it."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
START_S = 60


def find_browser() -> str | None:
    """Find an installed Chromium or Chrome."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running_app(
    database: Path, *options: str, port: int | None = None, env: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Start the app and yield its address; it ends with the block, its trainers do not."""
    port = port or free_port()
    log = database.with_suffix(".streamlit.log")
    with log.open("wb") as output:
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "streamlit", "run", str(ROOT / "app" / "Home.py")),
                *("--server.port", str(port), "--server.headless", "true", *options),
            ],
            cwd=ROOT,
            env={**os.environ, **(env or {}), "EMTC_DB": f"sqlite:///{database}"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(f"http://localhost:{port}/_stcore/health", server, log)
        yield f"http://localhost:{port}"
    finally:
        server.terminate()
        server.wait(timeout=20)


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server that writes this log answers."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise AssertionError(f"the server did not answer within {START_S} s:\n{log.read_text()}")
