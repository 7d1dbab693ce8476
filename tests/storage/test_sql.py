"""SQL queries can only read, within their limits: a statement that writes gets one sentence."""

import math
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
from sqlalchemy import func, select

from emtc_core.errors import StorageError
from storage.engine import Database, open_database
from storage.models import Base, Run
from storage.runs.changes import create_run
from storage.sql import query as query_module
from storage.sql.glossary import EXAMPLES, describe_schema
from storage.sql.query import QueryCancel, QueryResult, run_query, to_json_value
from storage.sql.reader_role import create_reader
from tests.postgres import temporary_postgres_database
from tests.storage.conftest import BACKENDS
from tests.storage.records import CONFIG, record_everything

WRITES = [
    "update runs set name = 'x'",
    "delete from runs",
    "insert into runs (id) values ('a')",
    "drop table runs",
    "create table x (a int)",
    "create temp table x (a int)",
    "with gone as (delete from runs returning id) select * from gone",
    "explain analyze delete from runs",
    "begin",
    "vacuum",
    "select 1; delete from runs",
]
SQLITE_ATTACKS = [
    "attach '{folder}/other.db' as other",
    "attach 'file:{folder}/other.db?mode=rwc' as other",
    "vacuum into '{folder}/other.db'",
    "pragma writable_schema = 1",
    "pragma query_only = off",
    "commit; delete from runs",
    "pragma journal_mode = delete",
    "select * from pragma_writable_schema",
    "select load_extension('x')",
    "select fts3_tokenizer('simple')",
    "select writefile('{folder}/other.db', 'x')",
    "create virtual table x using fts5(a)",
    "update sqlite_master set sql = ''",
    "select randomblob(1000000000)",
    "select zeroblob(900000000)",
    "select " + "(" * 9000 + "1" + ")" * 9000,
]
POSTGRES_ATTACKS = [
    "copy runs to program 'touch {folder}/other.db'",
    "copy (select 1) to program 'touch {folder}/other.db'",
    "copy runs to '{folder}/other.db'",
    "copy runs to stdout",
    "copy runs from stdin",
    "do $$ begin delete from runs; end $$",
    "do $$ begin set transaction read write; delete from runs; end $$",
    "select set_config('transaction_read_only', 'off', true)",
    "set transaction read write",
    "select pg_read_file('/etc/passwd')",
    "select lo_import('/etc/passwd')",
    "select nextval('snapshots_id_seq')",
    "select * from runs for update",
    "select 1 into x",
    "select 1; commit; delete from runs",
    "commit; delete from runs",
    "commit",
]
BOMBS = [
    "with recursive c(x) as (select 1 union all select x + 1 from c) select sum(x) from c",
    "with recursive c(x) as (select 1 union all select x + 1 from c) select count(*) from c a, c b",
]


def record(url: str) -> Database:
    db = open_database(url)
    record_everything(db, create_run(db, CONFIG, target_steps=100, versions={}))
    return db


@pytest.fixture(scope="module")
def recorded_file(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """One for all queries, of which none changes anything."""
    db = record(f"sqlite:///{shutil.copy(sqlite_template, tmp_path_factory.mktemp('recorded'))}")
    yield db
    db.dispose()


@pytest.fixture(scope="module")
def recorded_server(
    postgres_server: str, postgres_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Database, str]]:
    """The same on a server, with the URL of a role for reading."""
    with pytest.MonkeyPatch.context() as patch, temporary_postgres_database(postgres_server, postgres_template) as url:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        db, name = record(url), make_name()
        yield db, create_reader(db, name=name)
        drop_role(db, name)
        db.dispose()


@pytest.fixture
def asked_server(recorded_server: tuple[Database, str], monkeypatch: pytest.MonkeyPatch) -> Database:
    db, reader_url = recorded_server
    monkeypatch.setenv("EMTC_DB_READER", reader_url)
    return db


@pytest.fixture(params=BACKENDS)
def asked(request: pytest.FixtureRequest) -> Database:
    return request.getfixturevalue({"sqlite": "recorded_file", "postgres": "asked_server"}[request.param])


def make_name() -> str:
    return f"reader_{secrets.token_hex(6)}"


def drop_role(db: Database, name: str) -> None:
    with db.transaction() as connection:
        connection.exec_driver_sql(f"DROP OWNED BY {name}")
        connection.exec_driver_sql(f"DROP ROLE {name}")


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Database], str]]:
    """Makes a role for reading, by which questions are asked; roles belong to the whole server, so it goes again."""
    made: list[tuple[Database, str]] = []

    def make(db: Database) -> str:
        name = make_name()
        monkeypatch.setenv("EMTC_DB_READER", create_reader(db, name=name))
        made.append((db, name))
        return name

    yield make
    for db, name in made:
        drop_role(db, name)


def refuse(db: Database, query: str, *, seconds: float = 5) -> str:
    with pytest.raises(StorageError) as caught:
        run_query(db, query, seconds=seconds)
    assert "\n" not in str(caught.value)
    with db.read() as connection:
        assert connection.execute(select(func.count()).select_from(Run)).scalar_one() == 1
    return str(caught.value)


@pytest.mark.parametrize(
    ("query", "columns", "rows"),
    [
        (
            "select algo, seed, win_rate, error from runs",
            ("algo", "seed", "win_rate", "error"),
            [["emtc-qplex", 7, 0.75, None]],
        ),
        ("select id, name from runs where seed = 99", ("id", "name"), []),
    ],
    ids=["one row", "no row"],
)
def test_an_answer_has_the_columns_and_values(
    asked: Database, query: str, columns: tuple[str, ...], rows: list[list[object]]
) -> None:
    answer = run_query(asked, query)
    assert (answer.columns, answer.rows, answer.truncation) == (columns, rows, None)
    assert tuple(answer.frame().columns) == columns


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_answered(asked: Database, name: str) -> None:
    assert run_query(asked, EXAMPLES[name]).rows


@pytest.mark.parametrize("query", [*WRITES, *SQLITE_ATTACKS])
def test_a_query_of_a_file_writes_nothing_and_reaches_no_other_file(
    recorded_file: Database, tmp_path: Path, query: str
) -> None:
    refuse(recorded_file, query.format(folder=tmp_path))
    assert not (tmp_path / "other.db").exists()


@pytest.mark.postgres
@pytest.mark.parametrize("query", [*WRITES, *POSTGRES_ATTACKS])
def test_a_query_of_a_server_writes_nothing_and_reaches_no_file(
    asked_server: Database, tmp_path: Path, query: str
) -> None:
    refuse(asked_server, query.format(folder=tmp_path))
    assert not (tmp_path / "other.db").exists()


@pytest.mark.postgres
@pytest.mark.parametrize("right", ["SUPERUSER", "member", "owner"])
def test_a_role_that_may_do_more_than_read_asks_nothing(ready_postgres_url, reader, monkeypatch, right: str) -> None:
    db = open_database(ready_postgres_url)
    name = reader(db)
    with db.transaction() as connection:
        grant = {"owner": f"ALTER TABLE entries OWNER TO {name}", "member": f"GRANT pg_monitor TO {name}"}
        connection.exec_driver_sql(grant.get(right, f"ALTER ROLE {name} {right}"))
    with pytest.raises(StorageError, match=name):
        run_query(db, "select 1")
    monkeypatch.delenv("EMTC_DB_READER")
    with pytest.raises(StorageError, match="postgres is a superuser"):
        run_query(db, "select 1")
    monkeypatch.setenv("EMTC_DB_READER", "postgresql://reader@localhost/other")
    with pytest.raises(StorageError, match="EMTC_DB_READER"):
        run_query(db, "select 1")


@pytest.mark.postgres
def test_a_role_for_reading_reaches_what_comes_later_and_nobody_else(ready_postgres_url: str, reader) -> None:
    db = open_database(ready_postgres_url)
    reader(db)
    with db.transaction() as connection:
        connection.exec_driver_sql("CREATE TABLE later (a int)")
    assert run_query(db, "select count(*) from later").rows == [[0]]
    with db.read() as connection:
        pid = connection.exec_driver_sql("select pg_backend_pid()").scalar_one()
        for act in (f"select pg_terminate_backend({pid})", f"select pg_cancel_backend({pid})"):
            with pytest.raises(StorageError, match="superuser"):
                run_query(db, act)
        assert connection.exec_driver_sql("select 1").scalar_one() == 1


@pytest.mark.parametrize("query", BOMBS)
@pytest.mark.parametrize("stop", ["time limit", "cancel", "cancel before the start"])
def test_an_endless_query_is_stopped(asked: Database, query: str, stop: str) -> None:
    cancel = QueryCancel()
    if stop == "cancel before the start":
        cancel.cancel()
    timer = threading.Timer(0.3, cancel.cancel)
    if stop == "cancel":
        timer.start()
    seconds, message = (0.3, r"more than 0.3 s") if stop == "time limit" else (300, "cancelled")
    with pytest.raises(StorageError, match=message):
        run_query(asked, query, seconds=seconds, cancel=cancel)
    timer.cancel()


@pytest.mark.parametrize(("column", "n"), [("x", 7), ("'" + "x" * 100 + "'", 10)], ids=["rows", "characters"])
def test_a_long_answer_is_cut(asked: Database, monkeypatch: pytest.MonkeyPatch, column: str, n: int) -> None:
    monkeypatch.setattr(query_module, "MAX_RESULT_LENGTH", 1000)
    numbers = "with recursive c(x) as (select 1 union all select x + 1 from c)"
    answer = run_query(asked, f"{numbers} select x, {column} from c", max_rows=7 if column == "x" else 100)
    assert [row[0] for row in answer.rows] == list(range(1, n + 1))
    assert f"The first {n} rows" in (answer.truncation or "")


def test_values_become_plain() -> None:
    assert to_json_value(b"\0" * 1234567) == "<1,234,567 bytes>"
    assert to_json_value("x" * 100_001).endswith("… <100,001 characters>")
    assert to_json_value({"a": [1]}) == '{"a": [1]}'
    assert to_json_value(2**70) == str(2**70)
    assert math.isnan(to_json_value(float("nan")))


@pytest.mark.parametrize(
    ("query", "options", "word"),
    [
        ("  \n", {}, "empty"),
        ("select 1; select 2", {}, "one statement"),
        ("selec", {}, "selec"),
        ("select * from nowhere", {}, "nowhere"),
        ("-- a remark", {}, "no rows"),
        ("select '\ud800'", {}, "Unicode"),
        ("select \0", {}, "NUL"),
        ("select '" + "x" * 100_001 + "'", {}, "100,000"),
        *(("select 1", {"max_rows": rows}, "Rows") for rows in (0, 100_001)),
        *(("select 1", {"seconds": seconds}, "Seconds") for seconds in (0.0, 601.0, math.nan)),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_an_invalid_query_or_limit_gets_one_sentence(
    asked: Database, query: str, options: dict[str, float], word: str
) -> None:
    with pytest.raises(StorageError, match=word) as caught:
        run_query(asked, query, **options)
    assert "\n" not in str(caught.value)


def test_a_frame_has_one_type_in_each_column_and_distinct_names(tmp_path: Path) -> None:
    rows = [[1, None, 0.5, "a", True, None], [None, 2, 3, 4, False, None]]
    frame = QueryResult(("n", "n", "x", "mixed", "flag", "none"), rows, None, 0.1).frame()
    assert list(frame.columns) == ["n", "n_2", "x", "mixed", "flag", "none"]
    assert [str(kind) for kind in frame.dtypes][:3] == ["Int64", "Int64", "float64"]
    assert frame["mixed"].tolist() == ["a", "4"]
    frame.to_parquet(tmp_path / "x.parquet")
    assert pd.read_parquet(tmp_path / "x.parquet")["n"].iloc[0] == 1


def test_every_column_has_a_meaning() -> None:
    described = {table.name: {column.name for column in table.columns} for table in describe_schema()}
    assert described == {table.name: set(table.columns.keys()) for table in Base.metadata.tables.values()}
    assert all(column.meaning and column.kind for table in describe_schema() for column in table.columns)
