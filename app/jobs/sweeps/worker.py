"""Worker: claims queued and lost runs of a database, from any sweep, and trains several of them at the same time.

All state is in the database, so a worker can be killed at any moment and replaced by another, on any machine. On a
signal, its trainers write checkpoints and its runs go back to the queue. The scheduler of one sweep also uses
`TrainerStarter`.
"""

import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

from app.analysis.provenance import library_versions
from app.jobs.launch import check_startable, start_trainer
from app.jobs.resume import CheckpointStatus, examine_checkpoints
from app.jobs.signals import handle_signals
from emtc_core.config.resolve import config_from_stored
from emtc_core.errors import ConfigError, EmtcError, EnvUnavailableError, RunStateError, StorageError
from storage.engine import Database
from storage.retry import is_transient, retry_transient
from storage.runs.changes import finish_run, start_again
from storage.runs.claims import NO_LIMIT, ClaimedRun, RunClaimer, return_to_queue
from storage.runs.rows import find_run

MAX_STARTS = 3
POLL_S = 0.5
IDLE_POLL_S = 3.0
REMIND_S = 600.0
NOTHING = "No run waited for this worker."
"""Summary of a worker without runs. The Ray engine compares a worker's last line with it."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class TrainerStarter:
    """Starts trainers of claimed runs, each run at most MAX_STARTS times."""

    def __init__(self, db: Database) -> None:
        """Start runs of this database."""
        self._db = db
        self._n_starts: Counter[str] = Counter()

    def start(self, claim: ClaimedRun, *, requeue_on_signal: bool = False) -> subprocess.Popen[bytes] | None:
        """Start the trainer of a claimed run, from its checkpoint if it has one, or mark the run as failed.

        Args:
            claim: The claimed run.
            requeue_on_signal: A signal to the trainer returns the run to the queue.

        Returns:
            The process of the trainer, or None if it was not started.

        Raises:
            StorageError: If the process cannot be started. The run is marked failed then.
        """
        self._n_starts[claim.run_id] += 1
        if self._n_starts[claim.run_id] > MAX_STARTS:
            message = f"Its trainer ended {MAX_STARTS} times without an error message. See the log."
            finish_run(self._db, claim.run_id, "failed", error=message, token=claim.token)
            return None
        status = retry_transient(self._db, lambda: self._examine(claim)) if claim.resume else None
        if status and status.refusal:  # a start from step 0 would ignore the checkpoints there
            message = f"It cannot resume on this machine. {status.refusal}"
            finish_run(self._db, claim.run_id, "failed", error=message, token=claim.token)
            return None
        if status and not status.can_resume:
            self._n_starts[self._replace(claim, status.reason)] = self._n_starts[claim.run_id]
            return None
        return start_trainer(
            self._db, claim.run_id, token=claim.token, resume=claim.resume, requeue_on_signal=requeue_on_signal
        )

    def _examine(self, claim: ClaimedRun) -> CheckpointStatus:
        return examine_checkpoints(self._db, find_run(self._db, claim.run_id))

    def _replace(self, claim: ClaimedRun, why_not: str) -> str:
        """Mark a run as failed and create a run from step 0 that replaces it in the sweep; return the new id."""
        place = "has its place in the sweep" if find_run(self._db, claim.run_id).sweep_id else "takes its place"
        message = f"Its trainer ended and no checkpoint can be used: {why_not} A new run {place}."
        finish_run(self._db, claim.run_id, "failed", error=message, token=claim.token)
        return start_again(self._db, claim.run_id, versions=library_versions())


class EligibilityCheck:
    """Checks whether this machine can train claimed runs, and returns the others to the queue."""

    def __init__(self, db: Database) -> None:
        """Check runs of this database."""
        self._db = db
        self._reasons: dict[tuple[str, ...], str | None] = {}

    def reject(self, claim: ClaimedRun) -> str | None:
        """Give a run back if this machine cannot train it.

        Returns:
            A message with the reason, or None if this machine can train the run.

        Raises:
            StorageError: If the database does not answer or EMTC_FILES cannot be used. The run is queued again then.
        """
        row = find_run(self._db, claim.run_id)
        try:
            reason = self._find_missing_part(row.config) or self._find_missing_checkpoint(claim)
        except StorageError:  # the caller tries again at the next poll
            return_to_queue(self._db, claim.run_id, token=claim.token, is_launcher=True)
            raise
        if reason is None:
            return None
        return_to_queue(self._db, claim.run_id, token=claim.token, is_launcher=True)
        return f"Run {claim.run_id} is left to another machine: {reason}"

    def _find_missing_part(self, stored: Mapping[str, Any]) -> str | None:
        """Return why this machine cannot train a configuration; results are cached."""
        try:
            config = config_from_stored(stored)
        except ConfigError as exc:  # another version of the program queued the run
            return str(exc)
        key = (config.env.model_dump_json(), config.train.device, config.train.replay_device)
        if key not in self._reasons:
            try:
                check_startable(config)
                self._reasons[key] = None
            except (EnvUnavailableError, ConfigError) as exc:
                self._reasons[key] = str(exc)
        return self._reasons[key]

    def _find_missing_checkpoint(self, claim: ClaimedRun) -> str | None:
        """Return why this machine cannot read the checkpoints of a run. Another machine may have them."""
        if not claim.resume:
            return None
        row = find_run(self._db, claim.run_id)
        status = examine_checkpoints(self._db, row)
        if status.refusal:
            return status.refusal
        if row.host in (None, socket.gethostname()) or status.can_resume or status.checkpoints:
            return None
        return (
            f"it was trained on {row.host}, and {status.folder} contains none of its checkpoints. Start a worker "
            f"there, or start the run again from step 0 with: emtc resume {claim.run_id} --start-again"
        )


@dataclass(frozen=True)
class EndedRun:
    """Status of a run when its trainer ended."""

    run_id: str
    status: str
    env_steps: int


class LeaveRequest:
    """Records whether a signal has requested the worker to return its runs to the queue and exit."""

    def __init__(self) -> None:
        """Start without a request."""
        self.is_requested = False

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal.

        Raises:
            KeyboardInterrupt: On the second signal.
        """
        if self.is_requested:
            raise KeyboardInterrupt
        self.is_requested = True


@contextmanager
def handle_leave_signals() -> Generator[LeaveRequest]:
    """Handle SIGTERM, SIGINT and SIGUSR1, and restore the previous handlers at the end."""
    leave = LeaveRequest()
    with handle_signals(_SIGNALS, leave.on_signal):
        yield leave


class WorkerLoop:
    """The main loop of a worker."""

    def __init__(
        self,
        db: Database,
        *,
        jobs: int,
        leave: LeaveRequest,
        announce: Callable[[str], None],
        sweep_id: str | None = None,
        at_most: int = NO_LIMIT,
    ) -> None:
        """Prepare the loop.

        Args:
            db: An open database.
            jobs: Number of runs to train at the same time.
            leave: Ends the loop when it is set.
            announce: Called with messages for the user.
            sweep_id: Train only runs of this sweep; None: of any sweep, or without one.
            at_most: Wait while this number of runs of the sweep are in training, over all workers.
        """
        self._db, self._jobs, self._leave, self._announce = db, jobs, leave, announce
        self._sweep_id, self._at_most = sweep_id, at_most
        self._claimer = RunClaimer(db)
        self._starter, self._eligibility = TrainerStarter(db), EligibilityCheck(db)
        self._trainers: dict[str, tuple[ClaimedRun, subprocess.Popen[bytes]]] = {}
        self._rejected_ids: set[str] = set()
        self._last_error: str | None = None
        self.done: list[EndedRun] = []

    def run(self, *, once: bool) -> list[EndedRun]:
        """Train runs until a signal arrives or, with `once`, until no run is left to claim.

        Returns:
            The runs in the order in which they ended.

        Raises:
            KeyboardInterrupt: On a second signal. The trainers are killed then.
        """
        reminded_at = -REMIND_S
        try:
            while not self._leave.is_requested:
                is_queue_empty = self._claim_runs()
                self._collect_ended()
                if is_queue_empty and not self._trainers:
                    if once and not self._claimer.has_pending_lost_run:
                        return self.done
                    if time.monotonic() - reminded_at >= REMIND_S:
                        self._announce(f"No run waits. Looking again every {IDLE_POLL_S:.0f} s.")
                        reminded_at = time.monotonic()
                time.sleep(POLL_S if self._trainers or not is_queue_empty else IDLE_POLL_S)
            self._stop_trainers()
        except KeyboardInterrupt:
            for _, process in self._trainers.values():
                process.kill()
            raise
        return self.done

    def _claim_runs(self) -> bool:
        """Claim and start runs while there are free slots; return True if no run is left to claim."""
        try:
            self._claimer.check_database()
            while len(self._trainers) < self._jobs and not self._leave.is_requested:
                claim = self._claim_run()
                if claim is None:
                    return True
                self._start(claim)
            self._last_error = None
        except StorageError as error:  # a locked database or an unreachable server: try again at the next poll
            self._report_error(str(error))
        return False

    def _claim_run(self) -> ClaimedRun | None:
        if self._sweep_id is None:
            return self._claimer.claim_next(excluded_ids=self._rejected_ids)
        return self._claimer.claim_in_sweep(self._sweep_id, jobs=self._at_most, excluded_ids=self._rejected_ids)

    def _start(self, claim: ClaimedRun) -> None:
        if message := self._eligibility.reject(claim):
            self._rejected_ids.add(claim.run_id)
            self._announce(message)
            return
        process = self._starter.start(claim, requeue_on_signal=True)
        if process is None:
            self._report_end(claim)
            return
        self._trainers[claim.run_id] = (claim, process)
        row = find_run(self._db, claim.run_id)
        self._announce(f"Run {claim.run_id} {'resumes' if claim.resume else 'starts'}: {row.name}.")

    def _collect_ended(self) -> None:
        """Report the trainers that have ended, and return runs to the queue whose trainer did not record its end."""
        for claim, process in list(self._trainers.values()):
            if process.poll() is None:
                continue
            try:
                with suppress(RunStateError):  # the trainer has recorded its end
                    give_back = partial(return_to_queue, self._db, claim.run_id, token=claim.token, is_launcher=True)
                    retry_transient(self._db, give_back)
            except StorageError as error:  # a long outage or a deleted run must not end the worker
                self._report_error(str(error))
                if is_transient(self._db, error):
                    continue
            del self._trainers[claim.run_id]
            self._report_end(claim)

    def _stop_trainers(self) -> None:
        """Send SIGTERM to all trainers and wait. Each writes a checkpoint and gives its run back."""
        if self._trainers:
            n = len(self._trainers)
            self._announce(f"Stopping: {n} trainer(s) write a checkpoint. A second signal ends them at once.")
        for _, process in self._trainers.values():
            process.terminate()
        while any(process.poll() is None for _, process in self._trainers.values()):
            time.sleep(POLL_S / 5)
        self._collect_ended()

    def _report_end(self, claim: ClaimedRun) -> None:
        try:
            row = find_run(self._db, claim.run_id)
        except EmtcError as error:  # the run is deleted, or the database does not answer
            self._announce(str(error))
            return
        self.done.append(EndedRun(row.id, row.status, row.env_steps))
        reason = f" {row.error}" if row.error else ""
        self._announce(f"Run {row.id} is {row.status} at step {row.env_steps:,}.{reason}")

    def _report_error(self, message: str) -> None:
        """Report an error, unless it is the same as the last one."""
        if message != self._last_error:
            self._announce(message)
        self._last_error = message


def summarize(done: list[EndedRun]) -> str:
    """Summarize the runs of a worker in one sentence."""
    if not done:
        return NOTHING
    counts = ", ".join(f"{n} {status}" for status, n in sorted(Counter(run.status for run in done).items()))
    return f"This worker had {len(done)} run(s): {counts}."
