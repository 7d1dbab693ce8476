"""How the outside world steers a running trainer: commands in, heartbeats and acknowledgements out.

`storage.runs.control.DatabaseControl` implements the protocol; `NoControl` runs to the end undisturbed; `Steering`
is how the trainer obeys. A command changes how the training goes on in time; a question asks what the present policy
does, and changes nothing of the training.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

Command = Literal["stop", "pause", "resume"]
QuestionKind = Literal["evaluate", "play"]
PAUSE_POLL_S = 0.2


@dataclass(frozen=True)
class Question:
    """What somebody wants to see of the present policy: an evaluation, or one episode."""

    kind: QuestionKind
    number: int
    """Which question it is, > 0 and never used twice: its seeds and its answer go by it."""
    again_of: int | None = None
    """The training episode whose start a `play` repeats; None starts anew."""


class Control(Protocol):
    """Polled by the trainer between environment steps; a poll must cost microseconds when nothing is new."""

    def poll(self) -> Command | Question | None:
        """Take the oldest unacknowledged command or question and acknowledge it, or None."""

    def set_status(self, status: Literal["running", "paused"]) -> None:
        """Publish that the trainer obeyed a pause or a resume."""


class NoControl(Control):
    """Nobody gives commands."""


class StopRequested(Exception):  # noqa: N818  (no failure: it takes the trainer out of whatever it does)
    """Somebody said stop."""


class Steering:
    """Carries out commands wherever the trainer can bear it, so that none waits for the end of a round."""

    def __init__(
        self, control: Control, *, before_pause: Callable[[], None], answer: Callable[[Question], None]
    ) -> None:
        """Obey a control.

        Args:
            control: Where commands and questions come from.
            before_pause: Makes everything visible that happened so far.
            answer: Answers a question. It calls `listen` now and then, and never `obey` or `hold`.
        """
        self._control = control
        self._before_pause = before_pause
        self._answer = answer
        self._paused = False
        self._questions: deque[Question] = deque()

    def obey(self) -> None:
        """Carry out and answer what was asked since the last call; stay inside while paused, and answer there too.

        Raises:
            StopRequested: If somebody said stop.
        """
        self.listen()
        while self._questions or self._paused:
            if self._questions:
                self._answer(self._questions.popleft())
            else:
                time.sleep(PAUSE_POLL_S)
            self.listen()

    def hold(self) -> None:
        """Do as `obey`, but keep questions for its next call: the environments that would answer are in use.

        Raises:
            StopRequested: If somebody said stop.
        """
        self.listen()
        while self._paused:
            time.sleep(PAUSE_POLL_S)
            self.listen()

    def listen(self) -> None:
        """Take what was asked and wait for nothing.

        Raises:
            StopRequested: If somebody said stop.
        """
        while asked := self._control.poll():
            if asked == "stop":
                raise StopRequested
            if isinstance(asked, Question):
                self._questions.append(asked)
            elif asked in ("pause", "resume") and self._paused != (asked == "pause"):
                self._paused = asked == "pause"
                self._publish()

    def _publish(self) -> None:
        if self._paused:
            self._before_pause()
        self._control.set_status("paused" if self._paused else "running")
