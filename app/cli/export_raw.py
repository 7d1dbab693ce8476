"""`emtc export --table transitions | episodes | evaluations | metrics | gate`: the raw tables, however long.

Raw tables of many rows as files: CSV, Parquet or Arrow, written part by part.

Evaluations in the JSON of marl-eval (Gorsane et al., 2022), which feeds rliable's statistics.
"""

import sys
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, get_args

import orjson
import typer

from app.analysis.comparable import COMMON, Budget, cut_to_budget
from app.analysis.format import format_run_count
from app.analysis.series import Comparison, join_seeds, read_seeds
from app.analysis.variants import Variant, write_method
from app.cli.output import print_message, printable
from emtc_core.config.base import Value
from emtc_core.errors import ConfigError, StorageError
from storage.engine import Database
from storage.private_files import open_output
from storage.queries.curves import evaluation_curves, policy_evaluations
from storage.queries.tables import NO_ARROW, TABLE_NAMES, TableName, TablePart, arrow_schema, read_parts, select_fields
from storage.runs.rows import RunRow

MarlEval = Mapping[str, Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]]
"""environment → task → algorithm → run → step."""
Played = tuple[int, float, float]
"""Env step, win rate and mean return of one evaluation."""


@dataclass(frozen=True)
class Exported:
    """The JSON, and what to know about it."""

    data: MarlEval
    remarks: tuple[str, ...]


def to_marl_eval(
    db: Database, rows: Sequence[RunRow], *, include_unfinished: bool = False, budget: Budget = COMMON
) -> Exported:
    """Lay out the evaluations of some runs, up to one budget; an algorithm is a variant, its runs are its seeds.

    Raises:
        ConfigError: If no run counts.
    """
    joined = join_seeds(read_seeds(db, rows), include_unfinished=include_unfinished, final=True)
    comparison = cut_to_budget(joined, budget)
    if not comparison.groups:
        reasons = "; ".join(map(str, comparison.excluded_runs)) or "none was evaluated"
        rule = f"must contain a finished run: {reasons}"
        raise ConfigError(rule, key="runs", hint="Include unfinished runs with: --include-unfinished")
    shared = _settings_of_tasks(comparison)
    runs, absolute = _read(db, comparison), _read_absolute(db, comparison)
    steps = _steps(comparison, runs)
    data: dict[str, Any] = {}
    for group in comparison.groups:
        variant = group.variant
        tasks = data.setdefault(variant.env.lower(), {}).setdefault(variant.map.lower(), {})
        tasks[name_algorithm(variant, shared[variant.task])] = {
            f"run_{number}": _lay_out(runs[run_id], steps[variant.env], absolute.get(run_id))
            for number, run_id in enumerate(group.run_ids, start=1)
        }
    return Exported(
        data,
        (comparison.budget_note, *map(str, comparison.excluded_runs), *_remarks(comparison, runs, steps, absolute)),
    )


def _settings_of_tasks(comparison: Comparison) -> dict[str, set[tuple[str, Value]]]:
    """By task, the settings of its environment that all its runs were changed to: they are no algorithm's."""
    shared: dict[str, set[tuple[str, Value]]] = {}
    for group in comparison.groups:
        own = {(key, value) for key, value in group.variant.changes.items() if key.startswith("env.")}
        shared[group.variant.task] = shared.get(group.variant.task, own) & own
    return shared


def name_algorithm(variant: Variant, of_task: Collection[tuple[str, Value]]) -> str:
    """A variant as marl-eval's algorithm, without the settings that are its task's; commas would end the name."""
    told = {key: value for key, value in variant.changes.items() if (key, value) not in of_task}
    method = variant.method
    if len(told) < len(variant.changes):
        before, now = write_method(variant.algo, variant.changes), write_method(variant.algo, told)
        method = f"{now}{method.removeprefix(before)}"
    return method.replace(", ", "; ")


def _read(db: Database, comparison: Comparison) -> dict[str, list[Played]]:
    """Read env step, win rate and return of every evaluation that has both and counts, by run."""
    ends = {seed.id: seed.curve.steps[-1] for seed in comparison.seeds}
    ids = list(ends)
    frame = evaluation_curves(db, ids)
    runs: dict[str, list[Played]] = {run_id: [] for run_id in ids}
    columns = (frame[name].tolist() for name in ("run_id", "env_step", "win_rate", "return_mean"))
    for run_id, step, rate, score in zip(*columns, strict=True):
        if isfinite(rate) and isfinite(score) and step <= ends[run_id]:
            runs[run_id].append((step, rate, score))
    return runs


def _read_absolute(db: Database, comparison: Comparison) -> dict[str, Played]:
    """Of each run's policy evaluations in its own game, read the one of most episodes, the newest of equals."""
    ends = {seed.id: seed.curve.steps[-1] if seed.comparison_budget else inf for seed in comparison.seeds}
    frame = policy_evaluations(db, list(ends)).sort_values(["episodes", "id"])
    columns = (frame[name].tolist() for name in ("run_id", "env_step", "win_rate", "return_mean", "settings"))
    return {
        run_id: (step, rate, score)
        for run_id, step, rate, score, settings in zip(*columns, strict=True)
        if not settings and step <= ends[run_id] and isfinite(score)
    }


def _steps(comparison: Comparison, runs: Mapping[str, Sequence[Played]]) -> dict[str, int]:
    """Count the evaluations that every run of an environment has."""
    fewest: dict[str, int] = {}
    for group in comparison.groups:
        for run_id in group.run_ids:
            fewest[group.variant.env] = min(len(runs[run_id]), fewest.get(group.variant.env, len(runs[run_id])))
    return fewest


def _lay_out(played: Sequence[Played], n: int, absolute: Played | None) -> dict[str, Any]:
    shown = played[:n]
    if not shown:
        raise ConfigError("A run's evaluations have no mean return, which marl-eval wants beside the win rate")
    steps: dict[str, Any] = {
        f"step_{place}": {"step_count": step, "win_rate": [rate], "return": [score]}
        for place, (step, rate, score) in enumerate(shown, start=1)
    }
    _, rate, score = absolute or max(shown, key=lambda each: each[1:])
    steps["absolute_metrics"] = {"win_rate": [rate], "return": [score]}
    return steps


def _remarks(
    comparison: Comparison,
    runs: Mapping[str, Sequence[Played]],
    steps: Mapping[str, int],
    absolute: Mapping[str, Played],
) -> list[str]:
    remarks = []
    if absolute:
        remarks.append(f"absolute_metrics of {', '.join(absolute)} are those of emtc evaluate.")
    if rest := [run_id for run_id in runs if run_id not in absolute]:
        remarks.append(
            f"absolute_metrics of {', '.join(rest)} are those of the run's best evaluation; none of ten times as many "
            f"episodes was made. Make one with: emtc evaluate RUN --checkpoint best --episodes N"
        )
    cut = [run for group in comparison.groups for run in group.run_ids if len(runs[run]) > steps[group.variant.env]]
    if cut:
        remarks.append(f"marl-eval wants as many steps of every run; the last evaluations are left out of {cut}.")
    counts = {f"{group.variant.method} on {group.variant.task}": group.n for group in comparison.groups}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{name}: {n}" for name, n in counts.items())
        remarks.append(f"marl-eval wants as many runs of each algorithm on each task, here are {said}.")
    return remarks


RawFormat = Literal["csv", "parquet", "arrow"]
RAW_FORMATS: tuple[RawFormat, ...] = get_args(RawFormat)
_ROWS: Final = 50_000  # of a part, and so of a row group

Write = Callable[[TablePart], None]


def write_raw(
    db: Database, run_ids: Sequence[str], table: TableName, format: RawFormat, out: BinaryIO, *, rows: int = _ROWS
) -> int:
    """Write a raw table of some runs, one run after the other, in the memory of one part.

    A missing value is empty in CSV and null elsewhere; every number is read back as it was stored.

    Args:
        db: An open database.
        run_ids: The runs.
        table: Which table.
        format: csv, parquet, or arrow (the file format of Arrow, which is Feather 2).
        out: Where to.
        rows: Of one part.

    Returns:
        How many rows were written.

    Raises:
        StorageError: If pyarrow is missing, or a run's rows were thinned away.
    """
    written = 0
    with _WRITERS[format](table, out) as write:
        for run_id in run_ids:
            for part in read_parts(db, table, run_id, rows=rows):
                write(part)
                written += len(part.rows)
    return written


@contextmanager
def _csv(table: TableName, out: BinaryIO) -> Generator[Write]:
    out.write((",".join(field.name for field in select_fields(table)) + "\n").encode())

    def write(part: TablePart) -> None:
        part.to_frame().to_csv(out, index=False, header=False, lineterminator="\n")

    yield write


@contextmanager
def _parquet(table: TableName, out: BinaryIO) -> Generator[Write]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise StorageError(NO_ARROW) from error
    with parquet.ParquetWriter(out, arrow_schema(select_fields(table)), compression="zstd") as writer:
        yield lambda part: writer.write_batch(part.to_arrow())


@contextmanager
def _arrow(table: TableName, out: BinaryIO) -> Generator[Write]:
    schema = arrow_schema(select_fields(table))
    from pyarrow import ipc

    with ipc.new_file(out, schema, options=ipc.IpcWriteOptions(compression="zstd")) as writer:
        yield lambda part: writer.write_batch(part.to_arrow())


_WRITERS: Final[dict[RawFormat, Callable[[TableName, Any], AbstractContextManager[Write]]]] = {
    "csv": _csv,
    "parquet": _parquet,
    "arrow": _arrow,
}


MARL_EVAL = "marl-eval"


class _Terminal:
    """Standard output that shows what a terminal would obey as text."""

    def write(self, content: bytes | str) -> int:
        """Write a piece of a text."""
        text = content if isinstance(content, str) else content.decode()
        return sys.stdout.buffer.write(printable(text).encode())


def find_raw(table: str | None, format: str) -> TableName | None:
    """Which raw table is meant, if it is one; marl-eval's JSON is made of evaluations."""
    if table is None and format == MARL_EVAL:
        return "evaluations"
    return next((name for name in TABLE_NAMES if name == table), None)


def export_raw(db: Database, rows: Sequence[RunRow], table: TableName, format: str, out: Path | None) -> None:
    """Write a raw table of these runs; CSV may go to stdout.

    Raises:
        EmtcError: If it cannot be read or written; then there is no file.
    """
    kind = _choose_format(table, format or (out.suffix.removeprefix(".") if out else "csv"))
    ids = [row.id for row in rows]
    if out is None:
        if kind != "csv":
            raise typer.BadParameter(f"--format {kind} needs --out FILE.")
        write_raw(db, ids, table, kind, _Terminal())  # type: ignore[arg-type]  # pandas needs no more of a file
        return
    with open_output(out) as file:
        n = write_raw(db, ids, table, kind, file)
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
    """Write evaluations in marl-eval's JSON.

    Raises:
        EmtcError: If no run counts, or it cannot be written.
    """
    if table != "evaluations":
        raise typer.BadParameter(f"--format {MARL_EVAL} is made of --table evaluations, not of {table}.")
    made = to_marl_eval(db, rows, include_unfinished=include_unfinished, budget=budget)
    content = orjson.dumps(made.data, option=orjson.OPT_INDENT_2) + b"\n"
    for remark in made.remarks:
        print_message(remark)
    if out is None:
        _Terminal().write(content)
        return
    with open_output(out) as file:
        file.write(content)
    print_message(f"Wrote {out} ({len(content):,} bytes).")


def _choose_format(table: TableName, format: str) -> RawFormat:
    for known in RAW_FORMATS:
        if format == known:
            return known
    more = f", {MARL_EVAL}" if table == "evaluations" else ""
    raise typer.BadParameter(f"--format must be one of {', '.join(RAW_FORMATS)}{more}, got {format!r}.")
