"""Databases of trainings with earlier versions: a reader refuses them, `emtc db upgrade` upgrades them.

`assets/trained_NNNN.db` was made by the last commit of schema NNNN: `emtc train --map 3m --steps 400`, with small
batches, and `emtc project --method pca`; then the name of the machine was taken out.
"""

import json
import shutil
from pathlib import Path

import pytest

from storage.engine import find_schema, open_database
from storage.maintenance.check_run import check_run
from storage.migrations.upgrade import BASELINE, SCHEMA_VERSION
from storage.queries.runs import list_runs
from tests.process.test_fuzz import emtc
from tests.process.trainers import read

ASSETS = Path(__file__).parents[1] / "assets"
TRAINED = sorted(ASSETS.glob("trained_*.db"))


@pytest.fixture(params=TRAINED, ids=lambda path: path.stem)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copy(request.param, tmp_path / "old.db"))


def test_there_is_one_of_every_earlier_schema() -> None:
    schemas = [find_schema(f"sqlite:///{path}")[0] for path in TRAINED]
    assert schemas == [f"{number:04d}" for number in range(int(BASELINE), int(SCHEMA_VERSION))]


@pytest.mark.parametrize("command", [["runs"], ["show", "RUN"], ["export", "--table", "runs"], ["notebook"]])
def test_a_reader_names_the_command_that_upgrades_and_changes_nothing(old: Path, command: list[str]) -> None:
    before = old.read_bytes()
    code, out, err = emtc(*command, "--db", f"sqlite:///{old}")
    assert (code, out) == (2, "")
    assert f"emtc db upgrade {old}" in err
    assert len(err.splitlines()) == 1
    assert old.read_bytes() == before
    assert [path.name for path in old.parent.iterdir()] == ["old.db"]


def test_an_upgrade_keeps_a_copy_and_every_row(old: Path) -> None:
    schema = find_schema(f"sqlite:///{old}")[0]
    code, _, err = emtc("db", "upgrade", str(old))
    assert code == 0
    backup = old.with_name(f"old.schema-{schema}.db")
    assert backup.name in err
    assert find_schema(f"sqlite:///{backup}")[0] == schema
    db = open_database(f"sqlite:///{old}", read_only=True)
    run_id = list_runs(db)["id"].iloc[0]
    assert check_run(db, run_id) == []
    db.dispose()


def test_every_command_shows_the_run_of_an_upgraded_database(old: Path, tmp_path: Path) -> None:
    db = ("--db", f"sqlite:///{old}")
    steps = read(old, "SELECT count(*) FROM transitions")[0][0]
    assert emtc("db", "upgrade", str(old))[0] == 0
    run = json.loads(emtc("runs", "--json", *db)[1])[0]
    assert (run["status"], run["env_steps"]) == ("finished", steps)
    shown = json.loads(emtc("show", run["id"], "--json", *db)[1])
    assert shown["config"]["algo"] == "emtc-qplex"
    assert shown["resumes"] == []
    for figure in ("learning-curves", "gate-dynamics", "memory-atlas"):
        out = tmp_path / f"{figure}.svg"
        code, _, err = emtc("export", run["id"], "--figure", figure, "--out", str(out), *db)
        assert code == 0, err
        assert out.stat().st_size > 1000
    assert run["id"] in emtc("export", "--table", "runs", *db)[1]
    assert emtc("db", "check", str(old))[0] == 0
    code, _, err = emtc("project", run["id"], "--method", "pca", *db)
    assert code == 0, err
