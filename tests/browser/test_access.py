"""A browser of another user of the machine: the plain address is closed, and the printed one opens the app."""

import multiprocessing
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.browser.server import open_page, running_app

TOKEN = "token-of-this-test-and-of-no-server"
NOBODY = 65534
pytestmark = pytest.mark.skipif(
    os.name != "posix" or os.geteuid() != 0, reason="only root starts another user's process"
)


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of an app for its user, and one at which another user's process passes each connection on."""
    database: Path = tmp_path_factory.mktemp("access") / "x.db"
    with running_app(database, env={"EMTC_TOKEN": TOKEN}) as own, socket.create_server(("localhost", 0)) as listener:
        arguments = (listener, urlsplit(own).port)
        relay = multiprocessing.get_context("fork").Process(target=_relay, args=arguments, daemon=True)
        relay.start()
        yield own, f"http://localhost:{listener.getsockname()[1]}"
        relay.kill()
        relay.join()


@pytest.fixture
def tab(browser):
    """Of a reader without cookies."""
    opened = open_page(browser)
    yield opened
    opened.context.close()


def _relay(listener: socket.socket, port: int) -> None:
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    while True:
        client, server = listener.accept()[0], socket.create_connection(("127.0.0.1", port))
        for ends in ((client, server), (server, client)):
            threading.Thread(target=_copy, args=ends, daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):  # an end is closed
        while received := source.recv(65536):
            target.sendall(received)
        target.shutdown(socket.SHUT_WR)


def test_the_printed_address_opens_the_app_and_then_the_plain_one_does(page, addresses) -> None:
    _, other = addresses
    page.goto(f"{other}/guide")
    page.get_by_text("EMTC Lab opens with the address that its terminal printed").wait_for()
    assert page.get_by_text("Find a run").count() == 0
    page.goto(f"{other}/guide?token={TOKEN}")
    page.get_by_role("heading", name="Guide").first.wait_for()
    assert TOKEN not in page.url
    (cookie,) = [each for each in page.context.cookies() if each["value"] == TOKEN]
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    page.goto(f"{other}/guide")
    page.get_by_role("heading", name="Guide").first.wait_for()


def test_another_site_does_not_show_the_app_in_a_frame(page, addresses) -> None:
    own, _ = addresses
    page.goto(f"data:text/html,<iframe src='{own}/' onload='document.title=\"loaded\"'></iframe>")
    page.wait_for_function("document.title == 'loaded'")
    assert page.frames[1].url.startswith("chrome-error:")
