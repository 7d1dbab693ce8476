"""Show runs in another program as they train: read what it lacks, write it, look again. Trainers know nothing of it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, get_args

from app.jobs.mirror.rows import Mirrored, Row, Sink, describe_run, new_rows
from app.jobs.mirror.sinks import MlflowSink, TensorboardSink, WandbSink
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.queries.runs import RunFilter, get_rows, matching_ids

Target = Literal["tensorboard", "wandb", "mlflow"]
TARGETS: tuple[Target, ...] = get_args(Target)
_SINKS: Final[dict[Target, Callable[[Path], Sink]]] = {
    "tensorboard": TensorboardSink,
    "wandb": WandbSink,
    "mlflow": MlflowSink,
}
ROWS_AT_ONCE: Final = 5_000


@dataclass
class Mirror:
    """One target with what is known of what it holds."""

    sink: Sink
    _last: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    _whole: dict[str, int] = field(default_factory=dict[str, int])
    """Ended runs that it holds whole, and their env steps: nothing is asked of them again."""

    def look(self, db: Database, run_ids: Sequence[str] | None) -> tuple[int, bool]:
        """Mirror what is new of these runs, of every run where None.

        Returns:
            How many values were written, and whether all runs have ended.
        """
        ids = matching_ids(db, RunFilter()) if run_ids is None else run_ids
        written, all_ended = 0, True
        for row in get_rows(db, ids):
            run = describe_run(db, row)
            all_ended &= run.has_ended
            if run.has_ended and self._whole.get(run.key) == row.env_steps:
                continue
            written += self._bring(db, row.id, run)
            if run.has_ended:
                self._whole[run.key] = row.env_steps
        return written, all_ended

    def _bring(self, db: Database, run_id: str, run: Mirrored) -> int:
        """Bring one run up to date, and close it if it has ended."""
        if run.key not in self._last:
            self._last[run.key] = dict(self.sink.last_steps(run))
        last = self._last[run.key]
        rows = new_rows(db, run_id, last)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            part = rows[start : start + ROWS_AT_ONCE]
            self.sink.write(run, part)
            _advance(last, part)
        if run.has_ended:
            self.sink.close(run)
        return sum(len(row.values) for row in rows)

    def close(self, db: Database, run_ids: Sequence[str] | None) -> None:
        """Let go of every run."""
        for row in get_rows(db, matching_ids(db, RunFilter()) if run_ids is None else run_ids):
            self.sink.close(describe_run(db, row))


def _advance(last: dict[str, int], rows: Sequence[Row]) -> None:
    for row in rows:
        last.update(dict.fromkeys(row.values, row.env_step))


def make_mirror(target: str, out: Path) -> Mirror:
    """Make the mirror of a target.

    Raises:
        ConfigError: If there is no such target, or its program is missing.
    """
    known: Target | None = next((each for each in TARGETS if each == target), None)
    if known is None:
        raise ConfigError(f"--to must be one of {', '.join(TARGETS)}, got {target!r}.")
    return Mirror(_SINKS[known](out))


def follow(
    mirror: Mirror, db: Database, run_ids: Sequence[str] | None, *, every_s: float, say: Callable[[str], None]
) -> None:
    """Mirror until all of the named runs have ended, or for ever where none was named."""
    while True:
        written, all_ended = mirror.look(db, run_ids)
        if written:
            say(f"Mirrored {written:,} values.")
        if all_ended and run_ids is not None:
            return
        time.sleep(every_s)
