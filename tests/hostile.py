"""What somebody could have done to a database before giving it away: each act as plain SQL on a copy."""

import contextlib
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import zstandard

from storage import blobs

Act = Callable[[sqlite3.Connection], object]


def tamper(path: Path, *statements: str | tuple[str, tuple]) -> None:
    """Change a database without asking its keys."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA foreign_keys=OFF")
        connection.execute("PRAGMA ignore_check_constraints=ON")
        for statement in statements:
            sql, values = (statement, ()) if isinstance(statement, str) else statement
            with contextlib.suppress(sqlite3.IntegrityError):
                connection.execute(sql, values)
        connection.commit()


def make_bomb(megabytes: int = 6 * 1024) -> bytes:
    """A small blob that honestly declares gigabytes of zeros."""
    n_bytes = 1 << 24
    frame = zstandard.ZstdCompressor(level=1).compress(bytes(n_bytes))
    chunks = megabytes >> 4
    entry = {"name": "state", "dtype": "|b1", "shape": [n_bytes * chunks], "filter": "plain", "rows": n_bytes}
    header = json.dumps([entry | {"sizes": [len(frame)] * chunks}]).encode()
    return blobs._PREFIX.pack(b"EMTC", 1, len(header)) + header + frame * chunks


CONFIG = "update runs set config = json_set(config, "
ACTS: dict[str, tuple[str | tuple[str, tuple], ...]] = {
    "an id that climbs": ("update runs set id = '../../victim'",),
    "an id that is a path": ("update runs set id = '/etc/passwd'",),
    "an id that is no text": ("update runs set id = x'ff00'",),
    "a sweep of such a name": ("update runs set sweep_id = '../x'",),
    "a bomb in an episode": (("update episodes set trajectory = ?", (make_bomb(),)),),
    "a bomb in a playback": (("update eval_episodes set trajectory = ?", (make_bomb(),)),),
    "a bomb in a snapshot": (("update snapshots set embedding = ?", (make_bomb(),)),),
    "a blob that is text": ("update snapshots set slot = 'text'", "update episodes set trajectory = 'text'"),
    "a blob of other arrays": (("update snapshots set H = slot, state = slot"),),
    "a module in the columns": ("update runs set env = 'pettingzoo', map = 'this_is_run:make'",),
    "a module in the configuration": (f"{CONFIG}'$.env.name', 'pettingzoo', '$.env.map', 'os:getcwd')",),
    "an unknown environment": ("update runs set env = 'chess', map = '\x1b[31m'",),
    "a configuration that is no JSON": ("update runs set config = '{'",),
    "a configuration that is a list": ("update runs set config = '[1]'",),
    "a deep configuration": (("update runs set config = ?", ('{"a":' * 900 + "1" + "}" * 900,)),),
    "a configuration of other kinds": (("update runs set config = ?", ('{"train": 3, "env": [], "gate": "x"}',)),),
    "null for a configuration": ("update runs set config = 'null'",),
    "tags that are numbers": ("update runs set tags = '[1]'",),
    "a time that is none": ("update runs set created_at = 'yesterday'",),
    "a time that is a number": ("update runs set created_at = 7",),
    "steps that are words": ("update runs set env_steps = 'many'",),
    "steps that are a fraction": ("update runs set env_steps = 1.5, target_steps = 1e300",),
    "steps below zero": ("update runs set env_steps = -5, target_steps = -1",),
    "a seed that is a blob": ("update runs set seed = x'00'",),
    "a status of its own": ("update runs set status = 'rm -rf'",),
    "a pid of everybody": ("update runs set status = 'running', pid = -1, host = 'x'",),
    "a pid too long": ("update runs set status = 'running', pid = 99999999999999",),
    "a name that commands the terminal": ("update runs set name = char(27) || '[2J' || char(155) || '31mred'",),
    "a name that is a page": ("update runs set name = '<script>alert(1)</script>', notes = '![x](http://e/x)'",),
    "two schemas": ("insert into schema_version values (2)",),
    "a schema of nobody": ("update schema_version set version = 9999",),
    "a schema that is a blob": (
        "drop table schema_version",
        "create table schema_version (version blob)",
        "insert into schema_version values (x'00')",
    ),
    "a trigger": ("create trigger t after update on runs begin delete from episodes; end",),
    "a view for a table": (
        "alter table metrics rename to m2",
        "create view metrics as with recursive c(x) as (select 1 union all select x+1 from c) select * from c",
    ),
    "words for numbers": (
        "update evaluations set win_rate = 'high', episodes = 'x'",
        "update metrics set value = 'v'",
        "update gate_stats set memory_size = 'x'",
        "update episodes set length = 'x'",
        "update transitions set beta = 'x'",
    ),
    "numbers beyond all": (
        "update evaluations set win_rate = 1e999, return_mean = -1e999",
        "update metrics set value = 9e999",
        "update gate_stats set beta_mean = 1e999, delta_mem_mean = -1e308",
        "update runs set win_rate = 1e999, return_mean = -1e999, env_steps = 9223372036854775807",
    ),
    "episodes of another length": ("update episodes set length = 3",),
    "snapshots of another size": ("update snapshots set size = 1000000000",),
    "missing tables": ("drop table transitions", "drop table snapshots"),
}
