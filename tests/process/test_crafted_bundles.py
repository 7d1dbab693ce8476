"""A bundle that breaks a rule of `storage.bundles.read` is refused in one sentence, and nothing of it is kept."""

import hashlib
import io
import re
import shutil
import sqlite3
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from storage.bundles.contents import WHOLE
from storage.bundles.manifest import MANIFEST, STUDY, VERSION
from storage.bundles.write import write_bundle
from storage.engine import open_database
from tests.process.test_fuzz import refused_in_words
from tests.storage.test_bundles import MADE_BY, fill, make_bundle, study_of

pytestmark = pytest.mark.filterwarnings("ignore:Duplicate name")  # zipfile's, of a member that is there twice


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A database with one run, and the database of a bundle with another one."""
    folder = tmp_path_factory.mktemp("filled")
    source, target = (open_database(f"sqlite:///{folder / name}") for name in ("source.db", "own.db"))
    fill(target)
    write_bundle(source, [fill(source)], folder / "study.emtc", WHOLE, made_by=MADE_BY)
    target.dispose()
    return folder / "own.db", study_of(folder / "study.emtc")


def zip_of(members: dict[str, bytes], *more: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in (*members, *more):
            archive.writestr(name, members.get(name, b"more"))
    return content.getvalue()


def change(study: bytes, folder: Path, *statements: str) -> bytes:
    """Execute SQL statements on a database."""
    path = folder / "changed.db"
    path.write_bytes(study)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)
    return path.read_bytes()


def damage_pages(study: bytes, folder: Path) -> bytes:
    """Write zeros over the pages in the middle of a database."""
    middle = len(study) // 2
    return study[:middle] + bytes(32_768) + study[middle + 32_768 :]


Act = Callable[[bytes, Path], bytes]
FILES: dict[str, tuple[Act, str]] = {
    "a text": (lambda study, _: b"Dear colleague, " * 100, "is not a bundle"),
    "an empty file": (lambda study, _: b"", "is not a bundle"),
    "a database": (lambda study, _: study, "is not a bundle"),
    "a pickle": (lambda study, _: b"cos\nsystem\n(S'touch owned'\ntR.", "is not a bundle"),
    "too many members": (lambda study, _: zip_of({f"member-{n}": b"" for n in range(2000)}), "it contains 'member-0'"),
    "a path that climbs": (lambda study, _: zip_of({MANIFEST: b"{}", "../../study.db": study}), "../../study.db"),
    "one file more": (lambda study, _: zip_of({MANIFEST: b"{}", STUDY: study}, "/etc/cron.d/x"), "/etc/cron.d/x"),
    "one file twice": (lambda study, _: zip_of({MANIFEST: b"{}", STUDY: study}, MANIFEST), "missing or twice"),
    "no manifest": (lambda study, _: zip_of({STUDY: study}), "missing or twice"),
    "a manifest that is not JSON": (lambda study, _: zip_of({MANIFEST: b"{" * 99_999, STUDY: study}), "another format"),
    "a huge manifest": (lambda study, _: zip_of({MANIFEST: bytes(17 << 20), STUDY: study}), "larger than 16 MiB"),
}
SHA256 = hashlib.sha256
MANIFESTS: dict[str, tuple[Callable[[bytes], dict[str, Any]], str]] = {
    "another format": (lambda study: {"format": "tar"}, "another format"),
    "the format before": (lambda study: {"version": 1}, f"has version 1 of the bundle format.*reads version {VERSION}"),
    "the format after": (lambda study: {"version": VERSION + 1}, f"has version {VERSION + 1} of the bundle format"),
    "no checksum": (lambda study: {"study": {"size": 1}}, "study.sha256"),
    "runs that are a number": (lambda study: {"runs": 7}, "runs"),
    "a petabyte": (lambda study: {"study": {"size": 10**15, "sha256": "0" * 64}}, "1,000,000.0 GB unpacked"),
    "larger than stated": (lambda study: {"study": {"size": 1000, "sha256": "0" * 64}}, "larger than the 1,000 bytes"),
    "smaller than stated": (
        lambda study: {"study": {"size": len(study) + 1, "sha256": SHA256(study).hexdigest()}},
        "does not match the size",
    ),
    "another checksum": (lambda study: {"study": {"size": len(study), "sha256": "0" * 64}}, "and the checksum"),
}
DATABASES: dict[str, tuple[Act, str]] = {
    "no database": (lambda study, _: b"cos\nsystem\n(S'touch owned'\ntR." * 100, "not a database"),
    "half a database": (lambda study, _: study[: len(study) // 2], "damaged"),
    "damaged pages": (damage_pages, "damaged"),
    "another program's": (lambda study, at: change(b"", at, "CREATE TABLE passwords (name)"), "not a database of EMTC"),
    "a trigger": (
        lambda study, at: change(study, at, "CREATE TRIGGER t AFTER UPDATE ON runs BEGIN DELETE FROM runs; END"),
        "contains the trigger 't'",
    ),
    "a view": (
        lambda study, at: change(study, at, "DROP TABLE metrics", "CREATE VIEW metrics AS SELECT 1 AS run_id"),
        "contains the view 'metrics'",
    ),
    "a virtual table": (
        lambda study, at: change(study, at, "CREATE VIRTUAL TABLE more USING fts5(x)"),
        "contains the virtual table 'more'",
    ),
    "an index": (
        lambda study, at: change(study, at, "CREATE INDEX i ON runs (abs(seed))"),
        "contains the index 'i'",
    ),
    "another schema version": (
        lambda study, at: change(study, at, "UPDATE schema_version SET version = 7"),
        "schema version 7",
    ),
    "no schema version": (lambda study, at: change(study, at, "DELETE FROM schema_version"), "schema version none"),
    "one table more": (lambda study, at: change(study, at, "CREATE TABLE more (x)"), "table 'more' differs"),
    "one table less": (lambda study, at: change(study, at, "DROP TABLE gate_stats"), "table 'gate_stats' differs"),
    "one column more": (lambda study, at: change(study, at, "ALTER TABLE runs ADD x"), "table 'runs' differs"),
    "a renamed column": (
        lambda study, at: change(study, at, "ALTER TABLE transitions RENAME beta TO gate"),
        "table 'transitions' differs",
    ),
    "a computed column": (
        lambda study, at: change(study, at, "ALTER TABLE runs ADD twice AS (seed * 2)"),
        "table 'runs' differs",
    ),
    "a table without its key": (
        lambda study, at: change(
            study,
            at,
            "CREATE TABLE t AS SELECT * FROM metrics",
            "DROP TABLE metrics",
            "ALTER TABLE t RENAME TO metrics",
        ),
        "table 'metrics' differs",
    ),
}


def check_refused(place: Path, own: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    """Open a bundle, and import it into a copy of a database. Both must be refused with these words."""
    copy, cache = place.with_name("own.db"), place.with_name("cache")
    shutil.copy(own, copy)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    before = {path for path in place.parent.rglob("*") if cache not in path.parents} | {cache}
    for arguments in (["--no-app"], ["--import", "--db", f"sqlite:///{copy}"]):
        message = refused_in_words(["open", str(place), *arguments])
        assert len(message.strip().splitlines()) == 1
        assert len(message) < 500
        assert re.search(words, message), message
    assert copy.read_bytes() == own.read_bytes()
    assert [path for path in cache.rglob("*") if path.is_file()] == []
    assert {path for path in place.parent.rglob("*") if cache not in path.parents} | {cache} == before


@pytest.mark.parametrize("file", FILES)
def test_a_file_with_other_members_is_refused(filled, tmp_path: Path, monkeypatch, file: str) -> None:
    make, words = FILES[file]
    own, study = filled
    (tmp_path / "s.emtc").write_bytes(make(study, tmp_path))
    check_refused(tmp_path / "s.emtc", own, monkeypatch, words)


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_a_database_that_does_not_match_its_manifest_is_refused(
    filled, tmp_path: Path, monkeypatch, manifest: str
) -> None:
    values, words = MANIFESTS[manifest]
    own, study = filled
    make_bundle(tmp_path / "s.emtc", study, **values(study))
    check_refused(tmp_path / "s.emtc", own, monkeypatch, words)


@pytest.mark.parametrize("database", DATABASES)
def test_a_database_with_another_schema_is_refused(filled, tmp_path: Path, monkeypatch, database: str) -> None:
    make, words = DATABASES[database]
    own, study = filled
    make_bundle(tmp_path / "s.emtc", make(study, tmp_path))
    check_refused(tmp_path / "s.emtc", own, monkeypatch, words)
