"""A PostgreSQL server to measure and test against: a given one, or a private one on a Unix socket."""

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import create_engine, text

GIVEN = "EMTC_TEST_POSTGRES"


def find_server_binaries() -> Path | None:
    """Find the folder of `initdb` and `pg_ctl`, or None where no server is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


def is_reachable() -> bool:
    """Whether `server` has something to give."""
    return bool(os.environ.get(GIVEN)) or find_server_binaries() is not None


@contextmanager
def server(*, fsync: bool) -> Generator[str]:
    """Give the URL of a server's `postgres` database: the one in EMTC_TEST_POSTGRES, or a private one.

    Args:
        fsync: Whether a private server writes as durably as one in production; tests need not.
    """
    given = os.environ.get(GIVEN)
    if given:
        yield given
        return
    binaries = find_server_binaries()
    if binaries is None:
        raise FileNotFoundError(f"no PostgreSQL server is installed and {GIVEN} is unset")
    with _private_server(binaries, fsync=fsync) as url:
        yield url


@contextmanager
def _private_server(binaries: Path, *, fsync: bool) -> Generator[str]:
    place = Path(tempfile.mkdtemp(prefix="emtc-pg-"))
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if as_user:
        shutil.chown(place, "postgres", "postgres")

    def run(*command: str | Path) -> None:
        subprocess.run([*as_user, *map(str, command)], check=True, stdout=subprocess.DEVNULL, cwd=place)

    data = place / "data"
    run(binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
    control = (binaries / "pg_ctl", "-D", data, "-w")
    options = f"-k {place} -c listen_addresses='' -c fsync={'on' if fsync else 'off'} -c max_connections=40"
    run(*control, "-o", options, "-l", place / "log", "start")
    try:
        yield f"postgresql+psycopg://postgres@/postgres?host={place}"
    finally:
        run(*control, "-m", "immediate", "stop")
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def made_database(server_url: str, template: str = "template1") -> Generator[str]:
    """Make a database, give its URL, and drop it."""
    name = f"emtc_{uuid.uuid4().hex[:12]}"
    admin = create_engine(server_url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name} TEMPLATE {template}"))
    yield admin.url.set(database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()
