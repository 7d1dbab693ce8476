"""The programs that runs are shown in: Weights & Biases, MLflow and TensorBoard. Nothing is sent from this machine.

W&B works offline: folders that `wandb sync` sends when somebody wants it to. What a killed mirror had written is read
back out of them, which are LevelDB logs of protocol buffers. MLflow has an experiment `emtc` in a SQLite file, a run
for each run; TensorBoard a folder of event files for each run, written and read back by its own code.

A mirror reads what its program lacks, writes it and looks again; trainers know nothing of it.
"""

import json
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

from app.jobs.mirror.rows import Last, Mirrored, Row, Sink, describe_run, new_rows
from emtc_core.errors import ConfigError, Fault
from storage.engine import Database
from storage.queries.runs import RunFilter, get_rows, matching_ids

NO_WANDB = 'W&B is missing. Install it with: pip install -e ".[wandb]"'
WANDB_STEP: Final = "env_step"
_BLOCK, _HEAD, _FILE_HEAD = 32_768, struct.Struct("<IHB"), 7
_FULL, _FIRST, _LAST = 1, 2, 4


class WandbSink:
    """Offline runs under one folder."""

    def __init__(self, out: Path) -> None:
        """Write under a folder.

        Raises:
            ConfigError: If W&B is missing.
        """
        os.environ.setdefault("WANDB_SILENT", "true")
        try:
            import wandb
        except ImportError as error:
            raise ConfigError(Fault(hint=NO_WANDB)) from error
        out.mkdir(parents=True, exist_ok=True)
        self._wandb, self._out = wandb, out
        self._runs: dict[str, Any] = {}

    def last_steps(self, run: Mirrored) -> Last:
        """Read what its earlier folders hold of a run."""
        return read_last_steps(self._out, run.key)

    def write(self, run: Mirrored, rows: list[Row]) -> None:
        """Log rows against `env_step`, which is the x axis of every curve."""
        if run.key not in self._runs:
            self._runs[run.key] = self._start(run)
        for row in rows:
            self._runs[run.key].log({WANDB_STEP: row.env_step, **row.values})

    def close(self, run: Mirrored) -> None:
        """Finish a run's folder; another one follows it under the same id if rows come later."""
        if (open_run := self._runs.pop(run.key, None)) is not None:
            open_run.finish(exit_code=1 if run.status == "failed" else 0)

    def _start(self, run: Mirrored) -> Any:
        quiet = {"x_disable_stats": True, "x_disable_meta": True, "x_disable_machine_info": True}
        made = self._wandb.init(
            mode="offline",
            dir=str(self._out),
            project="emtc",
            id=run.key,
            resume="allow",
            name=run.folder,
            config=dict(run.settings),
            reinit="create_new",
            settings=self._wandb.Settings(console="off", **quiet),
        )
        made.define_metric(WANDB_STEP)
        made.define_metric("*", step_metric=WANDB_STEP)
        return made


def read_last_steps(out: Path, key: str) -> Last:
    """Read the last env step of each curve out of the offline folders of a run."""
    last: dict[str, int] = {}
    for file in sorted(out.glob(f"wandb/offline-run-*-{key}/run-{key}.wandb")):
        for values in _histories(file):
            step = int(json.loads(values.get(WANDB_STEP, "-1")))
            for name in values.keys() - {WANDB_STEP}:
                last[name] = max(step, last.get(name, -1))
    return last


def _histories(file: Path) -> Iterator[dict[str, str]]:
    """List the logged rows of a file, name → JSON, as far as it is whole."""
    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2  # protobuf makes its classes as it is imported: no type checker sees them
    for data in _records(file.read_bytes()):
        record = messages.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {each.key or "/".join(each.nested_key): each.value_json for each in record.history.item}
            yield {name: text for name, text in items.items() if not name.startswith("_")}


def _records(content: bytes) -> Iterator[bytes]:
    """Split a LevelDB log into its records; what a kill has cut off at the end is none."""
    place, parts = _FILE_HEAD, b""
    while place + _HEAD.size <= len(content):
        if _BLOCK - place % _BLOCK < _HEAD.size:  # a block's end is filled with zeros
            place += _BLOCK - place % _BLOCK
            continue
        _, length, kind = _HEAD.unpack_from(content, place)
        data = content[place + _HEAD.size : place + _HEAD.size + length]
        if len(data) < length:
            return
        place += _HEAD.size + length
        parts = data if kind in (_FULL, _FIRST) else parts + data
        if kind in (_FULL, _LAST):
            yield parts


NO_MLFLOW = 'MLflow is missing. Install it with: pip install -e ".[mlflow]"'
EXPERIMENT: Final = "emtc"
FILE: Final = "mlflow.db"
TAG: Final = "emtc.run"
_AT_ONCE: Final = 1000  # metrics of one batch, as MLflow limits it
_PARAMS_AT_ONCE: Final = 100
_LONGEST: Final = 500


class MlflowSink:
    """MLflow's own client on a file of its own."""

    def __init__(self, out: Path) -> None:
        """Write into `out/mlflow.db`.

        Raises:
            ConfigError: If MLflow is missing.
        """
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric, Param, RunTag
        except ImportError as error:
            raise ConfigError(Fault(hint=NO_MLFLOW)) from error
        out.mkdir(parents=True, exist_ok=True)
        self._metric, self._param, self._tag = Metric, Param, RunTag
        self._client = MlflowClient(tracking_uri=f"sqlite:///{(out / FILE).resolve()}")
        found = self._client.get_experiment_by_name(EXPERIMENT)
        place = (out / "artifacts").resolve().as_uri()
        self._experiment = (
            found.experiment_id if found else self._client.create_experiment(EXPERIMENT, artifact_location=place)
        )
        self._ids: dict[str, str] = {}

    def last_steps(self, run: Mirrored) -> Last:
        """Ask MLflow for the last step of every metric of a run."""
        known = self._client.get_run(self._id(run)).data.metrics
        return {name: max(each.step for each in self._client.get_metric_history(self._id(run), name)) for name in known}

    def write(self, run: Mirrored, rows: list[Row]) -> None:
        """Log rows; their time follows from their step, so that the same row is the same row to MLflow, too."""
        first = int(run.created_at.timestamp() * 1000)
        metrics = [
            self._metric(name, value, first + row.env_step, row.env_step)
            for row in rows
            for name, value in row.values.items()
        ]
        for start in range(0, len(metrics), _AT_ONCE):
            self._client.log_batch(self._id(run), metrics=metrics[start : start + _AT_ONCE])

    def close(self, run: Mirrored) -> None:
        """Say that a run has ended."""
        if run.has_ended and run.key in self._ids:
            status = {"finished": "FINISHED", "stopped": "KILLED"}.get(run.status, "FAILED")
            self._client.set_terminated(self._ids[run.key], status=status)

    def _id(self, run: Mirrored) -> str:
        """MLflow's id of a run, which is made where it is not there."""
        if run.key not in self._ids:
            found = self._client.search_runs([self._experiment], f"tags.`{TAG}` = '{run.key}'")
            self._ids[run.key] = found[0].info.run_id if found else self._make(run)
        return self._ids[run.key]

    def _make(self, run: Mirrored) -> str:
        tags = {TAG: run.key, "env": str(run.settings.get("env.name")), "map": str(run.settings.get("env.map"))}
        made: Any = self._client.create_run(
            self._experiment, run_name=run.folder, tags=tags, start_time=int(run.created_at.timestamp() * 1000)
        )
        params = [self._param(key, str(value)[:_LONGEST]) for key, value in run.settings.items()]
        for start in range(0, len(params), _PARAMS_AT_ONCE):
            self._client.log_batch(made.info.run_id, params=params[start : start + _PARAMS_AT_ONCE])
        return made.info.run_id


NO_TENSORBOARD = 'TensorBoard is missing. Install it with: pip install -e ".[tensorboard]"'


class TensorboardSink:
    """Event files under one folder; each process writes files of its own, and TensorBoard shows them as one run."""

    def __init__(self, out: Path) -> None:
        """Write under a folder.

        Raises:
            ConfigError: If TensorBoard is missing.
        """
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise ConfigError(Fault(hint=NO_TENSORBOARD)) from error
        self._out, self._open = out, EventFileWriter
        events: Any = event_pb2  # protobuf makes their classes as they are imported: no type checker sees them
        summaries: Any = summary_pb2
        self._event, self._summary = events.Event, summaries.Summary
        self._writers: dict[str, Any] = {}

    def last_steps(self, run: Mirrored) -> Last:
        """Ask TensorBoard's reader what it shows of a run."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        folder = self._out / run.folder
        if not folder.exists():
            return {}
        events: Any = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
        return {tag: max(each.step for each in events.Scalars(tag)) for tag in events.Tags()["scalars"]}

    def write(self, run: Mirrored, rows: list[Row]) -> None:
        """Add one event for each env step."""
        if run.key not in self._writers:
            self._writers[run.key] = self._open(str(self._out / run.folder))
        writer = self._writers[run.key]
        for row in rows:
            values = [self._summary.Value(tag=name, simple_value=value) for name, value in row.values.items()]
            writer.add_event(self._event(wall_time=time.time(), step=row.env_step, summary=self._summary(value=values)))
        writer.flush()

    def close(self, run: Mirrored) -> None:
        """Close a run's file."""
        if (writer := self._writers.pop(run.key, None)) is not None:
            writer.close()


Target = Literal["tensorboard", "wandb", "mlflow"]
TARGETS: tuple[Target, ...] = get_args(Target)
_SINKS: Final[dict[Target, Callable[[Path], Sink]]] = {
    "tensorboard": TensorboardSink,
    "wandb": WandbSink,
    "mlflow": MlflowSink,
}
ROWS_AT_ONCE: Final = 5_000


@dataclass
class Mirror:
    """One target with what is known of what it holds."""

    sink: Sink
    _last: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    _whole: dict[str, int] = field(default_factory=dict[str, int])
    """Ended runs that it holds whole, and their env steps: nothing is asked of them again."""

    def look(self, db: Database, run_ids: Sequence[str] | None) -> tuple[int, bool]:
        """Mirror what is new of these runs, of every run where None.

        Returns:
            How many values were written, and whether all runs have ended.
        """
        ids = matching_ids(db, RunFilter()) if run_ids is None else run_ids
        written, all_ended = 0, True
        for row in get_rows(db, ids):
            run = describe_run(db, row)
            all_ended &= run.has_ended
            if run.has_ended and self._whole.get(run.key) == row.env_steps:
                continue
            written += self._bring(db, row.id, run)
            if run.has_ended:
                self._whole[run.key] = row.env_steps
        return written, all_ended

    def _bring(self, db: Database, run_id: str, run: Mirrored) -> int:
        """Bring one run up to date, and close it if it has ended."""
        if run.key not in self._last:
            self._last[run.key] = dict(self.sink.last_steps(run))
        last = self._last[run.key]
        rows = new_rows(db, run_id, last)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            part = rows[start : start + ROWS_AT_ONCE]
            self.sink.write(run, part)
            _advance(last, part)
        if run.has_ended:
            self.sink.close(run)
        return sum(len(row.values) for row in rows)

    def close(self, db: Database, run_ids: Sequence[str] | None) -> None:
        """Let go of every run."""
        for row in get_rows(db, matching_ids(db, RunFilter()) if run_ids is None else run_ids):
            self.sink.close(describe_run(db, row))


def _advance(last: dict[str, int], rows: Sequence[Row]) -> None:
    for row in rows:
        last.update(dict.fromkeys(row.values, row.env_step))


def make_mirror(target: str, out: Path) -> Mirror:
    """Make the mirror of a target.

    Raises:
        ConfigError: If there is no such target, or its program is missing.
    """
    known: Target | None = next((each for each in TARGETS if each == target), None)
    if known is None:
        raise ConfigError(f"must be one of {', '.join(TARGETS)}", key="--to", value=target)
    return Mirror(_SINKS[known](out))


def follow(
    mirror: Mirror, db: Database, run_ids: Sequence[str] | None, *, every_s: float, say: Callable[[str], None]
) -> None:
    """Mirror until all of the named runs have ended, or for ever where none was named."""
    while True:
        written, all_ended = mirror.look(db, run_ids)
        if written:
            say(f"Mirrored {written:,} values.")
        if all_ended and run_ids is not None:
            return
        time.sleep(every_s)
