"""Copy runs of an earlier schema into a bundle of the present schema.

    python -m tests.tools.convert_study SOURCE OUT

SOURCE is a bundle of format version 1, or a database. Its schema is 0010 to 0013. Each table is copied with the columns
that both schemas have. A bundle is copied completely. Of a database all recorded data of all runs are copied, as by
`emtc bundle --whole`. The program prints the number of rows per table in the source and in OUT, and a hash of each
column with arrays in both.

Whoever removes a setting of `emtc_core.config` adds it to `REMOVED_SETTINGS`, and whoever adds one adds it to
`ADDED_SETTINGS`. Whoever changes a column so that its values have another meaning extends `copy_tables`.
"""

import argparse
import hashlib
import json
import sqlite3
import sys
import tempfile
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from app.cli.output import print_message
from emtc_core import __version__
from emtc_core.config.base import IMPORTED
from emtc_core.config.resolve import flatten_tree, list_keys
from storage.address import sqlite_address
from storage.bundles.contents import WHOLE, Contents
from storage.bundles.write import pack_study, write_bundle
from storage.engine import open_database

REMOVED_SETTINGS: Final[dict[str, Any]] = {
    "env.grf.control": "engine",
    "train.mixed_precision": False,
    "gate.tau_quantile": 0.9,
    "gate.tau_window": 10_000,
    "eval.robust_jitter": 0.05,
    "qplex.adv_hypernet_embed": 64,
    "qplex.hypernet_embed": 64,
    "qplex.n_head": 4,
    "qplex.attend_embed": 32,
    "qplex.state_bias_embed": 32,
    "dmix.n_quantiles": 8,
    "dmix.n_target_quantiles": 8,
    "dmix.n_act_quantiles": 32,
    "dmix.n_cos": 64,
    "mappo.huber_delta": 10.0,
    "mappo.value_norm_beta": 0.99999,
    "embed.overlap": "off",
}
"""Removed setting, for example "memory.evict" → the value that is now a constant. A run with another value is not
converted."""
ADDED_SETTINGS: Final[dict[str, Any]] = {
    "gate.type": "gaussian",
    "memory.index_device": "auto",
    "memory.on_evicted": "miss",
    "memory.shift_on_success": True,
    "record.callbacks": "",
    "record.metrics": "",
    "train.act_device": "auto",
    "train.deterministic": False,
    "train.eps_schedule": "linear",
    "train.gpu_share": "auto",
    "train.matmul_precision": "highest",
}
"""Setting that some runs do not have, because it is newer → the value with which they were trained. A run that lacks
another setting is not converted."""
OMITTED_TABLES: Final = ("alembic_version", "schema_version")
MADE_BY: Final = f"emtc-lab {__version__}"


def convert(source: Path, out: Path) -> list[str]:
    """Convert a bundle or a database.

    Args:
        source: A bundle of format version 1, or a database.
        out: The new bundle.

    Returns:
        The report: a line per table, and a line per column with arrays.

    Raises:
        ValueError: If a run has a setting that neither exists nor has the value that is now a constant, if it lacks a
            setting that is not in `ADDED_SETTINGS`, or if the copied rows differ.
    """
    with tempfile.TemporaryDirectory(prefix="emtc-convert-") as folder:
        old, new, contents = source, Path(folder) / "new.db", None
        if zipfile.is_zipfile(source):
            with zipfile.ZipFile(source) as archive:
                old = Path(archive.extract("study.db", folder))
                contents = read_contents(json.loads(archive.read("manifest.json"))["contents"])
        database = open_database(sqlite_address(new))
        database.dispose()
        old_url = f"{old.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(old_url, uri=True)) as reader, closing(sqlite3.connect(new)) as writer:
            copy_tables(reader, writer)
            report = compare(reader, writer)
            run_ids = [run_id for (run_id,) in writer.execute("SELECT id FROM runs ORDER BY created_at, id")]
        if contents is None:
            database = open_database(sqlite_address(new))
            write_bundle(database, run_ids, out, WHOLE, made_by=MADE_BY)
            database.dispose()
        else:
            pack_study(new, out, contents, made_by=MADE_BY)
    return report


def copy_tables(reader: sqlite3.Connection, writer: sqlite3.Connection) -> None:
    """Copy all rows with the columns that both databases have, and convert the settings of runs."""
    for table, columns in list_common_columns(reader, writer).items():
        names = ", ".join(f'"{name}"' for name in columns)
        rows = reader.execute(f"SELECT {names} FROM {table}")
        writer.executemany(f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(columns))})", rows)
    for run_id, config in writer.execute("SELECT id, config FROM runs").fetchall():
        kept = json.dumps(convert_settings(run_id, json.loads(config)))
        if json.loads(kept) != json.loads(config):
            writer.execute("UPDATE runs SET config = ? WHERE id = ?", (kept, run_id))
    if orphan := writer.execute("PRAGMA foreign_key_check").fetchone():
        raise ValueError(f"A row of {orphan[0]} refers to a row of {orphan[2]} that does not exist.")
    writer.commit()


def convert_settings(run_id: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with all present settings and no others. That of another program's run is not changed."""
    if config.get("preset") == IMPORTED:
        return config
    stored = flatten_tree(config)
    for key in stored.keys() - list_keys():
        if key not in REMOVED_SETTINGS or stored[key] != REMOVED_SETTINGS[key]:
            raise ValueError(f"Run {run_id} cannot be converted: the setting {key} = {stored[key]!r} no longer exists.")
        section, name = find_section(config, key)
        del section[name]
    for key in sorted(list_keys() - stored.keys()):
        if key not in ADDED_SETTINGS:
            raise ValueError(f"Run {run_id} cannot be converted: it has no setting {key}.")
        section, name = find_section(config, key)
        section[name] = ADDED_SETTINGS[key]
    return config


def find_section(config: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """Return the section with a dotted key, and the name of the setting in it. A missing section is made."""
    *path, name = key.split(".")
    for part in path:
        config = config.setdefault(part, {})
    return config, name


def compare(reader: sqlite3.Connection, writer: sqlite3.Connection) -> list[str]:
    """Compare the copied rows; return a line per table, and a line per column with arrays."""
    lines, is_equal = [], True
    common = list_common_columns(reader, writer)
    for table in sorted({*list_tables(reader), *list_tables(writer)}):
        counts = [
            connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] if table in list_tables(connection) else 0
            for connection in (reader, writer)
        ]
        lines.append(f"{table}: {counts[0]:,} rows, {counts[1]:,} converted")
        is_equal &= counts[0] == counts[1] or table not in common
        for name, kind in list_columns(writer, table).items():
            if kind == "BLOB" and table in common:
                hashes = [hash_column(connection, table, name) for connection in (reader, writer)]
                lines.append(f"{table}.{name}: {hashes[0]}, {hashes[1]} converted")
                is_equal &= hashes[0] == hashes[1]
    if not is_equal:
        raise ValueError("The converted rows differ:\n" + "\n".join(lines))
    return lines


def hash_column(connection: sqlite3.Connection, table: str, name: str) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a column's values, sorted by the primary key."""
    digest = hashlib.sha256()
    keys = connection.execute("SELECT name FROM pragma_table_info(?) WHERE pk > 0 ORDER BY pk", (table,)).fetchall()
    for (value,) in connection.execute(f"SELECT {name} FROM {table} ORDER BY {', '.join(key for (key,) in keys)}"):
        digest.update(len(value).to_bytes(8, "big") + value)
    return digest.hexdigest()[:16]


def list_common_columns(reader: sqlite3.Connection, writer: sqlite3.Connection) -> dict[str, list[str]]:
    """List the columns that a table has in both databases, by table."""
    tables = [table for table in list_tables(reader) if table in list_tables(writer) and table not in OMITTED_TABLES]
    return {
        table: [name for name in list_columns(reader, table) if name in list_columns(writer, table)] for table in tables
    }


def list_tables(connection: sqlite3.Connection) -> list[str]:
    """List the tables, without those of SQLite."""
    names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite!_%' ESCAPE '!'"
    return [name for (name,) in connection.execute(names)]


def list_columns(connection: sqlite3.Connection, table: str) -> dict[str, str]:
    """Return the type of each column of a table."""
    return dict(connection.execute("SELECT name, type FROM pragma_table_info(?)", (table,)).fetchall())


def read_contents(values: dict[str, Any]) -> Contents:
    """Convert the contents in a manifest of format version 1."""
    return Contents(
        **{name: values[name] for name in ("snapshots", "playbacks", "transitions", "trajectories")},
        kept_episodes={run_id: frozenset(episodes) for run_id, episodes in values["episodes"].items()},
        sampled_snapshots=values.get("sampled", {}),
        max_sample_nodes=values.get("sample_nodes") or Contents.max_sample_nodes,
        whole_runs=frozenset(values.get("whole", ())),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="SOURCE")
    parser.add_argument("out", type=Path, metavar="OUT")
    arguments = parser.parse_args()
    try:
        for line in convert(arguments.source, arguments.out):
            print_message(line)
    except ValueError as error:
        sys.exit(str(error))
