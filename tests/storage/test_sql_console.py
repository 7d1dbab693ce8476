"""A question in SQL reads, within its limits, and nothing else: attacks get a sentence."""

import io
import json
import math
import os
import secrets
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import psycopg
import pytest
from sqlalchemy import func, select

from app.bench.postgres import temporary_postgres_database
from emtc_core.errors import StorageError
from storage.engine import Database, open_database
from storage.models import Base, Run
from storage.notebook import create_entry
from storage.runs.changes import create_run
from storage.sql_console import worker
from storage.sql_console.glossary import EXAMPLES, describe_schema
from storage.sql_console.query import QueryResult, create_reader, run_query
from tests.errors import raises
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
]
SQLITE_ATTACKS = [
    "attach '{folder}/other.db' as other",
    "vacuum into '{folder}/other.db'",
    "pragma writable_schema = 1",
    "pragma query_only = 0",
    "pragma journal_mode = delete",
    "pragma hard_heap_limit = 0",
    "select * from pragma_writable_schema",
    "select load_extension('x')",
    "select fts3_tokenizer('simple')",
    "select writefile('{folder}/other.db', 'x')",
    "create virtual table x using fts5(a)",
    "update sqlite_master set sql = ''",
]
POSTGRES_ATTACKS = [
    "copy runs to program 'touch {folder}/other.db'",
    "copy runs to '{folder}/other.db'",
    "do $$ begin delete from runs; end $$",
    "select set_config('transaction_read_only', 'off', true)",
    "select U&\"\\0073et_config\"('role', 'none', true)",
    "select pg_read_file('/etc/passwd')",
    "select lo_import('/etc/passwd')",
    "select nextval('snapshots_id_seq')",
    "select * from runs for update",
    "select 1 into x",
    "select * from ts_stat('select to_tsvector(pg_read_' || 'file(''/etc/passwd''))')",
    "select * from ts_stat('select to_tsvector(set_con' || 'fig(''role'', ''postgres'', true))')",
    "select * from ts_stat('delete from runs returning to_tsvector(id)')",
    "select pg_ls_dir('/')",
    "select lo_creat(-1)",
    "select pg_reload_conf()",
    "select 1; commit; delete from runs",
    "call x()",
    "select pg_logical_emit_message(false, 'x', repeat('x', 1000))",
    "select pg_logical_emit_message(true, 'x', 'x')",
    "select pg_advisory_lock(1)",
    "select pg_advisory_xact_lock_shared(1, 2)",
    "select pg_try_advisory_lock(1)",
    'select "pg_advisory_lock"/* /* */ */ (1)',
    "select Pg_Catalog.PG_NOTIFY('a', 'b')",
    "values (pg_notify('a', 'b')), (null)",
    "with x as (select 1) select pg_notify('a', 'b') from x",
    "explain analyze select pg_notify('a', 'b')",
    "select pg_export_snapshot()",
    "select pg_current_xact_id()",
    "select txid_current()",
    "select pg_sleep(600)",
    "select pg_stat_reset()",
    "select pg_switch_wal()",
    "select pg_create_restore_point('x')",
    "select pg_replication_origin_create('x')",
    "select query_to_xml('select pg_notify(''a'', ''b'')', true, true, '')",
    "select cursor_to_xml('x', 1, true, true, '')",
]
HARMLESS = [
    "select random() < 2, clock_timestamp() is not null, gen_random_uuid() is not null",
    "select pg_total_relation_size('runs') > 0, pg_size_pretty(1::bigint)",
    "select count(*) from runs tablesample system (100)",
    "select 'a lock or notify in a text', current_setting('server_version'), now()",
]
BOMBS = [
    "with recursive c(x) as (select 1 union all select x + 1 from c) select sum(x) from c",
    "with recursive c(x) as (select 1 union all select x + 1 from c) select count(*) from c a, c b",
]
HUGE = ["select randomblob(1000000000)", "select zeroblob(900000000)"]


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


def test_an_answer_holds_names_and_values(asked: Database) -> None:
    answer = run_query(asked, "select algo, seed, win_rate, error from runs")
    assert (answer.columns, answer.rows, answer.truncation) == (
        ("algo", "seed", "win_rate", "error"), [["emtc-qplex", 7, 0.75, None]], None
    )  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_answered(asked: Database, name: str) -> None:
    assert run_query(asked, EXAMPLES[name]).rows


@pytest.mark.parametrize("query", WRITES)
def test_what_writes_is_refused(asked: Database, query: str) -> None:
    reason = refuse(asked, query, seconds=60)  # of a busy machine
    assert "refused" in reason or "near" in reason


@pytest.mark.parametrize("attack", SQLITE_ATTACKS)
def test_a_file_reaches_no_other(recorded_file: Database, tmp_path: Path, attack: str) -> None:
    refuse(recorded_file, attack.format(folder=tmp_path))
    assert not (tmp_path / "other.db").exists()


@pytest.mark.postgres
@pytest.mark.parametrize("attack", POSTGRES_ATTACKS)
def test_a_server_does_nothing_else(asked_server: Database, tmp_path: Path, attack: str) -> None:
    refuse(asked_server, attack.format(folder=tmp_path))
    assert not (tmp_path / "other.db").exists()


@pytest.mark.postgres
@pytest.mark.parametrize("right", ["SUPERUSER", "CREATEROLE", "IN ROLE pg_monitor", "writes"])
def test_a_role_that_may_do_more_than_read_asks_nothing(ready_postgres_url, reader, monkeypatch, right: str) -> None:
    db = open_database(ready_postgres_url)
    name = reader(db)
    with db.transaction() as connection:
        grant = {"writes": f"GRANT UPDATE ON runs TO {name}", "IN ROLE pg_monitor": f"GRANT pg_monitor TO {name}"}
        connection.exec_driver_sql(grant.get(right, f"ALTER ROLE {name} {right}"))
    with raises(StorageError, reason="too_many_rights", subject=name):
        run_query(db, "select 1")
    monkeypatch.delenv("EMTC_DB_READER")
    with raises(StorageError, reason="too_many_rights", subject="postgres"):
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
            with raises(StorageError, reason="writes"):
                run_query(db, act)
        assert connection.exec_driver_sql("select 1").scalar_one() == 1


@pytest.mark.postgres
def test_another_database_is_not_asked(ready_postgres_url: str, reader, monkeypatch: pytest.MonkeyPatch) -> None:
    db = open_database(ready_postgres_url)
    reader(db)
    monkeypatch.setenv("EMTC_DB_READER", "postgresql://reader@localhost/other")
    with raises(StorageError, reason="other_database", subject="EMTC_DB_READER"):
        run_query(db, "select 1")


def test_a_file_needs_no_role(ready_sqlite_url: str) -> None:
    with raises(StorageError, reason="no_roles"):
        create_reader(open_database(ready_sqlite_url))


@pytest.mark.parametrize("query", ["select 1; select 2", "select 1; delete from runs"])
def test_one_statement_and_no_more(asked: Database, query: str) -> None:
    assert "one statement" in refuse(asked, query, seconds=60)


@pytest.mark.parametrize("query", BOMBS)
def test_a_question_without_end_is_ended(asked: Database, query: str) -> None:
    with raises(StorageError, reason="timeout", subject=0.5):
        run_query(asked, query, seconds=0.5)


def test_rows_without_end_are_cut(asked: Database) -> None:
    answer = run_query(
        asked, "with recursive c(x) as (select 1 union all select x + 1 from c) select x from c", max_rows=7
    )
    assert [row[0] for row in answer.rows] == [1, 2, 3, 4, 5, 6, 7]
    assert answer.truncation == "The first 7 rows; there are more."
    assert run_query(asked, "select id from runs", max_rows=1).truncation is None


@pytest.mark.parametrize("query", HUGE)
def test_a_value_beyond_memory_is_refused(ready_sqlite_url: str, query: str) -> None:
    db = open_database(ready_sqlite_url)
    with raises(StorageError, reason="memory"):
        run_query(db, query)
    db.dispose()


def test_the_reader_is_bounded_by_the_system_too(ready_sqlite_url: str) -> None:
    asks = (  # by a process of its own, whose only child is the reader
        "import resource\nfrom storage.sql_console.query import run_query\nfrom storage.engine import open_database\n"
        "try:\n"
        f"    run_query(open_database({ready_sqlite_url!r}), 'select ' + ', '.join(['randomblob(30000000)'] * 60))\n"
        "except Exception as error:\n    print(error)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True)
    said, kilobytes = done.stdout.splitlines()
    assert "of memory" in said
    assert int(kilobytes) < 1_200_000


def test_a_step_that_nothing_interrupts_is_killed(ready_sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    db = open_database(ready_sqlite_url)
    monkeypatch.setattr("storage.sql_console.query._GRACE_S", 0.3)
    with raises(StorageError, reason="timeout", subject=0.2):
        run_query(db, "select length(printf('%.*c', 400000000, 'x'))", seconds=0.2)
    db.dispose()


def test_much_output_is_cut_by_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "MAX_OUTPUT_BYTES", 1000)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert "The first 9 rows" in (worker._write_rows([["x" * 100]] * 20, 100) or "")


def test_values_become_plain() -> None:
    assert worker.to_json_value(b"\0" * 1234567) == "<1,234,567 bytes>"
    assert worker.to_json_value("x" * 100_001).endswith("… <100,001 characters>")
    assert worker.to_json_value({"a": [1]}) == '{"a": [1]}'
    assert worker.to_json_value(2**70) == str(2**70)
    assert math.isnan(worker.to_json_value(float("nan")))


def test_a_blob_is_told_by_its_size(asked: Database) -> None:
    answer = run_query(asked, "select trajectory from episodes limit 1")
    assert str(answer.rows[0][0]).endswith("bytes>")


def test_no_row_still_has_columns(asked: Database) -> None:
    answer = run_query(asked, "select id, name from runs where seed = 99")
    assert (answer.columns, answer.rows) == (("id", "name"), [])
    assert list(answer.frame().columns) == ["id", "name"]


@pytest.mark.parametrize(
    ("query", "reasons", "name"),
    [
        ("", {"empty"}, ""),
        ("  \n", {"empty"}, ""),
        ("selec", {"failed", "writes"}, "selec"),
        ("select nothing from runs", {"failed"}, "nothing"),
        ("select * from nowhere", {"failed"}, "nowhere"),
        ("-- a remark", {"no_rows", "writes"}, ""),
        ("select '\ud800'", {"not_unicode"}, ""),
        ("select \0", {"too_long"}, ""),
        ("select '" + "x" * 100_001 + "'", {"too_long"}, ""),
    ],
)
def test_bad_questions_get_one_sentence(asked: Database, query: str, reasons: set[str], name: str) -> None:
    with raises(StorageError) as caught:
        run_query(asked, query)
    assert caught.value.reason in reasons
    assert name in str(caught.value.subject).lower()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("rows", "seconds"), [(0, 1.0), (100_001, 1.0), (1, 0.0), (1, 601.0), (1, math.nan)])
def test_limits_have_limits(asked: Database, rows: int, seconds: float) -> None:
    with raises(StorageError, reason="rows" if seconds == 1 and rows != 1 else "seconds"):
        run_query(asked, "select 1", max_rows=rows, seconds=seconds)


def test_a_frame_has_one_type_in_each_column_and_distinct_names(tmp_path: Path) -> None:
    rows = [[1, None, 0.5, "a", True, None], [None, 2, 3, 4, False, None]]
    frame = QueryResult(("n", "n", "x", "mixed", "flag", "none"), rows, None, 0.1).frame()
    assert list(frame.columns) == ["n", "n_2", "x", "mixed", "flag", "none"]
    assert [str(kind) for kind in frame.dtypes][:3] == ["Int64", "Int64", "float64"]
    assert frame["mixed"].tolist() == ["a", "4"]
    frame.to_parquet(tmp_path / "x.parquet")
    assert pd.read_parquet(tmp_path / "x.parquet")["n"].iloc[0] == 1


def test_a_question_is_answered_while_somebody_writes(ready_sqlite_url: str) -> None:
    db = open_database(ready_sqlite_url)
    run_id = create_run(db, CONFIG, target_steps=100, versions={})
    with db.transaction() as connection:
        connection.exec_driver_sql("update runs set name = 'unseen'")
        assert run_query(db, "select id, name from runs").rows == [[run_id, "emtc-qplex 3m seed 7"]]
    db.dispose()


def test_a_question_too_deep_to_read_is_refused(ready_sqlite_url: str) -> None:
    db = open_database(ready_sqlite_url)
    with pytest.raises(StorageError, match=r"stack overflow|expression tree"):
        run_query(db, "select " + "(" * 9000 + "1" + ")" * 9000)
    db.dispose()


def test_a_place_with_strange_letters_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "a #b&c= ü"
    folder.mkdir()
    db = open_database(f"sqlite:///{folder / 'x.db'}")
    create_run(db, CONFIG, target_steps=100, versions={})
    assert run_query(db, "select count(*) from runs").rows == [[1]]
    assert [place.name for place in tmp_path.iterdir()] == [folder.name]
    db.dispose()


def test_what_a_reader_says_of_its_server_holds_no_password() -> None:
    server = {"host": "/nowhere", "password": "hunter2"}
    question = {"server": server, "query": "select 1", "most_rows": 1, "seconds": 1}
    command = [sys.executable, "-m", "storage.sql_console.worker"]
    done = subprocess.run(command, input=json.dumps(question), capture_output=True, text=True, check=False)
    assert "hunter2" not in done.stdout + done.stderr
    assert "cannot run the query" in done.stdout


def test_every_column_has_a_meaning() -> None:
    described = {table.name: {column.name for column in table.columns} for table in describe_schema()}
    assert described == {table.name: set(table.columns.keys()) for table in Base.metadata.tables.values()}
    assert all(column.meaning and column.kind for table in describe_schema() for column in table.columns)


def test_a_trigger_or_view_of_somebody_else_does_not_write(ready_sqlite_url: str, tmp_path: Path) -> None:
    db = open_database(ready_sqlite_url)
    path = db.path
    assert path is not None
    with sqlite3.connect(path) as connection:
        connection.execute("create view v as select load_extension('x')")
    connection.close()
    with pytest.raises(StorageError):
        run_query(db, "select * from v")
    db.dispose()


@pytest.mark.postgres
def test_functions_without_effects_are_answered(ready_postgres_url: str, reader) -> None:
    db = open_database(ready_postgres_url)
    reader(db)
    for query in HARMLESS:
        assert len(run_query(db, query).rows) == 1


@pytest.mark.postgres
def test_no_effect_hides_behind_another_name(ready_postgres_url: str) -> None:
    """Only names are checked, so no operator, cast or aggregate may call a volatile function."""
    with open_database(ready_postgres_url).read() as connection:
        volatile = {*connection.exec_driver_sql("select proname from pg_proc where provolatile = 'v'").scalars()}
        for users in (
            "select oprname from pg_operator join pg_proc on pg_proc.oid = oprcode",
            "select castfunc from pg_cast join pg_proc on pg_proc.oid = castfunc",
            "select aggfnoid from pg_aggregate join pg_proc on pg_proc.oid in (aggtransfn, aggfinalfn)",
        ):
            assert connection.exec_driver_sql(f"{users} where provolatile = 'v'").all() == []
    named = {table.name for table in describe_schema()} | {
        column.name for table in describe_schema() for column in table.columns
    }
    assert named & volatile == set()
    assert {"pg_notify", "pg_advisory_lock", "pg_logical_emit_message", "ts_stat", "set_config"} <= volatile


@pytest.mark.postgres
def test_a_role_for_reading_blocks_no_writer(ready_postgres_url: str, reader) -> None:
    db = open_database(ready_postgres_url)
    name = reader(db)
    with psycopg.connect(os.environ["EMTC_DB_READER"].replace("+psycopg", "")) as session:
        assert session.execute("show temp_file_limit").fetchall() == [("2GB",)]
        for table in ("entries", "schema_version"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), session.transaction():
                session.execute(f"lock table {table} in share row exclusive mode")  # pyright: ignore
        assert create_entry(db, title=name, token="a click") == create_entry(db, title=name, token="a click")
