"""Convert records to the rows of one flush.

This is done before the transaction begins, so that the database is locked only briefly. Nothing in this module accesses
a database. The statements that write the rows are in `storage.recording.statements`.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import repeat
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from emtc_core.metrics import CLOSED_BELOW
from emtc_core.recorder import (
    AnswerRecord,
    EpisodeRecord,
    EvaluationRecord,
    GateStatsRecord,
    PlaybackRecord,
    SnapshotRecord,
)
from storage.blobs import pack
from storage.models import MAX_PLAYBACKS, get_first_playback
from storage.runs.rows import sum_by_bucket

Rows = list[tuple[Any, ...]]
MetricsRecord = tuple[int, Mapping[str, float]]
"""Environment step, and metric → value."""
Record = EpisodeRecord | MetricsRecord | EvaluationRecord | AnswerRecord | GateStatsRecord | SnapshotRecord

_SNAPSHOT_COLUMNS: Final = (
    *("slot", "embedding", "H", "xi", "n_call", "n_xi", "t", "reward", "idx_next", "episode", "delta_mem", "beta"),
)
"""Columns of a snapshot with one blob each. `SnapshotRecord` has their meanings and units; `H` is its `h`."""


@dataclass(frozen=True)
class Column:
    """The values of one column in n rows. Source: the trainer's record, see `emtc_core.recorder`."""

    values: NDArray[Any] | str
    """Shape [n], in the type and unit of the database column [unit varies]; or one text for all rows."""
    is_null: NDArray[np.bool_] | None = None
    """Shape [n], boolean: True where the value is NULL; None if no value is NULL."""


@dataclass(frozen=True)
class ColumnarRows:
    """Many rows of a table, stored by column in the order of the table."""

    columns: tuple[Column, ...]
    n: int
    """Number of rows."""

    def __len__(self) -> int:
        return self.n

    def rows(self) -> Rows:
        """Convert to rows of Python values."""
        return list(zip(*(_python_values(column, self.n) for column in self.columns), strict=True))


@dataclass
class RecordBatch:
    """The rows of one flush. The first value of each row is the run id, except in `asked_evaluations`."""

    rows: defaultdict[str, Rows] = field(default_factory=lambda: defaultdict(list))
    """Table → rows, for all tables except `transitions`."""
    transitions: ColumnarRows | None = None
    env_steps: int | None = None
    """New value of `runs.env_steps`; None without transitions."""
    last_evaluation: tuple[float, float] | None = None
    """Win rate and mean return of the last evaluation, if there is one."""


def make_batch(run_id: str, records: Sequence[Record]) -> RecordBatch:
    """Convert records to the rows of one flush, in the order of the records."""
    batch = RecordBatch()
    episodes = [record for record in records if isinstance(record, EpisodeRecord)]
    if episodes:
        _add_episodes(batch, run_id, episodes)
    for record in records:
        if isinstance(record, tuple):
            env_step, values = record
            batch.rows["metrics"] += [(run_id, env_step, name, _nan_to_none(value)) for name, value in values.items()]
        elif isinstance(record, EvaluationRecord):
            robust = record.robust
            robust_result = (float(robust.won.mean()), robust.distinct) if robust else (None, None)
            batch.rows["evaluations"].append((*_make_evaluation_row(run_id, record), *robust_result))
            batch.last_evaluation = (record.win_rate, record.return_mean)
            _add_playbacks(batch, run_id, record, first_number=0)
        elif isinstance(record, AnswerRecord):  # not part of the curve, so `last_evaluation` is kept
            row = (record.number, *_make_evaluation_row(run_id, record.evaluation), record.again_of)
            batch.rows["asked_evaluations"].append(row)
            _add_playbacks(batch, run_id, record.evaluation, first_number=get_first_playback(record.number))
        elif isinstance(record, GateStatsRecord):
            delta_mem = (record.delta_mem_mean, *record.delta_mem_quantiles)
            beta = (record.beta_mean, *record.beta_quantiles)
            statistics = (_nan_to_none(value) for value in (*delta_mem, *beta))
            memory = (float(record.tau), int(record.memory_size), _nan_to_none(record.desirable_fraction))
            batch.rows["gate_stats"].append((run_id, record.env_step, *statistics, *memory))
        elif isinstance(record, SnapshotRecord):
            batch.rows["snapshots"].append(_make_snapshot_row(run_id, record))
    return batch


def estimate_bytes(record: Record) -> int:
    """Estimate the memory that a queued record needs [bytes]."""
    if isinstance(record, tuple):
        return 200 * len(record[1])
    if isinstance(record, AnswerRecord):
        return estimate_bytes(record.evaluation)
    if isinstance(record, EvaluationRecord):
        return 200 + sum(playback.state.nbytes + playback.action.nbytes for playback in record.playbacks)
    if isinstance(record, GateStatsRecord):
        return 500
    arrays = [value for value in vars(record).values() if isinstance(value, np.ndarray)]
    return 500 + sum(array.nbytes for array in arrays)


def _add_episodes(batch: RecordBatch, run_id: str, episodes: Sequence[EpisodeRecord]) -> None:
    """Add consecutive episodes, their transitions, and the sums of the transitions by block of env steps."""
    for record in episodes:
        n_closed = None if record.beta is None else int((record.beta < CLOSED_BELOW).sum())
        first_columns = (record.episode, record.first_env_step, record.length, _nan_to_none(record.episode_return))
        trajectory = _pack_trajectory(record, record.slots)
        batch.rows["episodes"].append(
            (run_id, *first_columns, bool(record.won), float(record.epsilon), n_closed, trajectory)
        )
    first_env_step, lengths = episodes[0].first_env_step, [record.length for record in episodes]
    n = sum(lengths)
    h, h_next = _join_values(episodes, "h"), _join_values(episodes, "h_next")
    delta_mem, beta = _join_values(episodes, "delta_mem"), _join_values(episodes, "beta")
    tau = np.repeat([np.nan if record.tau is None else record.tau for record in episodes], lengths)
    slots_by_episode = [
        np.full(record.length + 1, -1, np.int64) if record.slots is None else record.slots for record in episodes
    ]
    slots = np.concatenate([episode_slots[:-1] for episode_slots in slots_by_episode])
    next_slots = np.concatenate([episode_slots[1:] for episode_slots in slots_by_episode])
    columns = (
        Column(run_id),
        Column(np.arange(first_env_step, first_env_step + n)),
        Column(np.repeat(np.array([record.episode for record in episodes], np.int64), lengths)),
        Column(np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])),
        Column(np.concatenate([record.reward for record in episodes]).astype(np.float64)),
        *(Column(values, np.isnan(values)) for values in (h, h_next, delta_mem, beta, tau)),
        *(Column(values.astype(np.int64), values < 0) for values in (slots, next_slots)),
    )
    batch.transitions = ColumnarRows(columns, n)
    batch.rows["transition_summary"] += [(run_id, *row) for row in sum_by_bucket(first_env_step, delta_mem, beta, tau)]
    batch.env_steps = first_env_step + n - 1


def _join_values(episodes: Sequence[EpisodeRecord], name: str) -> NDArray[np.float64]:
    """Join an attribute of all episodes to one array with all their steps; NaN for an episode without the attribute."""
    values_by_episode = [(record.length, getattr(record, name)) for record in episodes]
    return np.concatenate(
        [
            np.full(length, np.nan) if values is None else np.asarray(values, np.float64)
            for length, values in values_by_episode
        ]
    )


def _pack_trajectory(record: EpisodeRecord | PlaybackRecord, slots: NDArray[np.integer[Any]] | None = None) -> bytes:
    arrays: dict[str, NDArray[Any]] = {
        "state": np.asarray(record.state, np.float32),
        "action": _narrow(record.action),
        "reward": np.asarray(record.reward, np.float32),
    }
    return pack(arrays if slots is None else arrays | {"slots": _narrow(slots)})


def _narrow(values: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
    """Convert integers to the smallest signed type that can store all of them."""
    if values.size == 0:
        return values.astype(np.int8)
    low, high = int(values.min()), int(values.max())
    for dtype in (np.int8, np.int16, np.int32):
        bounds = np.iinfo(dtype)
        if bounds.min <= low and high <= bounds.max:
            return values.astype(dtype)
    return values.astype(np.int64)


def _make_evaluation_row(run_id: str, record: EvaluationRecord) -> tuple[Any, ...]:
    """Make the columns that `evaluations` and `asked_evaluations` have in common."""
    outcome = (len(record.won), record.wins, record.win_rate, record.return_mean)
    return_std, length_mean = float(np.std(record.returns, dtype=np.float64)), float(np.mean(record.lengths))
    return (run_id, record.env_step, *outcome, return_std, length_mean, record.distinct)


def _add_playbacks(batch: RecordBatch, run_id: str, record: EvaluationRecord, *, first_number: int) -> None:
    """Add the recorded episodes of an evaluation, numbered from `first_number`."""
    for number, playback in enumerate(record.playbacks[:MAX_PLAYBACKS], first_number):
        outcome = (len(playback.reward), _nan_to_none(playback.episode_return), bool(playback.won))
        row = (run_id, record.env_step, number, *outcome, _pack_trajectory(playback))
        batch.rows["eval_episodes"].append(row)


def _make_snapshot_row(run_id: str, record: SnapshotRecord) -> tuple[Any, ...]:
    """Make the row of a snapshot, with its nodes sorted by slot."""
    order = np.argsort(record.slot, kind="stable")
    blobs = [pack({name: np.asarray(getattr(record, name.lower()))[order]}) for name in _SNAPSHOT_COLUMNS]
    row_after_sort = np.empty(len(order), np.int64)
    row_after_sort[order] = np.arange(len(order))
    state_rows = row_after_sort[record.state_rows]  # rows of the nodes whose states are stored
    state_order = np.argsort(state_rows, kind="stable")
    states = pack({"state_rows": state_rows[state_order], "state": np.asarray(record.state, np.float16)[state_order]})
    return (run_id, record.env_step, len(order), datetime.now(UTC), *blobs, states)


def _python_values(column: Column, n: int) -> Iterable[Any]:
    """Convert a column to Python values, with None for NULL."""
    if isinstance(column.values, str):
        return repeat(column.values, n)
    if column.is_null is None or not column.is_null.any():
        return column.values.tolist()
    objects = column.values.astype(object)
    objects[column.is_null] = None
    return objects.tolist()


def _nan_to_none(value: float) -> float | None:
    """Convert NaN to None, which is stored as NULL. Infinity is kept."""
    number = float(value)
    return None if np.isnan(number) else number
