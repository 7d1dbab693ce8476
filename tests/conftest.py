"""What every test has: threads that sleep while they wait, examples without a deadline, and a PostgreSQL server."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from app.bench.postgres import GIVEN, is_reachable, server
from tests.require import require

# Before anything loads OpenMP, as in the trainers that `emtc` starts.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
settings.register_profile("busy", deadline=None)  # a busy machine is no fault of an example
settings.load_profile("busy")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of a server's `postgres` database: EMTC_TEST_POSTGRES, or a private one on a Unix socket."""
    require("postgres", is_reachable(), f"no PostgreSQL server is installed and {GIVEN} is unset")
    with server(fsync=False) as url:
        yield url
