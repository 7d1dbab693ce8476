"""Databases of earlier schemas open and keep everything; an upgrade that fails changes nothing."""

import shutil
from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest
from sqlalchemy import inspect, text

from emtc_core.errors import StorageError
from storage.engine import Database, open_database
from storage.maintenance.check_run import check_run
from storage.migrations import upgrade
from storage.models import SCHEMA_VERSION
from storage.queries.curves import evaluations, metric_points
from storage.queries.gate import gate_stats
from storage.queries.memory import find_projection, get_node, get_snapshot, list_snapshots
from storage.queries.runs import list_runs
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import create_run
from tests.errors import raises
from tests.storage.records import CONFIG, make_evaluation

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


def test_an_old_database_gets_the_table_of_sweeps(old: str) -> None:
    db = open_database(old)
    with db.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM sweeps")).scalar_one() == 0
        assert "ix_runs_sweep_id" in {index["name"] for index in inspect(connection).get_indexes("runs")}
    db.dispose()


def test_an_old_database_gets_the_summaries_that_lists_sort_by(old: str) -> None:
    db = open_database(old)
    row = list_runs(db).iloc[0]
    assert row["mu_w"] == 0.75, "a single evaluation is its own average"
    assert row["gate"] is None
    assert pd.isna(row["archived_at"])
    db.dispose()


@pytest.mark.postgres
def test_a_server_does_not_compress_again_what_is_packed(ready_postgres_url: str) -> None:
    db = open_database(ready_postgres_url)
    with db.read() as connection:
        stored = connection.execute(text(BLOBS_OF_A_SERVER)).all()
    db.dispose()
    assert {name for name, _ in stored} >= {"episodes.trajectory", "snapshots.H", "projections.coordinates"}
    assert [name for name, how in stored if how != "e"] == [], "EXTERNAL: out of line and as they are"


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_the_summaries_of_old_runs_are_those_of_new_ones(kind: str, request: pytest.FixtureRequest) -> None:
    db = open_database(request.getfixturevalue(f"{kind}_url"))
    run_id = create_run(db, CONFIG, target_steps=100, versions={})
    recorder = DatabaseRecorder(db, run_id)
    for step, wins in ((10, 1), (30, 3), (70, 2)):
        recorder.record_evaluation(make_evaluation(step, wins=wins))
        recorder.record_metrics(step, {"gate/beta_new": 0.5, "gate/incentive_removed": wins / 10})
    recorder.close()
    create_run(db, CONFIG, target_steps=100, versions={})
    columns = text("SELECT mu_w, gate_removed FROM runs ORDER BY mu_w IS NULL")
    with db.transaction() as connection:
        written = [tuple(row) for row in connection.execute(columns)]
        connection.execute(text("UPDATE runs SET mu_w = NULL, gate_removed = NULL"))
        migration = import_module("storage.migrations.versions.0004_shelves")
        connection.execute(text(migration.MU_W))
        connection.execute(text(migration.GATE_REMOVED))
        migrated = [tuple(row) for row in connection.execute(columns)]
    assert migrated[1] == written[1] == (None, None)
    assert written[0] == pytest.approx((35 / 60, 0.2))
    assert migrated[0] == pytest.approx(written[0])
    db.dispose()


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


def test_a_count_of_closed_gates_follows_from_the_transitions(tmp_path: Path) -> None:
    db = open_database(f"sqlite:///{shutil.copy(ASSETS / 'trained_0007.db', tmp_path / 'old.db')}")
    with db.read() as connection:
        rows = connection.execute(
            text(
                "SELECT closed, (SELECT count(*) FROM transitions AS t WHERE t.run_id = e.run_id "
                "AND t.episode = e.episode AND t.beta < 0.5) AS counted, "
                "(SELECT count(beta) FROM transitions AS t WHERE t.run_id = e.run_id AND t.episode = e.episode) "
                "AS judged FROM episodes AS e"
            )
        ).all()
    assert [row.closed for row in rows] == [row.counted if row.judged else None for row in rows]
    assert len(rows) > 10
    db.dispose()
