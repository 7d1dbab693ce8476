"""The token of the app: one private file per user, which an environment variable replaces."""

import os
from pathlib import Path

import pytest

from app.jobs.access_token import add_token, get_token
from emtc_core.errors import ConfigError

posix = pytest.mark.skipif(os.name != "posix", reason="a folder of a user is private without permissions")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("EMTC_TOKEN", raising=False)
    monkeypatch.setattr("app.jobs.access_token.user_state_path", lambda *_, **__: tmp_path / "state")
    return tmp_path / "state" / "app-token"


def test_a_token_is_kept(file: Path) -> None:
    token = get_token()
    assert token is not None
    assert len(token) >= 40
    assert get_token() == token == file.read_text()
    assert add_token("http://localhost:8501") == f"http://localhost:8501/?token={token}"


@posix
def test_only_its_user_reads_it(file: Path) -> None:
    token = get_token()
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    file.chmod(0o640)  # somebody may have read it
    assert get_token() != token
    assert file.stat().st_mode & 0o777 == 0o600


def test_the_variable_replaces_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMTC_TOKEN", "a secret of many letters")
    assert get_token() == "a secret of many letters"
    monkeypatch.setenv("EMTC_TOKEN", "off")
    assert (get_token(), add_token("http://localhost:8501")) == (None, "http://localhost:8501")
    monkeypatch.setenv("EMTC_TOKEN", "short")
    with pytest.raises(ConfigError):
        get_token()
    assert not file.exists()
