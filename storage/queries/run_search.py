"""Which runs match a search, and which values do the lists of runs show?

The database does the search, the filters, the sort order and the paging.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from sqlalchemy import (
    Column,
    Connection,
    SQLColumnExpression,
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
from storage.column_types import get_use, name_type
from storage.engine import Database
from storage.frames import Statement, in_parts
from storage.models import RUN_TABLE_COLUMNS, Run
from storage.queries.final_rates import FINAL_RATE_LABEL, select_final_rate, select_final_rate_episodes
from storage.queries.runs import LISTED_COLUMNS, make_listed_frame, read_listed_rows
from storage.queries.search_terms import SEARCH_KEYS, SearchContext, Sql, make_condition, parse_condition, parse_text
from storage.runs.rows import read_live_status
from storage.runs.status import STATUS_COLUMNS, read_clock

if TYPE_CHECKING:  # commands that list runs need no frame, and pandas takes longer to load than everything else
    import pandas as pd

Visibility = Literal["open", "drawn", "hidden", "archived", "all"]
"""Which runs a list shows: `open` are not archived; `drawn`, which charts draw, are neither archived nor hidden.

`hidden` are hidden but not archived.
"""


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
    "final_rate": Sort(FINAL_RATE_LABEL, SEARCH_KEYS["final_rate"].make_sql),
    "preset": Sort("Preset", SEARCH_KEYS["preset"].make_sql),
    "progress": Sort(
        "Progress", lambda _: cast(Run.env_steps, Double) / case((Run.target_steps > 0, Run.target_steps), else_=1)
    ),
    "gate": Sort("Gate", lambda _: type_coerce(Run.gate_removed, Double)),
    "duration": Sort(
        "Duration with pauses",
        lambda context: context.seconds_between(Run.started_at, func.coalesce(Run.ended_at, Run.heartbeat_at)),
    ),
}
"""The sort keys of runs. `gate` sorts by the fraction of the incentive that the gate removed."""
TABLE_COLUMNS: Final = (
    *("id", "name", "env", "map", "algo", "seed", "status", "env_steps", "target_steps", "win_rate", "device"),
)
"""The columns of `emtc runs` and of `emtc export --table runs`."""
HOME_COLUMNS: Final = {
    column.name: HomeColumn(get_use(column).label or column.name, name_type(column), column.doc or "")
    for column in RUN_TABLE_COLUMNS
    if get_use(column).on_home
}
"""The columns of `runs` that the table of runs on Home shows, by name."""


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
    visibility: Visibility = "open"
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
    """One row per run; units as in `models.py` [unit varies]. The columns are those of `list_runs`, then
    final_rate (fraction), final_rate_episodes (robust or greedy; see `final_rates`), and preset."""
    total: int
    """Number of matching runs on all pages."""


@dataclass(frozen=True)
class FilterOptions:
    """The values that the filters of a list of runs offer."""

    statuses: dict[str, int]
    """Status → number of runs."""
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
    return RunPage(make_listed_frame(_select_page(SearchContext(db.dialect)), rows), total)


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
        return make_listed_frame(_select_page(context), _read_page(db, connection, run_ids, context))


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


def list_filter_options(db: Database, visibility: Visibility = "open") -> FilterOptions:
    """Which values do the filters offer for the runs of this `Visibility`?"""
    with db.read() as connection:
        context = _make_context(db, connection)
        condition = _make_visibility_condition(visibility)
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
    """Make the context of a search, with the runs whose status differs from the stored one."""
    has_owner = or_(Run.status.in_(("running", "paused")), and_(Run.status == "queued", Run.owner_token.is_not(None)))
    rows = connection.execute(select(*STATUS_COLUMNS).where(has_owner)).all()
    now = read_clock(connection)
    changed: defaultdict[str, list[str]] = defaultdict(list)
    for row in rows:
        live_status, _ = read_live_status(db, row, now)
        if live_status != row.status:
            changed[live_status].append(row.id)
    return SearchContext(db.dialect, changed)


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
        _make_visibility_condition(run_filter.visibility),
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


def _make_visibility_condition(visibility: Visibility) -> Sql:
    if visibility == "all":
        return true()
    if visibility == "archived":
        return Run.archived_at.is_not(None)
    open_runs = Run.archived_at.is_(None)
    if visibility == "open":
        return open_runs
    return and_(open_runs, Run.hidden_at.is_(None) if visibility == "drawn" else Run.hidden_at.is_not(None))


def _make_order(sort: str, context: SearchContext) -> list[SQLColumnExpression[Any]]:
    newest: list[SQLColumnExpression[Any]] = [Run.created_at.desc(), Run.id]
    if sort == "-created":  # answered from an index
        return newest
    if not sort:
        in_sweep_queue = and_(Run.status == "queued", Run.owner_token.is_(None), Run.sweep_id.is_not(None))
        active = context.status.in_(("queued", "starting", "running", "paused", "stopping"))
        return [case((in_sweep_queue, 1), (active, 0), else_=2), *newest]
    order = SORTS.get(sort.removeprefix("-"))
    if order is None:
        rule = f"must be one of {', '.join(SORTS)}, with a leading - for descending order"
        raise ConfigError(rule, key="sort", value=sort)
    value = order.make_sql(context)
    return [(value.desc() if sort.startswith("-") else value.asc()).nulls_last(), *newest]


def _select_page(context: SearchContext) -> Statement:
    computed = (
        select_final_rate().label("final_rate"),
        select_final_rate_episodes().label("final_rate_episodes"),
        SEARCH_KEYS["preset"].make_sql(context).label("preset"),
    )
    return select(*LISTED_COLUMNS, *computed)


def _read_page(
    db: Database, connection: Connection, run_ids: Sequence[str], context: SearchContext
) -> list[dict[str, Any]]:
    """Read runs in the order of their ids."""
    page = _select_page(context)
    statements = (page.where(Run.id.in_(part)) for part in in_parts(run_ids))
    rows = {row["id"]: row for statement in statements for row in read_listed_rows(db, connection, statement)}
    return [rows[run_id] for run_id in dict.fromkeys(run_ids) if run_id in rows]
