"""Databases of earlier schemas open and keep everything; an upgrade that fails changes nothing."""

import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import inspect, text

from emtc_core.errors import StorageError
from storage.engine import Database, open_database
from storage.maintenance.check import check_run
from storage.migrations import upgrade
from storage.models import SCHEMA_VERSION
from storage.queries.curves import evaluations, metric_points
from storage.queries.gate import gate_stats
from storage.queries.memory import get_node, get_snapshot, list_snapshots
from storage.queries.projections import find_projection
from storage.queries.runs import list_runs
from tests.errors import raises

ASSETS = Path(__file__).parents[1] / "assets"

NEXT_VERSION = f"{int(SCHEMA_VERSION) + 1:04d}"
NEXT = f"""
import sqlalchemy as sa
from alembic import op
revision = "{NEXT_VERSION}"
down_revision = "{SCHEMA_VERSION}"

def upgrade():
    with op.batch_alter_table("runs", recreate="always") as table:
        table.add_column(sa.Column("colour", sa.Text(), nullable=False, server_default="grey"))
    {{then}}
"""

BLOBS_OF_A_SERVER = """
    SELECT relname || '.' || attname, attstorage FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
    WHERE atttypid = 'bytea'::regtype AND relkind = 'r' AND relnamespace = 'public'::regnamespace
"""


def assert_whole(db: Database) -> None:
    run_id = list_runs(db)["id"].iloc[0]
    assert check_run(db, run_id) == []
    assert list_runs(db)["env_steps"].tolist() == [30]
    assert evaluations(db, run_id)["win_rate"].tolist() == [0.75]
    assert metric_points(db, run_id, ["train/loss"])["value"].tolist() == [0.5]
    assert gate_stats(db, run_id)["memory_size"].tolist() == [42]
    snapshot_id = int(list_snapshots(db, run_id)["id"].iloc[0])
    assert get_node(db, get_snapshot(db, snapshot_id), 101).t == 1
    assert find_projection(db, snapshot_id, "pca", {"seed": 1}) is not None


@pytest.fixture(params=sorted(ASSETS.glob("schema_*.db")), ids=lambda path: path.stem)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{shutil.copy(request.param, tmp_path / 'old.db')}"


@pytest.fixture
def next_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A future version of the program with one more migration; returns that migration's file."""
    scripts = Path(shutil.copytree(upgrade.SCRIPTS, tmp_path / "scripts"))
    monkeypatch.setattr(upgrade, "SCRIPTS", scripts)
    monkeypatch.setattr(upgrade, "SCHEMA_VERSION", NEXT_VERSION)
    return scripts / "versions" / f"{NEXT_VERSION}_colour.py"


def test_a_database_of_every_released_schema_opens_whole(old: str) -> None:
    db = open_database(old)
    assert_whole(db)
    db.dispose()


def test_a_database_from_before_the_first_release_is_refused(tmp_path: Path) -> None:
    path = Path(shutil.copy(ASSETS / "schema_0010.db", tmp_path / "old.db"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0009'")
        connection.commit()
    before = path.read_bytes()
    for is_reader in (True, False):
        with raises(StorageError, reason="before_release", subject="0009"):
            open_database(f"sqlite:///{path}", read_only=is_reader)
    assert path.read_bytes() == before


@pytest.mark.postgres
def test_a_server_does_not_compress_again_what_is_packed(ready_postgres_url: str) -> None:
    db = open_database(ready_postgres_url)
    with db.read() as connection:
        stored = connection.execute(text(BLOBS_OF_A_SERVER)).all()
    db.dispose()
    assert {name for name, _ in stored} >= {"episodes.trajectory", "snapshots.H", "projections.coordinates"}
    assert [name for name, how in stored if how != "e"] == [], "EXTERNAL: out of line and as they are"


def test_rebuilding_the_parent_table_keeps_every_child(old: str, next_version: Path) -> None:
    next_version.write_text(NEXT.format(then="pass"))
    db = open_database(old)
    with db.read() as connection:
        assert connection.execute(text("SELECT colour FROM runs")).scalars().all() == ["grey"]
    assert_whole(db)
    db.dispose()


def test_an_upgrade_that_fails_changes_nothing(old: str, next_version: Path) -> None:
    next_version.write_text(NEXT.format(then="op.execute('nonsense')"))
    with pytest.raises(StorageError, match="nonsense"):
        open_database(old)
    next_version.write_text(NEXT.format(then="pass"))
    db = open_database(old)
    assert_whole(db)
    db.dispose()


def test_a_reader_does_not_upgrade(old: str, next_version: Path) -> None:
    next_version.write_text(NEXT.format(then="pass"))
    with raises(StorageError, reason="older_version"):
        open_database(old, read_only=True)


def test_a_server_is_upgraded_too(postgres_url: str, next_version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrade, "SCHEMA_VERSION", SCHEMA_VERSION)
    open_database(postgres_url).dispose()
    next_version.write_text(NEXT.format(then="pass").replace(', recreate="always"', ""))
    monkeypatch.setattr(upgrade, "SCHEMA_VERSION", NEXT_VERSION)
    db = open_database(postgres_url)
    with db.read() as connection:
        assert "colour" in {column["name"] for column in inspect(connection).get_columns("runs")}
    db.dispose()


@pytest.mark.postgres
def test_processes_that_open_an_empty_server_at_once_make_its_tables_once(postgres_url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        databases = [*pool.map(open_database, [postgres_url] * 4)]
    with databases[0].read() as connection:
        assert connection.exec_driver_sql("select count(*) from alembic_version").scalar_one() == 1
    for db in databases:
        db.dispose()
