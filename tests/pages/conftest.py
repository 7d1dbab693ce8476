"""A database for each kind of page test; the seeded one is made once and copied."""

import shutil
from pathlib import Path

import pytest
import streamlit as st

from storage.engine import Database, open_database
from tests.pages.seed import seed_failed_run, seed_run


@pytest.fixture(scope="session")
def seeded_files(tmp_path_factory) -> tuple[Path, str]:
    path = tmp_path_factory.mktemp("seeded") / "seed.db"
    db = open_database(f"sqlite:///{path}")
    run_id = seed_run(db)
    with db.transaction() as connection:
        connection.exec_driver_sql("SELECT 1")
    db.dispose()
    return path, run_id


@pytest.fixture
def use_database(monkeypatch, tmp_path):
    """Point the app at a database and start nothing in the background."""

    def use(path: Path) -> Database:
        monkeypatch.setenv("EMTC_DB", f"sqlite:///{path}")
        monkeypatch.setenv("EMTC_WARM_UP", "0")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        st.cache_data.clear()
        st.cache_resource.clear()
        return open_database(f"sqlite:///{path}")

    return use


@pytest.fixture
def empty(use_database, tmp_path) -> Database:
    return use_database(tmp_path / "empty.db")


@pytest.fixture
def seeded(use_database, seeded_files, tmp_path) -> tuple[Database, str]:
    source, run_id = seeded_files
    return use_database(copy_database(source, tmp_path / "seeded.db")), run_id


def copy_database(source: Path, target: Path) -> Path:
    """Copy a closed database with what its log still holds."""
    for suffix in ("", "-wal"):
        part = source.with_name(source.name + suffix)
        if part.exists():
            shutil.copy(part, target.with_name(target.name + suffix))
    return target


@pytest.fixture
def failed(use_database, tmp_path) -> tuple[Database, str]:
    db = use_database(tmp_path / "failed.db")
    return db, seed_failed_run(db)
