"""`emtc export` of raw tables: transitions, episodes, evaluations, metrics, gate; and the JSON format of marl-eval.

Raw tables can have many rows. They are written part by part as CSV, Parquet or Arrow. marl-eval (Gorsane et al., 2022)
reads evaluations as JSON and computes the statistics of rliable.
"""

import sys
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, NamedTuple, get_args

import orjson
import typer

from app.analysis.curve_reader import read_curves, read_tables
from app.analysis.curves import Curves
from app.analysis.format import format_run_count
from app.analysis.quantities import WIN_RATE
from app.analysis.results import COMMON, Budget, select_finals
from app.analysis.variants import Variant, write_method
from app.cli.output import print_message, printable
from emtc_core.config.base import Value
from emtc_core.errors import ConfigError, StorageError
from storage.engine import Database
from storage.private_files import open_output
from storage.queries.curves import evaluation_curves, policy_evaluations
from storage.queries.tables import NO_ARROW, TABLE_NAMES, TableName, TablePart, arrow_schema, read_parts, select_fields
from storage.runs.rows import RunRow

MARL_EVAL: Final = "marl-eval"
RawFormat = Literal["csv", "parquet", "arrow"]
RAW_FORMATS: tuple[RawFormat, ...] = get_args(RawFormat)
MarlEval = Mapping[str, Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]]
"""environment → task → algorithm → run → step."""
WritePart = Callable[[TablePart], None]
_ROWS_PER_PART: Final = 50_000
"""Rows that are in memory at the same time; also the size of a row group of Parquet."""


class EvaluationResult(NamedTuple):
    """The result of one evaluation."""

    env_step: int
    win_rate: float
    return_mean: float


@dataclass(frozen=True)
class MarlEvalExport:
    """The JSON of marl-eval, and remarks for the user."""

    data: MarlEval
    remarks: tuple[str, ...]


def find_raw(table: str | None, format: str) -> TableName | None:
    """Find the raw table of a request; None if the request is for another table. marl-eval uses the evaluations."""
    if table is None and format == MARL_EVAL:
        return "evaluations"
    return next((name for name in TABLE_NAMES if name == table), None)


def export_raw(db: Database, rows: Sequence[RunRow], table: TableName, format: str, out: Path | None) -> None:
    """Write a raw table of these runs to a file, or as CSV to stdout.

    Raises:
        EmtcError: If the table cannot be read or written. Then no file is created.
    """
    name = format or (out.suffix.removeprefix(".") if out else "csv")
    file_format: RawFormat | None = next((raw_format for raw_format in RAW_FORMATS if raw_format == name), None)
    if file_format is None:
        more = f", {MARL_EVAL}" if table == "evaluations" else ""
        raise typer.BadParameter(f"--format must be one of {', '.join(RAW_FORMATS)}{more}, got {name!r}.")
    ids = [row.id for row in rows]
    if out is None:
        if file_format != "csv":
            raise typer.BadParameter(f"--format {file_format} needs --out FILE.")
        write_raw(db, ids, table, file_format, _Terminal())  # type: ignore[arg-type]  # pandas calls only `write`
        return
    with open_output(out) as file:
        n = write_raw(db, ids, table, file_format, file)
    print_message(f"Wrote {out}: {n:,} rows of {table} of {format_run_count(len(ids))}.")


def export_marl_eval(
    db: Database,
    rows: Sequence[RunRow],
    table: TableName,
    out: Path | None,
    *,
    include_unfinished: bool,
    budget: Budget,
) -> None:
    """Write evaluations as JSON of marl-eval to a file or to stdout.

    Raises:
        EmtcError: If no run can be compared, or if the file cannot be written.
    """
    if table != "evaluations":
        raise typer.BadParameter(f"--format {MARL_EVAL} needs --table evaluations, got {table}.")
    exported = to_marl_eval(db, rows, include_unfinished=include_unfinished, budget=budget)
    content = orjson.dumps(exported.data, option=orjson.OPT_INDENT_2) + b"\n"
    for remark in exported.remarks:
        print_message(remark)
    if out is None:
        _Terminal().write(content)
        return
    with open_output(out) as file:
        file.write(content)
    print_message(f"Wrote {out} ({len(content):,} bytes).")


def write_raw(
    db: Database,
    run_ids: Sequence[str],
    table: TableName,
    format: RawFormat,
    out: BinaryIO,
    *,
    rows: int = _ROWS_PER_PART,
) -> int:
    """Write a raw table of some runs, one run after the other. Only one part is in memory.

    A missing value is empty in CSV and null in the other formats. Every number can be read back unchanged.

    Args:
        db: An open database.
        run_ids: The runs.
        table: The table.
        format: csv, parquet, or arrow (the file format of Arrow, which is Feather 2).
        out: The open file.
        rows: Number of rows in a part.

    Returns:
        The number of written rows.

    Raises:
        StorageError: If pyarrow is missing, or if rows of a run were deleted to save space.
    """
    n_written = 0
    with _WRITERS[format](table, out) as write_part:
        for run_id in run_ids:
            for part in read_parts(db, table, run_id, rows=rows):
                write_part(part)
                n_written += len(part.rows)
    return n_written


def to_marl_eval(
    db: Database, rows: Sequence[RunRow], *, include_unfinished: bool = False, budget: Budget = COMMON
) -> MarlEvalExport:
    """Convert the evaluations of some runs, cut to `budget`. A variant is an algorithm, and its seeds are the runs.

    Raises:
        ConfigError: If no run can be compared.
    """
    win_rates = read_curves(read_tables(db, rows), WIN_RATE.key)
    curves = select_finals(win_rates, include_unfinished=include_unfinished, budget=budget)
    if not curves.runs:
        reasons = "; ".join(map(str, curves.excluded)) or "none was evaluated"
        rule = f"must contain a finished run: {reasons}"
        raise ConfigError(rule, key="runs", hint="Include unfinished runs with: --include-unfinished")
    settings_by_task = _find_task_settings(curves)
    evaluations, absolute = _read_evaluations(db, curves), _read_policy_results(db, curves)
    n_steps = _count_common_evaluations(curves, evaluations)
    data: dict[str, Any] = {}
    for group in curves.by_variant:
        variant = group.variant
        tasks = data.setdefault(variant.env.lower(), {}).setdefault(variant.map.lower(), {})
        tasks[name_algorithm(variant, settings_by_task[variant.task])] = {
            f"run_{number}": _convert_run(evaluations[run_id], n_steps[variant.env], absolute.get(run_id))
            for number, run_id in enumerate(group.run_ids, start=1)
        }
    remarks = _list_remarks(curves, evaluations, n_steps, absolute)
    return MarlEvalExport(data, (curves.budget_note, *map(str, curves.excluded), *remarks))


def name_algorithm(variant: Variant, task_settings: Collection[tuple[str, Value]]) -> str:
    """Name a variant for marl-eval: without the settings of its task, and without commas, which would end the name."""
    changes = {key: value for key, value in variant.changes.items() if (key, value) not in task_settings}
    method = variant.method
    if len(changes) < len(variant.changes):
        full_name, short_name = write_method(variant.algo, variant.changes), write_method(variant.algo, changes)
        method = f"{short_name}{method.removeprefix(full_name)}"  # replaces the settings in the name
    return method.replace(", ", "; ")


def _find_task_settings(curves: Curves) -> dict[str, set[tuple[str, Value]]]:
    """Find the changed environment settings that all runs of a task share: they belong to the task."""
    shared: dict[str, set[tuple[str, Value]]] = {}
    for group in curves.by_variant:
        changes = {(key, value) for key, value in group.variant.changes.items() if key.startswith("env.")}
        shared[group.variant.task] = shared.get(group.variant.task, changes) & changes
    return shared


def _read_evaluations(db: Database, curves: Curves) -> dict[str, list[EvaluationResult]]:
    """Read the evaluations of each run up to its budget. Those without win rate or return are ignored."""
    last_steps = {run.id: curves.get_points(run.id).env_step[-1] for run in curves.runs}
    frame = evaluation_curves(db, list(last_steps))
    evaluations: dict[str, list[EvaluationResult]] = {run_id: [] for run_id in last_steps}
    columns = (frame[name].tolist() for name in ("run_id", "env_step", "win_rate", "return_mean"))
    for run_id, env_step, win_rate, return_mean in zip(*columns, strict=True):
        if isfinite(win_rate) and isfinite(return_mean) and env_step <= last_steps[run_id]:
            evaluations[run_id].append(EvaluationResult(env_step, win_rate, return_mean))
    return evaluations


def _read_policy_results(db: Database, curves: Curves) -> dict[str, EvaluationResult]:
    """Read one result of `emtc evaluate` with unchanged settings for each run: most episodes, then the newest."""
    last_steps = {
        run.id: curves.get_points(run.id).env_step[-1] if run.comparison_budget else inf for run in curves.runs
    }
    frame = policy_evaluations(db, list(last_steps)).sort_values(["episodes", "id"])
    columns = (frame[name].tolist() for name in ("run_id", "env_step", "win_rate", "return_mean", "settings"))
    return {  # a later row of a run replaces an earlier one
        run_id: EvaluationResult(env_step, win_rate, return_mean)
        for run_id, env_step, win_rate, return_mean, settings in zip(*columns, strict=True)
        if not settings and env_step <= last_steps[run_id] and isfinite(return_mean)
    }


def _count_common_evaluations(curves: Curves, evaluations: Mapping[str, Sequence[EvaluationResult]]) -> dict[str, int]:
    """Count the evaluations that every run of an environment has, by environment."""
    counts: dict[str, int] = {}
    for group in curves.by_variant:
        for run_id in group.run_ids:
            n = len(evaluations[run_id])
            counts[group.variant.env] = min(n, counts.get(group.variant.env, n))
    return counts


def _convert_run(
    evaluations: Sequence[EvaluationResult], n_steps: int, absolute: EvaluationResult | None
) -> dict[str, Any]:
    results = evaluations[:n_steps]
    if not results:
        raise ConfigError("A run has no evaluation with a mean return, which marl-eval needs")
    steps: dict[str, Any] = {
        f"step_{number}": {
            "step_count": result.env_step, "win_rate": [result.win_rate], "return": [result.return_mean],
        }
        for number, result in enumerate(results, start=1)
    }  # fmt: skip
    best = absolute or max(results, key=lambda result: (result.win_rate, result.return_mean))
    steps["absolute_metrics"] = {"win_rate": [best.win_rate], "return": [best.return_mean]}
    return steps


def _list_remarks(
    curves: Curves,
    evaluations: Mapping[str, Sequence[EvaluationResult]],
    n_steps: Mapping[str, int],
    absolute: Mapping[str, EvaluationResult],
) -> list[str]:
    remarks = []
    if absolute:
        remarks.append(f"absolute_metrics of {', '.join(absolute)} are those of emtc evaluate.")
    if others := [run_id for run_id in evaluations if run_id not in absolute]:
        remarks.append(
            f"absolute_metrics of {', '.join(others)} are those of the run's best evaluation, because there is no "
            "evaluation with ten times as many episodes. "
            "Make one with: emtc evaluate RUN --checkpoint best --episodes N"
        )
    shortened = [
        run_id
        for group in curves.by_variant
        for run_id in group.run_ids
        if len(evaluations[run_id]) > n_steps[group.variant.env]
    ]
    if shortened:
        remarks.append(
            "marl-eval needs the same number of steps for every run. The last evaluations of "
            f"{', '.join(shortened)} are left out."
        )
    counts = {f"{group.variant.method} on {group.variant.task}": group.n for group in curves.by_variant}
    if len(set(counts.values())) > 1:
        numbers = ", ".join(f"{name}: {n}" for name, n in counts.items())
        remarks.append(f"marl-eval needs as many runs of each algorithm on each task. The numbers here are {numbers}.")
    return remarks


@contextmanager
def _write_csv(table: TableName, out: BinaryIO) -> Generator[WritePart]:
    out.write((",".join(field.name for field in select_fields(table)) + "\n").encode())

    def write_part(part: TablePart) -> None:
        part.to_frame().to_csv(out, index=False, header=False, lineterminator="\n")

    yield write_part


@contextmanager
def _write_parquet(table: TableName, out: BinaryIO) -> Generator[WritePart]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise StorageError(NO_ARROW) from error
    with parquet.ParquetWriter(out, arrow_schema(select_fields(table)), compression="zstd") as writer:
        yield lambda part: writer.write_batch(part.to_arrow())


@contextmanager
def _write_arrow(table: TableName, out: BinaryIO) -> Generator[WritePart]:
    schema = arrow_schema(select_fields(table))
    from pyarrow import ipc

    with ipc.new_file(out, schema, options=ipc.IpcWriteOptions(compression="zstd")) as writer:
        yield lambda part: writer.write_batch(part.to_arrow())


_WRITERS: Final[dict[RawFormat, Callable[[TableName, Any], AbstractContextManager[WritePart]]]] = {
    "csv": _write_csv,
    "parquet": _write_parquet,
    "arrow": _write_arrow,
}


class _Terminal:
    """Standard output that writes control characters as text."""

    def write(self, content: bytes | str) -> int:
        """Write a piece of text."""
        text = content if isinstance(content, str) else content.decode()
        return sys.stdout.buffer.write(printable(text).encode())
