"""Progress of runs and sweeps on stderr: a bar on a terminal, otherwise regular lines for a run.

The printed test win rate is that of the last evaluation.
"""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
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
from storage.runs.sweeps import Sweep

LINE_EVERY_S = 30.0
LINE_EVERY_FRACTION = 0.05
"""A line is written after this time, or after this fraction of the budget, whichever is earlier."""
OnProgress = Callable[[int], None]
"""Called with the env steps of a run."""


@contextmanager
def show_run_progress(database: Database, run_id: str) -> Generator[OnProgress]:
    """Show the progress of a run. The trainer calls the yielded function with its env steps after each round."""
    run = find_run(database, run_id)
    console = Console(stderr=True)
    if not console.is_terminal:
        threshold = get_success_threshold(run.config)
        label = "win rate" if threshold is None else name_success(threshold)
        yield ProgressLines(
            run.target_steps, read_rate=lambda: _read_last_rate(database, run_id, threshold), label=label
        )
        return
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("env steps"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=run.target_steps)
        yield lambda env_step: progress.update(task, completed=min(env_step, run.target_steps))


@contextmanager
def show_sweep_progress() -> Generator[Callable[[Sweep], None]]:
    """Show the progress of a sweep. The yielded function is called with the sweep at each poll."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("sweep", total=1.0)
        yield lambda sweep: progress.update(task, completed=sweep.progress, description=_describe_sweep(sweep))


class ProgressLines:
    """Writes a line if enough time or env steps have passed since the last line."""

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
        self._total = total
        self._label = label
        self._read_rate = read_rate
        self._write = write
        self._clock = clock
        self._last_line_at: float | None = None
        self._last_env_step = 0

    def __call__(self, env_step: int) -> None:
        """Write a line if it is time for one."""
        now = self._clock()
        if self._last_line_at is None:  # the first call writes nothing: a resumed run does not begin at step 0
            self._last_line_at = now
            self._last_env_step = env_step
            return
        seconds = now - self._last_line_at
        steps = env_step - self._last_env_step
        if seconds < LINE_EVERY_S and steps < LINE_EVERY_FRACTION * self._total:
            return
        self._last_line_at = now
        self._last_env_step = env_step
        speed = steps / seconds if seconds > 0 else None
        with suppress(OSError):  # training continues if stderr is closed
            self._write(self._make_line(min(env_step, self._total), speed))

    def _make_line(self, env_step: int, speed: float | None) -> str:
        seconds_left = (self._total - env_step) / speed if speed else None
        return (
            f"{format_count(env_step)} of {format_count(self._total)} env steps "
            f"({format_percent(env_step / self._total)}), test {self._label} "
            f"{format_percent(self._read_rate(), 1)}, "
            f"{format_number(speed)} steps/s, about {format_duration(seconds_left)} left"
        )


def _read_last_rate(database: Database, run_id: str, threshold: float | None) -> float | None:
    """Return the last win rate, or the last success rate if a return threshold decides the success."""
    with suppress(EmtcError):  # the recorder reports database errors
        if threshold is None:
            return find_run(database, run_id).win_rate
        return read_last_success_rate(database, run_id)
    return None


def _describe_sweep(sweep: Sweep) -> str:
    counts = sweep.counts
    parts = [f"{counts['finished']} of {sweep.trials or len(sweep.runs)} runs", f"{counts['running']} running"]
    if sweep.trials:
        parts.append(f"{counts['pruned']} pruned")
    if counts["failed"]:
        parts.append(f"{counts['failed']} failed")
    if seconds := sweep.seconds_left():
        parts.append(f"≈ {format_duration(seconds)} left")
    return ", ".join(parts)
