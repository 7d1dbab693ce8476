"""The raw tables and Arrow streams as the tools that researchers use read them: DuckDB and Polars, every value."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from app.cli.main import run
from storage.api import OpenDatabase, open_database
from storage.runs.changes import create_run
from tests.require import require_package
from tests.storage.records import CONFIG, record_everything


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[OpenDatabase, str]:
    db = open_database(tmp_path_factory.mktemp("clients") / "x.db", read_only=False)
    run_id = create_run(db, CONFIG, target_steps=30, versions={})
    record_everything(db, run_id)
    return db, run_id


def plain(rows: Any) -> list[tuple]:
    """Write every missing value as None."""
    return [tuple(None if pd.isna(value) else value for value in row) for row in rows]


def read_with_duckdb(file: Path, stream: Any) -> list[list[tuple]]:
    connection = require_package("duckdb").connect()
    read = connection.execute("SELECT * FROM read_parquet(?)", [str(file)])
    return [read.fetchall(), connection.from_arrow(stream).fetchall()]


def read_with_polars(file: Path, stream: Any) -> list[list[tuple]]:
    polars = require_package("polars")
    return [polars.read_parquet(file).rows(), polars.from_arrow(stream).rows()]


@pytest.mark.parametrize("read", [read_with_duckdb, read_with_polars])
def test_a_parquet_file_and_an_arrow_stream_are_read_as_they_are_stored(recorded, tmp_path: Path, read) -> None:
    db, run_id = recorded
    out = tmp_path / "t.parquet"
    assert run(["export", run_id, "--table", "transitions", "--out", str(out), "--db", db.url]) == 0
    stored = plain(pd.concat(list(db.run(run_id).chunks("transitions"))).itertuples(index=False, name=None))
    assert len(stored) == 30
    for rows in read(out, db.run(run_id).arrow("transitions")):
        assert plain(rows) == stored
