"""The worker loop: claims queued and lost runs of a database and trains several of them at the same time.

To claim a run, a process writes its token (a random text) to the row of the run. Then no other process may train it.
A run is lost if its trainer has ended without recording it. `emtc worker` runs the loop for all runs of a database,
`emtc sweep` and a Ray task for the runs of one sweep. In a search, the loop also queues the next trials.

All state is in the database, so a worker can be killed at any moment and replaced by another, on any machine. On a
signal, its trainers write checkpoints and its runs go back to the queue. The trainers of a killed worker do the same.
"""

import math
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

from app.analysis.provenance import library_versions
from app.jobs.launch import check_startable, start_trainer
from app.jobs.resume import examine_checkpoints
from app.jobs.signals import LEAVE_SIGNAL, STOP_SIGNALS, handle_signals
from emtc_core.config.resolve import config_from_stored
from emtc_core.config.run import RunConfig
from emtc_core.envs.registry import find_map_module
from emtc_core.errors import (
    ConfigError,
    EmtcError,
    EnvUnavailableError,
    FileMissingError,
    RunStateError,
    StorageError,
)
from storage.engine import Database
from storage.retry import MISSING_FILE_PATIENCE_S, is_transient, retry_transient
from storage.runs.changes import finish_run, start_again
from storage.runs.claims import NO_LIMIT, ClaimedRun, RunClaimer, return_to_queue
from storage.runs.rows import find_run
from storage.runs.status import HEARTBEAT_S
from storage.runs.sweeps import ENDED, Sweep, clear_worker_heartbeat, get_sweep, write_worker_heartbeat

MAX_RESTARTS = 3
"""Maximum number of restarts of a trainer that ends without a message. Only ends since the newest checkpoint count."""
POLL_S = 0.5
IDLE_POLL_S = 3.0
_IDLE_MESSAGE_S = 600.0
"""Interval of the message that no run waits [s]."""


class EligibilityCheck:
    """Checks whether this machine can train a claimed run. If it cannot, the run returns to the queue."""

    def __init__(self, db: Database, *, env_modules: Collection[str] = ()) -> None:
        """Check runs of this database.

        Args:
            db: An open database.
            env_modules: Modules of environments that may be imported; see `find_map_module`.
        """
        self._db = db
        self._env_modules = env_modules
        self._reasons: dict[tuple[str, ...], str | None] = {}
        """Environment and devices of a configuration → why this machine cannot train it, or None."""

    def requeue_if_unsuitable(self, claim: ClaimedRun) -> str | None:
        """Return a claimed run to the queue if this machine cannot train it.

        Returns:
            A message with the reason, or None if this machine can train the run.

        Raises:
            StorageError: If the database does not answer or EMTC_FILES cannot be used. The run returns to the queue.
        """
        row = find_run(self._db, claim.run_id)
        try:
            reason = self._explain_unsuitable_machine(row.config) or self._explain_missing_checkpoint(claim)
        except StorageError:  # the caller tries again at the next poll
            return_to_queue(self._db, claim.run_id, token=claim.token, is_launcher=True)
            raise
        if reason is None:
            return None
        return_to_queue(self._db, claim.run_id, token=claim.token, is_launcher=True)
        return f"Run {claim.run_id} is left in the queue: {reason}"

    def _explain_unsuitable_machine(self, stored: Mapping[str, Any]) -> str | None:
        """Return why this machine cannot train a configuration; results are cached."""
        try:
            config = config_from_stored(stored)
        except ConfigError as exc:  # the run was queued by another version of this program
            return str(exc)
        train = config.train
        devices = (train.device, train.act_device, train.replay_device, config.memory.index_device)
        key = (config.env.model_dump_json(), *devices)
        if key not in self._reasons:
            self._reasons[key] = self._explain_not_startable(config)
        return self._reasons[key]

    def _explain_not_startable(self, config: RunConfig) -> str | None:
        module = find_map_module(config.env)
        if module and module not in self._env_modules:
            return f"a worker imports its environment {config.env.map} only with --env-module {module}."
        try:
            check_startable(config)
        except (EnvUnavailableError, ConfigError) as exc:
            return str(exc)
        return None

    def _explain_missing_checkpoint(self, claim: ClaimedRun) -> str | None:
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
class StartedTrainer:
    """A claimed run and the process that trains it."""

    claim: ClaimedRun
    process: subprocess.Popen[bytes]


@dataclass(frozen=True)
class EndedRun:
    """Status of a run when its trainer ended."""

    run_id: str
    status: str
    env_steps: int


class LeaveRequest:
    """Records whether a signal has arrived. The worker must then return its runs to the queue and exit."""

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
    """Handle SIGTERM, SIGINT and SIGUSR1 in a worker, and restore the previous handlers at the end."""
    leave = LeaveRequest()
    with handle_signals(STOP_SIGNALS, leave.on_signal):
        yield leave


class WorkerLoop:
    """The loop of a worker: claims runs, starts their trainers, and reports how they end."""

    def __init__(
        self,
        db: Database,
        *,
        jobs: int,
        leave: LeaveRequest,
        announce: Callable[[str], None],
        sweep_id: str | None = None,
        max_active: int = NO_LIMIT,
        update_search: Callable[[], None] | None = None,
        on_progress: Callable[[Sweep], None] = lambda sweep: None,
        n_runs: int | None = None,
        low_priority: bool = False,
        env_modules: Collection[str] = (),
    ) -> None:
        """Prepare the loop.

        Args:
            db: An open database.
            jobs: Number of runs to train at the same time. 0: other workers train the runs of a search.
            leave: Ends the loop when a signal has arrived.
            announce: Called with messages for the user.
            sweep_id: Train only runs of this sweep. None: all runs, with and without a sweep.
            max_active: Claim no run while this number of runs of the sweep are in training, over all workers.
            update_search: Called at each poll. Queues the next trials of a search.
            on_progress: Called with the sweep at each poll of `run_sweep`.
            n_runs: Number of runs of the sweep. If it is below `jobs`, each run gets more of the GPU's memory.
            low_priority: Give the trainers a lower priority than the app and the browser.
            env_modules: Modules of environments that trainers may import. Other runs stay in the queue.
        """
        self._db = db
        self._jobs = jobs
        self._leave = leave
        self._announce = announce
        self._sweep_id = sweep_id
        self._max_active = max_active
        self._update_search = update_search
        self._on_progress = on_progress
        self._low_priority = low_priority
        n_parallel = min(jobs, n_runs or jobs)
        self._gpu_share = 1 / max(1, n_parallel)
        self._claimer = RunClaimer(db)
        self._eligibility = EligibilityCheck(db, env_modules=env_modules)
        self._trainers: dict[str, StartedTrainer] = {}
        self._rejected_ids: set[str] = set()
        self._ends_without_message: dict[str, tuple[int, int]] = {}
        """Id → env step of the newest checkpoint, and number of ends without a message since then."""
        self._last_error: str | None = None
        self._file_missing_at: float | None = None
        self._heartbeat_at = -math.inf
        self._idle_message_at = -math.inf
        self._ended: list[EndedRun] = []

    def run(self, *, once: bool) -> list[EndedRun]:
        """Train runs until a signal arrives or, with `once`, until no run is left to claim.

        Returns:
            The runs in the order in which they ended.

        Raises:
            FileMissingError: If the database file has been missing for MISSING_FILE_PATIENCE_S.
            KeyboardInterrupt: On a second signal, after the trainers were killed.
        """

        def must_end(is_queue_empty: bool) -> bool:
            if not is_queue_empty or self._trainers:
                return False
            if once and not self._claimer.has_pending_lost_run:
                return True
            if time.monotonic() - self._idle_message_at >= _IDLE_MESSAGE_S:
                self._announce(f"No run waits. Looking again every {IDLE_POLL_S:.0f} s.")
                self._idle_message_at = time.monotonic()
            return False

        self._run_until(must_end)
        return self._ended

    def run_sweep(self, sweep_id: str) -> Sweep:
        """Train the runs of the loop's sweep until all have ended, on this or another machine, or a signal arrives.

        Returns:
            The sweep at the end.

        Raises:
            RunStateError: If another process has taken over the search.
            StorageError: If the database does not answer for a long time.
            KeyboardInterrupt: On a second signal, after the trainers were killed.
        """

        def read() -> Sweep:
            return retry_transient(self._db, lambda: get_sweep(self._db, sweep_id))

        def must_end(is_queue_empty: bool) -> bool:
            sweep = read()
            self._on_progress(sweep)
            if self._trainers:
                return False
            if sweep.has_nothing_to_start:
                return True
            # End also if this machine has rejected all runs that have not ended.
            open_ids = {run.run_id for run in sweep.runs if run.status not in ENDED}
            has_all_trials = len(sweep.runs) >= sweep.trials
            return bool(self._rejected_ids) and open_ids <= self._rejected_ids and has_all_trials

        self._run_until(must_end)
        return read()

    def _run_until(self, must_end: Callable[[bool], bool]) -> None:
        """Poll until a signal arrives or `must_end` returns True. Its argument is whether no run is left to claim."""
        try:
            while not self._leave.is_requested:
                self._write_heartbeat()
                self._collect_ended()
                self._queue_trials()
                is_queue_empty = self._claim_runs()
                if must_end(is_queue_empty):
                    break
                time.sleep(POLL_S if self._trainers or not is_queue_empty else IDLE_POLL_S)
            self._stop_trainers()
        except KeyboardInterrupt:
            for trainer in self._trainers.values():
                trainer.process.kill()
            raise
        finally:
            if self._sweep_id is not None:
                with suppress(StorageError):
                    clear_worker_heartbeat(self._db, self._sweep_id)

    def _write_heartbeat(self) -> None:
        if time.monotonic() - self._heartbeat_at < HEARTBEAT_S:
            return
        try:
            write_worker_heartbeat(self._db, self._sweep_id)
            self._heartbeat_at = time.monotonic()
        except StorageError as error:
            self._report_error(str(error))

    def _queue_trials(self) -> None:
        """Queue the next trials of a search.

        Raises:
            RunStateError: If another process has taken over the search.
        """
        if self._update_search is None:
            return
        try:
            self._update_search()
        except RunStateError:
            raise
        except StorageError as error:  # one of the two databases does not answer: try again at the next poll
            self._report_error(str(error))

    def _claim_runs(self) -> bool:
        """Claim and start runs while there are free slots; return True if no run is left to claim."""
        try:
            self._claimer.check_database()
            while len(self._trainers) < self._jobs and not self._leave.is_requested:
                claim = self._claim_run()
                if claim is None:
                    return True
                process = start_trainer(
                    self._db,
                    claim,
                    for_worker=True,
                    gpu_share=self._gpu_share,
                    low_priority=self._low_priority,
                )
                self._trainers[claim.run_id] = StartedTrainer(claim, process)
                row = find_run(self._db, claim.run_id)
                verb = "resumes" if claim.resume else "starts"
                self._announce(f"Run {claim.run_id} {verb}: {row.name}.")
            self._last_error = self._file_missing_at = None
        except StorageError as error:  # a locked database or an unreachable server: try again at the next poll
            self._report_error(str(error))
            self._end_without_file(error)
        return False

    def _end_without_file(self, error: StorageError) -> None:
        """Raise the error if the database file has been missing for MISSING_FILE_PATIENCE_S and no run is trained."""
        if not isinstance(error, FileMissingError):
            return
        now = time.monotonic()
        self._file_missing_at = self._file_missing_at or now
        if not self._trainers and now - self._file_missing_at >= MISSING_FILE_PATIENCE_S:
            raise error

    def _claim_run(self) -> ClaimedRun | None:
        """Claim the next run that this machine can train. Others are left to other machines or marked as failed."""
        while (claim := self._claim_next()) is not None:
            rejection = self._eligibility.requeue_if_unsuitable(claim)
            if rejection is not None:
                self._rejected_ids.add(claim.run_id)
                self._announce(rejection)
            elif self._check_or_replace(claim):
                return claim
            else:
                self._report_end(claim)
        return None

    def _claim_next(self) -> ClaimedRun | None:
        if self._sweep_id is None:
            return self._claimer.claim_next(excluded_ids=self._rejected_ids)
        return self._claimer.claim_in_sweep(self._sweep_id, jobs=self._max_active, excluded_ids=self._rejected_ids)

    def _check_or_replace(self, claim: ClaimedRun) -> bool:
        """Return whether a claimed run can start or resume. If not, mark it as failed and queue a new run."""
        if not claim.resume:
            return True
        row = retry_transient(self._db, lambda: find_run(self._db, claim.run_id))
        status = retry_transient(self._db, lambda: examine_checkpoints(self._db, row))
        if status.can_resume:
            return True
        replacement = "A new run has its place in the sweep." if row.sweep_id else "A new run takes its place."
        message = f"Its trainer ended and no checkpoint can be used: {status.reason} {replacement}"
        finish_run(self._db, claim.run_id, "failed", error=message, token=claim.token)
        start_again(self._db, claim.run_id, versions=library_versions())
        return False

    def _collect_ended(self) -> None:
        """Report the trainers that have ended. If a trainer did not record its end, its run returns to the queue."""
        for trainer in list(self._trainers.values()):
            if trainer.process.poll() is None:
                continue
            try:
                retry_transient(self._db, partial(self._requeue_or_fail, trainer.claim))
            except StorageError as error:  # a long outage or a deleted run must not end the worker
                self._report_error(str(error))
                if is_transient(self._db, error):
                    continue
            del self._trainers[trainer.claim.run_id]
            self._report_end(trainer.claim)

    def _requeue_or_fail(self, claim: ClaimedRun) -> None:
        """Return a run to the queue if its trainer has ended without a message. After several such ends, it is failed.

        Raises:
            StorageError: If the database does not answer, or the run is deleted.
        """
        row = find_run(self._db, claim.run_id)
        if row.owner_token != claim.token:  # the trainer has recorded its end
            return
        checkpoint = examine_checkpoints(self._db, row).usable
        env_step = checkpoint.env_step if checkpoint else 0
        last_env_step, n_ends = self._ends_without_message.get(row.id, (env_step, 0))
        has_new_checkpoint = env_step != last_env_step
        n_ends = 1 if has_new_checkpoint else n_ends + 1
        if n_ends > MAX_RESTARTS and not self._leave.is_requested:
            message = f"Its trainer ended {n_ends} times without a message or a new checkpoint. See the log of the run."
            finish_run(self._db, row.id, "failed", error=message, token=claim.token)
        else:
            return_to_queue(self._db, row.id, token=claim.token, is_launcher=True)
        self._ends_without_message[row.id] = (env_step, n_ends)

    def _stop_trainers(self) -> None:
        """Send a signal to all trainers and wait. Each writes a checkpoint and returns its run to the queue."""
        if self._trainers:
            n = len(self._trainers)
            self._announce(f"Stopping: {n} trainer(s) write a checkpoint. A second signal ends them at once.")
        for trainer in self._trainers.values():
            trainer.process.send_signal(LEAVE_SIGNAL)
        while any(trainer.process.poll() is None for trainer in self._trainers.values()):
            time.sleep(POLL_S / 5)
        self._collect_ended()

    def _report_end(self, claim: ClaimedRun) -> None:
        try:
            row = find_run(self._db, claim.run_id)
        except EmtcError as error:  # the run is deleted, or the database does not answer
            self._announce(str(error))
            return
        self._ended.append(EndedRun(row.id, row.status, row.env_steps))
        reason = f" {row.error}" if row.error else ""
        self._announce(f"Run {row.id} is {row.status} at step {row.env_steps:,}.{reason}")

    def _report_error(self, message: str) -> None:
        """Report an error, unless it is the same as the last one."""
        if message != self._last_error:
            self._announce(message)
        self._last_error = message


def run_sweep_here(
    db: Database,
    sweep_id: str,
    *,
    jobs: int,
    n_runs: int,
    trains_runs: bool,
    leave: LeaveRequest,
    announce: Callable[[str], None],
    on_progress: Callable[[Sweep], None],
    env_modules: Collection[str],
) -> Sweep:
    """Run the worker loop on this machine for a sweep or a search, until all runs have ended or a signal arrives.

    Args:
        db: An open database.
        sweep_id: The sweep.
        jobs: Number of parallel runs, over all workers.
        n_runs: Number of runs of the sweep.
        trains_runs: Whether this machine trains runs. Otherwise it only queues the trials of a search, and other
            workers train them.
        leave: Ends the loop when a signal has arrived.
        announce: Called with messages for the user.
        on_progress: Called with the sweep at each poll.
        env_modules: Modules of environments that trainers may import.
    """
    from app.jobs.sweeps.search import open_search  # loads the analysis of curves

    is_search = get_sweep(db, sweep_id).trials > 0
    with open_search(db, sweep_id, jobs=jobs) if is_search else nullcontext() as search:
        loop = WorkerLoop(
            db,
            jobs=jobs if trains_runs else 0,
            leave=leave,
            announce=announce,
            sweep_id=sweep_id,
            max_active=jobs,
            update_search=search.update if search else None,
            on_progress=on_progress,
            n_runs=n_runs,
            low_priority=True,
            env_modules=env_modules,
        )
        sweep_at_end = loop.run_sweep(sweep_id)
        if search and not leave.is_requested:
            search.finish()
    return sweep_at_end


def summarize(ended: list[EndedRun]) -> str:
    """Summarize the runs of a worker in one sentence."""
    if not ended:
        return "No run waited for this worker."
    n_runs = Counter(run.status for run in ended)
    counts = ", ".join(f"{n_runs[status]} {status}" for status in sorted(n_runs))
    return f"This worker had {len(ended)} run(s): {counts}."
