"""Which runs are there, which of them look like this, and what is one of them?

Searched, filtered, sorted and cut into pages by the database.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from sqlalchemy import Connection, SQLColumnExpression, String, and_, case, cast, func, or_, select, true, type_coerce
from sqlalchemy.types import Double

from emtc_core.errors import ConfigError
from storage.column_types import unguarded
from storage.engine import Database
from storage.frames import Field, Statement, in_parts, make_frame, read_frame
from storage.models import Resume, Run
from storage.queries.gate import name_gate
from storage.queries.search_terms import COLUMNS, Dialect, Sql, make_condition, parse_condition, parse_text
from storage.runs import lifecycle
from storage.runs.rows import RUN_COLUMNS, STATE_COLUMNS, STOP_ASKED_AT, RunRow, make_run_row, observe

if TYPE_CHECKING:  # a list of runs needs no frame, and pandas takes longer to load than all the rest
    import pandas as pd

_UNLISTED = ("launch_token", "versions", "config", "owner_token", "files")
LISTED: Final = (*(column for column in Run.__table__.columns if column.name not in _UNLISTED), STOP_ASKED_AT)
"""What `read_listed` needs of a row of `runs`: all that is small and says something to people."""
_WORKER = ("pid", "pid_created_at", "host", "claimed_at", "stop_asked_at", "gate_removed")
_TOLD = ("gate", "state", "stall")

Shelf = Literal["open", "drawn", "hidden", "archived", "all"]
"""`open` leaves out what is archived, `drawn` what is hidden too; `hidden` and `archived` list those alone."""

_AT_WORK, _WAITING = 0, 2


_named = select(Run.id, Run.name, Run.created_at)


def list_runs(db: Database, limit: int | None = 200) -> pd.DataFrame:
    """Which runs were made last?

    Args:
        db: An open database.
        limit: Rows at most; None reads all.

    Returns:
        Newest first, the columns of `runs` without long ones, tokens and what the trainer's process is: id, name,
        env, map, algo, seed, status (live: may be `lost`), …; then gate (`active`, `idle` or None), state (the same
        as status, told finer: see `lifecycle`), stall (why its recorder waits).
    """
    statement = select(*LISTED).order_by(Run.created_at.desc(), Run.id).limit(limit)
    with db.read() as connection:
        return read_listed(db, connection, statement)


def read_listed(db: Database, connection: Connection, statement: Statement) -> pd.DataFrame:
    """Read a statement of the columns LISTED into the frame that `list_runs` describes, in its order."""
    return _as_frame(statement, _read_rows(db, connection, statement))


def _as_frame(statement: Statement, rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    stored = [Field(each.name, unguarded(each.type)) for each in statement.selected_columns if each.name not in _WORKER]
    return make_frame([*stored, *(Field(name, String()) for name in _TOLD)], [tuple(row.values()) for row in rows])


def _read_rows(db: Database, connection: Connection, statement: Statement) -> list[dict[str, Any]]:
    """Read a statement of the columns LISTED, with the live status and what else is told of a run."""
    rows: list[dict[str, Any]] = []
    for row in connection.execute(statement):
        pending = row.status in ("queued", "running", "paused")
        status, state, stall = _describe(db, row) if pending else (row.status, row.status, None)
        known = {name: value for name, value in row._mapping.items() if name not in _WORKER} | {"status": status}
        rows.append(known | dict(zip(_TOLD, (name_gate(row.gate_removed), state, stall), strict=True)))
    return rows


def _describe(db: Database, row: Any) -> tuple[str, str, str | None]:
    status, stall = observe(db, row)
    return status, lifecycle.refine(row, status).value, stall


def run_configs(db: Database, run_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """How were these runs configured? Ids that are not there are left out."""
    found: dict[str, dict[str, Any]] = {}
    with db.read() as connection:
        for part in in_parts(run_ids):
            wanted = Run.id.in_(part)
            found |= {row.id: row.config for row in connection.execute(select(Run.id, Run.config).where(wanted))}
    return found


def list_resumes(db: Database, run_id: str) -> pd.DataFrame:
    """Where was this run resumed? env_step, reached_env_step (before), resumed_at, episodes, checkpoint, passed_over.

    What was recorded between the two steps was superseded: so many episodes, unknown before schema 0003.
    """
    columns = (
        *(Resume.env_step, Resume.reached_env_step, Resume.resumed_at),
        *(Resume.episodes, Resume.checkpoint, Resume.passed_over),
    )
    with db.read() as connection:
        return read_frame(connection, select(*columns).where(Resume.run_id == run_id).order_by(Resume.id))


def get_rows(db: Database, run_ids: Sequence[str]) -> list[RunRow]:
    """What are these runs? In the order of their ids as given; ids that are not there are left out."""
    found: dict[str, RunRow] = {}
    with db.read() as connection:
        for part in in_parts(run_ids):
            wanted = Run.id.in_(part)
            rows = connection.execute(select(*RUN_COLUMNS).where(wanted)).all()
            found |= {row.id: make_run_row(db, row) for row in rows}
    return [found[run_id] for run_id in dict.fromkeys(run_ids) if run_id in found]


@dataclass(frozen=True)
class RunFilter:
    """What a run must be to be listed. Of each tuple one value must fit; an empty one asks nothing."""

    text: str = ""
    """Words and comparisons; see `search_terms`."""
    where: tuple[str, ...] = ()
    """Comparisons."""
    statuses: tuple[str, ...] = ()
    envs: tuple[str, ...] = ()
    maps: tuple[str, ...] = ()
    algos: tuple[str, ...] = ()
    presets: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    shelf: Shelf = "open"
    ids: tuple[str, ...] | None = None
    """Only these runs."""
    evaluated: bool = False
    """Only runs that were evaluated."""


@dataclass(frozen=True)
class RunPage:
    """One page of runs: the columns of `list_runs`, preset and plugins, and how many match on all pages.

    `plugins` is kind → name → origin of what a run has from outside, None where it has nothing.
    """

    frame: pd.DataFrame
    total: int


@dataclass(frozen=True)
class Choices:
    """What there is to filter by, among the runs of a shelf."""

    statuses: dict[str, int]
    """Live status → how many runs."""
    envs: list[str]
    maps: list[str]
    algos: list[str]
    presets: list[str]
    tags: list[str]

    @property
    def total(self) -> int:
        """How many runs there are."""
        return sum(self.statuses.values())


def run_page(
    db: Database, wanted: RunFilter | None = None, *, sort: str = "", limit: int | None = 50, offset: int = 0
) -> RunPage:
    """Which runs match, a page at a time, and how many are there?

    Args:
        db: An open database.
        wanted: What they must be; None asks nothing and leaves out what is archived.
        sort: One of SORTS, downwards with a leading minus; runs without the value come last. Empty puts those at
            work first, then the newest, and what waits in the queue of a sweep last.
        limit: Rows at most; None reads all.
        offset: Rows that earlier pages showed.

    Raises:
        ConfigError: If the search or the order is none.
    """
    rows, total = run_rows(db, wanted, sort=sort, limit=limit, offset=offset)
    return RunPage(_as_frame(_listed_columns(Dialect(db.dialect)), rows), total)


def run_rows(
    db: Database, wanted: RunFilter | None = None, *, sort: str = "", limit: int | None = 50, offset: int = 0
) -> tuple[list[dict[str, Any]], int]:
    """Which runs match, as `run_page` tells it, but each a dictionary of its columns?

    Raises:
        ConfigError: If the search or the order is none.
    """
    with db.read() as connection:
        dialect = _dialect(db, connection)
        matches = _conditions(wanted or RunFilter(), dialect)
        order = _order(sort, dialect)
        asked = select(Run.id, func.count().over().label("total")).where(*matches)  # one pass finds and counts
        rows = connection.execute(asked.order_by(*order).limit(limit).offset(offset or None)).all()
        total = rows[0].total if rows else 0
        if not rows and offset:
            total = connection.execute(select(func.count()).select_from(Run).where(*matches)).scalar_one()
        return _read(db, connection, [row.id for row in rows], dialect), total


def runs_by_id(db: Database, run_ids: Sequence[str]) -> pd.DataFrame:
    """What are these runs now, in this order? The columns of `run_page`; ids that are not there are left out."""
    dialect = Dialect(db.dialect)
    with db.read() as connection:
        return _as_frame(_listed_columns(dialect), _read(db, connection, run_ids, dialect))


def matching_ids(db: Database, wanted: RunFilter, *, sort: str = "", limit: int | None = None) -> list[str]:
    """Which runs match, as ids in the order of the pages?"""
    return list(run_names(db, wanted, sort=sort, limit=limit)[0])


def run_names(
    db: Database, wanted: RunFilter | None = None, *, sort: str = "-created", limit: int | None = 100
) -> tuple[dict[str, str], int]:
    """What are the runs called that match? Id → name of the first ones, and how many there are."""
    with db.read() as connection:
        dialect = _dialect(db, connection)
        matches = _conditions(wanted or RunFilter(), dialect)
        named = select(Run.id, Run.name).where(*matches).order_by(*_order(sort, dialect)).limit(limit)
        total = connection.execute(select(func.count()).select_from(Run).where(*matches)).scalar_one()
        return {row.id: row.name for row in connection.execute(named)}, total


def names_of(db: Database, prefixes: Sequence[str]) -> dict[str, str]:
    """What are the runs called whose ids start so, archived ones too? Id → name, newest first."""
    found: dict[str, Any] = {}
    with db.read() as connection:
        for some in in_parts(prefixes):
            part = [prefix.lower() for prefix in some]
            exact = connection.execute(_named.where(Run.id.in_(part))).all()
            rest = set(part) - {row.id for row in exact}
            starts = [Run.id.startswith(prefix, autoescape=True) for prefix in rest if prefix]
            found |= {row.id: row for row in exact}
            found |= {row.id: row for row in (connection.execute(_named.where(or_(*starts))) if starts else ())}
    newest = sorted(sorted(found), key=lambda run_id: found[run_id].created_at, reverse=True)
    return {run_id: found[run_id].name for run_id in newest}


def list_choices(db: Database, shelf: Shelf = "open") -> Choices:
    """What can runs be filtered by?"""
    with db.read() as connection:
        dialect = _dialect(db, connection)
        on_shelf = _on_shelf(shelf)
        each, preset = dialect.each_tag(), COLUMNS["preset"].make(dialect)
        columns = (dialect.status.label("status"), Run.env, Run.map, Run.algo, preset.label("preset"), func.count())
        grouped = select(*columns).where(on_shelf).group_by(*columns[:-1])
        rows = connection.execute(grouped).all()
        tagged = select(each.c.value).select_from(Run).join(each, true()).where(on_shelf).distinct()
        tags = sorted(connection.execute(tagged).scalars())
    statuses: Counter[str] = Counter()
    for row in rows:
        statuses[row.status] += row[-1]
    envs, maps, algos, presets = (sorted({str(row[place]) for row in rows} - {""}) for place in range(1, 5))
    return Choices(dict(statuses), envs, maps, algos, presets, [str(tag) for tag in tags])


def _dialect(db: Database, connection: Connection) -> Dialect:
    """Look which runs are lost: that follows from clocks and processes, not from rows alone."""
    owned = or_(Run.status.in_(("running", "paused")), and_(Run.status == "queued", Run.pid.is_not(None)))
    rows = connection.execute(select(*STATE_COLUMNS).where(owned)).all()
    return Dialect(db.dialect, [row.id for row in rows if observe(db, row)[0] == "lost"])


def _conditions(wanted: RunFilter, dialect: Dialect) -> list[Sql]:
    """Make the conditions of a filter; those that open the configuration stand last, for the fewest runs."""
    terms = [*parse_text(wanted.text), *map(parse_condition, wanted.where)]
    settings = [make_condition(term, dialect) for term in terms if term.key and term.key not in COLUMNS]
    listed = (
        (dialect.status, wanted.statuses),
        (Run.env, wanted.envs),
        (Run.map, wanted.maps),
        (Run.algo, wanted.algos),
    )
    conditions = [_on_shelf(wanted.shelf), *(column.in_(values) for column, values in listed if values)]
    conditions += [make_condition(term, dialect) for term in terms if not term.key or term.key in COLUMNS]
    if wanted.presets:
        settings.append(COLUMNS["preset"].make(dialect).in_(wanted.presets))
    if wanted.tags:
        each = dialect.each_tag()
        conditions.append(select(each).where(each.c.value.in_(wanted.tags)).exists())
    if wanted.ids is not None:
        conditions.append(Run.id.in_(wanted.ids))
    if wanted.evaluated:
        conditions.append(or_(Run.win_rate.is_not(None), Run.return_mean.is_not(None)))
    return conditions + settings


def _on_shelf(shelf: Shelf) -> Sql:
    if shelf == "all":
        return true()
    if shelf == "archived":
        return Run.archived_at.is_not(None)
    shown, hidden = Run.archived_at.is_(None), Run.hidden_at
    if shelf == "open":
        return shown
    return and_(shown, hidden.is_(None) if shelf == "drawn" else hidden.is_not(None))


def _duration(dialect: Dialect) -> Sql:
    return dialect.seconds_between(Run.started_at, func.coalesce(Run.ended_at, Run.heartbeat_at))


def _progress(_: Dialect) -> Sql:
    return cast(Run.env_steps, Double) / case((Run.target_steps > 0, Run.target_steps), else_=1)


def _gate_removed(_: Dialect) -> Sql:
    return type_coerce(Run.gate_removed, Double)


def _created(_: Dialect) -> Sql:
    return type_coerce(Run.created_at, String)


SORTS: Final[dict[str, Callable[[Dialect], Sql]]] = {
    **{name: COLUMNS[name].make for name in ("status", "name", "algo", "env", "map", "preset", "seed")},
    "progress": _progress,
    **{name: COLUMNS[name].make for name in ("env_steps", "target_steps", "win_rate", "return", "mu_w")},
    "gate": _gate_removed,
    "duration": _duration,
    "created": _created,
    "id": COLUMNS["id"].make,
}
"""What runs can be sorted by. The gate is sorted by the share of the incentive that it removed."""


def _order(sort: str, dialect: Dialect) -> list[SQLColumnExpression[Any]]:
    newest: list[SQLColumnExpression[Any]] = [Run.created_at.desc(), Run.id]
    if sort in ("", "-created"):  # the latter from an index
        return newest if sort else [_urgency(dialect), *newest]
    make = SORTS.get(sort.removeprefix("-"))
    if make is None:
        rule = f"must be one of {', '.join(SORTS)}, with a leading - for descending"
        raise ConfigError(rule, key="sort", value=sort)
    value = make(dialect)
    return [value.is_(None), value.desc() if sort.startswith("-") else value, *newest]


def _urgency(dialect: Dialect) -> Sql:
    """Put what is at work first and what waits for its turn in a sweep last, however many they are."""
    waits = and_(Run.status == "queued", Run.pid.is_(None), Run.sweep_id.is_not(None))
    at_work = dialect.status.in_(("queued", "running", "paused"))
    return case((waits, _WAITING), (at_work, _AT_WORK), else_=1)


def _read_plugins(text: object) -> dict[str, dict[str, str]] | None:
    """What a run's settings say of plug-ins; a foreign file may say anything."""
    try:
        stored = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(stored, dict):
        return None
    return {
        kind: {str(n): str(o) for n, o in named.items()} for kind, named in stored.items() if isinstance(named, dict)
    }


def _listed_columns(dialect: Dialect) -> Statement:
    preset = COLUMNS["preset"].make(dialect).label("preset")
    return select(*LISTED, preset, dialect.text_of("plugins").label("plugins"))


def _read(db: Database, connection: Connection, run_ids: Sequence[str], dialect: Dialect) -> list[dict[str, Any]]:
    """Read runs in the order of their ids."""
    listed = _listed_columns(dialect)
    parts = (listed.where(Run.id.in_(part)) for part in in_parts(run_ids))
    found = {row["id"]: row for statement in parts for row in _read_rows(db, connection, statement)}
    for row in found.values():
        row["plugins"] = _read_plugins(row["plugins"])
    return [found[run_id] for run_id in dict.fromkeys(run_ids) if run_id in found]
