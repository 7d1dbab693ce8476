"""Write runs to another program while they train: Weights & Biases, MLflow or TensorBoard.

A mirror reads from the database the values that the program does not have yet, writes them, and repeats. Trainers are
not involved. A sink is the object that writes to one program.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from app.jobs.mirror.mlflow_sink import MlflowSink
from app.jobs.mirror.rows import MirroredRun, Sink, describe_run, read_new_rows
from app.jobs.mirror.tensorboard_sink import TensorboardSink
from app.jobs.mirror.wandb_sink import WandbSink
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.queries.run_search import RunFilter, matching_ids
from storage.queries.runs import get_rows
from storage.runs.rows import RunRow

ROWS_AT_ONCE: Final = 5_000
_SINKS: Final[dict[str, Callable[[Path], Sink]]] = {
    "tensorboard": TensorboardSink,
    "wandb": WandbSink,
    "mlflow": MlflowSink,
}
PROGRAMS: Final = tuple(_SINKS)


@dataclass
class Mirror:
    """Writes runs to one program, and stores the last written env step of each curve."""

    sink: Sink
    _last_steps: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """Key of a run → curve → last env step in the program."""
    _complete_runs: dict[str, int] = field(default_factory=dict[str, int])
    """Key of an ended run that is written completely → its env steps. It is not read again."""

    def update(self, db: Database, run_ids: Sequence[str] | None) -> tuple[int, bool]:
        """Write the new values of these runs; None means all runs.

        Returns:
            Number of values that were written, and whether all runs have ended.
        """
        n_values = 0
        has_active_run = False
        for row in _read_rows(db, run_ids):
            run = describe_run(db, row)
            if not run.has_ended:
                has_active_run = True
            elif self._complete_runs.get(run.key) == row.env_steps:
                continue
            n_values += self._update_run(db, row.id, run)
            if run.has_ended:
                self._complete_runs[run.key] = row.env_steps
        return n_values, not has_active_run

    def _update_run(self, db: Database, run_id: str, run: MirroredRun) -> int:
        """Write the new values of one run, and close it in the program if it has ended; return the number of values."""
        if run.key not in self._last_steps:
            self._last_steps[run.key] = dict(self.sink.last_steps(run))
        last_steps = self._last_steps[run.key]
        rows = read_new_rows(db, run_id, last_steps)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            batch = rows[start : start + ROWS_AT_ONCE]
            self.sink.write(run, batch)
            for row in batch:
                last_steps.update(dict.fromkeys(row.values, row.env_step))
        if run.has_ended:
            self.sink.close(run)
        return sum(len(row.values) for row in rows)

    def close(self, db: Database, run_ids: Sequence[str] | None) -> None:
        """Release the files and connections of every run in the program."""
        for row in _read_rows(db, run_ids):
            self.sink.close(describe_run(db, row))


def make_mirror(program: str, out: Path) -> Mirror:
    """Make a mirror that writes into the folder `out`.

    Raises:
        ConfigError: If the program is not one of PROGRAMS, or is not installed.
    """
    if program not in _SINKS:
        raise ConfigError(f"must be one of {', '.join(PROGRAMS)}", key="--to", value=program)
    return Mirror(_SINKS[program](out))


def mirror_continuously(
    mirror: Mirror, db: Database, run_ids: Sequence[str] | None, *, every_s: float, announce: Callable[[str], None]
) -> None:
    """Update a mirror repeatedly, until all of these runs have ended. With `run_ids` None, it never ends.

    Args:
        mirror: The mirror.
        db: An open database.
        run_ids: The runs; None means all, including later ones.
        every_s: Time between two updates [s].
        announce: Called with messages for the user.
    """
    while True:
        n_values, is_complete = mirror.update(db, run_ids)
        if n_values:
            announce(f"Mirrored {n_values:,} values.")
        if is_complete and run_ids is not None:
            return
        time.sleep(every_s)


def _read_rows(db: Database, run_ids: Sequence[str] | None) -> list[RunRow]:
    return get_rows(db, matching_ids(db, RunFilter()) if run_ids is None else run_ids)
