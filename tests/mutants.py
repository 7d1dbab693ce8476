"""Bundles that somebody or something changed: each family of changes as a function of a generator's choices.

A mutant is made from the database of a sound bundle. Most are put into a manifest that fits them, so that it is the
database that must be looked at; the others harm the manifest or the zip.
"""

import contextlib
import json
import random
import sqlite3
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from emtc_core.errors import EmtcError
from storage import blobs
from storage.bundles.read import MANIFEST, STUDY
from tests.hostile import ACTS, make_bomb, tamper
from tests.storage.test_bundles import make_bundle

NO_END, NONE_AT_ALL = float("inf"), float("nan")
SMALL_BOMB = make_bomb(64)
VALUES: tuple[Any, ...] = (
    *(None, "", "x", -1, 0, 1, 2**63 - 1, -(2**63), 1e308, NO_END, -NO_END, 0.5, "NaN", "inf", "1e999", b"", bytes(9)),
    *("[[[[", "{}", "[]", "null", "../../x", "/etc/passwd", "\x1b[2J", "<script>alert(1)</script>", "\u202e", "a\0b"),
    *(
        "9" * 400,
        "x" * 200_000,
        SMALL_BOMB,
        "2020-01-01 00:00:00",
        "yesterday",
        "9999-12-31 23:59:59.999999",
        "running",
    ),
)
LEAVES: tuple[Any, ...] = (None, "", "x", -1, 0, 1e308, [], {}, [[[]]], True, "x" * 5000, "../../x", 10**30, 0.1, "nan")
EXPRESSIONS = (
    *('"{0}" + 1', '-"{0}"', '"{0}" || "{0}"', 'substr("{0}", 2)', '"{0}" * 1e300', "random()", 'CAST("{0}" AS TEXT)'),
    *('CAST("{0}" AS BLOB)', '"{0}" / 2', '"{0}" + 0.5', "hex(zeroblob(200000))", "zeroblob(100)", "9e999", "-9e999"),
)
WHERES = ("", " WHERE random() % 2 = 0", ' WHERE "{1}" IN (SELECT "{1}" FROM {0} ORDER BY random() LIMIT 1)')


class Mutant(NamedTuple):
    """A changed bundle."""

    about: str
    content: bytes


class Study(NamedTuple):
    """The sound database, and a folder to work in."""

    content: bytes
    folder: Path

    def copy(self) -> Path:
        place = self.folder / "mutated.db"
        place.write_bytes(self.content)
        return place

    def changed(self, *statements: str | tuple[str, tuple[Any, ...]]) -> bytes:
        place = self.copy()
        for statement in statements:
            with contextlib.suppress(sqlite3.Error, OverflowError):  # what SQLite refuses was not done
                tamper(place, statement)
        return place.read_bytes()

    def columns(self) -> list[tuple[str, str]]:
        with closing(sqlite3.connect(self.copy())) as connection:
            return [(table, row[1]) for table in list_tables(connection) for row in describe(connection, table)]

    def cells(self, kind: str) -> list[tuple[str, str, int]]:
        """Every cell of a kind, `blob` or JSON `text`, as table, column and rowid."""
        found = []
        with closing(sqlite3.connect(self.copy())) as connection:
            for table in list_tables(connection):
                for row in describe(connection, table):
                    fits = "AND json_valid({0}) AND {0} LIKE '{{%'" if kind == "text" else ""
                    where = f"typeof({{0}}) = '{kind}' {fits}".format(f'"{row[1]}"')
                    with contextlib.suppress(sqlite3.OperationalError):  # it has no rowid
                        ids = connection.execute(f"SELECT rowid FROM {table} WHERE {where} LIMIT 20")
                        found += [(table, row[1], rowid) for (rowid,) in ids]
        return found


def list_tables(connection: sqlite3.Connection) -> list[str]:
    tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
    return [name for (name,) in connection.execute(tables)]


def describe(connection: sqlite3.Connection, table: str) -> list[tuple[Any, ...]]:
    return connection.execute(f"PRAGMA table_info({table})").fetchall()


def read_cell(place: Path, cell: tuple[str, str, int]) -> Any:
    with closing(sqlite3.connect(place)) as connection:
        found = connection.execute(f'SELECT "{cell[1]}" FROM {cell[0]} WHERE rowid = {cell[2]}').fetchone()
    return found[0]


def change_value(study: Study, rng: random.Random) -> Mutant:
    table, column = rng.choice(study.columns())
    where = rng.choice(WHERES).format(table, column)
    if rng.random() < 0.6:
        value = rng.choice(VALUES)
        said, statement = repr(value)[:40], (f'UPDATE OR REPLACE {table} SET "{column}" = ?{where}', (value,))
    else:
        said = rng.choice(EXPRESSIONS).format(column)
        statement = f'UPDATE OR REPLACE {table} SET "{column}" = {said}{where}'
    return Mutant(f"{table}.{column} = {said}{where}", study.changed(statement))


def change_rows(study: Study, rng: random.Random) -> Mutant:
    table, column = rng.choice(study.columns())
    act = rng.choice((
        f"DELETE FROM {table}{rng.choice(WHERES).format(table, column)}",
        f'UPDATE OR REPLACE {table} SET "{column}" = (SELECT "{column}" FROM {table} ORDER BY random() LIMIT 1)',
        f"CREATE TABLE t AS SELECT * FROM {table}; DROP TABLE {table}; ALTER TABLE t RENAME TO {table}; "
        f"INSERT INTO {table} SELECT * FROM {table}",
        f"UPDATE OR REPLACE {table} SET rowid = -rowid",
    ))  # fmt: skip
    return Mutant(act, study.changed(*act.split("; ")))


def change_schema(study: Study, rng: random.Random) -> Mutant:
    table, column = rng.choice(study.columns())
    act = rng.choice((
        f'ALTER TABLE {table} RENAME COLUMN "{column}" TO other',
        f"ALTER TABLE {table} RENAME TO other",
        f"DROP TABLE {table}",
        f'ALTER TABLE {table} DROP COLUMN "{column}"',
        f"ALTER TABLE {table} ADD COLUMN more",
        f"ALTER TABLE {table} ADD COLUMN twice AS (1)",
        f"CREATE TRIGGER t AFTER INSERT ON {table} BEGIN DELETE FROM {table}; END",
        f"CREATE TRIGGER t BEFORE DELETE ON {table} BEGIN SELECT RAISE(ABORT, 'no'); END",
        f"CREATE VIEW v AS SELECT * FROM {table}",
        f"ALTER TABLE {table} RENAME TO other; CREATE VIEW {table} AS SELECT * FROM other",
        "CREATE TABLE more (x); INSERT INTO more VALUES (zeroblob(1000000))",
        "CREATE VIRTUAL TABLE more USING fts5(x)",
        f'CREATE INDEX i ON {table} (abs("{column}"))',
        f'CREATE UNIQUE INDEX i ON {table} ("{column}")',
        f"CREATE TABLE t AS SELECT * FROM {table}; DROP TABLE {table}; ALTER TABLE t RENAME TO {table}",
        "PRAGMA writable_schema=ON; UPDATE sqlite_master SET sql = sql || ' -- '",
        "PRAGMA user_version=7", "PRAGMA application_id=7", "PRAGMA journal_mode=WAL", "PRAGMA auto_vacuum=2; VACUUM",
        "UPDATE schema_version SET version = 2", "DELETE FROM schema_version", "INSERT INTO schema_version VALUES (2)",
    ))  # fmt: skip
    return Mutant(act, study.changed(*act.split("; ")))


def change_writable_schema(study: Study, rng: random.Random) -> Mutant:
    """Change what SQLite is told of a table, behind its back."""
    old, new = rng.choice((
        ("NOT NULL", ""), ("INTEGER", "TEXT"), ("FLOAT", "BLOB"), ("PRIMARY KEY", "UNIQUE"), ("VARCHAR", "NUMERIC"),
        ("CREATE TABLE", "CREATE TEMP TABLE"), (")", ") STRICT"), (")", ") WITHOUT ROWID"), ("(", "(("), ("", "\0"),
    ))  # fmt: skip
    place = study.copy()
    with closing(sqlite3.connect(place)) as connection:
        table = rng.choice(list_tables(connection))
        with contextlib.suppress(sqlite3.Error):
            connection.execute("PRAGMA writable_schema=ON")
            said = connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]
            connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (said.replace(old, new, 1), table))
            connection.commit()
    return Mutant(f"the text of {table}: {old!r} is {new!r}", place.read_bytes())


def change_bytes(study: Study, rng: random.Random) -> Mutant:
    content = bytearray(study.content)
    first = 0 if rng.random() < 0.3 else rng.randrange(len(content))
    last = min(len(content), first + (100 if first == 0 else 4096))
    for _ in range(rng.choice((1, 1, 3, 20))):
        content[rng.randrange(first, last)] = rng.randrange(256)
    return Mutant(f"bytes from {first} on", bytes(content))


def cut_database(study: Study, rng: random.Random) -> Mutant:
    keep = rng.choice((rng.randrange(len(study.content)), 4096 * rng.randrange(len(study.content) // 4096)))
    more = rng.choice((b"", bytes(4096), rng.randbytes(5000)))
    return Mutant(f"{keep} bytes, then {len(more)}", study.content[:keep] + more)


def change_blob(study: Study, rng: random.Random) -> Mutant:
    """Pack other numbers, shapes or types into a blob, in good form; or break its form."""
    cell = rng.choice(study.cells("blob"))
    was = read_cell(study.copy(), cell)
    if rng.random() < 0.3:
        content = bytearray(was)
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        blob, said = bytes(content), "a bit"
    else:
        try:
            arrays = blobs.unpack(was)
        except EmtcError:
            arrays = {}
        name = rng.choice(sorted(arrays) or ["x"])
        said, arrays[name] = change_array(arrays.get(name, np.zeros(3)), rng)
        said = f"{name}: {said}"
        blob = blobs.pack(arrays)
    change = f'UPDATE {cell[0]} SET "{cell[1]}" = ? WHERE rowid = ?'
    return Mutant(f"{cell[0]}.{cell[1]}: {said}", study.changed((change, (blob, cell[2]))))


def change_array(array: np.ndarray[Any, Any], rng: random.Random) -> tuple[str, np.ndarray[Any, Any]]:
    numbers = array.dtype.kind in "if"
    changes: dict[str, Callable[[], np.ndarray[Any, Any]]] = {
        "NaN": lambda: np.full_like(array, np.nan, dtype=np.float32),
        "infinite": lambda: np.full_like(array, np.inf, dtype=np.float32),
        "negative": lambda: (-np.abs(array.astype(np.float64)) - 1).astype(array.dtype if numbers else "i4"),
        "empty": lambda: array[:0],
        "one less": lambda: array[:-1] if array.ndim else array,
        "twice": lambda: np.concatenate([array, array]) if array.ndim else array,
        "one axis more": lambda: array[None],
        "of words": lambda: np.zeros(array.shape, np.int64),
        "of truths": lambda: np.zeros(array.shape, np.bool_),
        "huge": lambda: np.full(array.shape, 3e38, np.float32),
        "huge whole numbers": lambda: np.full(array.shape, 2**31 - 1, np.int32),
        "one odd": lambda: set_one(array, rng) if numbers and array.size else array,
        "backwards": lambda: array[::-1].copy() if array.ndim else array,
    }  # fmt: skip
    said = rng.choice(sorted(changes))
    return said, changes[said]()


def set_one(array: np.ndarray[Any, Any], rng: random.Random) -> np.ndarray[Any, Any]:
    changed = array.copy()
    changed.reshape(-1)[rng.randrange(array.size)] = -7
    return changed


def change_json(study: Study, rng: random.Random) -> Mutant:
    """Change a leaf, or take a branch, of a stored JSON object: settings, versions, plans, parameters."""
    cell = rng.choice(study.cells("text"))
    tree = json.loads(read_cell(study.copy(), cell))
    node, path = tree, ""
    while True:
        if not node:
            return Mutant("an empty object", study.content)
        key = rng.choice(sorted(node)) if isinstance(node, dict) else rng.randrange(len(node))
        path += f".{key}"
        if isinstance(node[key], (dict, list)) and node[key] and rng.random() < 0.8:
            node = node[key]
            continue
        break
    value = rng.choice((*LEAVES, "drop"))
    if value == "drop":
        del node[key]
    else:
        node[key] = value
    change = f'UPDATE {cell[0]} SET "{cell[1]}" = ? WHERE rowid = ?'
    text = json.dumps(tree)
    return Mutant(f"{cell[0]}.{cell[1]}{path} = {value!r:.40}", study.changed((change, (text, cell[2]))))


def known_act(study: Study, rng: random.Random) -> Mutant:
    name = rng.choice(sorted(name for name in ACTS if "bomb" not in name))
    return Mutant(name, study.changed(*ACTS[name]))


DATABASE = (
    *(change_value,) * 4, *(change_json,) * 2, *(change_blob,) * 3, *(change_rows, change_schema, change_bytes) * 2,
    change_writable_schema, cut_database, known_act,
)  # fmt: skip


def change_manifest(study: Study, rng: random.Random, place: Path) -> str:
    key = rng.choice(
        ("format", "version", "about", "made_at", "made_by", "schema", "contents", "runs", "sweeps", "members")
    )
    value = rng.choice((*LEAVES, 2, [1], [{}], [{"id": "../../x"}], {STUDY: {}}, {STUDY: {"size": -1}}, {"../x": {}}))
    where = rng.choice(("facts", "member"))
    if where == "member":
        key = rng.choice(("size", "sha256"))
        make_bundle(place, study.content, member={key: value})
    else:
        make_bundle(place, study.content, facts={key: value})
    return f"manifest: {key} = {value!r:.40}"


def change_zip(study: Study, rng: random.Random, place: Path) -> str:
    more = rng.choice(((), (), ("../../x",), ("/etc/passwd",), (MANIFEST,), ("a\\b",), ("STUDY.DB",), ("study.db/",)))
    make_bundle(place, study.content, more=more)
    content, said = bytearray(place.read_bytes()), rng.choice(("as it is", "bytes", "tail", "cut", "before", "after"))
    if said == "bytes":
        for _ in range(rng.choice((1, 3, 30))):
            content[rng.randrange(len(content))] = rng.randrange(256)
    elif said == "tail":  # the zip's own list
        for _ in range(rng.choice((1, 2, 4))):
            content[-rng.randrange(1, 200)] = rng.randrange(256)
    elif said == "cut":
        del content[rng.randrange(len(content)) :]
    elif said == "before":
        content[:0] = rng.randbytes(rng.choice((1, 300)))
    elif said == "after":
        content += rng.randbytes(rng.choice((1, 22, 70_000)))
    place.write_bytes(content)
    return f"zip: {said}, more {more}"


def change_members(study: Study, rng: random.Random, place: Path) -> str:
    """Store the members in another way: links, modes, methods, names, comments."""
    make_bundle(place, study.content)
    with zipfile.ZipFile(place) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    said = rng.choice(("a link", "a folder", "stored", "bzip2", "lzma", "a comment", "reversed", "twice the study"))
    how = {"stored": zipfile.ZIP_STORED, "bzip2": zipfile.ZIP_BZIP2, "lzma": zipfile.ZIP_LZMA}
    names = [*reversed(members)] if said == "reversed" else [*members, *([STUDY] if said.startswith("twice") else [])]
    with zipfile.ZipFile(place, "w", how.get(said, zipfile.ZIP_DEFLATED)) as archive:
        archive.comment = rng.randbytes(1000) if said == "a comment" else b""
        for name in names:
            info = zipfile.ZipInfo(name)
            info.compress_type = archive.compression
            mode = {"a link": 0o120777, "a folder": 0o040755}.get(said, 0o100644)
            info.external_attr = mode << 16
            archive.writestr(info, members[name])
    return f"zip: {said}"


OUTSIDE = (change_manifest, change_zip, change_zip, change_members)


def make_mutant(study: Study, rng: random.Random, place: Path) -> str:
    """Write a changed bundle; return what was changed."""
    if rng.random() < 0.2:
        return rng.choice(OUTSIDE)(study, rng, place)
    mutant = rng.choice(DATABASE)(study, rng)
    if rng.random() < 0.15:  # two harms at once
        again = Study(mutant.content, study.folder)
        mutant = rng.choice(DATABASE)(again, rng) if is_readable(again) else mutant
    make_bundle(place, mutant.content)
    return mutant.about


def is_readable(study: Study) -> bool:
    try:
        return bool(study.cells("blob") and study.cells("text") and study.columns())
    except sqlite3.Error:
        return False
