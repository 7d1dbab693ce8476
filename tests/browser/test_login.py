"""Logging in with a real browser at an OpenID Connect provider of this machine."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from emtc_core.config.resolve import resolve
from storage.engine import open_database
from storage.runs.changes import create_run
from tests.app_server import find_free_port, wait_until_reachable
from tests.browser.server import open_page, running_app
from tests.require import require

pytestmark = [pytest.mark.ci, pytest.mark.browser, pytest.mark.timeout(300)]

ADA = {"sub": "ada@lab.org", "email": "ada@lab.org", "email_verified": True}
SECRETS = """
[auth]
redirect_uri = "http://localhost:{app}/oauth2callback"
cookie_secret = "a secret of this test, and of no server"
client_id = "emtc"
client_secret = "any"
server_metadata_url = "http://localhost:{provider}/.well-known/openid-configuration"
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    for package in ("authlib", "oidc_provider_mock"):
        require("browser", find_spec(package) is not None, f"the package {package} is not installed")
    tmp_path = tmp_path_factory.mktemp("login")
    database = tmp_path / "login.db"
    db = open_database(f"sqlite:///{database}")
    config = resolve(env="skirmish", map="3m", algo="emtc-qplex")
    create_run(db, config.model_dump(mode="json"), target_steps=10, versions={})
    db.dispose()
    app, provider = find_free_port(), find_free_port()
    secrets = tmp_path / "secrets.toml"
    secrets.write_text(SECRETS.format(app=app, provider=provider))
    with (
        _provider(provider, tmp_path),
        running_app(database, "--secrets.files", str(secrets), port=app, env={"EMTC_USERS": "ada@lab.org"}) as started,
    ):
        yield started


@pytest.fixture
def tab(browser):
    """Of a reader who has logged in nowhere."""
    opened = open_page(browser)
    yield opened
    opened.context.close()


@contextmanager
def _provider(port: int, folder: Path) -> Iterator[None]:
    log = folder / "provider.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "oidc_provider_mock", "--port", str(port), "--user-claims", json.dumps(ADA)],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until_reachable(f"http://localhost:{port}/.well-known/openid-configuration", server, log)
        yield
    finally:
        server.terminate()
        server.wait(timeout=120)


def _log_in(page, address: str, who: str) -> None:
    page.goto(address)
    page.get_by_role("button", name="Log in").click()
    page.locator("input[name=sub]").fill(who)
    page.get_by_role("button", name="Authorize").click()


def _log_out(page) -> None:
    page.get_by_role("button", name="Log out").click()
    page.locator("button[type=submit]").first.click()  # the provider asks whether one is sure
    page.get_by_role("button", name="Log in").wait_for()


def test_a_listed_user_sees_the_runs_and_can_log_out(page, address):
    page.goto(f"{address}/compare")
    page.get_by_text("Log in to see the runs").wait_for()
    assert page.get_by_text("Find a run").count() == 0
    _log_in(page, address, "ada@lab.org")
    page.get_by_text("Find a run").wait_for()
    page.get_by_text("ada@lab.org").wait_for()
    _log_out(page)
    assert page.get_by_text("Find a run").count() == 0


def test_an_unlisted_user_sees_no_run(page, address):
    _log_in(page, address, "eve@evil.org")
    page.get_by_text("eve@evil.org may not use this server.").wait_for()
    assert page.get_by_text("Find a run").count() == 0
    _log_out(page)
