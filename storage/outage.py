"""Say once that the database does not answer, remind now and then, and say when it answers again."""

import logging
import time

REMIND_S = 60.0


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
