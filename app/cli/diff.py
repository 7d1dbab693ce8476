"""`emtc diff`: the settings, versions and results in which two runs differ."""

from typing import Annotated, Any, Final

import typer

from app.analysis.curves import digest_evaluations
from app.analysis.format import format_count
from app.analysis.settings import write_value
from app.cli.arguments import DEFAULT_DATABASE, AsJson, DatabaseUrl, Where, check_run_count, choose_runs
from app.cli.output import print_json, print_message, print_table
from emtc_core.config.resolve import flatten_tree
from storage.engine import open_database
from storage.queries.curves import evaluation_curves
from storage.runs.rows import RunRow, find_run

_RESULTS: Final = ("status", "env_steps", "win_rate", "mu_w", "return_mean", "gate_removed")
"""Columns of a run. mu_w: μ̄_w, the mean of the greedy win rate over env steps. gate_removed: fraction of the incentive
that the gate removed.
"""
_LENGTH_TOLERANCE: Final = 0.01
"""Lengths count as equal up to this relative difference.

A run ends at the end of an episode, so runs of the same planned length differ by a few steps.
"""
_PARTS: Final = {"settings": "setting", "versions": "version", "results": "result"}
"""Part of the comparison → its name in the singular, for the rows of the table."""


def diff(
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="RUN RUN", help="Run ids or unambiguous beginnings of them")
    ] = None,
    where: Where = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """Compare two runs: algorithm, settings, versions and results that differ."""
    database = open_database(db, read_only=True)
    run_ids = choose_runs(database, runs, where)
    check_run_count(run_ids, where, 2)
    rows = [find_run(database, run_id) for run_id in run_ids]
    first, second = [_describe(row) for row in rows]
    differences = {part: _find_differences(first[part], second[part]) for part in _PARTS}
    digests = digest_evaluations(evaluation_curves(database, run_ids))  # run → hash of all of its evaluations
    first_digest, second_digest = [digests.get(run_id) for run_id in run_ids]
    is_identical = first_digest is not None and first_digest == second_digest
    if json:
        print_json({"runs": run_ids, **differences, "identical_evaluations": is_identical})
        return
    table = []
    for part, name in _PARTS.items():
        for key, (first_value, second_value) in differences[part].items():
            texts = {run_ids[0]: _write(first_value), run_ids[1]: _write(second_value)}
            table.append({"part": name, "key": key, **texts})
    print_table(table, title=f"Runs {run_ids[0]} and {run_ids[1]}", empty="These runs do not differ.")
    if is_identical:
        print_message("All evaluations of the two runs are identical.")
    elif abs(rows[0].env_steps - rows[1].env_steps) > _LENGTH_TOLERANCE * max(row.env_steps for row in rows):
        steps = " and ".join(format_count(row.env_steps) for row in rows)
        print_message(
            f"The results are those at the end of each run, after {steps} env steps. Compare them at equal env steps "
            f"with: emtc export {run_ids[0]} {run_ids[1]} --table win-rates"
        )


def _describe(row: RunRow) -> dict[str, dict[str, Any]]:
    """Return the settings, versions and results of a run, each by key."""
    # `live_status` replaces the stored `status`
    return {
        "settings": flatten_tree(row.config),
        "versions": {**flatten_tree(row.versions), "device": row.device},
        "results": {name: getattr(row, name) for name in _RESULTS} | {"status": row.live_status},
    }


def _write(value: Any) -> str | None:
    """Return the value as text; None stays None. Nothing is printed."""
    return None if value is None else write_value(value)


def _find_differences(first: dict[str, Any], second: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return both values of each key whose values differ. A missing value is None. The algorithm comes first."""
    keys = sorted(first.keys() | second.keys(), key=lambda key: (key != "algo", key))  # False sorts before True
    both_values = {key: (first.get(key), second.get(key)) for key in keys}
    return {key: values for key, values in both_values.items() if values[0] != values[1]}
