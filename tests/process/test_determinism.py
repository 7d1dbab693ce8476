"""The same seed and configuration write the same database, whatever the learner."""

from pathlib import Path

import pytest
from sqlalchemy import select

from app.cli.main import run
from emtc_core.config.resolve import resolve
from emtc_core.metrics import MACHINE_PREFIXES
from storage.engine import open_database
from storage.models import Base
from storage.runs.changes import create_run
from storage.runs.rows import find_run
from tests.postgres import temporary_postgres_database
from tests.process.trainers import FAST

TABLES = ("episodes", "eval_episodes", "transitions", "gate_stats", "evaluations", "snapshots", "metrics")
OWN = ("run_id", "id", "created_at")


def train(url: str, algo: str, *extra: str) -> dict[str, list[tuple]]:
    """Train once and read every recorded row, without ids and times."""
    sets = [part for text in (*FAST, "mappo.rollout_steps=200", *extra) for part in ("--set", text)]
    assert run(["train", "--map", "3m", "--algo", algo, "--steps", "1200", "--db", url, "--json", *sets]) == 0
    return {table: rows(url, table) for table in TABLES}


def rows(url: str, table: str) -> list[tuple]:
    columns = [column for column in Base.metadata.tables[table].columns if column.name not in OWN]
    database = open_database(url, read_only=True)
    with database.read() as connection:
        values = [tuple(row) for row in connection.execute(select(*columns))]
    database.dispose()
    if table == "metrics":
        name = [column.name for column in columns].index("name")
        values = [row for row in values if not row[name].startswith(MACHINE_PREFIXES)]
    return sorted(values, key=repr)


RARER = [pytest.param(algo, marks=pytest.mark.slow) for algo in ("emc", "emtc-cds", "dmix")]


@pytest.mark.parametrize("algo", ["emtc-qplex", "mappo", *RARER])
def test_the_same_seed_writes_the_same_rows_and_another_seed_writes_others(tmp_path: Path, algo: str) -> None:
    extra = ("cds.beta=0.1",) if algo == "emtc-cds" else ()
    first, second = (train(f"sqlite:///{tmp_path}/{name}.db", algo, *extra) for name in ("a", "b"))
    for table in TABLES:
        assert first[table] == second[table], table
    assert first["transitions"]
    assert first["evaluations"]
    assert first["metrics"]
    assert train(f"sqlite:///{tmp_path}/c.db", algo, "seed=2", *extra)["transitions"] != first["transitions"]


@pytest.mark.postgres
def test_a_server_has_the_same_rows_as_a_file(
    tmp_path: Path, postgres_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMTC_FILES", str(tmp_path))
    with temporary_postgres_database(postgres_server) as url:
        assert train(url, "emtc-qplex") == train(f"sqlite:///{tmp_path}/a.db", "emtc-qplex")


def test_a_queued_run_that_cannot_start_here_fails_with_the_reason(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    db = open_database(url)
    config = resolve(steps=100).model_dump(mode="json")
    config["gate"]["a_setting_of_tomorrow"] = 1
    run_id = create_run(db, config, target_steps=100, versions={})
    assert run(["train-worker", run_id, "--db", url]) == 1
    row = find_run(db, run_id)
    assert row.status == "failed"
    assert "a_setting_of_tomorrow" in (row.error or "")
    db.dispose()
