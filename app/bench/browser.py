"""The real app on a free port and a real browser in front of it, for what only a reader's machine can tell."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.doctor import CHROME_NAMES
from app.runs.launch import ROOT
from emtc_core.errors import ConfigError

START_S = 60


@contextmanager
def served(database_url: str) -> Generator[str]:
    """Start the app on a database and yield its address; it ends with the block."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "streamlit", "run", str(ROOT / "app" / "Home.py")),
                *("--server.port", str(port), "--server.headless", "true"),
            ],
            cwd=ROOT,
            env={**os.environ, "EMTC_DB": database_url, "EMTC_WARM_UP": "0"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait(f"http://localhost:{port}/_stcore/health", server)
            yield f"http://localhost:{port}"
        finally:
            server.terminate()
            server.wait(timeout=20)


@contextmanager
def opened_page(width: int = 1440, height: int = 900) -> Generator[Any]:
    """Open an empty page of a headless Chromium without a GPU.

    Raises:
        ConfigError: If playwright or a browser is missing.
    """
    path = next(filter(None, map(shutil.which, CHROME_NAMES)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as exc:
        raise ConfigError("This benchmark drives a browser: pip install playwright") from exc
    if path is None:
        raise ConfigError("This benchmark drives a browser: apt-get install chromium")
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = chromium.new_page(viewport={"width": width, "height": height})
        page.set_default_timeout(120_000)
        yield page
        chromium.close()


def _wait(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise ConfigError(
        f"The app did not answer within {START_S} s. Start it by hand: streamlit run {Path('app/Home.py')}"
    )
