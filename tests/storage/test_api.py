"""The Python door: frames with the tables' columns, without the app, torch or Streamlit; its examples run."""

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import select, update

from emtc_core.errors import ConfigError, RunNotFoundError, StorageError
from storage import api, open_database
from storage.engine import Database
from storage.maintenance.thin import Thinning, thin_run
from storage.models import Base, Run
from storage.queries.tables import TABLE_NAMES, TablePart, select_fields
from storage.runs.changes import add_policy_evaluation, create_run
from tests.errors import raises
from tests.storage.records import CONFIG, make_evaluation, record_everything

ROOT = Path(__file__).parent.parent.parent
RUN = "k3f9aaaa"
RECORDED = {  # section 4 of the design, without blobs
    "transitions": "run_id env_step episode t reward h h_next delta_mem beta tau slot next_slot",
    "episodes": "run_id episode first_env_step length episode_return won epsilon closed",
    "evaluations": "run_id env_step episodes wins win_rate return_mean return_std length_mean distinct "
    "robust_win_rate robust_distinct",
    "metrics": "run_id env_step name value",
}


UNREADABLE = TablePart(select_fields("transitions", ["delta_mem"]), [("evil",)])


def remove_transitions(db: api.OpenDatabase) -> api.RecordedRun:
    with open_database("runs/emtc.db", read_only=False) as writable:
        thin_run(writable, RUN, Thinning(transitions=True))
    return db.run(RUN)


def fill(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.runs.changes._new_id", lambda connection: RUN)
    config = CONFIG | {"gate": CONFIG["gate"] | {"enabled": True}, "preset": "paper"}
    create_run(db, config, target_steps=30, versions={"emtc-lab": "0.1.0"})
    record_everything(db, RUN)
    add_policy_evaluation(db, RUN, make_evaluation(30), seed=7, settings={})
    with db.transaction() as connection:
        connection.execute(update(Run).where(Run.id == RUN).values(status="finished", win_rate=0.75))


@pytest.fixture
def filled_file(sqlite_db: Database, monkeypatch: pytest.MonkeyPatch) -> api.OpenDatabase:
    fill(sqlite_db, monkeypatch)
    return open_database(sqlite_db.url)


@pytest.fixture
def filled(db: Database, monkeypatch: pytest.MonkeyPatch) -> api.OpenDatabase:
    fill(db, monkeypatch)
    return open_database(db.url)


@pytest.fixture
def here(ready_sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[api.OpenDatabase]:
    """The database of the examples, at runs/emtc.db under the working directory."""
    (tmp_path / "runs").mkdir()
    place = tmp_path / "runs" / "emtc.db"
    Path(ready_sqlite_url.removeprefix("sqlite:///")).rename(place)
    with open_database(place, read_only=False) as db:
        fill(db, monkeypatch)
    monkeypatch.chdir(tmp_path)
    with open_database("runs/emtc.db") as db:
        yield db


def examples() -> list[doctest.DocTest]:
    found = doctest.DocTestFinder(exclude_empty=True).find(api, globs={})
    return [each for each in found if each.examples]


def test_every_question_has_an_example() -> None:
    shown = {each.name.rpartition(".")[2] for each in examples()}
    asked = {name for kind in (api.OpenDatabase, api.RecordedRun) for name in vars(kind) if not name.startswith("_")}
    dataclass_fields = {"id", "row", "db"}
    assert asked - dataclass_fields <= shown


@pytest.mark.parametrize("example", examples(), ids=lambda each: each.name.removeprefix("storage.api."))
def test_the_examples_run_as_written(here: api.OpenDatabase, example: doctest.DocTest, capsys) -> None:
    example.globs.update({"open_database": open_database, "db": here, "run": here.run(RUN), "np": np, "pd": pd})
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    result = runner.run(example, clear_globs=False)
    assert result.failed == 0, capsys.readouterr().out


def test_the_guide_code_runs(here: api.OpenDatabase) -> None:
    guide = (ROOT / "app" / "guide" / "scripts.md").read_text()
    section = re.search(r"^## A complete example\n(.*?)(?=^## |\Z)", guide, re.MULTILINE | re.DOTALL)
    assert section, "scripts.md has a section 'A complete example'"
    names: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", section[1], re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "scripts.md", "exec"), names)
    assert len(names["steps"]) == 30


_IMPORT_ALONE = """
import sys
class Wall:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[2].split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Wall())
from storage import open_database
db = open_database(sys.argv[1])
run = db.run(db.runs("map=3m")["id"][0])
assert len(run.transitions()) == 30
assert len(run.snapshot()) == 30
assert len(run.trajectory(1)) == 11
assert not {"torch", "streamlit", "app", "pages"} & {name.partition(".")[0] for name in sys.modules}
try:
    run.figure("gate-dynamics")
except Exception as reason:
    print(f"{type(reason).__name__}: {reason}")
"""


_UNNEEDED = (
    "torch streamlit app pages plotly array_api_compat markdown_it matplotlib numba openTSNE orjson rich scipy "
    "sklearn typer umap pyarrow"
)
"""All but numpy, pandas, platformdirs, psutil, pydantic, sqlalchemy and zstandard, which a kernel needs to read."""


def test_the_door_stands_without_app_torch_and_streamlit(here: api.OpenDatabase) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT_ALONE, "runs/emtc.db", _UNNEEDED],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("StorageError: Figures are drawn by EMTC Lab's app. Install it with: pip install")


_NEXT_TO_ANOTHER_APP = """
from storage import open_database
with open_database("runs/emtc.db") as db:
    db.figure("gate-dynamics")
"""


def test_a_figure_names_the_file_that_hides_the_app(here: api.OpenDatabase, tmp_path: Path) -> None:
    script = tmp_path / "app.py"
    script.write_text("raise SystemExit('executed')\n")
    done = subprocess.run(
        [sys.executable, "-c", _NEXT_TO_ANOTHER_APP],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"emtc_core.errors.StorageError: {script} has the name of a package of EMTC Lab.")


@pytest.mark.parametrize("table", TABLE_NAMES)
def test_frames_and_arrow_hold_every_stored_value(filled: api.OpenDatabase, table) -> None:
    run = filled.run(RUN)
    expected = RECORDED.get(table, " ".join(field.name for field in select_fields("gate"))).split()
    frames = list(run.chunks(table, rows=7))
    whole = pd.concat(frames, ignore_index=True)
    assert list(whole.columns) == expected
    assert {str(frame.dtypes.tolist()) for frame in frames} == {str(whole.dtypes.tolist())}, "one type in every part"
    read = run.arrow(table, rows=7).read_all()
    assert read.column_names == expected
    pd.testing.assert_frame_equal(whole, run._frame(table, None, 0))
    stored = Base.metadata.tables["gate_stats" if table == "gate" else table]
    with filled.read() as connection:
        rows = connection.execute(select(*(stored.c[name] for name in expected)).order_by(*stored.primary_key)).all()
    assert [tuple(row.values()) for row in read.to_pylist()] == [tuple(row) for row in rows]
    for name in expected:
        assert read[name].to_pylist() == [None if pd.isna(value) else value for value in whole[name].tolist()]


def test_runs_tell_what_they_are_and_no_secret(filled_file: api.OpenDatabase) -> None:
    frame = filled_file.runs()
    assert {"id", "name", "config", "versions", "tags", "error", "sweep_id", "heartbeat_at"} <= set(frame.columns)
    assert not {"owner_token", "launch_token"} & set(frame.columns)
    assert frame["config"][0]["gate"]["enabled"] is True
    assert filled_file.runs(["gate.enabled=true", "win_rate>0.7"])["id"].tolist() == [RUN]
    assert filled_file.runs("no-such-word").empty
    assert filled_file.runs("no-such-word").dtypes["env_steps"] == "int64"
    assert filled_file.runs(archived=True).empty


@pytest.mark.parametrize(
    ("ask", "error", "word"),
    [
        (lambda db: db.run("zzzz"), RunNotFoundError, "zzzz"),
        (lambda db: db.runs("gate.enable=1"), ConfigError, r"gate\.enable"),
        (lambda db: db.run(RUN).transitions(["delta"]), ConfigError, "delta"),
        (lambda db: db.run(RUN).transitions(since=-1), ConfigError, "since"),
        (lambda db: list(db.run(RUN).chunks("runs")), ConfigError, "table"),
        (lambda db: db.run(RUN).snapshot(29), StorageError, "29"),
        (lambda db: db.figure("pie"), ConfigError, "pie"),
        (lambda db: db.figure("learning-curves", colour="h"), ConfigError, "colour"),
        (lambda db: db.transaction().__enter__(), StorageError, "read-only"),
        (lambda db: remove_transitions(db).transitions(), StorageError, f"{RUN}.*thin"),
        (lambda db: UNREADABLE.to_frame(), StorageError, r"^This data cannot be read: .*delta_mem"),
        (lambda db: UNREADABLE.to_arrow(), StorageError, r"^This data cannot be read: .*delta_mem"),
    ],
)
def test_a_wrong_question_is_answered_in_one_sentence(here: api.OpenDatabase, ask, error, word: str) -> None:
    with pytest.raises(error, match=word) as told:
        ask(here)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("train/losss", "train/loss"), ("nothing like it", "train/loss")],
)
def test_a_metric_that_was_never_logged_is_answered_with_the_nearest_names(
    filled_file: api.OpenDatabase, name: str, hint: str
) -> None:
    with raises(ConfigError, key=name) as told:
        filled_file.run(RUN).metrics(["train/loss", name])
    assert hint in told.value.faults[0].hint
    assert filled_file.run(RUN).metrics("time/update_ms").empty, "a number that other runs log"
