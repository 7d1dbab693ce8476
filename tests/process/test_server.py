"""The app's server as another site's page meets it, and the list of processes as another user sees it."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from app.jobs.launch import spawn
from storage.engine import Database
from tests.browser.server import running_app
from tests.process.trainers import emtc, emtc_process

pytestmark = pytest.mark.ci

PASSWORD = "hunter2-of-nobody"


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running_app(tmp_path_factory.mktemp("server") / "x.db") as address:
        yield urlsplit(address).port or 0


def open_socket(port: int, host: str, origin: str) -> int:
    """Ask for the app's WebSocket under a name; return the HTTP status."""
    lines = [
        "GET /_stcore/stream HTTP/1.1",
        f"Host: {host}",
        f"Origin: {origin}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ]
    with socket.create_connection(("localhost", port), timeout=20) as wire:
        wire.sendall("\r\n".join([*lines, "", ""]).encode())
        return int(wire.recv(64).split()[1])


@pytest.mark.parametrize("name", ["evil.com", "localhost.evil.com", "evil.com:80@localhost", "169.254.1.1"])
def test_only_a_page_of_this_machine_opens_the_socket(port: int, name: str) -> None:
    for own in ("localhost", "127.0.0.1"):
        assert open_socket(port, f"{own}:{port}", f"http://{own}:{port}") == 101
    assert open_socket(port, name, f"http://{name}") in (400, 403)
    assert open_socket(port, f"{name}:{port}", f"http://{name}:{port}") in (400, 403)


def test_the_password_of_a_database_is_in_no_list_of_processes_and_no_log(tmp_path: Path) -> None:
    url = f"postgresql+psycopg://u:{PASSWORD}@localhost:1/d?connect_timeout=5"
    db = Database(url, None, None, None)  # pyright: ignore[reportArgumentType] - a child only needs its URL
    log = tmp_path / "folder" / "log.txt"
    process = spawn(["app.cli.main", "train-worker", "abc12345"], log, db=db)
    seen = psutil.Process(process.pid).cmdline()
    deadline = time.monotonic() + 120
    try:  # it goes on trying, so the first word about it must do
        while not (log.exists() and "connection" in log.read_text()) and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
    assert "train-worker" in seen
    assert PASSWORD not in " ".join(seen)
    assert "connection" in log.read_text()
    assert PASSWORD not in log.read_text()
    assert (log.stat().st_mode & 0o077, log.parent.stat().st_mode & 0o077) == (0, 0)


def test_no_text_of_a_command_shows_the_password(tmp_path: Path) -> None:
    for url in (
        f"postgresql://u:{PASSWORD}@h:port/d",
        f"postgresql://u:{PASSWORD}@localhost:1/d",
        f"x://{PASSWORD}:{PASSWORD}@h",
    ):
        done = (emtc_process if url.endswith(":1/d") else emtc)("runs", "--db", url)
        assert done.returncode == 2
        assert PASSWORD not in done.stdout + done.stderr.replace(f"x://{PASSWORD}:", "")
