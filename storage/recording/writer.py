"""DatabaseRecorder: takes a run's records from the trainer and writes them from a thread of its own.

The trainer pays for putting a record into a queue. The thread packs, compresses and writes all that has
gathered in one transaction, which also moves `runs.env_steps`; so the stored transitions are 1…env_steps
at every moment, whatever happens to the process. When the disk is full or the database locked, the same
transaction is tried again until it succeeds: meanwhile the queue fills, the trainer waits, and `blocked`
and the run's `recorder.state` file say why.
"""

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence

from emtc_core.errors import EmtcError, StorageError
from emtc_core.metrics import is_known
from emtc_core.recorder import AskedRecord, EpisodeRecord, EvaluationRecord, GateStatsRecord, SnapshotRecord
from storage.engine import Database
from storage.files.trainer_files import StateFile
from storage.recording.batch import Batch, Record, make_batch, size_of
from storage.recording.statements import is_written, write_batch
from storage.retry import Outage, is_transient, retry_transient
from storage.runs.removal import rewind_run
from storage.runs.rows import find_run

_log = logging.getLogger(__name__)
LINGER_S = 0.25
BATCH_STEPS = 20_000
QUEUE_BYTES = 128 * 2**20
_RETRY_FIRST_S, _RETRY_MOST_S = 0.1, 2.0


class DatabaseRecorder:
    """Implements `emtc_core.recorder.Recorder` on a database. Arrays handed over must not change later."""

    def __init__(
        self,
        db: Database,
        run_id: str,
        *,
        queue_bytes: int = QUEUE_BYTES,
        batch_steps: int = BATCH_STEPS,
        linger_s: float = LINGER_S,
        token: str | None = None,
    ) -> None:
        """Continue after the run's last recorded step.

        Args:
            db: An open database; the recorder does not close it.
            run_id: An existing run.
            queue_bytes: How much may wait before the trainer does.
            batch_steps: Transitions after which a flush begins at once.
            linger_s: How long the first waiting record waits for company.
            token: By which the caller owns the run; a flush after somebody took it over fails.
        """
        self._db, self._run_id, self._token = db, run_id, token
        self._queue_bytes, self._batch_steps, self._linger_s = queue_bytes, batch_steps, linger_s
        self._next_env_step = find_run(db, run_id).env_steps + 1
        self._queue: deque[Record] = deque()
        self._waiting_bytes = self._waiting_steps = 0
        self._accepted = self._written = 0
        self._urgent = self._closing = self._closed = self._abandoned = False
        self._blocked: str | None = None
        self._failure: Exception | None = None
        self._changed = threading.Condition()
        self._outage = Outage(_log, f"run {run_id}: recording waits")
        self._state_file = StateFile(db, run_id)
        self._state_file.prepare()
        self._thread = threading.Thread(target=self._run, name=f"recorder-{run_id}", daemon=True)
        self._thread.start()

    @property
    def blocked(self) -> str | None:
        """Why nothing can be written now, or None."""
        return self._blocked

    def supersede(self, env_step: int, *, checkpoint: str, passed_over: Sequence[str] = ()) -> None:
        """Go on after `env_step`, where the trainer stands by a checkpoint: later rows are removed and counted.

        Raises:
            RunStateError: If the recorded rows cannot go back there.
        """

        def rewind() -> None:
            db, run_id, token = self._db, self._run_id, self._token
            rewind_run(db, run_id, env_step, token=token, checkpoint=checkpoint, passed_over=passed_over)

        retry_transient(self._db, rewind)
        self._next_env_step = env_step + 1

    def record_episode(self, record: EpisodeRecord) -> None:
        """Queue an episode.

        Raises:
            ValueError: If it does not continue where the last one ended.
            StorageError: If the writer has failed.
        """
        if record.first_env_step != self._next_env_step or record.length == 0:
            raise ValueError(
                f"episode {record.episode} must start at env step {self._next_env_step} and not be empty, "
                f"got {record.first_env_step} and {record.length} steps"
            )
        self._put(record, record.length)
        self._next_env_step += record.length

    def record_metrics(self, env_step: int, values: Mapping[str, float]) -> None:
        """Queue numbers.

        Raises:
            ValueError: If a name is not in `emtc_core.metrics`.
        """
        if strangers := [name for name in values if not is_known(name)]:
            raise ValueError(f"unknown metric {strangers[0]!r}; describe it in emtc_core/metrics.py")
        self._put((env_step, {name: float(value) for name, value in values.items()}))

    def record_evaluation(self, record: EvaluationRecord) -> None:
        """Queue an evaluation with its playbacks."""
        self._put(record)

    def record_asked(self, record: AskedRecord) -> None:
        """Queue the answer to a question with its playbacks."""
        self._put(record)

    def record_gate_stats(self, record: GateStatsRecord) -> None:
        """Queue gate statistics."""
        self._put(record)

    def record_snapshot(self, record: SnapshotRecord) -> None:
        """Queue a snapshot."""
        self._put(record)

    def flush(self) -> None:
        """Return when all that was recorded is in the database.

        Raises:
            StorageError: If the writer has failed.
        """
        with self._changed:
            goal = self._accepted
            while self._written < goal and self._failure is None:
                self._urgent = True
                self._changed.notify_all()
                self._changed.wait(0.5)  # a timeout, so that Ctrl-C is heard
            self._raise_failure()

    def close(self) -> None:
        """Flush and stop the thread; idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            self.flush()
        except BaseException:
            self._abandoned = True  # whoever does not wait for the flush does not wait for its next try either
            raise
        finally:
            self._end_thread()

    def abandon(self) -> int:
        """Stop at once, without what is not written yet: what stands in the database is whole, only shorter.

        Returns:
            How many records were given up.
        """
        self._closed = self._abandoned = True
        self._end_thread()
        return self._accepted - self._written

    def _end_thread(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout=30)
        self._state_file.remove()

    def _put(self, record: Record, steps: int = 0) -> None:
        size = size_of(record)
        with self._changed:
            while self._waiting_bytes and self._waiting_bytes + size > self._queue_bytes:
                self._raise_failure()
                self._urgent = True
                self._changed.notify_all()
                self._changed.wait(0.5)
            self._raise_failure()
            if self._closed:
                raise StorageError(
                    f"The recorder of run {self._run_id} is closed.", reason="closed", subject=self._run_id
                )
            self._queue.append(record)
            self._accepted += 1
            self._waiting_bytes += size
            self._waiting_steps += steps
            if len(self._queue) == 1 or self._waiting_steps >= self._batch_steps:
                self._changed.notify_all()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            reason = self._failure.reason if isinstance(self._failure, EmtcError) else "failed"
            message = f"Run {self._run_id} can no longer be recorded: {self._failure}"
            raise StorageError(message, reason=reason, subject=self._run_id) from self._failure

    def _run(self) -> None:
        while True:
            records = self._take()
            if not records or self._abandoned:
                return
            try:
                if not self._write(make_batch(self._run_id, records)):
                    return
            except Exception as error:  # the thread has no caller: the trainer gets it at its next record
                _log.exception("run %s: the recorder failed", self._run_id)
                with self._changed:
                    self._failure = error
                    self._changed.notify_all()
                return
            self._count_written(records)

    def _take(self) -> list[Record]:
        """Wait for records, then a little for company; an empty list says that the recorder closes."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            self._changed.wait_for(self._is_due, self._linger_s)
            self._urgent = False
            records: list[Record] = []
            steps = 0
            while self._queue and steps < self._batch_steps:
                record = self._queue.popleft()
                records.append(record)
                steps += record.length if isinstance(record, EpisodeRecord) else 0
            self._waiting_steps -= steps
            return records

    def _is_due(self) -> bool:
        return self._urgent or self._closing or self._waiting_steps >= self._batch_steps

    def _count_written(self, records: list[Record]) -> None:
        with self._changed:
            self._written += len(records)
            self._waiting_bytes -= sum(size_of(record) for record in records)
            self._changed.notify_all()

    def _write(self, batch: Batch) -> bool:
        """Write a batch, however long it takes; False says that it was given up."""
        pause_s, has_failed = _RETRY_FIRST_S, False
        while not self._abandoned:
            try:
                with self._db.transaction() as connection:
                    if not (has_failed and is_written(connection, self._run_id, batch)):
                        write_batch(connection, self._run_id, batch, token=self._token)
            except StorageError as error:
                if not is_transient(self._db, error):
                    raise
                has_failed = True
                self._say(str(error))
                with self._changed:
                    self._changed.wait_for(lambda: self._abandoned, pause_s)
                pause_s = min(2 * pause_s, _RETRY_MOST_S)
            else:
                self._say(None)
                return True
        return False

    def _say(self, reason: str | None) -> None:
        if reason is None:
            self._outage.over()
        else:
            self._outage.failed(reason)
        if reason != self._blocked:
            self._state_file.write(reason or "")
            self._blocked = reason  # after the file: who sees that it waits finds out why
