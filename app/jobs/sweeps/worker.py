"""A worker: takes queued and lost runs of a database, whichever sweep they are of, and trains a few of them at once.

It holds nothing that the database does not: kill it at any moment and start another, here or on another machine. Told
by a signal that its machine is needed, it gives its runs back with a checkpoint. `Starter`, which starts the trainer of
a claimed run, serves the scheduler of one sweep, too.
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
from app.jobs.launch import check_startable, find_trainer, start_trainer
from app.jobs.resume import CheckpointStatus, look
from app.jobs.signals import handle_signals
from app.jobs.sweeps.control import this_process
from emtc_core.config.resolve import config_from_stored
from emtc_core.errors import ConfigError, EmtcError, EnvUnavailableError, RunStateError, StorageError
from storage.engine import Database
from storage.retry import is_transient, retry_transient
from storage.runs.changes import finish_run, start_again
from storage.runs.claims import Claim, claim_any, give_back, is_watching
from storage.runs.rows import find_run

MOST_STARTS = 3

POLL_S = 0.5
IDLE_POLL_S = 3.0
REMIND_S = 600.0
NOTHING = "No run waited for this worker."
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Starter:
    """Starts trainers, each run's a few times at most, from its checkpoint where there is one."""

    def __init__(self, db: Database) -> None:
        """Start runs of a database."""
        self._db = db
        self._starts: Counter[str] = Counter()

    def start(self, claim: Claim, *, gives_back: bool = False) -> subprocess.Popen[bytes] | None:
        """Start the trainer of a claimed run, or say in the run's row why there is none.

        Args:
            claim: The run.
            gives_back: A signal to the trainer gives the run back to the queue.

        Returns:
            The trainer's process, None if there is none.

        Raises:
            StorageError: If it cannot be started; the run is marked failed then.
        """
        self._starts[claim.run_id] += 1
        if self._starts[claim.run_id] > MOST_STARTS:
            sentence = f"Its trainer ended {MOST_STARTS} times without a word. The log says more."
            finish_run(self._db, claim.run_id, "failed", error=sentence, token=claim.token)
            return None
        status = retry_transient(self._db, lambda: self._look(claim)) if claim.resume else None
        if status and status.refused:  # to start again from 0 would forget what lies there
            sentence = f"It cannot go on from here. {status.refused}"
            finish_run(self._db, claim.run_id, "failed", error=sentence, token=claim.token)
            return None
        if status and not status.can_resume:
            self._starts[self._replace(claim, status.why_not)] = self._starts[claim.run_id]
            return None
        return start_trainer(self._db, claim.run_id, token=claim.token, resume=claim.resume, give_back=gives_back)

    def _look(self, claim: Claim) -> CheckpointStatus:
        return look(self._db, find_run(self._db, claim.run_id))

    def _replace(self, claim: Claim, why_not: str) -> str:
        """Give a run's place in the sweep to a new one that starts from step 0; what the old one recorded stays."""
        place = "has its place in the sweep" if find_run(self._db, claim.run_id).sweep_id else "takes its place"
        sentence = f"Its trainer ended and no checkpoint can be used: {why_not} A new run {place}."
        finish_run(self._db, claim.run_id, "failed", error=sentence, token=claim.token)
        return start_again(self._db, claim.run_id, versions=library_versions())


class Fitness:
    """Tells which claimed runs this machine cannot train, and gives them back for another."""

    def __init__(self, db: Database) -> None:
        """Judge runs of a database."""
        self._db = db
        self._known: dict[tuple[str, ...], str | None] = {}

    def refuse(self, claim: Claim) -> str | None:
        """Give a run back that another machine must train, and say why; None if it can be trained here.

        Raises:
            StorageError: If the database or the place of files does not answer; the run waits again then.
        """
        row = find_run(self._db, claim.run_id)
        try:
            why = self._why_not_here(row.config) or self._why_not_from_here(claim)
        except StorageError:  # the place of files does not answer just now: asked again at the next tick
            give_back(self._db, claim.run_id, token=claim.token, claim=claim)
            raise
        if why is None:
            return None
        give_back(self._db, claim.run_id, token=claim.token, claim=claim)
        return f"Run {claim.run_id} is left to another machine: {why}"

    def _why_not_here(self, stored: Mapping[str, Any]) -> str | None:
        try:
            config = config_from_stored(stored)
        except ConfigError as exc:  # another version of the program queued it
            return str(exc)
        asked = (config.env.model_dump_json(), config.train.device, config.train.replay_device)
        if asked not in self._known:
            try:
                check_startable(config)
                self._known[asked] = None
            except (EnvUnavailableError, ConfigError) as exc:
                self._known[asked] = str(exc)
        return self._known[asked]

    def _why_not_from_here(self, claim: Claim) -> str | None:
        """Its checkpoint lies where this machine does not reach it: on the one that had it before, or elsewhere."""
        if not claim.resume:
            return None
        status = look(self._db, find_run(self._db, claim.run_id))
        if status.refused:
            return status.refused
        if claim.host in (None, socket.gethostname()) or status.can_resume or status.checkpoints:
            return None
        return (
            f"it was trained on {claim.host}, and no checkpoint of it is in {status.folder}. A worker there goes on "
            f"with it, or start it again from step 0 with: emtc resume {claim.run_id} --start-again"
        )


@dataclass(frozen=True)
class Left:
    """How a run stood when this worker was through with it."""

    run_id: str
    status: str
    env_steps: int


class Leave:
    """Hears that the worker is to leave its machine."""

    def __init__(self) -> None:
        """Hear nothing yet."""
        self.asked = False

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Take a signal.

        Raises:
            KeyboardInterrupt: At the second one.
        """
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def leave_signals() -> Generator[Leave]:
    """Listen to SIGTERM, SIGINT and SIGUSR1; afterwards they mean what they meant before."""
    leave = Leave()
    with handle_signals(_SIGNALS, leave.on_signal):
        yield leave


class Work:
    """The trainers that one worker holds."""

    def __init__(
        self,
        db: Database,
        *,
        jobs: int,
        leave: Leave,
        say: Callable[[str], None],
        claim: Callable[..., Claim | None] = claim_any,
    ) -> None:
        """Train `jobs` runs at once until told to leave.

        Args:
            db: An open database.
            jobs: Runs at once.
            leave: Tells when to leave.
            say: Is given one sentence at a time.
            claim: Takes the next run: `claim_any`, or `claim_run` of one sweep.
        """
        self._db, self._jobs, self._leave, self._say, self._claim = db, jobs, leave, say, claim
        self._me = this_process()
        self._starter, self._fitness = Starter(db), Fitness(db)
        self._held: dict[str, tuple[Claim, subprocess.Popen[bytes]]] = {}
        self._unfit: set[str] = set()
        self._trouble: str | None = None
        self.done: list[Left] = []

    def run(self, *, once: bool) -> list[Left]:
        """Take what waits, and end when told to leave or, with `once`, when nothing is left to take.

        Returns:
            What became of each run, in the order in which they ended.

        Raises:
            KeyboardInterrupt: At a second signal; the trainers are dead then.
        """
        said_at = -REMIND_S
        try:
            while not self._leave.asked:
                empty = self._take()
                self._look_after()
                if empty and not self._held:
                    if once and not is_watching():
                        return self.done
                    if time.monotonic() - said_at >= REMIND_S:
                        self._say(f"No run waits. Looking again every {IDLE_POLL_S:.0f} s.")
                        said_at = time.monotonic()
                time.sleep(POLL_S if self._held or not empty else IDLE_POLL_S)
            self._give_all_back()
        except KeyboardInterrupt:
            self._kill_all()
            raise
        return self.done

    def _take(self) -> bool:
        """Fill the free places; True if the database has nothing more to take."""
        try:
            while len(self._held) < self._jobs and not self._leave.asked:
                claim = self._claim(self._db, worker=self._me, has_trainer=find_trainer, leave=self._unfit)
                if claim is None:
                    return True
                self._begin(claim)
            self._trouble = None
        except StorageError as error:  # a locked database or a lost server is asked again at the next tick
            self._complain(str(error))
        return False

    def _begin(self, claim: Claim) -> None:
        if sentence := self._fitness.refuse(claim):
            self._unfit.add(claim.run_id)
            self._say(sentence)
            return
        process = self._starter.start(claim, gives_back=True)
        if process is None:
            self._note(claim)
            return
        self._held[claim.run_id] = (claim, process)
        row = find_run(self._db, claim.run_id)
        self._say(f"Run {claim.run_id} {'goes on' if claim.resume else 'begins'}: {row.name}.")

    def _look_after(self) -> None:
        """Note which trainers have ended, and free the runs of those that ended without a word."""
        for claim, process in list(self._held.values()):
            if process.poll() is None:
                continue
            try:
                with suppress(RunStateError):  # its trainer has said how it ended
                    retry_transient(
                        self._db, partial(give_back, self._db, claim.run_id, token=claim.token, claim=claim)
                    )
            except StorageError as error:  # a long outage must not end the worker, nor must a run that was deleted
                self._complain(str(error))
                if is_transient(self._db, error):
                    continue
            del self._held[claim.run_id]
            self._note(claim)

    def _give_all_back(self) -> None:
        """Stop every trainer with a checkpoint; each gives its run back."""
        if self._held:
            self._say(f"Leaving: {len(self._held)} trainer(s) write a checkpoint. A second signal ends them at once.")
        for _, process in self._held.values():
            process.terminate()
        while any(process.poll() is None for _, process in self._held.values()):
            time.sleep(POLL_S / 5)
        self._look_after()

    def _kill_all(self) -> None:
        for _, process in self._held.values():
            process.kill()

    def _note(self, claim: Claim) -> None:
        try:
            row = find_run(self._db, claim.run_id)
        except EmtcError as error:  # deleted, or the database does not answer
            self._say(str(error))
            return
        self.done.append(Left(row.id, row.status, row.env_steps))
        why = f" {row.error}" if row.error else ""
        self._say(f"Run {row.id} is {row.status} at step {row.env_steps:,}.{why}")

    def _complain(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._say(trouble)
        self._trouble = trouble


def summarize(done: list[Left]) -> str:
    """What a worker did, in one sentence."""
    if not done:
        return NOTHING
    counts = ", ".join(f"{n} {status}" for status, n in sorted(Counter(left.status for left in done).items()))
    return f"This worker let go of {len(done)} run(s): {counts}."
