"""Databases to test against: a SQLite file, and a private PostgreSQL server where one is installed."""

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from storage.engine import Database, open_database
from storage.runs import create_run
from tests.require import require
from tests.storage.records import CONFIG

BACKENDS = ("sqlite", pytest.param("postgres", marks=pytest.mark.postgres))


def find_server_binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of a server's `postgres` database: EMTC_TEST_POSTGRES, or a private one on a Unix socket."""
    given = os.environ.get("EMTC_TEST_POSTGRES")
    if given:
        yield given
        return
    binaries = find_server_binaries()
    require("postgres", binaries is not None, "no PostgreSQL server is installed and EMTC_TEST_POSTGRES is unset")
    assert binaries is not None
    place = Path(tempfile.mkdtemp(prefix="emtc-pg-"))
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if as_user:
        shutil.chown(place, "postgres", "postgres")
    data = place / "data"
    run = {"check": True, "stdout": subprocess.DEVNULL, "cwd": place}
    init = [binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"]
    subprocess.run([*as_user, *map(str, init)], **run)
    options = f"-k {place} -c listen_addresses='' -c fsync=off -c max_connections=40"
    control = [str(binaries / "pg_ctl"), "-D", str(data), "-w"]
    subprocess.run([*as_user, *control, "-o", options, "-l", str(place / "log"), "start"], **run)
    try:
        yield f"postgresql+psycopg://postgres@/postgres?host={place}"
    finally:
        subprocess.run([*as_user, *control, "-m", "immediate", "stop"], **run)
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def made_database(server: str, template: str = "template1") -> Iterator[str]:
    name = f"emtc_{uuid.uuid4().hex[:12]}"
    admin = create_engine(server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {template}"))
    yield admin.url.set(database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """URL of an empty database of its own."""
    with made_database(postgres_server) as url:
        yield url


@pytest.fixture(scope="session")
def postgres_template(postgres_server: str) -> Iterator[str]:
    """Name of a database that has its tables already, to be copied."""
    with made_database(postgres_server) as url:
        open_database(url).dispose()
        yield make_url(url).database or ""


@pytest.fixture
def ready_postgres_url(postgres_server: str, postgres_template: str) -> Iterator[str]:
    with made_database(postgres_server, postgres_template) as url:
        yield url


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "emtc.db"
    open_database(f"sqlite:///{path}").dispose()
    return path


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
def run_id(db: Database) -> str:
    return create_run(db, CONFIG, target_steps=1000, versions={"emtc-lab": "0.1.0"})
