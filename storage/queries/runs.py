"""Which runs match a search, and which values do the lists of runs show?

The database does the search, the filters, the sort order and the paging.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from sqlalchemy import (
    Column,
    Connection,
    SQLColumnExpression,
    String,
    and_,
    case,
    cast,
    func,
    or_,
    select,
    true,
    type_coerce,
)
from sqlalchemy.types import Double

from emtc_core.errors import ConfigError
from storage.column_types import get_inner_type, get_use, name_type
from storage.engine import Database
from storage.frames import FrameField, Statement, in_parts, make_frame, read_frame
from storage.models import RUN_TABLE_COLUMNS, Resume, Run
from storage.queries.gate import name_gate
from storage.queries.search_terms import SEARCH_KEYS, SearchContext, Sql, make_condition, parse_condition, parse_text
from storage.runs import lifecycle
from storage.runs.rows import RUN_COLUMNS, STATE_COLUMNS, STOP_ASKED_AT, RunRow, make_run_row, observe
from storage.runs.training_time import measure_training_s

if TYPE_CHECKING:  # commands that list runs need no frame, and pandas takes longer to load than everything else
    import pandas as pd

Shelf = Literal["open", "drawn", "hidden", "archived", "all"]
"""Which runs a list shows: `open` are not archived; `drawn`, which charts draw, are neither archived nor hidden.

`hidden` are hidden but not archived.
"""

_DERIVED = ("gate", "state", "stall")
"""Columns that are not stored but computed for each row."""
_STATUS_SOURCES = frozenset({*(column.name for column in STATE_COLUMNS), "gate_removed"})
"""Names of the columns from which the live status and _DERIVED are computed."""
_LISTED = frozenset(column.name for column in RUN_TABLE_COLUMNS if get_use(column).is_listed)
_NOT_RETURNED = _STATUS_SOURCES - _LISTED
LISTED_COLUMNS: Final = (
    *(column for column in RUN_TABLE_COLUMNS if column.name in _LISTED | _STATUS_SOURCES),
    STOP_ASKED_AT,
)
"""The columns that `read_listed` needs."""
_ID_AND_NAME = select(Run.id, Run.name, Run.created_at)


def list_runs(db: Database, limit: int | None = 200) -> pd.DataFrame:
    """Which runs were created last?

    Source: table `runs`.

    Args:
        db: An open database.
        limit: Maximum number of rows; None reads all.

    Returns:
        One row per run, newest first, with the columns of `runs` except long ones, tokens and those of the trainer's
        process: id, name, env, map, algo, seed, status (live: may be `lost`), …; units as in `models.py` [unit varies].
        Then gate (`active`, `idle` or None), state (a finer status, see `lifecycle.State`) and stall (why the recorder
        waits).
    """
    statement = select(*LISTED_COLUMNS).order_by(Run.created_at.desc(), Run.id).limit(limit)
    with db.read() as connection:
        return read_listed(db, connection, statement)


def read_listed(db: Database, connection: Connection, statement: Statement) -> pd.DataFrame:
    """Read a SELECT of LISTED_COLUMNS into the frame that `list_runs` describes.

    Source: table `runs`.

    Args:
        db: An open database.
        connection: A connection of `db`.
        statement: A SELECT of LISTED_COLUMNS.

    Returns:
        One row per run, in the statement's order; units as in `models.py` [unit varies].
    """
    return _make_frame(statement, _read_rows(db, connection, statement))


def _make_frame(statement: Statement, rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    columns = [column for column in statement.selected_columns if column.name not in _NOT_RETURNED]
    fields = [FrameField(column.name, get_inner_type(column.type)) for column in columns]
    return make_frame(
        [*fields, *(FrameField(name, String()) for name in _DERIVED)], [tuple(row.values()) for row in rows]
    )


def _read_rows(db: Database, connection: Connection, statement: Statement) -> list[dict[str, Any]]:
    """Read a SELECT of LISTED_COLUMNS. Replace the stored status by the live one, and add the columns of _DERIVED."""
    rows: list[dict[str, Any]] = []
    row: Any
    for row in connection.execute(statement):
        status, state, stall = row.status, row.status, None
        if row.status in ("queued", "running", "paused"):
            status, stall = observe(db, row)
            state = lifecycle.refine(row, status).value
        columns = {name: value for name, value in row._mapping.items() if name not in _NOT_RETURNED}
        rows.append(columns | {"status": status, "gate": name_gate(row.gate_removed), "state": state, "stall": stall})
    return rows


def run_configs(db: Database, run_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """How are these runs configured? Run id → configuration, without ids that do not exist."""
    configs: dict[str, dict[str, Any]] = {}
    with db.read() as connection:
        for part in in_parts(run_ids):
            statement = select(Run.id, Run.config).where(Run.id.in_(part))
            configs |= {row.id: row.config for row in connection.execute(statement)}
    return configs


def list_resumes(db: Database, run_id: str) -> pd.DataFrame:
    """Where was this run resumed?

    Source: table `resumes`.

    Args:
        db: An open database.
        run_id: The run.

    Returns:
        One row per resume: env_step (of the checkpoint) [env steps], reached_env_step (before the resume) [env steps],
        resumed_at [UTC], episodes, checkpoint, passed_over (why newer checkpoints were not loaded). The episodes
        between the two env steps were deleted and trained again. `episodes` is their number; it is missing for resumes
        before schema 0003.
    """
    columns = (
        *(Resume.env_step, Resume.reached_env_step, Resume.resumed_at),
        *(Resume.episodes, Resume.checkpoint, Resume.passed_over),
    )
    with db.read() as connection:
        return read_frame(connection, select(*columns).where(Resume.run_id == run_id).order_by(Resume.id))


def get_rows(db: Database, run_ids: Sequence[str]) -> list[RunRow]:
    """What is stored about these runs? In the order of the ids, without ids that do not exist."""
    rows: dict[str, RunRow] = {}
    with db.read() as connection:
        for part in in_parts(run_ids):
            statement = select(*RUN_COLUMNS).where(Run.id.in_(part))
            rows |= {row.id: make_run_row(db, row) for row in connection.execute(statement).all()}
    return [rows[run_id] for run_id in dict.fromkeys(run_ids) if run_id in rows]


def list_speeds(db: Database, *, env: str, map: str, algo: str, host: str, limit: int = 20) -> list[tuple[str, float]]:
    """How fast did finished runs of an environment and algorithm train on a machine?

    A resumed run is left out, because the time in which it did not train is not recorded.

    Args:
        db: An open database.
        env: Name of the environment.
        map: The runs of this map are listed first, then the newest.
        algo: Name of the algorithm.
        host: Name of the machine.
        limit: Maximum number of runs.

    Returns:
        Map and speed [env steps/s] of each run.
    """
    is_resumed = select(Resume.id).where(Resume.run_id == Run.id).exists()
    is_comparable = (Run.env == env, Run.algo == algo, Run.host == host, Run.status == "finished", ~is_resumed)
    columns = (Run.id, Run.map, Run.env_steps, Run.started_at, Run.ended_at, Run.heartbeat_at)
    newest = select(*columns).where(*is_comparable, Run.env_steps > 0).order_by(Run.map != map, Run.created_at.desc())
    with db.read() as connection:
        rows = connection.execute(newest.limit(limit)).all()
        seconds = measure_training_s(connection, rows)
    return [(row.map, row.env_steps / seconds[row.id]) for row in rows if seconds.get(row.id)]


@dataclass(frozen=True)
class RunFilter:
    """Conditions on the listed runs. All of them must be true.

    `statuses`, `envs`, `maps`, `algos`, `presets` and `tags`: an empty tuple allows every value. Otherwise the run must
    have one of the values.
    """

    text: str = ""
    """Words and comparisons of a search; see `search_terms`."""
    where: tuple[str, ...] = ()
    """Comparisons that must all be true, such as `gate.enabled=false`."""
    statuses: tuple[str, ...] = ()
    envs: tuple[str, ...] = ()
    maps: tuple[str, ...] = ()
    algos: tuple[str, ...] = ()
    presets: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    shelf: Shelf = "open"
    ids: tuple[str, ...] | None = None
    """List only these runs."""
    evaluated: bool = False
    """List only runs with at least one evaluation."""


@dataclass(frozen=True)
class RunPage:
    """One page of runs.

    Source: table `runs`.
    """

    frame: pd.DataFrame
    """One row per run; units as in `models.py` [unit varies]. The columns are those of `list_runs`, preset and plugins.

    A value of `plugins` is a dictionary kind → name → origin of the plug-ins that the run uses, or None.
    """
    total: int
    """Number of matching runs on all pages."""


@dataclass(frozen=True)
class FilterOptions:
    """The values that the filters of a list of runs offer."""

    statuses: dict[str, int]
    """Live status → number of runs."""
    envs: list[str]
    maps: list[str]
    algos: list[str]
    presets: list[str]
    tags: list[str]

    @property
    def total(self) -> int:
        """Number of runs."""
        return sum(self.statuses.values())


def run_page(
    db: Database, run_filter: RunFilter | None = None, *, sort: str = "", limit: int | None = 50, offset: int = 0
) -> RunPage:
    """Which runs match a filter? Return one page of them and the total number.

    Args:
        db: An open database.
        run_filter: The conditions; None lists all runs that are not archived.
        sort: A key of SORTS; a leading minus sorts in descending order. Runs without the value come last. If empty,
            active runs come first, then queued runs of sweeps, then ended runs; newer runs come before older ones.
        limit: Maximum number of rows; None reads all.
        offset: Number of rows on earlier pages.

    Raises:
        ConfigError: If the search is invalid or SORTS does not have the sort key.
    """
    rows, total = run_rows(db, run_filter, sort=sort, limit=limit, offset=offset)
    return RunPage(_make_frame(_select_page(SearchContext(db.dialect)), rows), total)


def run_rows(
    db: Database, run_filter: RunFilter | None = None, *, sort: str = "", limit: int | None = 50, offset: int = 0
) -> tuple[list[dict[str, Any]], int]:
    """Which runs match a filter? Return a page as dictionaries, and the total number.

    Args:
        db: An open database.
        run_filter: The filter; None: all runs that are not archived.
        sort: As in `run_page`.
        limit: Maximum number of rows; None: all.
        offset: Number of matching runs before the page.

    Raises:
        ConfigError: If the search is invalid or SORTS does not have the sort key.
    """
    with db.read() as connection:
        context = _make_context(db, connection)
        conditions = _make_conditions(run_filter or RunFilter(), context)
        ids = select(Run.id, func.count().over().label("total")).where(*conditions)  # one pass selects and counts
        rows = connection.execute(ids.order_by(*_make_order(sort, context)).limit(limit).offset(offset or None)).all()
        total = rows[0].total if rows else 0
        if not rows and offset:
            total = connection.execute(select(func.count()).select_from(Run).where(*conditions)).scalar_one()
        return _read_page(db, connection, [row.id for row in rows], context), total


def runs_by_id(db: Database, run_ids: Sequence[str]) -> pd.DataFrame:
    """Which values do the lists of runs show for these runs now?

    Source: table `runs`.

    Args:
        db: An open database.
        run_ids: The runs. Unknown ids are skipped.

    Returns:
        One row per run, in the order of the ids, with the columns of `run_page`; units as in `models.py` [unit varies].
    """
    context = SearchContext(db.dialect)
    with db.read() as connection:
        return _make_frame(_select_page(context), _read_page(db, connection, run_ids, context))


def matching_ids(db: Database, run_filter: RunFilter, *, sort: str = "", limit: int | None = None) -> list[str]:
    """Which runs match a filter? Their ids in the order of `run_page`.

    Args:
        db: An open database.
        run_filter: The filter.
        sort: As in `run_page`.
        limit: Maximum number of ids; None: all.

    Raises:
        ConfigError: If the search is invalid or SORTS does not have the sort key.
    """
    return list(run_names(db, run_filter, sort=sort, limit=limit)[0])


def run_names(
    db: Database, run_filter: RunFilter | None = None, *, sort: str = "-created", limit: int | None = 100
) -> tuple[dict[str, str], int]:
    """What are the names of the matching runs? Id → name, and the number of all matching runs.

    Args:
        db: An open database.
        run_filter: The filter; None: all runs that are not archived.
        sort: As in `run_page`.
        limit: Maximum number of names; None: all.

    Raises:
        ConfigError: If the search is invalid or SORTS does not have the sort key.
    """
    with db.read() as connection:
        context = _make_context(db, connection)
        conditions = _make_conditions(run_filter or RunFilter(), context)
        names = select(Run.id, Run.name).where(*conditions).order_by(*_make_order(sort, context)).limit(limit)
        total = connection.execute(select(func.count()).select_from(Run).where(*conditions)).scalar_one()
        return {row.id: row.name for row in connection.execute(names)}, total


def find_run_names(db: Database, prefixes: Sequence[str]) -> dict[str, str]:
    """What are the names of the runs whose ids start with one of these prefixes? Id → name, newest first.

    Archived runs are included. A prefix that is a complete id matches only that run.
    """
    runs: dict[str, Any] = {}
    with db.read() as connection:
        for part in in_parts(prefixes):
            ids = [prefix.lower() for prefix in part]
            exact = connection.execute(_ID_AND_NAME.where(Run.id.in_(ids))).all()
            runs |= {row.id: row for row in exact}
            others = set(ids) - {row.id for row in exact}
            starts = [Run.id.startswith(prefix, autoescape=True) for prefix in others if prefix]
            if starts:
                runs |= {row.id: row for row in connection.execute(_ID_AND_NAME.where(or_(*starts)))}
    newest = sorted(sorted(runs), key=lambda run_id: runs[run_id].created_at, reverse=True)
    return {run_id: runs[run_id].name for run_id in newest}


def list_filter_options(db: Database, shelf: Shelf = "open") -> FilterOptions:
    """Which values do the filters offer for the runs of this `Shelf`?"""
    with db.read() as connection:
        context = _make_context(db, connection)
        condition = _make_shelf_condition(shelf)
        preset = SEARCH_KEYS["preset"].make_sql(context).label("preset")
        columns = (context.status.label("status"), Run.env, Run.map, Run.algo, preset, func.count())
        rows = connection.execute(select(*columns).where(condition).group_by(*columns[:-1])).all()
        tags_table = context.tags_table()
        tags = select(tags_table.c.value).select_from(Run).join(tags_table, true()).where(condition).distinct()
        tag_list = sorted(connection.execute(tags).scalars())
    statuses: Counter[str] = Counter()
    for row in rows:
        statuses[row.status] += row[-1]
    envs, maps, algos, presets = (sorted({str(row[column]) for row in rows} - {""}) for column in range(1, 5))
    return FilterOptions(dict(statuses), envs, maps, algos, presets, [str(tag) for tag in tag_list])


def _make_context(db: Database, connection: Connection) -> SearchContext:
    """Make the context of a search, with the ids of the lost runs: SQL cannot check clocks and processes."""
    owned = or_(Run.status.in_(("running", "paused")), and_(Run.status == "queued", Run.pid.is_not(None)))
    rows = connection.execute(select(*STATE_COLUMNS).where(owned)).all()
    return SearchContext(db.dialect, [row.id for row in rows if observe(db, row)[0] == "lost"])


def _make_conditions(run_filter: RunFilter, context: SearchContext) -> list[Sql]:
    """Make the SQL conditions of a filter. Those that parse the configuration are last, so that few runs need it."""
    terms = [*parse_text(run_filter.text), *map(parse_condition, run_filter.where)]
    config_conditions = [make_condition(term, context) for term in terms if term.key and term.key not in SEARCH_KEYS]
    choices = (
        (context.status, run_filter.statuses),
        (Run.env, run_filter.envs),
        (Run.map, run_filter.maps),
        (Run.algo, run_filter.algos),
    )
    conditions = [
        _make_shelf_condition(run_filter.shelf),
        *(column.in_(values) for column, values in choices if values),
    ]
    conditions += [make_condition(term, context) for term in terms if not term.key or term.key in SEARCH_KEYS]
    if run_filter.presets:
        config_conditions.append(SEARCH_KEYS["preset"].make_sql(context).in_(run_filter.presets))
    if run_filter.tags:
        tags = context.tags_table()
        conditions.append(select(tags).where(tags.c.value.in_(run_filter.tags)).exists())
    if run_filter.ids is not None:
        conditions.append(Run.id.in_(run_filter.ids))
    if run_filter.evaluated:
        conditions.append(or_(Run.win_rate.is_not(None), Run.return_mean.is_not(None)))
    return conditions + config_conditions


def _make_shelf_condition(shelf: Shelf) -> Sql:
    if shelf == "all":
        return true()
    if shelf == "archived":
        return Run.archived_at.is_not(None)
    open_runs = Run.archived_at.is_(None)
    if shelf == "open":
        return open_runs
    return and_(open_runs, Run.hidden_at.is_(None) if shelf == "drawn" else Run.hidden_at.is_not(None))


@dataclass(frozen=True)
class Sort:
    """An order of runs. `make_sql` returns the value to sort by as an SQL expression for a context."""

    label: str
    make_sql: Callable[[SearchContext], Sql]


@dataclass(frozen=True)
class HomeColumn:
    """A column of `runs` that the table of runs on Home shows."""

    label: str
    kind: str
    """Its type, as `column_types.name_type` names it."""
    meaning: str


def _sort_by(column: Column[Any]) -> Sort:
    use = get_use(column)
    return Sort(use.label or column.name, lambda _: column)


SORTS: Final[dict[str, Sort]] = {
    "status": Sort("Status", SEARCH_KEYS["status"].make_sql),
    **{get_use(column).sort: _sort_by(column) for column in RUN_TABLE_COLUMNS if get_use(column).sort},
    "preset": Sort("Preset", SEARCH_KEYS["preset"].make_sql),
    "progress": Sort(
        "Progress", lambda _: cast(Run.env_steps, Double) / case((Run.target_steps > 0, Run.target_steps), else_=1)
    ),
    "gate": Sort("Gate", lambda _: type_coerce(Run.gate_removed, Double)),
    "duration": Sort(
        "Duration",
        lambda context: context.seconds_between(Run.started_at, func.coalesce(Run.ended_at, Run.heartbeat_at)),
    ),
}
"""The sort keys of runs. `gate` sorts by the fraction of the incentive that the gate removed."""
HOME_COLUMNS: Final = {
    column.name: HomeColumn(get_use(column).label or column.name, name_type(column), column.doc or "")
    for column in RUN_TABLE_COLUMNS
    if get_use(column).on_home
}
"""The columns of `runs` that the table of runs on Home shows, by name."""


def _make_order(sort: str, context: SearchContext) -> list[SQLColumnExpression[Any]]:
    newest: list[SQLColumnExpression[Any]] = [Run.created_at.desc(), Run.id]
    if sort == "-created":  # answered from an index
        return newest
    if not sort:
        in_sweep_queue = and_(Run.status == "queued", Run.pid.is_(None), Run.sweep_id.is_not(None))
        active = context.status.in_(("queued", "running", "paused"))
        return [case((in_sweep_queue, 1), (active, 0), else_=2), *newest]
    order = SORTS.get(sort.removeprefix("-"))
    if order is None:
        rule = f"must be one of {', '.join(SORTS)}, with a leading - for descending order"
        raise ConfigError(rule, key="sort", value=sort)
    value = order.make_sql(context)
    return [value.is_(None), value.desc() if sort.startswith("-") else value, *newest]


def _parse_plugins(text: object) -> dict[str, dict[str, str]] | None:
    """Parse the plug-ins in a run's configuration. In a database of another program any value is possible."""
    try:
        stored = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(stored, dict):
        return None
    return {
        kind: {str(name): str(origin) for name, origin in names.items()}
        for kind, names in stored.items()
        if isinstance(names, dict)
    }


def _select_page(context: SearchContext) -> Statement:
    preset = SEARCH_KEYS["preset"].make_sql(context).label("preset")
    return select(*LISTED_COLUMNS, preset, context.text_of("plugins").label("plugins"))


def _read_page(
    db: Database, connection: Connection, run_ids: Sequence[str], context: SearchContext
) -> list[dict[str, Any]]:
    """Read runs in the order of their ids."""
    page = _select_page(context)
    statements = (page.where(Run.id.in_(part)) for part in in_parts(run_ids))
    rows = {row["id"]: row for statement in statements for row in _read_rows(db, connection, statement)}
    for row in rows.values():
        row["plugins"] = _parse_plugins(row["plugins"])
    return [rows[run_id] for run_id in dict.fromkeys(run_ids) if run_id in rows]
