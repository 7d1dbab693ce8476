"""What of a run a mirror shows: evaluations, logged metrics and gate statistics, as curves under one name each."""

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

EVALUATED: Final = ("win_rate", "return_mean", "return_std", "length_mean", "robust_win_rate")
_GATE: Final = ("delta_mem_mean", "delta_mem_q50", "beta_mean", "beta_q50", "tau", "memory_size", "desirable_fraction")
Last = Mapping[str, int]
"""The last env step of each curve that a mirror has; a curve that it lacks begins at the start."""
_FIRST: Final = -1


@dataclass(frozen=True)
class Row:
    """The numbers of one env step, by the names of their curves."""

    env_step: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class Mirrored:
    """A run as another program sees it."""

    key: str
    """Its id, and "-r2" once a resume superseded rows: the mirror of those stays, and a second one begins."""
    name: str
    settings: Mapping[str, Value]
    created_at: datetime
    has_ended: bool
    status: str

    @property
    def folder(self) -> str:
        """Its name as a part of a path, with its key."""
        return f"{re.sub(r'[^A-Za-z0-9]+', '_', self.name).strip('_')[:60]}-{self.key}"


class Sink(Protocol):
    """A program that shows curves. What it holds is asked of it, so that a mirror that was killed doubles nothing."""

    def last_steps(self, run: Mirrored) -> Last:
        """The last env step of each curve that it holds of a run."""
        ...

    def write(self, run: Mirrored, rows: list[Row]) -> None:
        """Add rows that it does not hold, to be found there when this returns."""
        ...

    def close(self, run: Mirrored) -> None:
        """Let go of a run that is not written for now."""
        ...


def describe_run(db: Database, row: RunRow) -> Mirrored:
    """A run under the name that its mirror has."""
    superseded = (Resume.run_id == row.id, Resume.reached_env_step > Resume.env_step)
    with db.read() as connection:
        again = connection.execute(select(func.count()).select_from(Resume).where(*superseded)).scalar_one()
    key = f"{row.id}-r{again + 1}" if again else row.id
    ended = row.live_status in ("finished", "stopped", "failed")
    name = f"{row.algo} {row.map} seed{row.seed}"
    return Mirrored(key, name, flatten_tree(row.config), row.created_at, ended, row.live_status)


def new_rows(db: Database, run_id: str, last: Last) -> list[Row]:
    """Read what a mirror does not have yet, by env step."""
    rows: dict[int, dict[str, float]] = {}
    for name, frame in _curves(db, run_id, last):
        after = last.get(name, _FIRST)
        for step, value in zip(frame["env_step"].tolist(), frame["value"].tolist(), strict=True):
            if step > after and isfinite(value):
                rows.setdefault(int(step), {})[name] = float(value)
    return [Row(step, rows[step]) for step in sorted(rows)]


def _curves(db: Database, run_id: str, last: Last) -> Iterator[tuple[str, pd.DataFrame]]:
    with db.read() as connection:
        for table, head, columns in ((Evaluation, "eval", EVALUATED), (GateStats, "gate_stats", _GATE)):
            after = min(last.get(f"{head}/{column}", _FIRST) for column in columns)
            named = [getattr(table, column) for column in columns]
            wanted = select(table.env_step, *named).where(table.run_id == run_id, table.env_step > after)
            frame = read_frame(connection, wanted.order_by(table.env_step))
            for column in columns:
                yield f"{head}/{column}", _as_curve(frame, column)
        names = connection.execute(select(MetricRow.name).where(MetricRow.run_id == run_id).distinct()).scalars()
        for name in sorted(names):
            of_curve = (MetricRow.run_id == run_id, MetricRow.name == name, MetricRow.value.is_not(None))
            newer = MetricRow.env_step > last.get(name, _FIRST)
            wanted = select(MetricRow.env_step, MetricRow.value).where(*of_curve, newer).order_by(MetricRow.env_step)
            yield name, read_frame(connection, wanted)


def _as_curve(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    values: Any = frame[column].astype("float64")
    return pd.DataFrame({"env_step": frame["env_step"], "value": values})
