"""Arguments and options that several commands share, and the selection of the runs that a command was given."""

from collections.abc import Iterable, Sequence
from typing import Annotated, TypeVar

import typer

from app.analysis.format import format_run_count
from emtc_core.errors import ConfigError
from storage.address import DEFAULT_DATABASE as DEFAULT_DATABASE  # commands import it from here
from storage.address import as_address, sqlite_address
from storage.engine import Database
from storage.queries.run_search import RunFilter, Visibility, matching_ids
from storage.runs.rows import RunRow, find_run

Choice = TypeVar("Choice", bound=str)
"""Type of the allowed values of an option, such as a Literal type."""
_MAX_LISTED = 3
"""Maximum number of runs that an error message lists."""


def parse_step_count(text: str, option: str = "--steps") -> int:
    """Parse a number of env steps: 20000, 20k, 1e6 or 0.8M. `parse_count` does it and is imported at the first call.

    Raises:
        ConfigError: If it is not a whole number.
    """
    from emtc_core.config.values import parse_count  # imported here, because pydantic is slow to import

    return parse_count(text, option)


DatabaseUrl = Annotated[
    str,
    typer.Option(
        "--db",
        envvar="EMTC_DB",
        callback=as_address,
        help="SQLite file or database URL. Set a URL with a password as EMTC_DB instead",
    ),
]
DatabaseFile = Annotated[
    str | None, typer.Argument(metavar="[FILE]", help="SQLite file or database URL, instead of --db")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON value on stdout")]
Runs = Annotated[list[str] | None, typer.Argument(metavar="RUN…", help="Run ids or unambiguous beginnings of them")]
# The command gets a run id or the start of one, or no argument if --where selects one run.
RunPrefix = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="Run id or an unambiguous beginning of one, or --where with one matching run"),
]
# KEY is a setting, or a search key of runs (`storage.queries.search_terms.SEARCH_KEYS`), such as win_rate.
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="KEY=VALUE",
        help="Only runs with this setting (gate.enabled=false) or column (win_rate>0.8); signs: = != < <= > >=; may be "
        "repeated, all must be true",
    ),
]
Steps = Annotated[
    int | None,
    typer.Option(
        "--steps", metavar="STEPS", parser=parse_step_count, help="Training length [env steps], such as 20k or 1e6"
    ),
]


def database_url(file: str | None, db: str) -> str:
    """Return the URL of a file or URL argument, or that of --db if there is none."""
    if file is None:
        return db
    return file if "://" in file else sqlite_address(file)


def check_choice(option: str, given: str, allowed: Iterable[Choice]) -> Choice:
    """Return the allowed value that equals `given`, so that a type checker gets the type of the allowed values.

    Raises:
        BadParameter: If the value is not allowed.
    """
    choices = list(allowed)
    for choice in choices:
        if given == choice:
            return choice
    raise typer.BadParameter(f"--{option} must be one of {', '.join(choices)}, got {given!r}.")


def choose_runs(
    database: Database,
    prefixes: Sequence[str] | None,
    where: Sequence[str] | None,
    *,
    visibility: Visibility = "open",
) -> list[str]:
    """Return the ids of the runs that a command was given, without duplicates.

    Args:
        database: An open database.
        prefixes: Beginnings of ids. None or empty: all runs of this visibility for which `where` is true.
        where: Conditions that each run must meet.
        visibility: The runs that `where` searches if no id is given. "open": all runs that are not archived. The other
            values are listed at `Visibility`.

    Raises:
        RunNotFoundError: If no run, or more than one run, matches a prefix.
        ConfigError: If neither ids nor conditions are given, a condition is invalid, or no run meets them.
    """
    ids = tuple(dict.fromkeys(find_run(database, prefix).id for prefix in prefixes or ()))
    if not where:
        if not ids:
            raise ConfigError("Name at least one run, or --where KEY=VALUE", hint="List the runs with: emtc runs")
        return list(ids)
    run_filter = RunFilter(where=tuple(where), visibility="all" if ids else visibility, ids=ids or None)
    matching = matching_ids(database, run_filter)
    if not matching:
        raise ConfigError(f"No run matches {' and '.join(where)}", hint="List the runs with: emtc runs")
    if ids:
        return [run_id for run_id in ids if run_id in matching]
    return matching


def choose_run(database: Database, prefix: str | None, where: Sequence[str] | None) -> RunRow:
    """Return the only run that a command was given.

    Args:
        database: An open database.
        prefix: Beginning of its id, or None if `where` selects it.
        where: Conditions that the run must meet.

    Raises:
        RunNotFoundError: If no run, or more than one run, matches the prefix.
        ConfigError: If neither is given, a condition is invalid, or not exactly one run meets them.
    """
    if prefix is None and not where:
        raise ConfigError("Name a run, or --where KEY=VALUE", hint="List the runs with: emtc runs")
    prefixes = None if prefix is None else [prefix]
    ids = choose_runs(database, prefixes, where)
    check_run_count(ids, where, 1)
    return find_run(database, ids[0])


def check_run_count(run_ids: Sequence[str], where: Sequence[str] | None, count: int) -> None:
    """Check that a command was given exactly this number of runs.

    Raises:
        ConfigError: If it was given fewer or more.
    """
    if len(run_ids) == count:
        return
    listed = ", ".join(run_ids[:_MAX_LISTED])
    if len(run_ids) > _MAX_LISTED:
        listed += f" and {len(run_ids) - _MAX_LISTED} more"
    given = format_run_count(len(run_ids))
    reason = f"{' and '.join(where)} selects {given}" if where else f"got {given}"
    raise ConfigError(
        f"This command takes {format_run_count(count)}, but {reason}: {listed}",
        hint="List the runs with: emtc runs",
    )
