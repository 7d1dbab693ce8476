"""Raw tables as files: every value as it was stored, in the memory of one part, whole or not there."""

import io
import json
import math
import shutil
import sys
import tracemalloc
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow
import pytest
from pyarrow import feather, parquet
from sqlalchemy import insert, select, text, update

from app.analysis.marl_eval import to_marl_eval
from app.cli.export_raw import RAW_FORMATS, write_raw
from app.cli.main import run
from emtc_core.errors import ConfigError
from storage.engine import Database, open_database
from storage.maintenance.thin import Thinning, thin_run
from storage.models import Evaluation, Run, SweepRow, Transition
from storage.queries.runs import get_rows, list_runs
from storage.queries.tables import TABLE_NAMES
from storage.runs.changes import add_policy_evaluation, create_run
from tests.app.curve_cases import stored
from tests.errors import raises
from tests.storage.records import CONFIG, make_evaluation, record_everything

MADE_AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def two(tmp_path: Path, sqlite_template: Path) -> tuple[Database, list[str]]:
    db = open_database(f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'x.db')}")
    ids = [create_run(db, CONFIG, target_steps=30, versions={}, sweep_id="sweep1") for _ in range(2)]
    for run_id in ids:
        record_everything(db, run_id)
    with db.transaction() as connection:
        connection.execute(update(Run).values(status="finished", win_rate=0.75))
        sweep = {"id": "sweep1", "name": "S", "status": "finished", "created_at": MADE_AT, "jobs": 1, "plan": {}}
        connection.execute(insert(SweepRow), sweep)
    return db, ids


def read(place: Path) -> list[dict]:
    if place.suffix == ".csv":
        frame = pd.read_csv(place, float_precision="round_trip")
        return [{k: None if pd.isna(v) else v for k, v in row.items()} for row in frame.to_dict("records")]
    table = parquet.read_table(place) if place.suffix == ".parquet" else feather.read_table(place)
    return table.to_pylist()


@pytest.mark.parametrize(
    ("table", "format"),
    [*((table, format) for table in TABLE_NAMES for format in ("csv", "parquet")), ("transitions", "arrow")],
)
def test_a_table_holds_what_is_stored(two, tmp_path: Path, table: str, format: str) -> None:
    db, ids = two
    awkward = [0.1 + 0.2, 1e-310, math.pi, 1.7976931348623157e308, None, 5e-324]
    with db.transaction() as connection:
        for step, value in enumerate(awkward, start=1):
            wanted = (Transition.run_id == ids[0], Transition.env_step == step)
            connection.execute(update(Transition).where(*wanted).values(delta_mem=value, beta=value))
    out, parts = tmp_path / f"t.{format}", tmp_path / f"parts.{format}"
    assert run(["export", *ids, "--table", table, "--out", str(out), "--db", db.url]) == 0
    rows = read(out)
    wanted = [row for run_id in ids for row in open_rows(db, run_id, table)]
    assert rows == wanted
    assert {row["run_id"] for row in rows} == set(ids)
    with parts.open("wb") as file:
        assert write_raw(db, ids, table, format, file, rows=7) == len(rows)
    assert read(parts) == rows


def open_rows(db: Database, run_id: str, table: str) -> list[dict]:
    from storage.queries.tables import read_parts

    return [
        {field.name: value for field, value in zip(part.fields, row, strict=True)}
        for part in read_parts(db, table, run_id)
        for row in part.rows
    ]


def test_a_sweep_names_its_runs_and_csv_goes_to_stdout(two, capsysbinary) -> None:
    db, ids = two
    assert run(["export", "--sweep", "sweep", "--table", "evaluations", "--db", db.url]) == 0
    head, *rows = capsysbinary.readouterr().out.decode().splitlines()
    assert head.startswith("run_id,env_step,episodes,wins,win_rate")
    assert sorted(row.split(",")[0] for row in rows) == sorted(ids)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--table", "transitions"], "Name at least one run"),
        (["RUN", "--table", "transitions", "--format", "xml", "--out", "t"], "--format must be one of csv, parquet"),
        (["RUN", "--table", "transitions", "--format", "parquet"], "needs --out FILE"),
        (["RUN", "--table", "gate", "--format", "marl-eval"], "needs --table evaluations, got gate"),
        (["RUN", "--table", "gate", "--center", "iqm", "--out", "t.csv"], "--center would change nothing"),
        (["RUN", "--table", "gate", "--width", "two", "--out", "t.csv"], "--width has an effect on images only"),
        (["RUN", "--sweep", "s", "--table", "gate", "--out", "t.csv"], "Give either RUN or --sweep"),
        (["--sweep", "none", "--table", "gate", "--out", "t.csv"], "No sweep starts with"),
        (["zzzz", "--table", "gate", "--out", "t.csv"], "not found"),
        (["RUN", "--table", "gate", "--out", "/dev/null/t.csv"], "cannot be written"),
        ([], "Give either --figure or --table"),
    ],
)
def test_unusable_arguments_write_nothing(two, tmp_path: Path, capsys, monkeypatch, arguments, words: str) -> None:
    db, ids = two
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    given = [ids[0] if each == "RUN" else each for each in arguments]
    assert run(["export", *given, "--db", db.url]) == 2
    told = capsys.readouterr()
    assert words in told.err
    assert told.out == ""
    assert list((tmp_path / "here").iterdir()) == []


def test_a_thinned_run_leaves_no_half_a_file(two, tmp_path: Path, capsys) -> None:
    db, ids = two
    thin_run(db, ids[1], Thinning(transitions=True))
    out = tmp_path / "t.csv"
    out.write_text("as it was")
    assert run(["export", *ids, "--table", "transitions", "--out", str(out), "--db", db.url]) == 2
    assert f"The transitions of run {ids[1]} were deleted by thinning" in capsys.readouterr().err
    assert out.read_text() == "as it was"
    assert not list(tmp_path.glob(".t.csv*"))


def test_without_pyarrow_one_sentence_says_how_to_get_it_and_csv_is_written(
    two, tmp_path: Path, capsys, monkeypatch
) -> None:
    db, ids = two
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for format, code in (("parquet", 2), ("arrow", 2), ("csv", 0)):
        assert run(["export", ids[0], "--table", "gate", "--out", f"t.{format}", "--db", db.url]) == code
    assert capsys.readouterr().err.count("pip install pyarrow") == 2
    assert [place.name for place in (tmp_path / "here").iterdir()] == ["t.csv"]


def make_run(db: Database, n: int) -> str:
    """Make a run of n transitions, written by the database itself."""
    run_id = create_run(db, CONFIG, target_steps=n, versions={})
    counting = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :n)"
    values = ":run, i, i / 50, i % 50, 0.5, i / 7.0, i / 9.0, i / 3.0, 1.0 / i, 1.0, i, NULL"
    with db.transaction() as connection:
        connection.execute(update(Run).where(Run.id == run_id).values(env_steps=n))
        wanted = {"n": n, "run": run_id}
        connection.execute(text(f"INSERT INTO transitions {counting} SELECT {values} FROM n"), wanted)
    return run_id


class Sink(io.RawIOBase):
    """Takes everything and keeps nothing."""

    size = 0

    def writable(self) -> bool:
        return True

    def write(self, content) -> int:
        self.size += len(content)
        return len(content)


@pytest.mark.parametrize(
    ("format", "n"),
    [
        ("csv", 1_000),
        ("parquet", 5_000),
        *(pytest.param(format, 100_000, marks=pytest.mark.slow) for format in RAW_FORMATS),
    ],
)
def test_four_times_as_many_rows_take_no_more_memory(tmp_path: Path, format: str, n: int) -> None:
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    short, long = make_run(db, n), make_run(db, 4 * n)

    def peak(run_id: str) -> int:
        before = pyarrow.total_allocated_bytes()
        tracemalloc.start()
        try:
            write_raw(db, [run_id], "transitions", format, Sink(), rows=n // 5)  # type: ignore[arg-type]
            return tracemalloc.get_traced_memory()[1] + max(0, pyarrow.total_allocated_bytes() - before)
        finally:
            tracemalloc.stop()

    peak(short)  # imports
    limit = 1.2 * peak(short)
    assert any(peak(long) < limit for _ in range(3)), "what else this process does only adds, and not every time"


def add_runs(
    db: Database,
    *,
    evaluations: list[int],
    seeds: list[int],
    algos: Sequence[str] = ("emtc-qplex", "qmix"),
    overrides: Sequence[str] = (),
) -> None:
    for seed, n in zip(seeds, evaluations, strict=True):
        for algo in algos:
            config = stored(*overrides, algo=algo) | {"seed": seed}
            run_id = create_run(db, config, target_steps=1000, versions={})
            rows = [
                {"run_id": run_id, "env_step": 100 * (k + 1) + seed, "win_rate": (k % 4) / 4, "return_mean": k / 2,
                 "episodes": 4, "wins": k % 4, "return_std": 0.0, "length_mean": 9.0}
                for k in range(n)
            ]  # fmt: skip
            with db.transaction() as connection:
                connection.execute(insert(Evaluation), rows)
                ended = {"status": "finished", "env_steps": 1000, "win_rate": 0.5}
                connection.execute(update(Run).where(Run.id == run_id).values(**ended))


def check_marl_eval(data: dict) -> None:
    """The structure that marl-eval's README documents, and what its `DiagnoseData` and matrices rely on."""
    assert data
    for env, tasks in data.items():
        assert env == env.lower()
        runs = [runs for task in tasks.values() for runs in task.values()]
        assert len({frozenset(algos) for algos in tasks.values()}) == 1, "the same algorithms on every task"
        assert len({tuple(each) for each in runs}) == 1, "the same runs of each algorithm"
        assert len({tuple(steps) for each in runs for steps in each.values()}) == 1, "the same steps of each run"
        for steps in (steps for each in runs for steps in each.values()):
            *names, last = steps
            assert last == "absolute_metrics"
            assert names == [f"step_{k}" for k in range(1, len(names) + 1)]
            counts = [steps[name]["step_count"] for name in names]
            assert counts == sorted(counts)
            assert all(isinstance(count, int) for count in counts)
            for name, metrics in steps.items():
                assert set(metrics) == {"win_rate", "return"} | ({"step_count"} if name != last else set())
                for metric in ("win_rate", "return"):
                    assert isinstance(metrics[metric], list)
                    assert all(math.isfinite(value) for value in metrics[metric])
                    assert len(metrics[metric]) == 1
        assert not any("," in algo for task in tasks.values() for algo in task)


def test_evaluations_become_marl_eval_s_json_with_the_evaluated_policy_as_absolute_metric(
    tmp_path: Path, capsys
) -> None:
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    add_runs(db, evaluations=[5, 6], seeds=[1, 2])
    first, *_ = list_runs(db).query("algo == 'emtc-qplex' and seed == 1")["id"]
    for wins, settings in ((2, {}), (3, {}), (4, {"env.skirmish.spawn_jitter": 0.5})):
        add_policy_evaluation(db, first, make_evaluation(101, wins=wins), seed=1, settings=settings)
    assert run(["export", "--format", "marl-eval", "--db", db.url]) == 0
    told = capsys.readouterr()
    data = json.loads(told.out)
    check_marl_eval(data)
    assert list(data["skirmish"]["3m"]) == ["emtc-qplex", "qmix"]
    first_seed, second_seed = data["skirmish"]["3m"]["emtc-qplex"].values()
    assert first_seed["step_1"] == {"step_count": 101, "win_rate": [0.0], "return": [0.0]}
    assert len(second_seed) == 6, "five steps, as many as the other run has"
    mean_return = make_evaluation(101, wins=3).return_mean
    assert first_seed["absolute_metrics"] == {"win_rate": [0.75], "return": [mean_return]}, (
        "its newest, in its own game"
    )
    assert second_seed["absolute_metrics"] == {"win_rate": [0.75], "return": [1.5]}, "that of its best evaluation"
    assert "The last evaluations of" in told.err
    assert f"absolute_metrics of {first} are those of emtc evaluate" in told.err


def test_a_setting_that_all_runs_of_a_task_share_is_no_part_of_an_algorithms_name(tmp_path: Path) -> None:
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    shared = "env.skirmish.reward_sparse=true"
    add_runs(db, evaluations=[3], seeds=[1], overrides=[shared, "gate.tau_end=0.7"])
    names = list(to_marl_eval(db, get_rows(db, [each.id for each in _all_runs(db)])).data["skirmish"]["3m"])
    assert names == ["emtc-qplex (gate.tau_end = 0.7)", "qmix (gate.tau_end = 0.7)"]
    add_runs(db, evaluations=[3], seeds=[2], algos=["qmix"])  # whose rewards are not sparse
    names = list(to_marl_eval(db, get_rows(db, [each.id for each in _all_runs(db)])).data["skirmish"]["3m"])
    assert "qmix (env.skirmish.reward_sparse = true; gate.tau_end = 0.7)" in names


def _all_runs(db: Database) -> Sequence[Any]:
    with db.read() as connection:
        return connection.execute(select(Run.id)).all()


def test_marl_eval_leaves_out_what_is_no_result_and_says_so(tmp_path: Path) -> None:
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    add_runs(db, evaluations=[3, 3], seeds=[1, 2])
    with db.transaction() as connection:
        last = connection.execute(select(Run.id).where(Run.algo == "qmix", Run.seed == 2)).scalar_one()
        connection.execute(update(Run).where(Run.id == last).values(status="stopped", env_steps=10))
        ids = list(connection.execute(select(Run.id)).scalars())
    made = to_marl_eval(db, get_rows(db, ids))
    assert list(made.data["skirmish"]["3m"]["qmix"]) == ["run_1"]
    assert any(last in remark for remark in made.remarks)
    assert any("as many runs of each algorithm" in remark for remark in made.remarks)
    with raises(ConfigError, key="runs"):
        to_marl_eval(db, get_rows(db, [last]))
