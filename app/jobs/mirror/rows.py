"""Read the curves of a run for a mirror: evaluations, logged metrics and gate statistics.

The gate is the weight β of the episodic incentive, the reward that the episodic memory adds.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from typing import Any, Final, Protocol

import pandas as pd
from sqlalchemy import func, select

from emtc_core.config.resolve import Value, flatten_tree
from storage.engine import Database
from storage.frames import read_frame
from storage.models import Evaluation, GateStats, MetricRow, Resume
from storage.runs.rows import RunRow

_EVALUATION_COLUMNS: Final = ("win_rate", "return_mean", "return_std", "length_mean", "robust_win_rate")
_GATE_COLUMNS: Final = (
    *("delta_mem_mean", "delta_mem_q50", "beta_mean", "beta_q50", "tau", "memory_size", "desirable_fraction"),
)
_BEFORE_FIRST_STEP: Final = -1
LastSteps = Mapping[str, int]
"""Curve → last env step in the other program. A curve that is missing there is written from its beginning."""


@dataclass(frozen=True)
class Row:
    """The values of one env step."""

    env_step: int
    values: Mapping[str, float]
    """Curve → value."""


@dataclass(frozen=True)
class MirroredRun:
    """A run as it is shown in another program."""

    key: str
    """Id of the run. After a resume that replaced rows, it has a suffix "-r2", "-r3", … and is a new run there."""
    name: str
    settings: Mapping[str, Value]
    created_at: datetime
    has_ended: bool
    status: str

    @property
    def folder(self) -> str:
        """Name and key as a folder name."""
        return f"{re.sub(r'[^A-Za-z0-9]+', '_', self.name).strip('_')[:60]}-{self.key}"


class Sink(Protocol):
    """Writes runs to one program. `last_steps` reads the program, so that a restarted mirror writes nothing twice."""

    def last_steps(self, run: MirroredRun) -> LastSteps:
        """Return the last env step of each curve of a run in the program."""
        ...

    def write(self, run: MirroredRun, rows: list[Row]) -> None:
        """Write rows. They are stored when the method returns."""
        ...

    def close(self, run: MirroredRun) -> None:
        """Release the resources of a run that gets no rows for some time."""
        ...


def describe_run(db: Database, row: RunRow) -> MirroredRun:
    """Describe a run for a mirror."""
    query = (
        select(func.count())
        .select_from(Resume)
        .where(Resume.run_id == row.id, Resume.reached_env_step > Resume.env_step)  # a resume that replaced rows
    )
    with db.read() as connection:
        n_resumes = connection.execute(query).scalar_one()
    key = f"{row.id}-r{n_resumes + 1}" if n_resumes else row.id
    has_ended = row.live_status in ("finished", "stopped", "failed")
    name = f"{row.algo} {row.map} seed{row.seed}"
    return MirroredRun(key, name, flatten_tree(row.config), row.created_at, has_ended, row.live_status)


def read_new_rows(db: Database, run_id: str, last_steps: LastSteps) -> list[Row]:
    """Read the rows that a mirror does not contain yet, by env step."""
    rows: dict[int, dict[str, float]] = {}
    for name, frame in _read_curves(db, run_id, last_steps):
        last_step = last_steps.get(name, _BEFORE_FIRST_STEP)
        for step, value in zip(frame["env_step"].tolist(), frame["value"].tolist(), strict=True):
            if step > last_step and isfinite(value):
                rows.setdefault(int(step), {})[name] = float(value)
    return [Row(step, rows[step]) for step in sorted(rows)]


def _read_curves(db: Database, run_id: str, last_steps: LastSteps) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the name and the values of each curve. The caller removes the rows that the program already contains."""
    tables = ((Evaluation, "eval", _EVALUATION_COLUMNS), (GateStats, "gate_stats", _GATE_COLUMNS))
    with db.read() as connection:
        for table, group, columns in tables:
            last_common_step = min(last_steps.get(f"{group}/{column}", _BEFORE_FIRST_STEP) for column in columns)
            query = (
                select(table.env_step, *(getattr(table, column) for column in columns))
                .where(table.run_id == run_id, table.env_step > last_common_step)
                .order_by(table.env_step)
            )
            frame = read_frame(connection, query)
            for column in columns:
                values: Any = frame[column].astype("float64")
                yield f"{group}/{column}", pd.DataFrame({"env_step": frame["env_step"], "value": values})
        names = connection.execute(select(MetricRow.name).where(MetricRow.run_id == run_id).distinct()).scalars()
        for name in sorted(names):
            query = (
                select(MetricRow.env_step, MetricRow.value)
                .where(MetricRow.run_id == run_id, MetricRow.name == name, MetricRow.value.is_not(None))
                .where(MetricRow.env_step > last_steps.get(name, _BEFORE_FIRST_STEP))
                .order_by(MetricRow.env_step)
            )
            yield name, read_frame(connection, query)
