"""The app's server on a free port, and a headless browser for benchmarks and pictures."""

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

from app.jobs.access_token import TOKEN_VARIABLE
from app.jobs.doctor import find_chrome
from app.jobs.launch import ROOT
from emtc_core.errors import ConfigError, Fault

START_TIMEOUT_S = 60


def find_free_port() -> int:
    """Return a port on which no process listens."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serve_app(
    database_url: str, log: Path, *options: str, port: int | None = None, env: Mapping[str, str] | None = None
) -> Generator[str]:
    """Start the app and yield its address. The server ends with the block; trainers that it started continue.

    Args:
        database_url: The app's database.
        log: File for the output of the server.
        options: Additional options of Streamlit's command line.
        port: The port, or None for a free one.
        env: Additional environment variables. By default, the app needs no token and compiles no kernels.

    Raises:
        ConfigError: If the server does not start.
    """
    port = port or find_free_port()
    with log.open("wb") as output:
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "streamlit", "run", str(ROOT / "app" / "Home.py")),
                *("--server.port", str(port), "--server.headless", "true", *options),
            ],
            cwd=ROOT,
            env={**os.environ, "EMTC_WARM_UP": "0", TOKEN_VARIABLE: "off", **(env or {}), "EMTC_DB": database_url},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until_reachable(f"http://localhost:{port}/_stcore/health", server, log)
        yield f"http://localhost:{port}"
    finally:
        server.terminate()
        server.wait(timeout=START_TIMEOUT_S)


@contextmanager
def open_page(color_scheme: Literal["light", "dark"] = "light") -> Generator[Any]:
    """Open an empty page in a headless Chromium without a GPU.

    Args:
        color_scheme: The preference that the browser reports to pages.

    Raises:
        ConfigError: If playwright or a browser is missing.
    """
    path = find_chrome()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as exc:
        raise ConfigError("This benchmark needs playwright", hint="Install it with: pip install playwright") from exc
    if path is None:
        raise ConfigError("This benchmark needs a browser", hint="Install it with: apt-get install chromium")
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = chromium.new_page(viewport={"width": 1440, "height": 900}, color_scheme=color_scheme)
        page.set_default_timeout(120_000)
        yield page
        chromium.close()


def wait_until_reachable(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server answers at `url`.

    Raises:
        ConfigError: If the server ended or did not answer within START_TIMEOUT_S. The message contains its log.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise ConfigError(Fault(hint=f"The server did not answer within {START_TIMEOUT_S} s:\n{log.read_text()}"))
