"""DatabaseRecorder: queue the records of a run and write them to the database from a background thread.

The trainer only puts a record into a queue. The thread packs and compresses all queued records and writes them in one
transaction, which also updates `runs.env_steps`. So the stored transitions are 1…env_steps at any time, also after a
crash. If the disk is full, the database is locked or its file was moved, the same transaction is retried until it
succeeds. Meanwhile the queue fills up and the trainer waits. `blocked` and the file `recorder.state` of the run contain
the reason. `flush` also waits until the rows are on the disk. The trainer calls it before it writes a checkpoint, so
that a power failure cannot remove rows that the checkpoint needs.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from sqlalchemy import update

from emtc_core.errors import FileMissingError, RunNotFoundError, StorageError
from emtc_core.metrics import is_known
from emtc_core.recorder import AnswerRecord, EpisodeRecord, EvaluationRecord, GateStatsRecord, SnapshotRecord
from storage.engine import Database
from storage.files import StateFile
from storage.models import Run
from storage.recording.batch import Record, RecordBatch, estimate_bytes, make_batch
from storage.recording.statements import is_written, write_batch
from storage.retry import MISSING_FILE_PATIENCE_S, Outage, is_transient, retry_transient
from storage.runs.claims import check_owned
from storage.runs.removal import rewind_run
from storage.runs.rows import find_run
from storage.runs.status import read_clock

LINGER_S: Final = 0.5  # with 0.25 s, a fifth more processor time at 1,000 env steps/s, because of more commits
BATCH_STEPS: Final = 20_000
QUEUE_BYTES: Final = 128 * 2**20
_MIN_RETRY_S, _MAX_RETRY_S = 0.1, 2.0
_WAIT_S: Final = 0.5
"""Timeout of a wait in the main thread, so that Ctrl-C is handled."""
_JOIN_TIMEOUT_S: Final = 30.0

_log = logging.getLogger(__name__)


class DatabaseRecorder:
    """A `emtc_core.recorder.Recorder` that writes to a database.

    The arrays of a record must not change after the record was passed to a method.
    """

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
        """Start the thread. The next episode must continue after the run's last recorded step.

        Args:
            db: An open database. The recorder does not close it.
            run_id: An existing run.
            queue_bytes: Size of the queue above which the trainer waits [bytes].
            batch_steps: Number of queued transitions that starts a write at once.
            linger_s: Time that the first queued record waits for further records [s].
            token: Owner token of the caller; None for a run without an owner. A write fails if another process owns the
                run.

        Raises:
            RunNotFoundError: If there is no such run.
            StorageError: If the run's folder cannot be written.
        """
        self._db, self._run_id, self._token = db, run_id, token
        self._queue_bytes, self._batch_steps, self._linger_s = queue_bytes, batch_steps, linger_s
        self._next_env_step = find_run(db, run_id).env_steps + 1
        self._queue: deque[Record] = deque()
        self._waiting_bytes = self._waiting_steps = 0
        self._n_accepted = self._n_written = self._n_synced = 0
        self._n_to_sync = 0  # number of accepted records, since the start, that the last `flush` waits for
        self._is_queue_full = False  # the trainer waits for space in the queue
        self._is_closed = False  # `close` or `abandon` was called: no record is accepted
        self._is_closing = False  # the thread ends when the queue is empty
        self._is_abandoned = False  # the thread ends at once and discards the queue
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
        """Why the database cannot be written at the moment; None if it can."""
        return self._blocked

    def supersede(self, env_step: int, *, checkpoint: str, skipped_checkpoints: Sequence[str] = ()) -> None:
        """Remove all rows after `env_step`, at which the trainer resumes, and record how many were removed.

        Args:
            env_step: Step of the loaded checkpoint.
            checkpoint: File name of the loaded checkpoint.
            skipped_checkpoints: Why newer checkpoints were not used, one text per checkpoint.

        Raises:
            RunStateError: If the run has not reached this step, the step is inside an episode, or another process owns
                the run.
        """

        def rewind() -> None:
            db, run_id, token = self._db, self._run_id, self._token
            rewind_run(db, run_id, env_step, token=token, checkpoint=checkpoint, passed_over=skipped_checkpoints)

        retry_transient(self._db, rewind)
        self._next_env_step = env_step + 1

    def record_episode(self, record: EpisodeRecord) -> None:
        """Queue an episode.

        Raises:
            ValueError: If it does not start after the last step of the previous episode, or is empty.
            StorageError: If the thread has failed.
        """
        if record.first_env_step != self._next_env_step or record.length == 0:
            raise ValueError(
                f"episode {record.episode} must start at env step {self._next_env_step} and not be empty, "
                f"got {record.first_env_step} and {record.length} steps"
            )
        self._put(record, record.length)
        self._next_env_step += record.length

    def record_metrics(self, env_step: int, values: Mapping[str, float]) -> None:
        """Queue values of metrics.

        Raises:
            ValueError: If a name is not registered in `emtc_core.metrics`.
        """
        if unknown := [name for name in values if not is_known(name)]:
            raise ValueError(f"unknown metric {unknown[0]!r}; register it in emtc_core/metrics.py")
        self._put((env_step, {name: float(value) for name, value in values.items()}))

    def record_evaluation(self, record: EvaluationRecord) -> None:
        """Queue an evaluation with its recorded episodes."""
        self._put(record)

    def record_answer(self, record: AnswerRecord) -> None:
        """Queue an evaluation that a user requested, with its recorded episodes."""
        self._put(record)

    def record_gate_stats(self, record: GateStatsRecord) -> None:
        """Queue gate statistics."""
        self._put(record)

    def record_snapshot(self, record: SnapshotRecord) -> None:
        """Queue a snapshot of the episodic memory."""
        self._put(record)

    def flush(self) -> None:
        """Wait until all records that were queued before this call are in the database and on the disk.

        Raises:
            StorageError: If the thread has failed.
        """
        with self._changed:
            goal = self._n_to_sync = self._n_accepted
            self._changed.notify_all()
            while self._n_synced < goal and self._failure is None:
                self._changed.wait(_WAIT_S)
            self._raise_failure()

    def close(self) -> None:
        """Flush and stop the thread. Further calls do nothing.

        Raises:
            StorageError: If the thread has failed.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self.flush()
        except BaseException:
            self._is_abandoned = True  # also stops the retries of the thread
            raise
        finally:
            self._stop_thread()

    def abandon(self) -> int:
        """Stop at once and discard the queued records. The rows in the database are complete up to an earlier step.

        Returns:
            The number of discarded records.
        """
        self._is_closed = self._is_abandoned = True
        self._stop_thread()
        return self._n_accepted - self._n_written

    def _stop_thread(self) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(timeout=_JOIN_TIMEOUT_S)
        self._state_file.remove()

    def _put(self, record: Record, steps: int = 0) -> None:
        """Add a record to the queue; wait while the queue is full."""
        size = estimate_bytes(record)
        with self._changed:
            while self._waiting_bytes and self._waiting_bytes + size > self._queue_bytes:
                self._raise_failure()
                self._is_queue_full = True
                self._changed.notify_all()
                self._changed.wait(_WAIT_S)
            self._raise_failure()
            if self._is_closed:
                raise StorageError(f"The recorder of run {self._run_id} is closed.")
            self._queue.append(record)
            self._n_accepted += 1
            self._waiting_bytes += size
            self._waiting_steps += steps
            if len(self._queue) == 1 or self._waiting_steps >= self._batch_steps:
                self._changed.notify_all()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            message = f"Run {self._run_id} can no longer be recorded: {self._failure}"
            raise StorageError(message) from self._failure

    def _run(self) -> None:
        """Write batches until the recorder closes. An error is raised by the trainer's next call."""
        while True:
            records, must_sync = self._take_records()
            if self._is_abandoned or not (records or must_sync):
                return
            try:
                if records:
                    if not self._retry(partial(self._write, make_batch(self._run_id, records))):
                        return
                    with self._changed:
                        self._n_written += len(records)
                        self._waiting_bytes -= sum(estimate_bytes(record) for record in records)
                        self._changed.notify_all()
                if must_sync:
                    if not self._retry(lambda _: self._commit_durably()):
                        return
                    with self._changed:
                        self._n_synced = self._n_written
                        self._changed.notify_all()
            except Exception as error:
                _log.exception("run %s: the recorder failed", self._run_id)
                with self._changed:
                    self._failure = error
                    self._changed.notify_all()
                return

    def _take_records(self) -> tuple[list[Record], bool]:
        """Wait for a record, then up to `linger_s` for further ones.

        Returns:
            The records, and whether a call of `flush` waits for the disk after them. The list is empty if the recorder
            closes, or if only the disk must be synced.
        """

        def must_write_now() -> bool:
            return self._is_closing or self._n_to_sync > self._n_synced

        def is_batch_due() -> bool:
            return must_write_now() or self._is_queue_full or self._waiting_steps >= self._batch_steps

        with self._changed:
            self._changed.wait_for(lambda: self._queue or must_write_now())
            self._changed.wait_for(is_batch_due, self._linger_s)
            self._is_queue_full = False
            records: list[Record] = []
            steps = 0
            while self._queue and steps < self._batch_steps:
                record = self._queue.popleft()
                records.append(record)
                steps += record.length if isinstance(record, EpisodeRecord) else 0
            self._waiting_steps -= steps
            return records, self._n_synced < self._n_to_sync <= self._n_written + len(records)

    def _write(self, batch: RecordBatch, is_retry: bool) -> None:
        with self._db.transaction() as connection:
            if not (is_retry and is_written(connection, self._run_id, batch)):
                write_batch(connection, self._run_id, batch, token=self._token)

    def _commit_durably(self) -> None:
        """Commit a heartbeat and wait for the disk. All rows that were committed before are then on the disk too."""
        with self._db.transaction(durable=True) as connection:
            if self._token is not None:
                check_owned(connection, self._run_id, self._token)
            heartbeat = update(Run).where(Run.id == self._run_id).values(heartbeat_at=read_clock(connection))
            if connection.execute(heartbeat).rowcount != 1:
                raise RunNotFoundError(f"Run {self._run_id} was deleted while it was being recorded.")

    def _retry(self, act: Callable[[bool], None]) -> bool:
        """Call a function, and again while the error is temporary. False if the recorder was abandoned.

        Args:
            act: The function. Its argument is whether it was called before.
        """
        pause_s, is_retry, started = _MIN_RETRY_S, False, time.monotonic()
        while not self._is_abandoned:
            try:
                act(is_retry)
            except StorageError as error:
                is_overdue = time.monotonic() - started > MISSING_FILE_PATIENCE_S
                if not is_transient(self._db, error) or (is_overdue and isinstance(error, FileMissingError)):
                    raise
                is_retry = True
                self._outage.failed(str(error))
                self._set_blocked(str(error))
                with self._changed:
                    self._changed.wait_for(lambda: self._is_abandoned, pause_s)
                pause_s = min(2 * pause_s, _MAX_RETRY_S)
            else:
                self._outage.recovered()
                self._set_blocked(None)
                return True
        return False

    def _set_blocked(self, reason: str | None) -> None:
        if reason != self._blocked:
            self._state_file.write(reason or "")
            self._blocked = reason  # after the file, so that a reader of `blocked` can also read the file
