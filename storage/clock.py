"""The clock for claims and heartbeats of runs: the clock of the PostgreSQL server, or the local clock for SQLite.

Workers on several machines compare each other's heartbeats with the current time. With local clocks, a machine whose
clock is minutes ahead would claim runs that are in training on others. A SQLite file is used on one machine.

Between two reads of the server's clock, `time.monotonic()` is used, so changes of the local clock have no effect. A
process works with one server only.
"""

import time
from datetime import UTC, datetime, timedelta

_READ_EVERY_S = 60.0


class _ServerClock:
    """The last time that was read from the server, and when it was read."""

    def __init__(self) -> None:
        """Start without a server; `read` returns the local time."""
        self.last: tuple[datetime, float] | None = None

    def read(self) -> datetime:
        """Return the server's time, or the local time if no server was read."""
        if self.last is None:
            return datetime.now(UTC)
        server_time, read_at = self.last
        return server_time + timedelta(seconds=time.monotonic() - read_at)


_server = _ServerClock()


def now() -> datetime:
    """Return the current time of the database's machine in UTC."""
    return _server.read()


def is_due() -> bool:
    """Return whether the server's clock must be read again."""
    return _server.last is None or time.monotonic() - _server.last[1] > _READ_EVERY_S


def set_server_time(server: datetime) -> None:
    """Set the clock to the server's current time."""
    _server.last = (server.astimezone(UTC), time.monotonic())
