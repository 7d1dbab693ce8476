"""Progress of a run: a bar on a terminal, otherwise regular lines on stderr."""

import contextlib
import time
from collections.abc import Callable, Generator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from app.analysis.format import format_count, format_duration, format_number, format_percent
from app.analysis.quantities import get_success_threshold, name_success, read_last_success_rate
from app.cli.output import print_message
from emtc_core.errors import EmtcError
from storage.engine import Database
from storage.runs.rows import find_run

LINE_EVERY_S = 30.0
LINE_EVERY_FRACTION = 0.05
OnProgress = Callable[[int], None]
"""Called with the env steps of a run."""


@contextlib.contextmanager
def show_progress(database: Database, run_id: str) -> Generator[OnProgress]:
    """Show the progress of a run. The trainer calls the yielded function with its env steps after each round."""
    console = Console(stderr=True)
    total = find_run(database, run_id).target_steps
    if console.is_terminal:
        with _bar(console, total) as on_progress:
            yield on_progress
    else:
        threshold = get_success_threshold(find_run(database, run_id).config)
        label = "win rate" if threshold is None else name_success(threshold)
        yield ProgressLines(total, read_rate=lambda: _last_rate(database, run_id, threshold), label=label)


class ProgressLines:
    """Writes a line after 30 s or 5 % of the budget since the last line, whichever is earlier."""

    def __init__(
        self,
        total: int,
        *,
        read_rate: Callable[[], float | None],
        label: str = "win rate",
        write: Callable[[str], None] = print_message,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Speed and remaining time are computed from the steps and the time since the last line.

        Args:
            total: Budget [env steps].
            read_rate: Returns the win rate or success rate of the last evaluation; None before the first.
            label: Name of that rate.
            write: Called with each line.
            clock: Monotonic clock [s].
        """
        self._total, self._read_rate, self._write, self._clock = total, read_rate, write, clock
        self._label = label
        self._last: tuple[float, int] | None = None  # a resumed run does not begin at 0

    def __call__(self, env_step: int) -> None:
        """Write a line if it is time for one."""
        now = self._clock()
        if self._last is None:
            self._last = (now, env_step)
            return
        seconds, steps = now - self._last[0], env_step - self._last[1]
        if seconds < LINE_EVERY_S and steps < LINE_EVERY_FRACTION * self._total:
            return
        self._last = (now, env_step)
        with contextlib.suppress(OSError):  # training continues if stderr is closed
            self._write(self._line(env_step, steps / seconds if seconds > 0 else None))

    def _line(self, env_step: int, speed: float | None) -> str:
        remaining = max(0, self._total - env_step)
        return (
            f"{format_count(min(env_step, self._total))} of {format_count(self._total)} env steps "
            f"({format_percent(min(1.0, env_step / self._total))}), test {self._label} "
            f"{format_percent(self._read_rate(), 1)}, "
            f"{format_number(speed)} steps/s, about {format_duration(remaining / speed if speed else None)} left"
        )


def _last_rate(database: Database, run_id: str, threshold: float | None) -> float | None:
    with contextlib.suppress(EmtcError):  # the recorder reports database errors
        return find_run(database, run_id).win_rate if threshold is None else read_last_success_rate(database, run_id)
    return None


@contextlib.contextmanager
def _bar(console: Console, total: int) -> Generator[OnProgress]:
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("env steps"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=total)
        yield lambda env_step: progress.update(task, completed=min(env_step, total))
