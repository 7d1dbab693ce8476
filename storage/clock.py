"""The one clock by which runs are claimed, beat and are found lost: the server's, where the database is on one.

Workers on several machines judge each other's signs of life, and a machine whose clock is minutes off would take living
runs from the others. A SQLite file has one machine, whose clock it is. Between two looks at the server's clock time
passes as this process measures it, so a local clock that is set anew changes nothing. A process works with one server.
"""

import time
from datetime import UTC, datetime, timedelta

_LOOK_AGAIN_S = 60.0


class _ServerClock:
    """What the server's clock said when this process looked last."""

    def __init__(self) -> None:
        """Know no server yet."""
        self.said: tuple[datetime, float] | None = None

    def read(self) -> datetime:
        """The time by the server's clock, or by this machine's where no server was asked."""
        if self.said is None:
            return datetime.now(UTC)
        at, looked = self.said
        return at + timedelta(seconds=time.monotonic() - looked)


_server = _ServerClock()


def now() -> datetime:
    """The time as the database's machine has it, aware, in UTC."""
    return _server.read()


def is_due() -> bool:
    """Whether the server's clock should be looked at again."""
    return _server.said is None or time.monotonic() - _server.said[1] > _LOOK_AGAIN_S


def set_by(server: datetime) -> None:
    """Note what the server's clock says at this moment."""
    _server.said = (server.astimezone(UTC), time.monotonic())
