"""Write to TensorBoard: event files in one folder per run, written and read with TensorBoard's own code."""

import time
from pathlib import Path
from typing import Any

from app.jobs.mirror.rows import LastSteps, MirroredRun, Row
from emtc_core.errors import ConfigError, Fault

NO_TENSORBOARD = 'TensorBoard is missing. Install it with: pip install -e ".[tensorboard]"'


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
        self._out = out
        self._make_writer = EventFileWriter
        events: Any = event_pb2  # protobuf creates its classes at run time
        summaries: Any = summary_pb2
        self._make_event = events.Event
        self._summary = summaries.Summary
        self._writers: dict[str, Any] = {}
        """Key of a run → its open writer."""

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
            summary = self._summary(value=values)
            writer.add_event(self._make_event(wall_time=time.time(), step=row.env_step, summary=summary))
        writer.flush()

    def close(self, run: MirroredRun) -> None:
        """Close the event file of a run. Later rows go to a new file in the same folder."""
        if (writer := self._writers.pop(run.key, None)) is not None:
            writer.close()
