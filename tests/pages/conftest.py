"""A database for each kind of page test; the seeded one is made once and copied."""

import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import streamlit as st
from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import AppTest

from storage.engine import Database, open_database
from tests.pages.seed import seed_failed_run, seed_run


@pytest.fixture(scope="package", autouse=True)
def _packages_are_looked_through_once() -> Iterator[None]:
    """Each new AppTest reads what every installed package says of itself, longer than a page takes to be drawn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_scanner, "scan_component_manifests", cache(manifest_scanner.scan_component_manifests))
        yield


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
def use_database(monkeypatch, tmp_path, sqlite_template):
    """Point the app at a database, a new one where there is none, and start nothing in the background."""

    def use(path: Path) -> Database:
        if not path.exists():
            shutil.copy(sqlite_template, path)
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


def read_address(app: AppTest) -> dict[str, str]:
    """Read the parameters of the URL; of a repeated parameter, the first text."""
    return {name: value[0] if isinstance(value, list) else value for name, value in app.query_params.items()}
