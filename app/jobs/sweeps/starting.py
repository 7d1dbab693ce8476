"""Start the trainer of a claimed run: what the scheduler of one sweep and the workers of all of them share."""

import socket
import subprocess
from collections import Counter
from collections.abc import Mapping
from typing import Any

from app.analysis.provenance import library_versions
from app.jobs.launch import check_startable, start_trainer
from app.jobs.resume import look
from emtc_core.config.resolve import config_from_stored
from emtc_core.errors import ConfigError, EnvUnavailableError, StorageError
from storage.engine import Database
from storage.runs.changes import finish_run, start_again
from storage.runs.claims import Claim, give_back
from storage.runs.rows import find_run

MOST_STARTS = 3


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
        standing = look(self._db, find_run(self._db, claim.run_id)) if claim.resume else None
        if standing and standing.refused:  # to start again from 0 would forget what lies there
            sentence = f"It cannot go on from here. {standing.refused}"
            finish_run(self._db, claim.run_id, "failed", error=sentence, token=claim.token)
            return None
        if standing and not standing.can_resume:
            self._starts[self._replace(claim, standing.why_not)] = self._starts[claim.run_id]
            return None
        return start_trainer(self._db, claim.run_id, token=claim.token, resume=claim.resume, give_back=gives_back)

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
        standing = look(self._db, find_run(self._db, claim.run_id))
        if standing.refused:
            return standing.refused
        if claim.host in (None, socket.gethostname()) or standing.can_resume or standing.checkpoints:
            return None
        return (
            f"it was trained on {claim.host}, and no checkpoint of it is in {standing.folder}. A worker there goes on "
            f"with it, or start it again from step 0 with: emtc resume {claim.run_id} --start-again"
        )
