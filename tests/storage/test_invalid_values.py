"""Each column and each array of a database with each kind of invalid value: it is refused, or the pages can read it.

The cases are generated from the models, so that a new column or array is included.
"""

import functools
import json
import sqlite3
import tracemalloc
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Connection, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.types import JSON, Boolean, Double, Integer, LargeBinary

from app.analysis.projections.linear import compute_pca
from emtc_core.errors import DataRemovedError, StorageError
from storage import blobs
from storage.arrays import LAYOUT_ARRAYS, SNAPSHOT_ARRAYS, TRAJECTORY_ARRAYS, ArrayRule, Rules, read_arrays
from storage.blobs import CHUNK_ROWS, EMPTY, pack, unpack
from storage.bundles.check_study import check_study
from storage.bundles.contents import WHOLE
from storage.bundles.read import open_bundle
from storage.bundles.write import write_bundle
from storage.column_types import UtcDateTime, get_inner_type, get_limits, get_use
from storage.engine import Database, open_database
from storage.maintenance.check_database import check_database, list_problems
from storage.models import (
    Base,
    Entry,
    Evaluation,
    GateStats,
    PolicyEvaluation,
    ProjectionRow,
    Resume,
    Run,
    SnapshotRow,
    SweepRow,
)
from storage.projections import save_projection
from storage.queries.curves import evaluations, metric_points, policy_evaluations
from storage.queries.episode_search import find_playbacks
from storage.queries.episodes import get_playback, get_trajectory, list_episodes
from storage.queries.gate import gate_chart, gate_stats
from storage.queries.gate_progress import compute_gate_by_run_part
from storage.queries.gate_state import gate_states, list_gate_verdicts
from storage.queries.memory import get_nodes, get_snapshot, list_snapshots
from storage.queries.projections import get_projection
from storage.queries.run_search import RunFilter, run_page
from storage.queries.runs import list_resumes
from storage.runs.rows import find_run
from tests.errors import raises
from tests.storage.test_bundles import MADE_BY, fill, make_bundle, study_of

TABLES = (
    *("runs", "sweeps", "resumes", "episodes", "eval_episodes", "transitions", "transition_summary", "gate_stats"),
    *("metrics", "evaluations", "policy_evaluations", "snapshots", "projections"),
)


@dataclass(frozen=True)
class Case:
    """One change of one column, in all rows."""

    table: str
    column: str
    what: str
    value: Any = None
    sql: str = "?"

    def apply(self, connection: Connection) -> None:
        connection.exec_driver_sql("PRAGMA defer_foreign_keys=ON")
        parameters = (self.value,) if "?" in self.sql else ()
        connection.exec_driver_sql(f'UPDATE {self.table} SET "{self.column}" = {self.sql}', parameters)

    def __str__(self) -> str:
        return f"{self.table}.{self.column}: {self.what}"


def list_column_cases() -> Iterator[Case]:
    for table in (Base.metadata.tables[name] for name in TABLES):
        for column in table.columns:
            if table.name == "runs" and not get_use(column).is_bundled:
                continue
            kind, make = get_inner_type(column.type), functools.partial(Case, table.name, column.name)
            yield make("other binary data", b"\xff\x00")
            if not column.nullable:
                yield make("NULL")
            if isinstance(kind, LargeBinary):
                yield make("text", "text")
                yield make("an empty blob", b"")
                yield make("no arrays", EMPTY)
                yield make("a number", 7)
                continue
            if isinstance(kind, Integer | Double | Boolean):
                yield make("text", "many")
                yield from map(make, ("infinity", "minus infinity"), (float("inf"), float("-inf")))
                if not isinstance(kind, Double):
                    yield make("a fraction", 1.5)
                limits = get_limits(column)
                if limits.low is not None:
                    yield make("below its limit", -1)
                if limits.is_low_excluded:
                    yield make("zero", 0)
                if limits.high is not None:
                    yield make("above its limit", limits.high + 1)
            elif isinstance(kind, JSON):
                texts = ("{", "NaN", '{"a": NaN}', '{"a": Infinity}', "7", '"text"', '{"a":' * 200 + "1" + "}" * 200)
                yield from (make(f"the JSON text {text[:20]}", text) for text in texts)
                yield make("another container", "{}" if column.name == "tags" else "[1]")
            elif isinstance(kind, UtcDateTime):
                yield make("no time", "yesterday")
            else:
                yield make("a long text", sql="hex(zeroblob(1000000))")


def list_array_cases(db: Database) -> Iterator[Case]:
    with db.read() as connection:
        snapshot = connection.execute(select(SnapshotRow.__table__)).mappings().first()
        projection = connection.execute(select(ProjectionRow.__table__)).mappings().first()
        trajectories = {
            table: connection.execute(select(Base.metadata.tables[table].c.trajectory)).scalars().first()
            for table in ("episodes", "eval_episodes")
        }
    assert snapshot is not None
    assert projection is not None
    yield from _change_arrays("projections", "coordinates", projection["coordinates"], LAYOUT_ARRAYS)
    for column, column_rules in SNAPSHOT_ARRAYS.items():
        yield from _change_arrays("snapshots", column, snapshot[column], column_rules)
    for table, blob in trajectories.items():
        yield from _change_arrays(table, "trajectory", blob, TRAJECTORY_ARRAYS)


def _change_arrays(table: str, column: str, blob: bytes, rules: Rules) -> Iterator[Case]:
    arrays = unpack(blob)
    for name, array in arrays.items():
        for what, changed in _list_changes(array, rules[name]):
            yield Case(table, column, f"{name} with {what}", pack(arrays | {name: changed}))
        yield Case(table, column, f"no {name}", pack({other: arrays[other] for other in arrays if other != name}))
    yield Case(table, column, "one more array", pack(arrays | {"more": np.zeros(3)}))
    yield Case(table, column, "a cut blob", blob[: len(blob) - 1])


def _list_changes(array: np.ndarray, rule: ArrayRule) -> Iterator[tuple[str, np.ndarray]]:
    def with_last(value: float) -> np.ndarray:
        wide = array.astype(np.float64 if rule.kind == "float" else np.int64)
        wide[-1] = value
        return wide

    if rule.kind == "float":
        if not rule.has_nan:
            yield "NaN", with_last(np.nan)
        if not rule.has_infinity:
            yield "infinity", with_last(np.inf)
            yield "minus infinity", with_last(-np.inf)
    if np.isfinite(rule.low):
        yield "a value below its limit", with_last(rule.low - 1)
    if np.isfinite(rule.high):
        yield "a value above its limit", with_last(rule.high + 1)
    if rule.is_ascending:
        yield "another order", array[::-1].copy()
    yield "another type", (array > 0) if rule.kind == "float" else array.astype(np.float32)
    yield "one more dimension", array[..., None]
    yield "one dimension less", array.reshape(-1)[0] if array.ndim == 1 else array[..., 0]
    yield "one value less", array[:-1]
    yield "one value more", np.concatenate([array, array[-1:] + rule.is_ascending])
    yield "no value", array[:0]


LINK_CASES = {
    "t": ("a step that the episode does not have", lambda array: array + 1000),
    "episode": ("an episode that does not exist", lambda array: array + 1000),
    "n_xi": ("more successful visits than visits", lambda array: array + 1000),
    "slot": ("a slot above the capacity", lambda array: array + 10**6),
    "idx_next": ("a link above the capacity", lambda array: array + 10**6),
}


def list_link_cases(db: Database) -> Iterator[Case]:
    with db.read() as connection:
        snapshot = connection.execute(select(SnapshotRow.__table__)).mappings().one()
    for column, (what, change) in LINK_CASES.items():
        (array,) = unpack(snapshot[column]).values()
        yield Case("snapshots", column, what, pack({column: change(array)}))


CONFIG_CHANGES = {
    **{f"without {key}": f"json_remove(config, '$.{key}')" for key in ("algo", "seed", "env", "env.name", "env.map")},
    **{
        f"with {key} = {value}": f"json_set(config, '$.{key}', json('{value}'))"
        for key, values in {
            "env": ("1", "[]", '"x"'),
            "train": ("1", "[]", '"x"'),
            "gate": ("1", "[]", '"x"'),
            "memory": ("1", "[]", '"x"'),
            "algo": ("1", '"qmix"'),
            "seed": ('"x"', "8"),
            "train.gamma": ('"x"', "-1", "2"),
            "train.t_max": ('"x"', "-1"),
            "memory.capacity": ('"x"', "-1", "1e300"),
            "memory.delta": ('"x"', "-1"),
            "gate.tau_start": ('"x"', "-1", "1e300"),
            "gate.enabled": ('"x"', "[]"),
            "embed.dim": ('"x"', "-1", "1000"),
        }.items()
        for value in values
    },
    "that is empty": "'{}'",
}


def list_config_cases() -> Iterator[Case]:
    for what, sql in CONFIG_CHANGES.items():
        yield Case("runs", "config", what, sql=sql)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Database, str]:
    """A database with rows in all tables that a bundle contains."""
    return make_stored(tmp_path_factory.mktemp("stored"))


def make_stored(folder: Path) -> tuple[Database, str]:
    db = open_database(f"sqlite:///{folder / 'x.db'}")
    run_id = fill(db, sweep_id="sweep1")
    with db.transaction() as connection:
        connection.exec_driver_sql(
            "UPDATE runs SET status = 'finished', pid = NULL, host = NULL, "
            "config = json_set(config, '$.memory', json('{\"capacity\": 1000}'))"
        )
        created = connection.execute(select(Run.created_at)).scalar_one()
        sweep = {"id": "sweep1", "name": "A study", "status": "stopped", "jobs": 2, "plan": {"file": {}}}
        connection.execute(insert(SweepRow), sweep | {"created_at": created})
        connection.execute(
            insert(Resume),
            {"run_id": run_id, "env_step": 10, "reached_env_step": 20, "resumed_at": created, "episodes": 1},
        )
        results = {"episodes": 4, "wins": 2, "win_rate": 0.5, "return_mean": 1.0, "return_std": 0.5, "length_mean": 9}
        policy = {"run_id": run_id, "env_step": 30, "created_at": created, "distinct": 4, "seed": 1, "settings": {}}
        connection.execute(insert(PolicyEvaluation), policy | results)
        entry = {"created_at": created, "updated_at": created, "run_id": run_id, "title": "x", "body": "y"}
        connection.execute(insert(Entry), entry)
        connection.exec_driver_sql("DELETE FROM projections")
    snapshot = list_snapshots(db, run_id).iloc[0]
    size, snapshot_id = int(snapshot["size"]), int(snapshot["id"])
    layout = np.random.default_rng(0).random((size, 2))
    save_projection(db, snapshot_id, method="pca", params={}, coordinates=layout, seconds=0.1)
    return db, run_id


def find_error(db: Database) -> str | None:
    """Check a database like a bundle and return the first error, or None."""
    try:
        with db.read() as connection:
            for problem in list_problems(connection, is_allowed=lambda map: True):
                if problem.kind != "notice":
                    return problem.what
        check_study(db)
    except StorageError as error:
        return str(error)
    return None


def read_like_pages(db: Database, run_id: str) -> None:
    """Read what the pages Home, Live, Memory and Replay read."""
    assert run_page(db, RunFilter(visibility="all"), sort="-created", limit=10).total == 1
    find_run(db, run_id)
    list_resumes(db, run_id)
    evaluations(db, run_id)
    policy_evaluations(db, [run_id])
    metric_points(db, run_id, ["train/loss"])
    gate_stats(db, run_id)
    gate_chart(db, run_id)
    gate_states(db, [run_id])
    list_gate_verdicts(db, [run_id])
    compute_gate_by_run_part(db, [run_id])
    for snapshot_id in list_snapshots(db, run_id)["id"].tolist():
        snapshot = get_snapshot(db, snapshot_id)
        get_nodes(db, snapshot_id)
        compute_pca(snapshot.embedding)
    with db.read() as connection:
        projections = connection.execute(select(ProjectionRow.id)).scalars().all()
    for projection_id in projections:
        get_projection(db, projection_id)
    for episode in list_episodes(db, run_id)["episode"].tolist():
        with suppress(DataRemovedError):
            get_trajectory(db, run_id, episode)
    playbacks = find_playbacks(db, run_id).frame
    for env_step, episode in zip(playbacks["env_step"].tolist(), playbacks["episode"].tolist(), strict=True):
        get_playback(db, run_id, env_step, episode)


def list_cases(db: Database) -> list[Case]:
    return [*list_column_cases(), *list_array_cases(db), *list_link_cases(db), *list_config_cases()]


def list_accepted(db: Database, run_id: str, cases: list[Case]) -> list[Case]:
    """List the cases that are not refused. Fails if the pages cannot read one of them, or a message is not one line."""
    assert db.writer is not None
    accepted = []
    for case in cases:
        with db.writer.connect() as connection, connection.begin() as transaction:
            changed = replace(db, shared_connection=connection)
            try:
                case.apply(connection)
            except IntegrityError:  # refused by the schema
                transaction.rollback()
                continue
            error = find_error(changed)
            assert error is None or ("\n" not in error and len(error) < 500), str(case)
            if error is None:
                accepted.append(case)
                read_like_pages(changed, run_id)
            transaction.rollback()
    return accepted


HARMLESS = {
    "episodes.trajectory: no arrays",  # thinning has deleted them
    "gate_stats.delta_mem_mean: infinity",
    "gate_stats.delta_mem_q95: infinity",
    "metrics.value: infinity",
    "metrics.value: minus infinity",
}
"""Values that this program writes too."""


def test_the_stored_database_is_valid(stored: tuple[Database, str]) -> None:
    db, run_id = stored
    assert find_error(db) is None
    read_like_pages(db, run_id)


def test_a_fifth_of_the_invalid_values_is_refused_or_harmless(stored: tuple[Database, str]) -> None:
    db, run_id = stored
    cases = list_cases(db)[::5]
    assert len(cases) >= 212
    assert {str(case) for case in list_accepted(db, run_id, cases)} <= HARMLESS


@pytest.mark.ci
def test_each_invalid_value_is_refused_or_harmless(stored: tuple[Database, str]) -> None:
    db, run_id = stored
    cases = list_cases(db)
    assert len({str(case) for case in cases}) == len(cases) >= 1000
    assert {str(case) for case in list_accepted(db, run_id, cases)} == HARMLESS


def test_a_check_of_a_database_finds_an_invalid_array(tmp_path: Path) -> None:
    db, _ = make_stored(tmp_path)
    with db.transaction() as connection:
        array = unpack(connection.execute(select(SnapshotRow.beta)).scalar_one())["beta"]
        array[3] = 1.5
        connection.execute(update(SnapshotRow).values(beta=pack({"beta": array})))
    (finding,) = check_database(db.url, is_allowed=lambda map: True).findings
    assert (finding.kind, "from 0 to 1, or NaN (got 1.5)" in finding.what) == ("damage", True)
    db.dispose()


def test_both_databases_are_checked_for_values_out_of_range(db: Database) -> None:
    fill(db)
    with db.transaction() as connection:
        connection.execute(update(Evaluation).values(win_rate=7))
        connection.execute(update(GateStats).values(beta_mean=float("-inf"), delta_mem_q05=0.9))
    findings = check_database(db.url, is_allowed=lambda map: True).findings
    assert [finding.kind for finding in findings] == ["damage"] * 2
    assert {"evaluations.win_rate", "gate_stats.beta_mean"} == {finding.what.split()[0] for finding in findings}


def pack_zeros(name: str, rule: ArrayRule, nodes: int) -> bytes:
    """Pack an array of zeros without making it: all its chunks have the same frame."""
    chunk = unpack_header(pack({name: np.zeros((CHUNK_ROWS, *[4] * (len(rule.shape) - 1)), ZERO_TYPES[rule.kind])}))
    header, frame = chunk
    n_chunks = nodes // CHUNK_ROWS
    header |= {"shape": [nodes, *header["shape"][1:]], "sizes": header["sizes"] * n_chunks}
    text = json.dumps([header]).encode()
    return blobs._PREFIX.pack(blobs.MAGIC, blobs.VERSION, len(text)) + text + frame * n_chunks


def unpack_header(blob: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the only entry of a blob's header, and its frames."""
    start = blobs._PREFIX.size
    end = start + blobs._PREFIX.unpack_from(blob)[2]
    return json.loads(blob[start:end])[0], blob[end:]


ZERO_TYPES = {"float": np.float32, "integer": np.int64, "flag": np.bool_}


@pytest.mark.parametrize(
    ("chunks", "words"), [(460, "its arrays unpack to"), (10, "has 655,360 nodes, but the memory of run")]
)
def test_a_small_bundle_of_a_huge_memory_is_refused_before_it_is_unpacked(
    stored: tuple[Database, str], tmp_path: Path, chunks: int, words: str
) -> None:
    db, run_id = stored
    nodes = chunks * CHUNK_ROWS
    huge = {
        column: pack_zeros(column, rules[column], nodes)
        for column, rules in SNAPSHOT_ARRAYS.items()
        if column != "state"
    }
    write_bundle(db, [run_id], tmp_path / "valid.emtc", WHOLE, made_by=MADE_BY)
    study = tmp_path / "study.db"
    study.write_bytes(study_of(tmp_path / "valid.emtc"))
    with closing(sqlite3.connect(study)) as connection:
        assignments = ", ".join(f'"{column}" = :{column}' for column in huge)
        connection.execute("DELETE FROM projections")
        connection.execute(f"UPDATE snapshots SET size = :size, {assignments}", huge | {"size": nodes})
        connection.commit()
    make_bundle(tmp_path / "huge.emtc", study.read_bytes())
    assert (tmp_path / "huge.emtc").stat().st_size < 300_000
    tracemalloc.start()
    try:
        with raises(StorageError, reason="unsound") as told:
            open_bundle(tmp_path / "huge.emtc", cache=tmp_path / "cache")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert words in str(told.value)
    assert peak < 32 << 20


def test_an_array_of_another_size_is_not_unpacked() -> None:
    blob = pack_zeros("beta", SNAPSHOT_ARRAYS["beta"]["beta"], 100 * CHUNK_ROWS)
    tracemalloc.start()
    try:
        with raises(StorageError, reason="damaged", subject="beta"):
            read_arrays(blob, SNAPSHOT_ARRAYS["beta"], M=30)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
