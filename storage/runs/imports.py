"""Runs that another program trained: their curves beside one's own, marked as imported wherever they are shown.

What lives here: the mark, what may not be done to such a run, and the one transaction that writes all runs of an import
or none. What does not: the formats that they are read from (`app.jobs.imports`).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, insert, select

from emtc_core.config.base import IMPORTED
from emtc_core.errors import RunStateError
from storage.engine import Database, refuse_when_read_only
from storage.models import Evaluation, Run
from storage.runs.changes import new_run_values
from storage.runs.rows import imported_label, name_seed, update_run_summary


@dataclass(frozen=True)
class Point:
    """One evaluation as its source told it; what it did not tell is None."""

    env_step: int
    win_rate: float | None = None
    return_mean: float | None = None
    return_std: float | None = None
    length_mean: float | None = None
    episodes: int | None = None


@dataclass(frozen=True)
class ForeignRun:
    """One run of another program, ready to be written."""

    env: str
    map: str
    algo: str
    seed: int
    """Of its random numbers; −n for the nth run of a source that tells no seeds."""
    label: str
    """What tells this import from another one in every legend: its format, or a name that somebody gave."""
    format: str
    source: str
    """File or folder, without the way to it."""
    points: tuple[Point, ...]
    target_steps: int
    is_whole: bool = True
    """Whether it came to its end."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What it was trained with, by its own program's keys."""

    @property
    def digest(self) -> str:
        """A fingerprint of its numbers."""
        numbers = [[getattr(point, name) for name in Point.__dataclass_fields__] for point in self.points]
        return hashlib.sha256(json.dumps(numbers).encode()).hexdigest()[:16]

    @property
    def identity(self) -> tuple[str, str, str, int, str]:
        """What no two runs of one import share."""
        return self.env, self.map, self.algo, self.seed, self.label

    def describe(self) -> str:
        """Which run it is, in words: "qmix on 3m, seed 1"."""
        return f"{self.algo} on {self.map}, {name_seed(self.seed)}"

    def config(self) -> dict[str, Any]:
        """The configuration that its row holds: nothing in it is a setting of this program but its identity."""
        told = next((point.episodes for point in reversed(self.points) if point.episodes), None)
        return {
            "preset": IMPORTED,
            "algo": self.algo,
            "seed": self.seed,
            "env": {"name": self.env, "map": self.map},
            "train": {"t_max": self.target_steps},
            **({"eval": {"episodes": told}} if told else {}),
            IMPORTED: {"format": self.format, "label": self.label},
            **({"theirs": dict(self.settings)} if self.settings else {}),
        }


@dataclass(frozen=True)
class Written:
    """What an import did."""

    new: tuple[str, ...]
    here: tuple[str, ...]
    """Runs that an earlier import of the same numbers had written."""


def save_imports(db: Database, runs: Sequence[ForeignRun]) -> Written:
    """Write runs with their curves, all or none; what an earlier import wrote is recognised and left as it is.

    Raises:
        RunStateError: If an earlier import wrote one of them with other numbers, or two of them are one.
    """
    refuse_when_read_only("import runs")
    _refuse_doubles(runs)
    with db.transaction() as connection:
        here = {run.identity: found for run in runs if (found := _find(connection, run)) is not None}
        new = [_write(connection, run) for run in runs if run.identity not in here]
    return Written(tuple(new), tuple(here.values()))


def _refuse_doubles(runs: Sequence[ForeignRun]) -> None:
    seen: dict[tuple[str, str, str, int, str], str] = {}
    for run in runs:
        if (other := seen.get(run.identity)) is not None:
            raise RunStateError(
                f"{run.describe()} stands there twice, in {other} and in {run.source}. "
                "Import one of them, or both one after the other with different --name."
            )
        seen[run.identity] = run.source


def _find(connection: Connection, run: ForeignRun) -> str | None:
    """Find the run that an earlier import wrote of the same numbers."""
    alike = (Run.env == run.env, Run.map == run.map, Run.algo == run.algo, Run.seed == run.seed)
    for row in connection.execute(select(Run.id, Run.config, Run.versions).where(*alike)):
        if imported_label(row.config) != run.label:
            continue
        if _digest(row.versions) == run.digest:
            return row.id
        raise RunStateError(
            f"{run.describe()} was imported before with other numbers, as run {row.id}. Delete that with "
            f"emtc delete {row.id}, or keep both apart with --name."
        )
    return None


def _digest(versions: Mapping[str, Any]) -> object:
    mark = versions.get(IMPORTED)
    return mark.get("digest") if isinstance(mark, Mapping) else None


def _write(connection: Connection, run: ForeignRun) -> str:
    row = new_run_values(connection, run.config(), f"{run.algo} {run.map} {name_seed(run.seed)}, imported {run.label}")
    wins = [point.win_rate for point in run.points if point.win_rate is not None]
    returns = [point.return_mean for point in run.points if point.return_mean is not None]
    row |= {
        "status": "finished" if run.is_whole else "stopped",
        "env_steps": run.points[-1].env_step,
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
