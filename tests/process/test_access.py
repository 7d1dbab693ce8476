"""The app as another user of the machine, another site and a proxy meet it: only its user and the token open it."""

import os
import re
import socket
import subprocess
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from app.cli.main import run
from app.jobs.socket_users import find_client_user
from tests.app_server import find_free_port
from tests.browser.server import running_app

TOKEN = "token-of-this-test-and-of-no-server"
NOBODY = 65534
STREAM = "/_stcore/stream"
UPGRADE = (
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
ANOTHER_USER = pytest.mark.skipif(
    os.name != "posix" or os.geteuid() != 0, reason="only root starts another user's process"
)
CLIENT = "exec 3<>/dev/tcp/localhost/$0; cat >&3; head -c 3000 <&3"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("access") / "x.streamlit.log"


@pytest.fixture(scope="module")
def port(log: Path) -> Iterator[int]:
    with running_app(log.with_name("x.db"), env={"EMTC_TOKEN": TOKEN}) as address:
        yield urlsplit(address).port or 0


def make_request(port: int, path: str, *headers: str, method: str = "GET") -> bytes:
    host = () if any(line.startswith("Host:") for line in headers) else (f"Host: localhost:{port}",)
    upgrade = UPGRADE if path.startswith(STREAM) else ("Connection: close",)
    return "\r\n".join([f"{method} {path} HTTP/1.1", *host, *headers, *upgrade, "", ""]).encode()


def ask(port: int, path: str, *headers: str, method: str = "GET") -> str:
    """Send a request as this user; return the beginning of the response."""
    with socket.create_connection(("localhost", port), timeout=60) as wire:
        wire.sendall(make_request(port, path, *headers, method=method))
        response = wire.recv(3000)
        while not path.startswith(STREAM) and len(response) < 3000 and (more := wire.recv(3000)):
            response += more
        return response.decode(errors="replace")


def ask_as_another_user(port: int, path: str, *headers: str, method: str = "GET") -> str:
    request = make_request(port, path, *headers, method=method)
    command = ["timeout", "60", "bash", "-c", CLIENT, str(port)]
    if path.startswith(STREAM):
        command[-2] = CLIENT.replace("head -c 3000", "head -n 1")  # an open socket does not end
    done = subprocess.run(command, input=request, capture_output=True, user=NOBODY, group=NOBODY, check=False)
    return done.stdout.decode(errors="replace")


def status(response: str) -> int:
    return int(response.split()[1])


def test_its_user_needs_no_token(port: int) -> None:
    assert status(ask(port, STREAM)) == 101
    assert status(ask(port, "/live?run=x")) == 200


@ANOTHER_USER
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", STREAM),
        ("GET", f"{STREAM}?token=wrong"),
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
def test_another_user_of_the_machine_opens_nothing(port: int, method: str, path: str) -> None:
    assert status(ask_as_another_user(port, path, method=method)) == 403
    assert status(ask_as_another_user(port, path, "Cookie: emtc_0=x; token=x", method=method)) == 403


@ANOTHER_USER
def test_the_closed_page_is_one_sentence_and_names_the_command(port: int) -> None:
    page = ask_as_another_user(port, "/").partition("<body")[2]
    assert f"emtc app --address --port {port}" in page
    assert TOKEN not in page
    assert page.count(".") - page.count("1.5") == 1
    assert status(ask_as_another_user(port, "/_stcore/health")) == 200


@ANOTHER_USER
def test_the_printed_address_sets_a_cookie_that_opens_the_app(port: int, log: Path) -> None:
    address = next(word for word in log.read_text().split() if word.startswith("http://"))
    assert address == f"http://127.0.0.1:{port}/?token={TOKEN}"
    first = ask_as_another_user(port, f"/live?run=x&token={TOKEN}")
    assert (status(first), 'url=/live?run=x"' in first, "no-referrer" in first) == (200, True, True)
    cookie = re.findall(r"set-cookie: (.*)", first, re.IGNORECASE)[0]
    assert {"httponly", "samesite=strict"} <= {part.strip().lower() for part in cookie.split(";")}
    assert status(ask_as_another_user(port, STREAM, f"Cookie: {cookie.partition(';')[0]}")) == 101
    assert status(ask_as_another_user(port, "/live", f"Cookie: {cookie.partition(';')[0]}")) == 200
    assert "set-cookie" not in ask(port, f"/?token={TOKEN}").lower()  # its user needs none, and none can be stolen


@ANOTHER_USER
def test_another_user_cannot_take_the_place_of_an_open_connection(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as own:
        place = f"127.0.0.1:{own.getsockname()[1]}"
        assert find_client_user(own.getsockname(), own.getpeername()) == 0
        for header in ("X-Forwarded-For", "Forwarded", "X-Real-IP"):
            assert status(ask_as_another_user(port, STREAM, f"{header}: {place}")) == 403
        assert status(ask_as_another_user(port, STREAM, "Host: localhost/_stcore/health?")) == 403


def test_what_passed_a_proxy_needs_the_token(port: int) -> None:
    assert status(ask(port, STREAM, "X-Forwarded-For: 192.0.2.1")) == 403
    assert status(ask(port, "/", "Via: 1.1 proxy")) == 403


def test_a_link_on_another_site_is_loaded_again_with_the_cookie(port: int) -> None:
    link = ("Via: 1.1 proxy", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate")
    response = ask(port, "//other.example/?a=%22%3E", *link)
    assert 'url=/other.example/?a=%22%3E"' in response
    assert "set-cookie" not in response.lower()


@pytest.mark.parametrize("origin", ["http://localhost:{other}", "http://localhost", "http://127.0.0.1:{port}", "null"])
def test_a_page_of_another_origin_opens_no_socket(port: int, origin: str) -> None:
    sent = f"Origin: {origin.format(port=port, other=port + 1)}"
    assert status(ask(port, STREAM, sent)) == 403
    assert status(ask(port, "/_stcore/upload_file/x/y", sent, method="PUT")) == 403
    assert status(ask(port, STREAM, f"Origin: http://localhost:{port}")) == 101


def test_no_other_site_shows_the_app_in_a_frame(port: int) -> None:
    for response in (ask(port, "/"), ask(port, "/", "Via: 1.1 proxy"), ask(port, "/static/x.js")):
        assert "content-security-policy: frame-ancestors 'self'" in response.lower()
        assert "x-frame-options: sameorigin" in response.lower()


def test_the_command_prints_the_address_of_its_own_app(port: int, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("EMTC_TOKEN", TOKEN)
    assert run(["app", "--address", "--port", str(port)]) == 0
    assert capsys.readouterr().out == f"http://127.0.0.1:{port}/?token={TOKEN}\n"
    assert run(["app", "--address", "--port", str(find_free_port())]) == 2
    monkeypatch.setattr("app.jobs.access_token.os.geteuid", lambda: NOBODY)
    assert run(["app", "--address", "--port", str(port)]) == 2
    assert TOKEN not in capsys.readouterr().out


@contextmanager
def connection(family: socket.AddressFamily, host: str) -> Generator[tuple[socket.socket, socket.socket]]:
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()[:2]) as client:
            yield client, listener.accept()[0]


@pytest.mark.skipif(not os.access("/proc/net/tcp", os.R_OK), reason="the system does not list the users of connections")
@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_the_user_of_a_connection_is_known_until_it_is_closed(family: socket.AddressFamily, host: str) -> None:
    with connection(family, host) as (client, server):
        ends = client.getsockname()[:2], client.getpeername()[:2]
        assert find_client_user(*ends) == os.geteuid()
        assert find_client_user((host, 1), ends[1]) is None
        assert find_client_user(("::ffff:127.0.0.1", ends[0][1]), ends[1]) == (
            os.geteuid() if host == "127.0.0.1" else None
        )
        client.close()
        assert find_client_user(*ends) is None
        server.close()
