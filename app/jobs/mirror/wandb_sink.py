"""Write to Weights & Biases: offline folders, which the user can send with `wandb sync`. This module sends nothing.

Each folder contains a file: a LevelDB log of protocol buffers. After a restart, the last env steps are read from it.
"""

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from app.jobs.mirror.rows import LastSteps, MirroredRun, Row
from emtc_core.errors import ConfigError, Fault

NO_WANDB = 'W&B is missing. Install it with: pip install -e ".[wandb]"'
WANDB_STEP: Final = "env_step"
_LEVELDB_BLOCK_BYTES = 32_768
_LEVELDB_RECORD_HEADER = struct.Struct("<IHB")
"""Checksum, length and kind of a record or of a part of it."""
_WANDB_FILE_HEADER_BYTES = 7
_FULL_RECORD = 1
_FIRST_PART = 2
_LAST_PART = 4
"""Kinds of a LevelDB record; 3 is a part in the middle."""


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
        self._wandb: Any = wandb
        self._out = out
        self._open_runs: dict[str, Any] = {}
        """Key of a run → its open W&B run."""

    def last_steps(self, run: MirroredRun) -> LastSteps:
        """Read the last env step of each curve from the offline folders of a run."""
        return _read_wandb_steps(self._out, run.key)

    def write(self, run: MirroredRun, rows: list[Row]) -> None:
        """Log rows against `env_step`, which is the x axis of every curve."""
        if run.key not in self._open_runs:
            self._open_runs[run.key] = self._start(run)
        for row in rows:
            self._open_runs[run.key].log({WANDB_STEP: row.env_step, **row.values})

    def close(self, run: MirroredRun) -> None:
        """Finish the W&B run. Later rows go to a new folder with the same run id."""
        if (open_run := self._open_runs.pop(run.key, None)) is not None:
            open_run.finish(exit_code=1 if run.status == "failed" else 0)

    def _start(self, run: MirroredRun) -> Any:
        without_machine_data = {"x_disable_stats": True, "x_disable_meta": True, "x_disable_machine_info": True}
        wandb_run = self._wandb.init(
            mode="offline",
            dir=str(self._out),
            project="emtc",
            id=run.key,
            resume="allow",
            name=run.folder,
            config=dict(run.settings),
            reinit="create_new",
            settings=self._wandb.Settings(console="off", **without_machine_data),
        )
        wandb_run.define_metric(WANDB_STEP)
        wandb_run.define_metric("*", step_metric=WANDB_STEP)
        return wandb_run


def _read_wandb_steps(out: Path, key: str) -> LastSteps:
    """Read the last env step of each curve from the offline folders of a run."""
    last_steps: dict[str, int] = {}
    for file in sorted(out.glob(f"wandb/offline-run-*-{key}/run-{key}.wandb")):
        for values in read_wandb_rows(file):
            step = int(json.loads(values.get(WANDB_STEP, "-1")))
            for name in values.keys() - {WANDB_STEP}:
                last_steps[name] = max(step, last_steps.get(name, -1))
    return last_steps


def read_wandb_rows(file: Path) -> Iterator[dict[str, str]]:
    """Yield the logged rows of a file (name → JSON text of the value), up to the last complete row."""
    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2  # protobuf creates its classes at run time
    for data in _read_leveldb_records(file.read_bytes()):
        record = messages.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            yield {name: text for name, text in items.items() if not name.startswith("_")}  # "_…" is internal to W&B


def _read_leveldb_records(content: bytes) -> Iterator[bytes]:
    """Split a LevelDB log into its records. An incomplete record at the end is dropped."""
    position = _WANDB_FILE_HEADER_BYTES
    record = b""
    while position + _LEVELDB_RECORD_HEADER.size <= len(content):
        n_left_in_block = _LEVELDB_BLOCK_BYTES - position % _LEVELDB_BLOCK_BYTES
        if n_left_in_block < _LEVELDB_RECORD_HEADER.size:  # the end of a block is filled with zeros
            position += n_left_in_block
            continue
        _, length, kind = _LEVELDB_RECORD_HEADER.unpack_from(content, position)
        start = position + _LEVELDB_RECORD_HEADER.size
        data = content[start : start + length]
        if len(data) < length:
            return
        position = start + length
        starts_record = kind in (_FULL_RECORD, _FIRST_PART)
        record = data if starts_record else record + data
        if kind in (_FULL_RECORD, _LAST_PART):
            yield record
