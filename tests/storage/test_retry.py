"""Waiting for a server that is away: told once, with growing pauses, and not for one that refuses the login."""

import psycopg
import pytest
from sqlalchemy import make_url

from emtc_core.errors import StorageError
from storage import retry
from storage.engine import open_database
from storage.retry import open_with_retry
from tests.app_server import find_free_port

AWAY = "postgresql://nobody@127.0.0.1:{port}/none"


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(retry, "_RETRY_S", 0.05)


def test_a_worker_waits_for_a_server_and_says_so_once() -> None:
    told: list[str] = []
    with pytest.raises(StorageError, match="refused"):
        open_with_retry(AWAY.format(port=find_free_port()), report=told.append, patience_s=1.0)
    assert len(told) == 1
    assert "Retrying" in told[0]


def test_whoever_is_told_to_leave_waits_no_longer() -> None:
    told: list[str] = []
    with pytest.raises(StorageError):
        open_with_retry(AWAY.format(port=find_free_port()), report=told.append, is_cancelled=lambda: bool(told))
    assert len(told) == 1


@pytest.mark.postgres
@pytest.mark.parametrize("lost", [
    psycopg.OperationalError("FATAL:  the database system is starting up"),
    psycopg.OperationalError("FATAL:  terminating connection due to administrator command"),
    psycopg.errors.AdminShutdown("terminating connection due to administrator command"),
    psycopg.errors.CrashShutdown("terminating connection because of crash of another server process"),
], ids=lambda lost: type(lost).__name__)  # fmt: skip
def test_a_server_that_comes_back_is_used(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, lost: psycopg.Error
) -> None:
    open_database(postgres_url).dispose()
    tries: list[str] = []

    def away_at_first(url: str, **options: bool) -> object:
        tries.append(url)
        if len(tries) < 4:
            raise StorageError("away") from lost
        return open_database(url, **options)

    monkeypatch.setattr(retry, "open_database", away_at_first)
    told: list[str] = []
    assert open_with_retry(postgres_url, report=told.append).dialect == "postgresql"
    assert (len(tries), len(told)) == (4, 1)


@pytest.mark.postgres
def test_a_server_that_has_no_such_database_is_not_waited_for(postgres_url: str) -> None:
    wrong = make_url(postgres_url).set(database="nowhere").render_as_string(hide_password=False)
    with pytest.raises(StorageError, match="does not exist"):
        open_with_retry(wrong, report=pytest.fail)
