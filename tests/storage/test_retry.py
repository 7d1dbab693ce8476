"""Waiting for a server that is away: told once, with growing pauses, and not for one that refuses the login."""

import psycopg
import pytest
from sqlalchemy import make_url

from emtc_core.errors import RunStateError, StorageError
from storage import retry
from storage.engine import Database, open_database
from storage.retry import open_with_retry, retry_transient
from storage.runs.changes import create_run, finish_run
from tests.app_server import find_free_port
from tests.storage.records import CONFIG

AWAY = "postgresql://nobody@127.0.0.1:{port}/none"


class Clock:
    """A clock that advances by the waits alone."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "time", Clock())


@pytest.mark.parametrize("end", ["patience", "cancel"])
def test_a_worker_reports_once_that_it_waits_for_a_server_until_its_patience_ends_or_it_is_cancelled(end: str) -> None:
    told: list[str] = []
    options = {"patience_s": 60.0} if end == "patience" else {"is_cancelled": lambda: bool(told)}
    with pytest.raises(StorageError, match="refused"):
        open_with_retry(AWAY.format(port=find_free_port()), report=told.append, **options)
    assert len(told) == 1
    assert "Retrying" in told[0]


@pytest.mark.postgres
@pytest.mark.parametrize("lost", [
    psycopg.OperationalError("FATAL:  the database system is starting up"),
    psycopg.errors.AdminShutdown("terminating connection due to administrator command"),
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


def test_an_error_that_is_not_temporary_is_raised_at_once(sqlite_db: Database) -> None:
    run_id = create_run(sqlite_db, CONFIG, target_steps=1, versions={})
    with pytest.raises(RunStateError):
        retry_transient(sqlite_db, lambda: finish_run(sqlite_db, run_id, "finished", token="of another owner"))
