"""`emtc sql` as a script uses it: a table, CSV, JSON or a Parquet file on one side, one sentence on the other."""

import json
from pathlib import Path

import pandas as pd
import pytest

from app.cli.main import run
from storage.engine import open_database
from storage.runs.changes import create_run
from tests.process.trainers import emtc
from tests.storage.records import CONFIG

QUERY = "select name, target_steps from runs order by target_steps"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    db = open_database(f"sqlite:///{tmp_path_factory.mktemp('sql') / 'x.db'}")
    create_run(db, CONFIG, target_steps=100, versions={}, name="one\x1b[31m")
    create_run(db, CONFIG, target_steps=200, versions={}, name="two")
    db.dispose()
    return db.url


def test_rows_are_on_stdout_and_a_note_is_on_stderr(url: str) -> None:
    told = emtc("sql", QUERY, "--db", url, "--json", "--limit", "1")
    assert json.loads(told.stdout) == [{"name": "one\x1b[31m", "target_steps": 100}]
    assert "--limit" in told.stderr
    table = emtc("sql", QUERY, "--db", url).stdout
    assert ("two" in table, "\x1b" in table) == (True, False)


def test_parquet_and_csv_contain_the_rows(url: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run(["sql", QUERY, "--db", url, "--parquet", str(tmp_path / "x.parquet")]) == 0
    assert pd.read_parquet(tmp_path / "x.parquet")["target_steps"].tolist() == [100, 200]
    assert run(["sql", QUERY, "--db", url, "--csv"]) == 0
    assert capfdbinary.readouterr().out.splitlines()[0::2] == [b"name,target_steps", b"two,200"]


def test_the_schema_needs_no_database(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sql", "--schema", "--json", "--db", "sqlite:///nowhere/x.db"]) == 0
    assert {"transitions", "snapshots"} <= {table["name"] for table in json.loads(capsys.readouterr().out)}


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["drop table runs"], "can only read"),
        (["select 1; select 2"], "one statement"),
        (["selec"], "emtc sql --schema"),
        (["select 1", "--limit", "0"], "Rows must be"),
        (["select 1", "--seconds", "nan"], "Seconds must be"),
        (["select 1", "--csv", "--json"], "at most one"),
        (["select 1", "--parquet", "/dev/null/x.parquet"], "cannot be written"),
    ],
)
def test_unusable_arguments_are_one_sentence(
    url: str, arguments: list[str], fragment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["sql", *arguments, "--db", url])
    out, err = capsys.readouterr()
    assert (code, out, len(err.strip().splitlines())) == (2, "", 1)
    assert fragment in err


def test_no_command_for_a_missing_database_creates_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    for command in (["sql", "select 1"], ["runs"], ["db", "check"], ["db", "vacuum"], ["db", "backup"]):
        assert run([*command, "--db", url]) == 2, command
    assert list(tmp_path.iterdir()) == []
