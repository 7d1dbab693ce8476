"""How the outside world steers a running trainer: commands in, heartbeats and acknowledgements out.

`storage.control.DatabaseControl` implements the protocol; `NoControl` runs to the end undisturbed; `Steering`
is how the trainer obeys.
"""

import time
from collections.abc import Callable
from typing import Literal, Protocol

Command = Literal["stop", "pause", "resume", "evaluate"]
PAUSE_POLL_S = 0.2


class Control(Protocol):
    """Polled by the trainer between environment steps; a poll must cost microseconds when nothing is new."""

    def poll(self) -> Command | None:
        """Take the oldest unacknowledged command and acknowledge it, or None."""
        ...

    def set_status(self, status: Literal["running", "paused"]) -> None:
        """Publish that the trainer obeyed a pause or a resume."""
        ...


class NoControl:
    """Nobody gives commands."""

    def poll(self) -> Command | None:
        """Answer that there is no command."""
        return None

    def set_status(self, status: Literal["running", "paused"]) -> None:
        """Tell nobody."""


class StopRequested(Exception):  # noqa: N818  (no failure: it takes the trainer out of whatever it does)
    """Somebody said stop."""


class Steering:
    """Carries out commands wherever the trainer can bear it, so that none waits for the end of a round."""

    def __init__(self, control: Control, *, before_pause: Callable[[], None], on_evaluate: Callable[[], None]) -> None:
        """Obey a control.

        Args:
            control: Where commands come from.
            before_pause: Makes everything visible that happened so far.
            on_evaluate: Notes that an evaluation is wanted as soon as the trainer can give one.
        """
        self._control = control
        self._before_pause = before_pause
        self._on_evaluate = on_evaluate

    def obey(self) -> None:
        """Carry out what was asked since the last call; stay inside while paused.

        Raises:
            StopRequested: If somebody said stop.
        """
        paused = False
        while (command := self._control.poll()) or paused:
            if command == "stop":
                raise StopRequested
            if command == "evaluate":
                self._on_evaluate()
            if command in ("pause", "resume") and paused != (command == "pause"):
                paused = not paused
                self._publish(paused)
            if command is None:
                time.sleep(PAUSE_POLL_S)

    def _publish(self, paused: bool) -> None:
        if paused:
            self._before_pause()
        self._control.set_status("paused" if paused else "running")
