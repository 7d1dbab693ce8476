"""The app opens with the token of its printed address, and then with the cookie that the browser received."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from app.cli.main import run
from tests.app_server import find_free_port
from tests.browser.server import running_app

pytestmark = pytest.mark.ci

TOKEN = "token-of-this-test-and-of-no-server"
STREAM = "/_stcore/stream"
UPGRADE = (
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("access") / "x.streamlit.log"


@pytest.fixture(scope="module")
def port(log: Path) -> Iterator[int]:
    with running_app(log.with_name("x.db"), env={"EMTC_TOKEN": TOKEN}) as address:
        yield urlsplit(address).port or 0


@pytest.fixture(scope="module")
def cookie(port: int) -> str:
    """The header that a browser sends after it has opened the printed address."""
    return f"Cookie: {read_cookie(request(port, f'/?token={TOKEN}')).partition(';')[0]}"


def request(port: int, path: str, *headers: str, method: str = "GET") -> str:
    """Send a request; return the beginning of the response."""
    upgrade = UPGRADE if path.startswith(STREAM) else ("Connection: close",)
    lines = [f"{method} {path} HTTP/1.1", f"Host: localhost:{port}", *headers, *upgrade, "", ""]
    with socket.create_connection(("localhost", port), timeout=60) as connection:
        connection.sendall("\r\n".join(lines).encode())
        response = connection.recv(3000)
        while not path.startswith(STREAM) and len(response) < 3000 and (more := connection.recv(3000)):
            response += more
        return response.decode(errors="replace")


def status(response: str) -> int:
    return int(response.split()[1])


def read_cookie(response: str) -> str:
    return re.findall(r"set-cookie: (emtc_.*)", response, re.IGNORECASE)[0]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", STREAM),
        ("GET", f"{STREAM}?token=wrong"),
        ("GET", f"{STREAM}?token={TOKEN}"),
        ("GET", "/"),
        ("GET", "/live"),
        ("GET", "/?token=wrong"),
        ("GET", "/media/x.png"),
        ("GET", "/component/x"),
        ("GET", "/_stcore/bidi-components/x"),
        ("GET", "/_stcore/host-config"),
        ("GET", "/_stcore/metrics"),
        ("PUT", "/_stcore/upload_file/x/y"),
        ("POST", "/_stcore/agent/interact"),
    ],
)
def test_nothing_opens_without_the_token(port: int, method: str, path: str) -> None:
    assert status(request(port, path, method=method)) == 403
    assert status(request(port, path, "Cookie: emtc_0=x; token=x", method=method)) == 403


def test_the_closed_page_is_one_sentence_and_names_the_command(port: int) -> None:
    page = request(port, "/").partition("<body")[2]
    assert f"emtc app --address --port {port}" in page
    assert TOKEN not in page
    assert page.count(".") - page.count("1.5") == 1
    assert status(request(port, "/_stcore/health")) == 200


def test_the_printed_address_sets_a_cookie_that_opens_the_app(port: int, log: Path, cookie: str) -> None:
    address = next(word for word in log.read_text().split() if word.startswith("http://"))
    assert address == f"http://localhost:{port}/?token={TOKEN}"
    response = request(port, f"/live?run=x&token={TOKEN}")
    assert status(response) == 303
    assert "location: /live?run=x\r\n" in response.lower()
    assert "no-referrer" in response
    other_host = request(port, f"//other.example/?a=%22%3E&token={TOKEN}")
    assert "location: /other.example/?a=%22%3e\r\n" in other_host.lower()
    attributes = {part.strip().lower() for part in read_cookie(response).split(";")}
    assert {"httponly", "samesite=lax"} <= attributes
    assert status(request(port, STREAM, cookie)) == 101
    assert status(request(port, "/live", cookie)) == 200


def test_a_page_of_another_site_opens_no_socket(port: int, cookie: str) -> None:
    assert status(request(port, STREAM, cookie, f"Origin: http://localhost:{port}")) == 101
    for origin in ("http://evil.example", f"http://evil.example:{port}", "null"):
        assert status(request(port, STREAM, cookie, f"Origin: {origin}")) == 403


def test_the_command_prints_the_address_of_the_started_app(port: int, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("EMTC_TOKEN", TOKEN)
    assert run(["app", "--address", "--port", str(port)]) == 0
    assert capsys.readouterr().out == f"http://localhost:{port}/?token={TOKEN}\n"
    assert run(["app", "--address", "--port", str(find_free_port())]) == 2
    assert TOKEN not in capsys.readouterr().out
