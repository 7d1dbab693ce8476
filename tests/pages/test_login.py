"""A server that asks for a login shows nothing before it, whatever address is opened; who is not listed stays out."""

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from app.ui.login import is_welcome
from tests.pages.test_pages import said, start_app

AUTH = {
    "redirect_uri": "http://localhost:8501/oauth2callback",
    "cookie_secret": "a secret of this test, and of no server",
    "client_id": "emtc",
    "client_secret": "x",
    "server_metadata_url": "http://localhost:1/.well-known/openid-configuration",
}
PAGES = ("home", "launch", "live", "memory", "replay", "compare", "sweeps", "notebook", "method")


def open_as(user: dict[str, object], page: str, run: str, auth: dict[str, object]) -> AppTest:
    app = start_app()
    app.secrets["auth"] = auth
    app.user = user
    app.query_params["run"] = run
    app.run()
    if page != "home":
        app.switch_page(f"../pages/{page}.py").run()
    return app


@pytest.mark.parametrize("page", PAGES)
def test_nobody_sees_a_run_before_the_login(seeded, page):
    _, run_id = seeded
    app = open_as({"is_logged_in": False}, page, run_id, AUTH)
    assert not app.exception
    assert [button.label for button in app.button] == ["Log in"]
    assert run_id not in said(app)
    assert len(app.selectbox) == len(app.dataframe) == 0


def test_each_provider_has_a_button(seeded):
    general = {key: AUTH[key] for key in ("redirect_uri", "cookie_secret")}
    own = {key: AUTH[key] for key in AUTH if key not in general}
    app = open_as({"is_logged_in": False}, "home", seeded[1], {**general, "lab": own, "campus": own})
    assert [button.label for button in app.button] == ["Log in with lab", "Log in with campus"]


def test_a_library_that_is_missing_is_one_sentence(seeded, monkeypatch):
    monkeypatch.setattr("streamlit.user_info.is_authlib_installed", lambda: False)
    app = open_as({"is_logged_in": False}, "home", seeded[1], AUTH)
    app.button[0].click().run()
    assert not app.exception
    assert "Nobody can log in yet" in app.error[0].value
    assert "Authlib" in app.error[0].value


def test_who_has_logged_in_sees_the_runs(seeded):
    app = open_as({"is_logged_in": True, "email": "ada@lab.org"}, "home", seeded[1], AUTH)
    assert not app.exception
    assert not app.error
    assert "Log in" not in [button.label for button in app.button]


def test_who_is_not_listed_stays_out(seeded, monkeypatch):
    monkeypatch.setenv("EMTC_USERS", "ada@lab.org")
    app = open_as({"is_logged_in": True, "email": "eve@evil.com"}, "home", seeded[1], AUTH)
    assert "may not see this server" in app.error[0].value
    assert [button.label for button in app.button] == ["Log out"]


def test_secrets_that_cannot_be_read_let_nobody_in(seeded, monkeypatch, tmp_path):
    broken = tmp_path / "secrets.toml"
    broken.write_text("[auth")
    before = st.get_option("secrets.files")
    monkeypatch.setattr(st, "secrets", type(st.secrets)())
    st.config.set_option("secrets.files", [str(broken)])
    try:
        app = start_app().run()
    finally:
        st.config.set_option("secrets.files", before)
    assert "cannot be read" in app.error[0].value
    assert len(app.button) == 0


@pytest.mark.parametrize(
    ("users", "address", "verified", "welcome"),
    [
        ("", "", True, True),
        ("ada@lab.org, bob@x.y", "Bob@x.y", True, True),
        ("@lab.org", "eve@lab.org", True, True),
        ("@lab.org", "eve@lab.org", False, False),
        ("@lab.org", "eve@evil.lab.org", True, False),
        ("@lab.org", "@lab.org", True, False),
        ("ada@lab.org", "", True, False),
    ],
)
def test_who_is_welcome(users, address, verified, welcome, monkeypatch):
    monkeypatch.setenv("EMTC_USERS", users)
    assert is_welcome(address, verified=verified) is welcome
