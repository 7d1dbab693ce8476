"""What passes by itself (a full disk, a lock, a lost server): told from faults, waited for, and said once.

A recorder waits as long as it takes and says so in its log; whoever takes, begins, rewinds or ends a run waits for
PATIENCE_S, which is longer than a backup or a delete holds the database. A worker waits longer for a server, at first.
"""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from emtc_core.errors import StorageError
from storage.engine import Database, open_database

REMIND_S = 60.0
PATIENCE_S = 120.0
SERVER_PATIENCE_S = 3600.0
_RETRY_S = 0.25
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_NOT_YET = (
    "starting up",
    "shutting down",
    "terminating connection",
    "in recovery",
    "not yet accepting",
    "too many",
    "remaining connection slots",
)
_PASSING = ("locked", "busy", "full", "disk i/o error", "unable to open", "no space left")

Result = TypeVar("Result")


def is_transient(db: Database, error: StorageError) -> bool:
    """Whether an error is a full disk, a lock or a lost server, which pass; a fault does not."""
    cause = error.__cause__
    if not isinstance(cause, db.reader.dialect.loaded_dbapi.OperationalError):
        return False
    return db.dialect != "sqlite" or any(word in str(cause).lower() for word in _PASSING)


def retry_transient(db: Database, act: Callable[[], Result]) -> Result:
    """Do what a full disk, a lock or a lost server may refuse for a while.

    Raises:
        StorageError: If it is refused for longer, or for another reason.
    """
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return act()
        except StorageError as error:
            if not is_transient(db, error) or time.monotonic() > until:
                raise
        time.sleep(_RETRY_S)


def open_patiently(
    url: str,
    *,
    say: Callable[[str], None],
    is_over: Callable[[], bool] = lambda: False,
    patience_s: float = SERVER_PATIENCE_S,
) -> Database:
    """Open a database that is there, waiting with growing pauses for a server that does not answer.

    Args:
        url: As `open_database` takes it.
        say: Is told once that it waits, and for what.
        is_over: Whether to wait no longer.
        patience_s: How long to wait.

    Raises:
        StorageError: If the server does not answer for so long, or for another reason at once.
    """
    until, pause, told = time.monotonic() + patience_s, _FIRST_PAUSE_S, False
    while True:
        try:
            return open_database(url, create=False)
        except StorageError as error:
            if not _is_away(error) or is_over() or time.monotonic() > until:
                raise
            if not told:
                say(f"{error} Trying again for {patience_s / 60:.0f} minutes.")
                told = True
        rest = time.monotonic() + pause
        while time.monotonic() < rest and not is_over():
            time.sleep(_RETRY_S)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _is_away(error: StorageError) -> bool:
    """Whether a server cannot be reached, or does not take anybody yet; one that refuses this login is there."""
    cause = error.__cause__
    kinds = type(cause).__mro__  # a server that ends a session raises a kind of its own: AdminShutdown, CrashShutdown
    if not any((kind.__module__, kind.__name__) == ("psycopg", "OperationalError") for kind in kinds):
        return False
    said = str(cause)
    return "FATAL" not in said or any(words in said for words in _NOT_YET)


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
