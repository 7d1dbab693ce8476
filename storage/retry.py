"""What passes by itself (a full disk, a lock, a lost server): told from faults, waited for, and said once.

A recorder waits as long as it takes and says so in its log; whoever takes, begins, rewinds or ends a run waits for
PATIENCE_S, which is longer than a backup or a delete holds the database.
"""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from emtc_core.errors import StorageError
from storage.engine import Database

REMIND_S = 60.0
PATIENCE_S = 120.0
_RETRY_S = 0.25
_PASSING = ("locked", "busy", "full", "disk i/o error", "unable to open", "no space left")

Result = TypeVar("Result")


def is_transient(db: Database, error: StorageError) -> bool:
    """Whether an error is a full disk, a lock or a lost server, which pass; a fault does not."""
    cause = error.__cause__
    if not isinstance(cause, db.reader.dialect.loaded_dbapi.OperationalError):
        return False
    return db.dialect != "sqlite" or any(word in str(cause).lower() for word in _PASSING)


def retry_transient(db: Database, act: Callable[[], Result], *, patience_s: float = PATIENCE_S) -> Result:
    """Do what a full disk, a lock or a lost server may refuse for a while.

    Raises:
        StorageError: If it is refused for longer, or for another reason.
    """
    until = time.monotonic() + patience_s
    while True:
        try:
            return act()
        except StorageError as error:
            if not is_transient(db, error) or time.monotonic() > until:
                raise
        time.sleep(_RETRY_S)


class Outage:
    """One complaint for one writer or reader, however often it tries meanwhile."""

    def __init__(self, log: logging.Logger, what: str, *, remind_s: float = REMIND_S) -> None:
        """Complain about `what`, for instance "run 3f9a: heartbeats wait"."""
        self._log, self._what, self._remind_s = log, what, remind_s
        self._since: float | None = None
        self._said = 0.0
        self._tries = 0

    def failed(self, reason: str) -> None:
        """Note a failed try."""
        now = time.monotonic()
        self._tries += 1
        if self._since is None:
            self._since = self._said = now
            self._log.warning("%s: %s", self._what, reason)
        elif now - self._said >= self._remind_s:
            self._said = now
            self._log.warning("%s for %.0f s now, %d tries: %s", self._what, now - self._since, self._tries, reason)

    def over(self) -> None:
        """Note a try that succeeded."""
        if self._since is not None:
            self._log.warning("%s no longer, after %.0f s", self._what, time.monotonic() - self._since)
            self._since, self._tries = None, 0
