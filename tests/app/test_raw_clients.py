"""The raw tables and Arrow streams as the tools that researchers use read them: DuckDB and Polars, every value."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from app.cli.main import run
from storage.api import OpenDatabase, open_database
from storage.queries.tables import TableName
from storage.runs.changes import create_run
from tests.require import require_package
from tests.storage.records import CONFIG, record_everything


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[OpenDatabase, str]:
    db = open_database(tmp_path_factory.mktemp("clients") / "x.db", read_only=False)
    run_id = create_run(db, CONFIG, target_steps=30, versions={})
    record_everything(db, run_id)
    return db, run_id


def exported(recorded: tuple[OpenDatabase, str], folder: Path, table: TableName, format: str) -> Path:
    db, run_id = recorded
    out = folder / f"{table}.{format}"
    assert run(["export", run_id, "--table", table, "--format", format, "--out", str(out), "--db", db.url]) == 0
    return out


def stored(recorded: tuple[OpenDatabase, str], table: TableName) -> list[tuple]:
    db, run_id = recorded
    return plain(pd.concat(list(db.run(run_id).chunks(table))).itertuples(index=False, name=None))


def plain(rows: Any) -> list[tuple]:
    """Write every missing value as None."""
    return [tuple(None if pd.isna(value) else value for value in row) for row in rows]


@pytest.mark.parametrize("table", ["transitions", "evaluations"])
def test_duckdb_reads_parquet_and_arrow_streams(recorded, tmp_path: Path, table: TableName) -> None:
    duckdb = require_package("duckdb")
    place = exported(recorded, tmp_path, table, "parquet")
    connection = duckdb.connect()
    assert plain(connection.execute("SELECT * FROM read_parquet(?)", [str(place)]).fetchall()) == stored(
        recorded, table
    )
    stream = recorded[0].run(recorded[1]).arrow(table)
    assert plain(connection.from_arrow(stream).fetchall()) == stored(recorded, table)


@pytest.mark.parametrize("table", ["transitions", "evaluations"])
def test_polars_reads_parquet_arrow_files_and_streams(recorded, tmp_path: Path, table: TableName) -> None:
    polars = require_package("polars")
    for frame in (
        polars.read_parquet(exported(recorded, tmp_path, table, "parquet")),
        polars.read_ipc(exported(recorded, tmp_path, table, "arrow")),
        polars.from_arrow(recorded[0].run(recorded[1]).arrow(table)),
        polars.scan_parquet(exported(recorded, tmp_path, table, "parquet")).collect(),
    ):
        assert plain(frame.rows()) == stored(recorded, table)
