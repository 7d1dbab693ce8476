"""A server with a login shows no data before the login, on any page; users that are not listed are refused."""

from types import SimpleNamespace

import pytest
import streamlit as st
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager
from streamlit.runtime.uploaded_file_manager import UploadedFileRec
from streamlit.testing.v1 import AppTest

from app.ui import upload_guard
from tests.pages.test_pages import said, start_app

AUTH = {
    "redirect_uri": "http://localhost:8501/oauth2callback",
    "cookie_secret": "a secret of this test, and of no server",
    "client_id": "emtc",
    "client_secret": "x",
    "server_metadata_url": "http://localhost:1/.well-known/openid-configuration",
}
PAGES = ("home", "memory", "sql")


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
def test_no_run_is_shown_before_the_login(seeded, page):
    _, run_id = seeded
    app = open_as({"is_logged_in": False}, page, run_id, AUTH)
    assert not app.exception
    assert [button.label for button in app.button] == ["Log in"]
    assert run_id not in said(app)
    assert len(app.selectbox) == len(app.dataframe) == 0


def test_each_provider_has_a_button_that_reports_a_missing_library(seeded, monkeypatch):
    monkeypatch.setattr("streamlit.user_info.is_authlib_installed", lambda: False)
    general = {key: AUTH[key] for key in ("redirect_uri", "cookie_secret")}
    own = {key: AUTH[key] for key in AUTH if key not in general}
    app = open_as({"is_logged_in": False}, "home", seeded[1], {**general, "lab": own, "campus": own})
    assert [button.label for button in app.button] == ["Log in with lab", "Log in with campus"]
    app.button[1].click().run()
    assert not app.exception
    assert "Authlib" in app.error[0].value


@pytest.mark.parametrize(
    ("users", "address", "verified", "is_admitted"),
    [
        ("", "ada@lab.org", None, True),
        ("ada@lab.org, bob@x.y", "Bob@x.y", True, True),
        ("@lab.org", "Ada@Lab.org", "true", True),
        ("@lab.org", "ada@lab.org", "false", False),
        ("@lab.org", "ada@lab.org", False, False),
        ("@lab.org", "ada@lab.org", None, False),
        ("ada@lab.org", "eve@evil.com", True, False),
        ("@lab.org", "eve@evil.lab.org", True, False),
        ("@lab.org", "@lab.org", True, False),
        ("ada@lab.org", "", True, False),
    ],
)
def test_only_listed_users_with_a_verified_address_see_the_runs(
    seeded, monkeypatch, users, address, verified, is_admitted
):
    monkeypatch.setenv("EMTC_USERS", users)
    user = {"is_logged_in": True, "email": address, "email_verified": verified}
    app = open_as({name: value for name, value in user.items() if value is not None}, "home", seeded[1], AUTH)
    assert not app.exception
    assert (len(app.error) == 0) == (len(app.dataframe) > 0) == is_admitted
    if not is_admitted:
        assert "may not use this server" in app.error[0].value
        assert [button.label for button in app.button] == ["Log out"]


def test_secrets_that_cannot_be_read_admit_no_user(seeded, monkeypatch, tmp_path):
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


def test_a_list_of_users_without_a_provider_admits_no_user(seeded, monkeypatch):
    monkeypatch.setenv("EMTC_USERS", "@lab.org")
    app = start_app().run()
    assert "no identity provider is configured" in app.error[0].value
    assert len(app.button) == len(app.dataframe) == 0


def test_no_file_is_uploaded_before_the_login(monkeypatch):
    manager = MemoryUploadedFileManager("/upload")
    page = SimpleNamespace(session_id="visitor", uploaded_file_mgr=manager)
    monkeypatch.setattr(upload_guard, "get_script_run_ctx", lambda: page)
    film = UploadedFileRec(file_id="film", name="film.mkv", type="video", data=bytes(1000))
    manager.add_file("visitor", film)  # before any page was opened
    upload_guard.forbid_uploads()
    for session in ("visitor", "another"):
        with pytest.raises(upload_guard.UploadRefusedError):
            manager.add_file(session, film)
        assert manager.get_files(session, ["film"]) == []
    page.session_id = "ada"
    upload_guard.allow_uploads()
    manager.add_file("ada", film)
    assert manager.get_files("ada", ["film"]) == [film]
    upload_guard.forbid_uploads()
    assert manager.get_files("ada", ["film"]) == []
    with pytest.raises(upload_guard.UploadRefusedError):
        manager.add_file("ada", film)
