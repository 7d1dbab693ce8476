"""How the outside world steers a running trainer: commands in, heartbeats and acknowledgements out.

`storage.control.DatabaseControl` implements the protocol; `NoControl` runs to the end undisturbed.
"""

from typing import Literal, Protocol

Command = Literal["stop", "pause", "resume", "evaluate"]


class Control(Protocol):
    """Polled by the trainer between step batches; a poll must cost microseconds when nothing is new."""

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
