"""Databases to test against: a SQLite file, and a private PostgreSQL server where one is installed."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from storage.engine import Database, open_database
from storage.runs.changes import create_run
from tests.postgres import temporary_postgres_database
from tests.storage.records import CONFIG

BACKENDS = ("sqlite", pytest.param("postgres", marks=pytest.mark.postgres))


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """URL of an empty database of its own."""
    with temporary_postgres_database(postgres_server) as url:
        yield url


@pytest.fixture(scope="session")
def postgres_template(postgres_server: str) -> Iterator[str]:
    """Name of a database that has its tables already, to be copied."""
    with temporary_postgres_database(postgres_server) as url:
        open_database(url).dispose()
        yield make_url(url).database or ""


@pytest.fixture
def ready_postgres_url(postgres_server: str, postgres_template: str) -> Iterator[str]:
    with temporary_postgres_database(postgres_server, postgres_template) as url:
        yield url


@pytest.fixture
def ready_sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    return f"sqlite:///{shutil.copy(sqlite_template, tmp_path)}"


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'emtc.db'}"


@pytest.fixture(params=BACKENDS)
def url(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture(params=BACKENDS)
def db(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """An open database of either kind, with its tables and no rows."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))  # a server's run folders
    database = open_database(request.getfixturevalue(f"ready_{request.param}_url"))
    yield database
    database.dispose()


@pytest.fixture
def sqlite_db(ready_sqlite_url: str) -> Iterator[Database]:
    """An open SQLite database with its tables and no rows; a file overrides `db` with it if one database is enough."""
    database = open_database(ready_sqlite_url)
    yield database
    database.dispose()


@pytest.fixture
def run_id(db: Database) -> str:
    return create_run(db, CONFIG, target_steps=1000, versions={"emtc-lab": "0.1.0"})
