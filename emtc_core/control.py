"""Commands and questions for a running trainer.

`storage.runs.control.DatabaseControl` implements the protocol `Control`. `NoControl` never returns a command.
`CommandHandler` is the trainer's side: it polls a control and executes the commands. A command (stop, pause, resume)
controls the training. A question asks for episodes of the current policy and does not change the training.
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
    """A request for episodes of the current policy: an evaluation, or one episode."""

    kind: QuestionKind
    number: int
    """Number of the question, > 0 and unique in the run. It selects the seeds and identifies the answer."""
    repeats_episode: int | None = None
    """Number of the training episode whose start a `play` repeats. None: a new start."""


class Control(Protocol):
    """Source of commands. The trainer polls it between environment steps, so an empty poll must take microseconds."""

    def poll(self) -> Command | Question | None:
        """Acknowledge and return the oldest new command or question; None if there is none."""

    def set_status(self, status: Literal["running", "paused"]) -> None:
        """Publish the trainer's status after a pause or a resume."""


class NoControl(Control):
    """A control without commands."""


class StopRequested(Exception):  # noqa: N818  (not an error: it ends the trainer's current work)
    """Raised on a stop command."""


class CommandHandler:
    """Executes commands inside a round too, so that a command does not wait for the end of the round."""

    def __init__(
        self, control: Control, *, before_pause: Callable[[], None], answer: Callable[[Question], None]
    ) -> None:
        """Make a handler for one trainer.

        Args:
            control: Source of commands and questions.
            before_pause: Called before a pause; writes all recorded rows to the database.
            answer: Answers a question. It may call `poll`, but not `handle` or `handle_without_questions`.
        """
        self._control = control
        self._before_pause = before_pause
        self._answer = answer
        self._paused = False
        self._paused_s = 0.0
        self._questions: deque[Question] = deque()

    def handle(self) -> None:
        """Execute new commands and answer new questions. While paused, wait and continue to answer questions.

        Raises:
            StopRequested: On a stop command.
        """
        self.poll()
        while self._questions or self._paused:
            if self._questions:
                self._answer(self._questions.popleft())
            else:
                self._wait_in_pause()
            self.poll()

    def handle_without_questions(self) -> None:
        """Execute new commands, but keep questions for the next `handle`: an evaluation uses the environments.

        Raises:
            StopRequested: On a stop command.
        """
        self.poll()
        while self._paused:
            self._wait_in_pause()
            self.poll()

    def poll(self) -> None:
        """Read new commands and questions without waiting.

        Raises:
            StopRequested: On a stop command.
        """
        while request := self._control.poll():
            if request == "stop":
                raise StopRequested
            if isinstance(request, Question):
                self._questions.append(request)
            elif request in ("pause", "resume") and self._paused != (request == "pause"):
                self._paused = request == "pause"
                if self._paused:
                    self._before_pause()
                self._control.set_status("paused" if self._paused else "running")

    def read_clock(self) -> float:
        """Return a time without the pauses of the training [s]. Only differences of two values have a meaning."""
        return time.monotonic() - self._paused_s

    def _wait_in_pause(self) -> None:
        started = time.monotonic()
        time.sleep(PAUSE_POLL_S)
        self._paused_s += time.monotonic() - started
