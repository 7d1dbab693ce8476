"""Records → rows: what one flush writes, prepared before its transaction so that the lock is held briefly.

Nothing here touches a database. The statements that take these rows are in `storage.recording.statements`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emtc_core.metrics import CLOSED_BELOW
from emtc_core.recorder import (
    AskedRecord,
    EpisodeRecord,
    EvaluationRecord,
    GateStatsRecord,
    PlaybackRecord,
    SnapshotRecord,
)
from storage.blobs import pack
from storage.models import PLAYBACKS_AT_MOST, first_playback
from storage.runs.rows import summarize

Rows = list[tuple[Any, ...]]
MetricsRecord = tuple[int, Mapping[str, float]]
Record = EpisodeRecord | MetricsRecord | EvaluationRecord | AskedRecord | GateStatsRecord | SnapshotRecord

_SNAPSHOT_COLUMNS = (
    *("slot", "embedding", "H", "xi", "n_call", "n_xi", "t", "reward", "idx_next", "episode", "delta_mem", "beta"),
)


@dataclass(frozen=True)
class Field:
    """One column of many rows."""

    values: NDArray[Any] | str  # [n], of the table's own type; or one text for all of them
    missing: NDArray[np.bool_] | None = None  # [n] which are NULL


@dataclass(frozen=True)
class Columns:
    """Many rows of a table, column by column in its order."""

    fields: tuple[Field, ...]
    n: int

    def __len__(self) -> int:
        return self.n

    def rows(self) -> Rows:
        """Lay them out as Python values, for a driver that takes rows."""
        return list(zip(*(_python_values(field, self.n) for field in self.fields), strict=True))


@dataclass
class Batch:
    """Rows of one flush by table; the run id leads each row."""

    rows: dict[str, Rows | Columns] = field(default_factory=dict)
    env_steps: int | None = None  # the run's new count, when transitions are among the rows
    last_evaluation: tuple[float, float] | None = None  # win rate and mean return

    def add(self, table: str, rows: Rows) -> None:
        """Append rows of one table."""
        known = self.rows.setdefault(table, [])
        assert isinstance(known, list), "columns come once, by themselves"
        known.extend(rows)


def make_batch(run_id: str, records: Sequence[Record]) -> Batch:
    """Turn records, in their order, into the rows of one flush."""
    batch = Batch()
    episodes = [record for record in records if isinstance(record, EpisodeRecord)]
    if episodes:
        _add_episodes(batch, run_id, episodes)
    for record in records:
        if isinstance(record, tuple):
            env_step, values = record
            rows = [(run_id, env_step, name, _finite(value)) for name, value in values.items()]
            batch.add("metrics", rows)
        elif isinstance(record, EvaluationRecord):
            _add_evaluation(batch, run_id, record)
        elif isinstance(record, AskedRecord):
            _add_asked(batch, run_id, record)
        elif isinstance(record, GateStatsRecord):
            batch.add("gate_stats", [_gate_stats_row(run_id, record)])
        elif isinstance(record, SnapshotRecord):
            batch.add("snapshots", [_snapshot_row(run_id, record)])
    return batch


def size_of(record: Record) -> int:
    """Estimate what a waiting record holds in memory [bytes]."""
    if isinstance(record, tuple):
        return 200 * len(record[1])
    if isinstance(record, AskedRecord):
        return size_of(record.evaluation)
    if isinstance(record, EvaluationRecord):
        return 200 + sum(playback.state.nbytes + playback.action.nbytes for playback in record.playbacks)
    if isinstance(record, GateStatsRecord):
        return 500
    arrays = [value for value in vars(record).values() if isinstance(value, np.ndarray)]
    return 500 + sum(array.nbytes for array in arrays)


def _add_episodes(batch: Batch, run_id: str, episodes: Sequence[EpisodeRecord]) -> None:
    batch.add("episodes", [_episode_row(run_id, record) for record in episodes])
    first, lengths = episodes[0].first_env_step, [record.length for record in episodes]
    steps = sum(lengths)
    h, h_next = _joined(episodes, "h"), _joined(episodes, "h_next")
    delta_mem, beta = _joined(episodes, "delta_mem"), _joined(episodes, "beta")
    tau = np.repeat([np.nan if record.tau is None else record.tau for record in episodes], lengths)
    each = [_slots(record) for record in episodes]
    slots, next_slots = np.concatenate([part[:-1] for part in each]), np.concatenate([part[1:] for part in each])
    fields = (
        Field(run_id),
        Field(np.arange(first, first + steps)),
        Field(np.repeat(np.array([record.episode for record in episodes], np.int64), lengths)),
        Field(np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])),
        Field(np.concatenate([record.reward for record in episodes]).astype(np.float64)),
        *(Field(values, np.isnan(values)) for values in (h, h_next, delta_mem, beta, tau)),
        *(Field(values.astype(np.int64), values < 0) for values in (slots, next_slots)),
    )
    batch.rows["transitions"] = Columns(fields, steps)
    summary = summarize(first, delta_mem, beta, tau)
    batch.add("transition_summary", [(run_id, *row) for row in summary])
    batch.env_steps = first + steps - 1


def _episode_row(run_id: str, record: EpisodeRecord) -> tuple[Any, ...]:
    outline = (record.episode, record.first_env_step, record.length, _finite(record.episode_return))
    closed = None if record.beta is None else int((record.beta < CLOSED_BELOW).sum())
    return (run_id, *outline, bool(record.won), float(record.epsilon), closed, _pack_trajectory(record, record.slots))


def _pack_trajectory(record: EpisodeRecord | PlaybackRecord, slots: NDArray[np.integer[Any]] | None = None) -> bytes:
    arrays: dict[str, NDArray[Any]] = {
        "state": np.asarray(record.state, np.float32),
        "action": narrow(record.action),
        "reward": np.asarray(record.reward, np.float32),
    }
    return pack(arrays if slots is None else arrays | {"slots": narrow(slots)})


def narrow(values: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
    """Store integers in the smallest type that holds them."""
    if values.size == 0:
        return values.astype(np.int8)
    low, high = int(values.min()), int(values.max())
    for dtype in (np.int8, np.int16, np.int32):
        bounds = np.iinfo(dtype)
        if bounds.min <= low and high <= bounds.max:
            return values.astype(dtype)
    return values.astype(np.int64)


def _add_evaluation(batch: Batch, run_id: str, record: EvaluationRecord) -> None:
    robust = record.robust
    rate = (float(robust.won.mean()), robust.distinct) if robust else (None, None)
    batch.add("evaluations", [(*_evaluation_row(run_id, record), *rate)])
    batch.last_evaluation = (record.win_rate, record.return_mean)
    _add_playbacks(batch, run_id, record, first=0)


def _add_asked(batch: Batch, run_id: str, record: AskedRecord) -> None:
    """Add an answer: the run's last evaluation stays what it was."""
    row = (record.number, *_evaluation_row(run_id, record.evaluation), record.again_of)
    batch.add("asked_evaluations", [row])
    _add_playbacks(batch, run_id, record.evaluation, first=first_playback(record.number))


def _evaluation_row(run_id: str, record: EvaluationRecord) -> tuple[Any, ...]:
    outcome = (len(record.won), record.wins, record.win_rate, record.return_mean)
    spread, length = float(np.std(record.returns, dtype=np.float64)), float(np.mean(record.lengths))
    return (run_id, record.env_step, *outcome, spread, length, record.distinct)


def _add_playbacks(batch: Batch, run_id: str, record: EvaluationRecord, *, first: int) -> None:
    kept = record.playbacks[:PLAYBACKS_AT_MOST]
    rows = [_playback_row(run_id, record.env_step, first + i, playback) for i, playback in enumerate(kept)]
    batch.add("eval_episodes", rows)


def _playback_row(run_id: str, env_step: int, episode: int, record: PlaybackRecord) -> tuple[Any, ...]:
    outcome = (len(record.reward), _finite(record.episode_return), bool(record.won))
    return (run_id, env_step, episode, *outcome, _pack_trajectory(record))


def _gate_stats_row(run_id: str, record: GateStatsRecord) -> tuple[Any, ...]:
    numbers = (
        record.delta_mem_mean,
        *record.delta_mem_quantiles,
        record.beta_mean,
        *record.beta_quantiles,
    )
    tail = (float(record.tau), int(record.memory_size), _finite(record.desirable_fraction))
    return (run_id, record.env_step, *(_finite(number) for number in numbers), *tail)


def _snapshot_row(run_id: str, record: SnapshotRecord) -> tuple[Any, ...]:
    order = np.argsort(record.slot, kind="stable")
    blobs = [pack({name: np.asarray(getattr(record, name.lower()))[order]}) for name in _SNAPSHOT_COLUMNS]
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))  # where each of the record's rows went
    rows = rank[record.state_rows]
    by_row = np.argsort(rows, kind="stable")
    states = pack({"state_rows": rows[by_row], "state": np.asarray(record.state, np.float16)[by_row]})
    return (run_id, record.env_step, len(order), datetime.now(UTC), *blobs, states)


def _joined(episodes: Sequence[EpisodeRecord], name: str) -> NDArray[np.float64]:
    missing = (getattr(record, name) for record in episodes)
    parts = [
        np.full(record.length, np.nan) if values is None else np.asarray(values, np.float64)
        for record, values in zip(episodes, missing, strict=True)
    ]
    return np.concatenate(parts)


def _slots(record: EpisodeRecord) -> NDArray[np.int64]:
    return np.full(record.length + 1, -1, np.int64) if record.slots is None else record.slots


def _python_values(field: Field, n: int) -> Iterable[Any]:
    """The values as Python numbers, None where they are missing."""
    if isinstance(field.values, str):
        return repeat(field.values, n)
    if field.missing is None or not field.missing.any():
        return field.values.tolist()
    objects = field.values.astype(object)
    objects[field.missing] = None
    return objects.tolist()


def _finite(value: float) -> float | None:
    """NaN has no place in a table; infinity stays what it is."""
    number = float(value)
    return None if np.isnan(number) else number
