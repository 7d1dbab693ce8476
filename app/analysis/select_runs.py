"""Which runs? Named ones, or every run there is, on some maps and of some algorithms."""

from collections.abc import Collection, Sequence

from storage.engine import Database
from storage.queries.run_table import RunFilter, matching_ids
from storage.queries.runs import get_rows
from storage.runs.rows import RunRow, find_run


def select_runs(
    db: Database,
    names: Sequence[str] | None = None,
    *,
    maps: Collection[str] | None = None,
    algos: Collection[str] | None = None,
) -> list[RunRow]:
    """Find the named runs in their order, or every evaluated one, newest first; whether one counts is not asked here.

    Hidden and archived runs are found by name alone.

    Raises:
        RunNotFoundError: If a name is no run's id or its beginning.
    """
    if names:
        rows = [find_run(db, name) for name in dict.fromkeys(names)]
        rows = list({row.id: row for row in rows}.values())
    else:
        drawn = RunFilter(shelf="drawn", evaluated=True)
        rows = get_rows(db, matching_ids(db, drawn, sort="-created"))
    return [row for row in rows if (not maps or row.map in maps) and (not algos or row.algo in algos)]
