"""The real app on a free port and a real browser in front of it, for what only a reader's machine can tell."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from app.jobs.doctor import find_chrome
from app.jobs.launch import ROOT
from emtc_core.errors import ConfigError

START_S = 60


def free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


@contextmanager
def served(
    database_url: str, log: Path, *options: str, port: int | None = None, env: Mapping[str, str] | None = None
) -> Generator[str]:
    """Start the app on a database and yield its address; it ends with the block, its trainers do not.

    Args:
        database_url: What the app shows.
        log: File for what the server prints.
        options: More of Streamlit's command line.
        port: Where it listens; a free one when missing.
        env: More variables of its environment.
    """
    port = port or free_port()
    with log.open("wb") as output:
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "streamlit", "run", str(ROOT / "app" / "Home.py")),
                *("--server.port", str(port), "--server.headless", "true", *options),
            ],
            cwd=ROOT,
            env={**os.environ, **(env or {}), "EMTC_DB": database_url},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(f"http://localhost:{port}/_stcore/health", server, log)
        yield f"http://localhost:{port}"
    finally:
        server.terminate()
        server.wait(timeout=START_S)


@contextmanager
def opened_page(
    width: int = 1440, height: int = 900, color_scheme: Literal["light", "dark"] = "light"
) -> Generator[Any]:
    """Open an empty page of a headless Chromium without a GPU.

    Args:
        width: Of the window.
        height: Of the window.
        color_scheme: What the reader's machine prefers.

    Raises:
        ConfigError: If playwright or a browser is missing.
    """
    path = find_chrome()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as exc:
        raise ConfigError("This benchmark drives a browser: pip install playwright") from exc
    if path is None:
        raise ConfigError("This benchmark drives a browser: apt-get install chromium")
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = chromium.new_page(viewport={"width": width, "height": height}, color_scheme=color_scheme)
        page.set_default_timeout(120_000)
        yield page
        chromium.close()


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server that writes this log answers.

    Raises:
        ConfigError: If it ended, or does not answer in time; with its log.
    """
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise ConfigError(f"The server did not answer within {START_S} s:\n{log.read_text()}")
