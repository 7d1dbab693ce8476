"""Write runs to other programs: Weights & Biases, MLflow and TensorBoard. Nothing is sent over the network.

    wandb         Offline folders, which the user can send with `wandb sync`. They are LevelDB logs of protocol buffers,
                  from which the last env steps are read back after a restart.
    mlflow        The experiment "emtc" in a SQLite file, with one MLflow run per run.
    tensorboard   One folder of event files per run, written and read with TensorBoard's own code.

A mirror reads what its program lacks from the database, writes it, and polls again. Trainers are not involved.
"""

import json
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

from app.jobs.mirror.rows import LastSteps, MirroredRun, MirrorTarget, Row, describe_run, read_new_rows
from emtc_core.errors import ConfigError, Fault
from storage.engine import Database
from storage.queries.run_search import RunFilter, matching_ids
from storage.queries.runs import get_rows

NO_WANDB = 'W&B is missing. Install it with: pip install -e ".[wandb]"'
WANDB_STEP: Final = "env_step"
NO_MLFLOW = 'MLflow is missing. Install it with: pip install -e ".[mlflow]"'
NO_TENSORBOARD = 'TensorBoard is missing. Install it with: pip install -e ".[tensorboard]"'
Target = Literal["tensorboard", "wandb", "mlflow"]
TARGETS: tuple[Target, ...] = get_args(Target)
EXPERIMENT: Final = "emtc"
FILE: Final = "mlflow.db"
TAG: Final = "emtc.run"
_MLFLOW_METRICS_PER_BATCH: Final = 1000
_MLFLOW_PARAMS_PER_BATCH: Final = 100
_MLFLOW_PARAM_CHARACTERS: Final = 500
ROWS_AT_ONCE: Final = 5_000
_LEVELDB_BLOCK_BYTES = 32_768
_LEVELDB_RECORD_HEADER = struct.Struct("<IHB")
"""Checksum, length and kind of a record."""
_WANDB_FILE_HEADER_BYTES = 7
_FULL_RECORD, _FIRST_PART, _LAST_PART = 1, 2, 4


class WandbSink:
    """Offline W&B runs in one folder."""

    def __init__(self, out: Path) -> None:
        """Write to a folder.

        Raises:
            ConfigError: If W&B is not installed.
        """
        os.environ.setdefault("WANDB_SILENT", "true")
        try:
            import wandb
        except ImportError as error:
            raise ConfigError(Fault(hint=NO_WANDB)) from error
        out.mkdir(parents=True, exist_ok=True)
        self._wandb, self._out = wandb, out
        self._runs: dict[str, Any] = {}

    def last_steps(self, run: MirroredRun) -> LastSteps:
        """Read the last env step of each curve from the offline folders of a run."""
        return _read_wandb_steps(self._out, run.key)

    def write(self, run: MirroredRun, rows: list[Row]) -> None:
        """Log rows against `env_step`, which is the x axis of every curve."""
        if run.key not in self._runs:
            self._runs[run.key] = self._start(run)
        for row in rows:
            self._runs[run.key].log({WANDB_STEP: row.env_step, **row.values})

    def close(self, run: MirroredRun) -> None:
        """Finish a run's folder. Later rows go to a new folder with the same id."""
        if (open_run := self._runs.pop(run.key, None)) is not None:
            open_run.finish(exit_code=1 if run.status == "failed" else 0)

    def _start(self, run: MirroredRun) -> Any:
        quiet = {"x_disable_stats": True, "x_disable_meta": True, "x_disable_machine_info": True}
        wandb_run = self._wandb.init(
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
        wandb_run.define_metric(WANDB_STEP)
        wandb_run.define_metric("*", step_metric=WANDB_STEP)
        return wandb_run


def _read_wandb_steps(out: Path, key: str) -> LastSteps:
    """Read the last env step of each curve from the offline folders of a run."""
    last: dict[str, int] = {}
    for file in sorted(out.glob(f"wandb/offline-run-*-{key}/run-{key}.wandb")):
        for values in _read_wandb_rows(file):
            step = int(json.loads(values.get(WANDB_STEP, "-1")))
            for name in values.keys() - {WANDB_STEP}:
                last[name] = max(step, last.get(name, -1))
    return last


def _read_wandb_rows(file: Path) -> Iterator[dict[str, str]]:
    """Yield the logged rows of a file, name → JSON, up to the last complete one."""
    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2  # protobuf creates its classes at run time
    for data in _read_leveldb_records(file.read_bytes()):
        record = messages.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            yield {name: text for name, text in items.items() if not name.startswith("_")}


def _read_leveldb_records(content: bytes) -> Iterator[bytes]:
    """Split a LevelDB log into its records. An incomplete record at the end is dropped."""
    position, record = _WANDB_FILE_HEADER_BYTES, b""
    while position + _LEVELDB_RECORD_HEADER.size <= len(content):
        block_rest = _LEVELDB_BLOCK_BYTES - position % _LEVELDB_BLOCK_BYTES
        if block_rest < _LEVELDB_RECORD_HEADER.size:  # the end of a block is filled with zeros
            position += block_rest
            continue
        _, length, kind = _LEVELDB_RECORD_HEADER.unpack_from(content, position)
        start = position + _LEVELDB_RECORD_HEADER.size
        data = content[start : start + length]
        if len(data) < length:
            return
        position = start + length
        record = data if kind in (_FULL_RECORD, _FIRST_PART) else record + data
        if kind in (_FULL_RECORD, _LAST_PART):
            yield record


class MlflowSink:
    """An MLflow experiment in a SQLite file, written with MLflow's client."""

    def __init__(self, out: Path) -> None:
        """Write to `out/mlflow.db`.

        Raises:
            ConfigError: If MLflow is not installed.
        """
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric, Param, RunTag
        except ImportError as error:
            raise ConfigError(Fault(hint=NO_MLFLOW)) from error
        out.mkdir(parents=True, exist_ok=True)
        self._metric, self._param, self._tag = Metric, Param, RunTag
        self._client = MlflowClient(tracking_uri=f"sqlite:///{(out / FILE).resolve()}")
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        artifacts = (out / "artifacts").resolve().as_uri()
        self._experiment = (
            experiment.experiment_id
            if experiment
            else self._client.create_experiment(EXPERIMENT, artifact_location=artifacts)
        )
        self._ids: dict[str, str] = {}

    def last_steps(self, run: MirroredRun) -> LastSteps:
        """Read the last step of each metric of a run from MLflow."""
        run_id = self._get_mlflow_id(run)
        metrics = self._client.get_run(run_id).data.metrics
        return {name: max(point.step for point in self._client.get_metric_history(run_id, name)) for name in metrics}

    def write(self, run: MirroredRun, rows: list[Row]) -> None:
        """Log rows. Their time is made of their step, so that MLflow recognizes a row that is written again."""
        start_ms = int(run.created_at.timestamp() * 1000)
        metrics = [
            self._metric(name, value, start_ms + row.env_step, row.env_step)
            for row in rows
            for name, value in row.values.items()
        ]
        for start in range(0, len(metrics), _MLFLOW_METRICS_PER_BATCH):
            self._client.log_batch(self._get_mlflow_id(run), metrics=metrics[start : start + _MLFLOW_METRICS_PER_BATCH])

    def close(self, run: MirroredRun) -> None:
        """Set the final status of a run that has ended."""
        if run.has_ended and run.key in self._ids:
            status = {"finished": "FINISHED", "stopped": "KILLED"}.get(run.status, "FAILED")
            self._client.set_terminated(self._ids[run.key], status=status)

    def _get_mlflow_id(self, run: MirroredRun) -> str:
        """Get MLflow's id of a run; create the run in MLflow if it is missing."""
        if run.key not in self._ids:
            matches = self._client.search_runs([self._experiment], f"tags.`{TAG}` = '{run.key}'")
            self._ids[run.key] = matches[0].info.run_id if matches else self._create(run)
        return self._ids[run.key]

    def _create(self, run: MirroredRun) -> str:
        tags = {TAG: run.key, "env": str(run.settings.get("env.name")), "map": str(run.settings.get("env.map"))}
        mlflow_run: Any = self._client.create_run(
            self._experiment, run_name=run.folder, tags=tags, start_time=int(run.created_at.timestamp() * 1000)
        )
        params = [self._param(key, str(value)[:_MLFLOW_PARAM_CHARACTERS]) for key, value in run.settings.items()]
        for start in range(0, len(params), _MLFLOW_PARAMS_PER_BATCH):
            self._client.log_batch(mlflow_run.info.run_id, params=params[start : start + _MLFLOW_PARAMS_PER_BATCH])
        return mlflow_run.info.run_id


class TensorboardSink:
    """Event files in one folder per run. TensorBoard shows the files of several processes as one run."""

    def __init__(self, out: Path) -> None:
        """Write to a folder.

        Raises:
            ConfigError: If TensorBoard is not installed.
        """
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise ConfigError(Fault(hint=NO_TENSORBOARD)) from error
        self._out, self._make_writer = out, EventFileWriter
        events: Any = event_pb2  # protobuf creates its classes at run time
        summaries: Any = summary_pb2
        self._event, self._summary = events.Event, summaries.Summary
        self._writers: dict[str, Any] = {}

    def last_steps(self, run: MirroredRun) -> LastSteps:
        """Read the last step of each scalar of a run with TensorBoard's reader."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        folder = self._out / run.folder
        if not folder.exists():
            return {}
        events: Any = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
        return {tag: max(event.step for event in events.Scalars(tag)) for tag in events.Tags()["scalars"]}

    def write(self, run: MirroredRun, rows: list[Row]) -> None:
        """Write one event per env step."""
        if run.key not in self._writers:
            self._writers[run.key] = self._make_writer(str(self._out / run.folder))
        writer = self._writers[run.key]
        for row in rows:
            values = [self._summary.Value(tag=name, simple_value=value) for name, value in row.values.items()]
            writer.add_event(self._event(wall_time=time.time(), step=row.env_step, summary=self._summary(value=values)))
        writer.flush()

    def close(self, run: MirroredRun) -> None:
        """Close a run's file."""
        if (writer := self._writers.pop(run.key, None)) is not None:
            writer.close()


_SINKS: Final[dict[Target, Callable[[Path], MirrorTarget]]] = {
    "tensorboard": TensorboardSink,
    "wandb": WandbSink,
    "mlflow": MlflowSink,
}


@dataclass
class Mirror:
    """A program with the last env steps that it contains."""

    sink: MirrorTarget
    _last_steps: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    _complete: dict[str, int] = field(default_factory=dict[str, int])
    """Ended runs that are written completely → their env steps. They are not read again."""

    def update(self, db: Database, run_ids: Sequence[str] | None) -> tuple[int, bool]:
        """Write the new values of these runs; None means all runs.

        Returns:
            Number of values that were written, and whether all runs have ended.
        """
        ids = matching_ids(db, RunFilter()) if run_ids is None else run_ids
        written, all_ended = 0, True
        for row in get_rows(db, ids):
            run = describe_run(db, row)
            all_ended &= run.has_ended
            if run.has_ended and self._complete.get(run.key) == row.env_steps:
                continue
            written += self._update_run(db, row.id, run)
            if run.has_ended:
                self._complete[run.key] = row.env_steps
        return written, all_ended

    def _update_run(self, db: Database, run_id: str, run: MirroredRun) -> int:
        """Write the new values of one run, and close it if it has ended; return the number of values."""
        if run.key not in self._last_steps:
            self._last_steps[run.key] = dict(self.sink.last_steps(run))
        last = self._last_steps[run.key]
        rows = read_new_rows(db, run_id, last)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            batch = rows[start : start + ROWS_AT_ONCE]
            self.sink.write(run, batch)
            for row in batch:
                last.update(dict.fromkeys(row.values, row.env_step))
        if run.has_ended:
            self.sink.close(run)
        return sum(len(row.values) for row in rows)

    def close(self, db: Database, run_ids: Sequence[str] | None) -> None:
        """Close every run."""
        for row in get_rows(db, matching_ids(db, RunFilter()) if run_ids is None else run_ids):
            self.sink.close(describe_run(db, row))


def make_mirror(target: str, out: Path) -> Mirror:
    """Make the mirror of a target.

    Raises:
        ConfigError: If the target is unknown or its program is not installed.
    """
    valid_target: Target | None = next((name for name in TARGETS if name == target), None)
    if valid_target is None:
        raise ConfigError(f"must be one of {', '.join(TARGETS)}", key="--to", value=target)
    return Mirror(_SINKS[valid_target](out))


def mirror_continuously(
    mirror: Mirror, db: Database, run_ids: Sequence[str] | None, *, every_s: float, announce: Callable[[str], None]
) -> None:
    """Update a mirror repeatedly, until all of these runs have ended. With None (all runs) it never ends.

    Args:
        mirror: The mirror.
        db: An open database.
        run_ids: The runs; None means all, including later ones.
        every_s: Time between two updates [s].
        announce: Called with messages for the user.
    """
    while True:
        written, all_ended = mirror.update(db, run_ids)
        if written:
            announce(f"Mirrored {written:,} values.")
        if all_ended and run_ids is not None:
            return
        time.sleep(every_s)
