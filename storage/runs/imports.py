"""Store runs that another program trained, with their learning curves. They are marked as imported.

`app.jobs.imports` reads the formats of other programs. One transaction writes the runs.
"""

import hashlib
import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, insert, select

from emtc_core.config.base import IMPORTED
from emtc_core.errors import RunStateError
from storage.engine import Database, check_not_read_only
from storage.models import Evaluation, Run
from storage.runs.changes import new_run_values
from storage.runs.rows import format_seed, imported_label, update_run_summary


@dataclass(frozen=True)
class Point:
    """One evaluation. A value that the source does not contain is None."""

    env_step: int
    win_rate: float | None = None
    return_mean: float | None = None
    return_std: float | None = None
    length_mean: float | None = None
    episodes: int | None = None


@dataclass(frozen=True)
class ForeignRun:
    """One run of another program, as it will be stored."""

    env: str
    map: str
    algo: str
    seed: int
    """Random seed; −n for the nth run of a source without seeds."""
    label: str
    """Name of the import in legends: its format, or the name that the user gave it."""
    format: str
    source: str
    """Name of the file or folder, without its parent folders."""
    points: tuple[Point, ...]
    target_steps: int
    is_complete: bool = True
    """Whether the training reached its end. Its last evaluation may be a little before it."""
    eval_interval: int = 0
    """Usual number of env steps between evaluations if `target_steps` is only the last one of them; otherwise 0."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Its settings that affect learning, by the keys of the other program."""

    @property
    def digest(self) -> str:
        """A hash of its evaluations."""
        numbers = [[getattr(point, name) for name in Point.__dataclass_fields__] for point in self.points]
        return hashlib.sha256(json.dumps(numbers).encode()).hexdigest()[:16]

    @property
    def env_steps(self) -> int:
        """The env steps that were trained."""
        last_step = self.points[-1].env_step
        return max(last_step, self.target_steps) if self.is_complete else last_step

    @property
    def identity(self) -> Hashable:
        """The values that identify a run in an import."""
        return self.env, self.map, self.algo, self.seed, self.label, json.dumps(self.settings, sort_keys=True)

    def describe(self) -> str:
        """Return a description for messages, for example "qmix on 3m, seed 1"."""
        return f"{self.algo} on {self.map}, {format_seed(self.seed)}"

    def config(self) -> dict[str, Any]:
        """Return the stored configuration. Of this program's settings it contains only those of the identity."""
        episodes = next((point.episodes for point in reversed(self.points) if point.episodes), None)
        evaluation = {"episodes": episodes, "interval": self.eval_interval}
        return {
            "preset": IMPORTED,
            "algo": self.algo,
            "seed": self.seed,
            "env": {"name": self.env, "map": self.map},
            "train": {"t_max": self.target_steps},
            "eval": {key: value for key, value in evaluation.items() if value},
            IMPORTED: {"format": self.format, "label": self.label},
            **({"theirs": dict(self.settings)} if self.settings else {}),
        }


@dataclass(frozen=True)
class ImportResult:
    """Result of an import."""

    new: tuple[str, ...]
    """Ids of the runs that were created."""
    existing: tuple[str, ...]
    """Ids of the runs that an earlier import of the same evaluations had created."""
    skip_reasons: tuple[str, ...]
    """One sentence for each run that an earlier import had created with other evaluations."""


def save_imports(db: Database, runs: Sequence[ForeignRun]) -> ImportResult:
    """Store runs with their curves in one transaction. Runs that are stored already are not changed.

    Args:
        db: An open database.
        runs: The runs, each with another `identity`.

    Raises:
        StorageError: If EMTC_READ_ONLY=1 is set, or the database cannot be written.
        RunStateError: If all runs are stored already with other evaluations.
    """
    check_not_read_only("import runs")
    new: list[str] = []
    existing: list[str] = []
    skip_reasons: list[str] = []
    with db.transaction() as connection:
        for run in runs:
            try:
                stored_id = _find_stored(connection, run)
            except RunStateError as error:
                skip_reasons.append(str(error))
                continue
            if stored_id is None:
                new.append(_insert(connection, run))
            else:
                existing.append(stored_id)
    if skip_reasons and not new and not existing:
        raise RunStateError(skip_reasons[0])
    return ImportResult(tuple(new), tuple(existing), tuple(skip_reasons))


def _find_stored(connection: Connection, run: ForeignRun) -> str | None:
    """Find the run that an earlier import created from the same evaluations, under any label.

    Raises:
        RunStateError: If an earlier import created it from other evaluations.
    """
    same = (Run.env == run.env, Run.map == run.map, Run.algo == run.algo, Run.seed == run.seed)
    rows = connection.execute(select(Run.id, Run.config, Run.versions).where(*same)).all()
    rows = [row for row in rows if row.config.get("theirs", {}) == run.settings]
    for row in rows:
        mark = row.versions.get(IMPORTED)
        if isinstance(mark, Mapping) and mark.get("digest") == run.digest:
            return row.id
    for row in rows:
        if imported_label(row.config) == run.label:
            raise RunStateError(
                f"{run.describe()} was imported before with other evaluations, as run {row.id}. Delete it with "
                f"emtc delete {row.id}, or give this import another --name."
            )
    return None


def _insert(connection: Connection, run: ForeignRun) -> str:
    row = new_run_values(
        connection, run.config(), f"{run.algo} {run.map} {format_seed(run.seed)}, imported {run.label}"
    )
    wins = [point.win_rate for point in run.points if point.win_rate is not None]
    returns = [point.return_mean for point in run.points if point.return_mean is not None]
    row |= {
        "status": "finished" if run.is_complete else "stopped",
        "env_steps": run.env_steps,
        "target_steps": run.target_steps,
        "win_rate": wins[-1] if wins else None,
        "return_mean": returns[-1] if returns else None,
        "device": IMPORTED,
        "tags": [IMPORTED],
        "versions": {IMPORTED: {"format": run.format, "source": run.source, "digest": run.digest}},
    }
    connection.execute(insert(Run), row)
    names = ("env_step", "win_rate", "return_mean", "return_std", "length_mean", "episodes")
    rows = [{"run_id": row["id"], **{name: getattr(point, name) for name in names}} for point in run.points]
    connection.execute(insert(Evaluation), rows)
    update_run_summary(connection, row["id"])
    return row["id"]
