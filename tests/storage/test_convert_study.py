"""`tests.tools.convert_study`: runs of an earlier schema become a bundle of the present one."""

import json
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

from emtc_core.config.resolve import resolve
from storage.blobs import EMPTY, unpack
from storage.bundles.bundle_cache import cache_bundle
from storage.bundles.contents import THIN
from storage.engine import Database, open_database
from storage.runs.rows import find_run
from tests.storage.test_bundles import rows
from tests.tools import convert_study

CONFIG = resolve(overrides=["seed=3"]).model_dump(mode="json")
TABLES = """
    CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL);
    INSERT INTO alembic_version VALUES ('0012');
    CREATE TABLE runs (
        id TEXT PRIMARY KEY, name TEXT, env TEXT, map TEXT, algo TEXT, seed INTEGER, status TEXT, env_steps INTEGER,
        target_steps INTEGER, created_at TEXT, tags TEXT, notes TEXT, versions TEXT, config TEXT, pid INTEGER,
        a_dropped_column TEXT
    );
    CREATE TABLE episodes (
        run_id TEXT, episode INTEGER, first_env_step INTEGER, length INTEGER, episode_return FLOAT, won BOOLEAN,
        epsilon FLOAT, trajectory BLOB, PRIMARY KEY (run_id, episode)
    );
    INSERT INTO runs VALUES (
        'old1', 'An old run', 'skirmish', '3m', 'emtc-qplex', 3, 'finished', 5, 5, '2026-01-02 03:04:05.000000',
        '[]', '', '{}', '{}', 7, 'x'
    );
"""


def make_old(path: Path, config: object = CONFIG) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(TABLES)
        connection.execute("UPDATE runs SET config = ?", (json.dumps(config),))
        connection.execute("INSERT INTO episodes VALUES ('old1', 1, 1, 5, 2.5, 1, 0.1, ?)", (EMPTY,))
        connection.commit()
    return path


def open_converted(out: Path, tmp_path: Path) -> Database:
    return open_database(cache_bundle(out, cache=tmp_path / "cache").url, read_only=True)


def test_the_runs_of_a_database_are_copied_without_their_process(tmp_path: Path) -> None:
    report = convert_study.convert(make_old(tmp_path / "old.db"), tmp_path / "new.emtc")
    assert "episodes: 1 rows, 1 converted" in report
    (hashes,) = [line for line in report if line.startswith("episodes.trajectory: ")]
    assert hashes.split()[1].rstrip(",") == hashes.split()[2]
    there = open_converted(tmp_path / "new.emtc", tmp_path)
    row = find_run(there, "old1")
    assert (row.name, row.seed, row.config, row.pid) == ("An old run", 3, CONFIG, None)
    (episode,) = rows(there, "episodes", "old1")
    assert (episode["episode_return"], unpack(episode["trajectory"])) == (2.5, {})


def test_a_bundle_of_the_first_format_keeps_its_contents(tmp_path: Path) -> None:
    old = make_old(tmp_path / "old.db")
    contents = {name: getattr(THIN, name) for name in ("snapshots", "playbacks", "transitions", "trajectories")}
    contents |= {"entries": False, "episodes": {"old1": [1]}, "sampled": {"old1": 2}, "sample_nodes": 40}
    with zipfile.ZipFile(tmp_path / "old.emtc", "w") as archive:
        archive.writestr("manifest.json", json.dumps({"format": "emtc-bundle", "version": 1, "contents": contents}))
        archive.write(old, "study.db")
    convert_study.convert(tmp_path / "old.emtc", tmp_path / "new.emtc")
    bundle = cache_bundle(tmp_path / "new.emtc", cache=tmp_path / "cache")
    assert bundle.contents.kept_episodes == {"old1": frozenset({1})}
    assert (bundle.contents.sampled_snapshots, bundle.contents.max_sample_nodes) == ({"old1": 2}, 40)
    assert find_run(open_database(bundle.url, read_only=True), "old1").name == "An old run"


MEMORY = CONFIG["memory"]


@pytest.mark.parametrize(
    ("memory", "table", "key", "values"),
    [
        ({**MEMORY, "removed": 7}, "REMOVED_SETTINGS", "memory.removed", (8, 7)),
        ({key: value for key, value in MEMORY.items() if key != "evict"}, "ADDED_SETTINGS", "memory.evict", ("fifo",)),
    ],
    ids=["removed", "added"],
)
def test_a_setting_of_another_schema_is_converted_if_its_value_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: object, table: str, key: str, values: tuple[object, ...]
) -> None:
    old = make_old(tmp_path / "old.db", {**CONFIG, "memory": memory})
    *wrong, right = values
    for value in (None, *wrong):
        if value is not None:
            monkeypatch.setitem(getattr(convert_study, table), key, value)
        with pytest.raises(ValueError, match=key):
            convert_study.convert(old, tmp_path / "new.emtc")
    assert not (tmp_path / "new.emtc").exists()
    monkeypatch.setitem(getattr(convert_study, table), key, right)
    convert_study.convert(old, tmp_path / "new.emtc")
    expected = MEMORY if table == "REMOVED_SETTINGS" else {**MEMORY, "evict": right}
    assert find_run(open_converted(tmp_path / "new.emtc", tmp_path), "old1").config == {**CONFIG, "memory": expected}
