"""Retry after transient errors of a database: a full disk, a lock, a moved file, or a server that cannot be reached.

A recorder retries without a time limit and logs a warning; for a file that was moved it stops after
MISSING_FILE_PATIENCE_S. Code that claims, starts, rewinds or ends a run retries for PATIENCE_S, which is longer than a
backup or a deletion locks the database. A starting worker retries for longer.

Why not `tenacity`: most of this module decides which errors are transient, and logs outages. The package would replace
two loops of ten lines, of which one must also end early when it is cancelled.
"""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from emtc_core.errors import FileMissingError, StorageError
from storage.engine import Database, open_database

REMIND_S = 60.0
"""Interval between two warnings about the same outage."""
PATIENCE_S = 120.0
SERVER_PATIENCE_S = 3600.0
MISSING_FILE_PATIENCE_S = 3600.0
"""How long a recorder waits until a SQLite file that was moved is back."""
_RETRY_S = 0.25
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_SERVER_NOT_READY = (
    "starting up",
    "shutting down",
    "terminating connection",
    "in recovery",
    "not yet accepting",
    "too many",
    "remaining connection slots",
)
"""Parts of PostgreSQL's messages if a server is reachable but accepts no connections at the moment."""
_SQLITE_TRANSIENT = ("locked", "busy", "full", "disk i/o error", "unable to open", "no space left", "readonly")
"""Parts of SQLite's messages of transient errors."""

Result = TypeVar("Result")


def is_transient(db: Database, error: StorageError) -> bool:
    """Return whether an error is transient: a full disk, a lock, a moved file or an unreachable server."""
    if isinstance(error, FileMissingError):
        return True
    cause = error.__cause__
    if not isinstance(cause, db.reader.dialect.loaded_dbapi.OperationalError):
        return False
    return db.dialect != "sqlite" or any(word in str(cause).lower() for word in _SQLITE_TRANSIENT)


def retry_transient(db: Database, act: Callable[[], Result]) -> Result:
    """Call a function, and call it again for PATIENCE_S while it fails with a transient error.

    Raises:
        StorageError: If it still fails after PATIENCE_S, or fails with another error.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return act()
        except StorageError as error:
            if not is_transient(db, error) or time.monotonic() > deadline:
                raise
        time.sleep(_RETRY_S)


def open_with_retry(
    url: str,
    *,
    report: Callable[[str], None],
    is_cancelled: Callable[[], bool] = lambda: False,
    patience_s: float = SERVER_PATIENCE_S,
) -> Database:
    """Open an existing database. If its server cannot be reached, retry with increasing pauses.

    Args:
        url: As `open_database` takes it.
        report: Called once with a message if the function has to wait.
        is_cancelled: Returns whether to stop waiting.
        patience_s: Maximum time to wait [s].

    Raises:
        StorageError: If the server cannot be reached within `patience_s`, or another error occurs.
    """
    deadline, pause_s, is_reported = time.monotonic() + patience_s, _FIRST_PAUSE_S, False
    while True:
        try:
            return open_database(url, create=False)
        except StorageError as error:
            if not _is_unreachable(error) or is_cancelled() or time.monotonic() > deadline:
                raise
            if not is_reported:
                report(f"{error} Retrying for {patience_s / 60:.0f} minutes.")
                is_reported = True
        next_try = time.monotonic() + pause_s
        while time.monotonic() < next_try and not is_cancelled():
            time.sleep(_RETRY_S)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _is_unreachable(error: StorageError) -> bool:
    """Return whether a server cannot be reached or accepts no connections yet. A refused login is another error."""
    cause = error.__cause__
    # psycopg is optional, so its class is compared by name. A server that shuts down causes a subclass.
    classes = type(cause).__mro__
    if not any((cls.__module__, cls.__name__) == ("psycopg", "OperationalError") for cls in classes):
        return False
    message = str(cause)
    return "FATAL" not in message or any(part in message for part in _SERVER_NOT_READY)


class Outage:
    """Logs one warning for repeated failures of a reader or writer, a reminder every `remind_s`, and the recovery."""

    def __init__(self, log: logging.Logger, what: str, *, remind_s: float = REMIND_S) -> None:
        """Describe the failure by `what`, for example "run 3f9a: cannot write heartbeats"."""
        self._log, self._what, self._remind_s = log, what, remind_s
        self._since: float | None = None
        self._logged_at = 0.0
        self._tries = 0

    def failed(self, reason: str) -> None:
        """Record a failure."""
        now = time.monotonic()
        self._tries += 1
        if self._since is None:
            self._since = self._logged_at = now
            self._log.warning("%s: %s", self._what, reason)
        elif now - self._logged_at >= self._remind_s:
            self._logged_at = now
            self._log.warning("%s (for %.0f s, %d tries): %s", self._what, now - self._since, self._tries, reason)

    def recovered(self) -> None:
        """Record a success."""
        if self._since is not None:
            self._log.warning("%s: recovered after %.0f s", self._what, time.monotonic() - self._since)
            self._since, self._tries = None, 0
