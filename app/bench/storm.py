"""A storm: trainers on one database are killed, stopped, paused, locked out and denied room; is anything lost or wrong?

Every trainer makes the same run with the same seed, so beside the invariants of the tables one more thing can be
asked: whatever happened to it, each run must have recorded the very rows that the others did.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from app.bench.postgres import made_database, server
from app.bench.records import Figure, temporary_database
from app.bench.storms.faults import Faults
from app.bench.storms.fleet import STEPS, Fleet, storm_config
from app.bench.storms.invariants import RowWatch, count_rows, find_wrong
from emtc_core.errors import ConfigError, StorageError
from storage.engine import Database, open_database
from storage.files.places import run_folder
from storage.private_files import remove_folder
from storage.queries.runs import list_runs
from storage.retry import retry_transient

MINUTES, TRAINERS = 1.0, 4
EVERY_S = 2.5
KILLS_PER_MINUTE = {"sqlite": 10, "postgresql": 5}
_LOOK_S = 0.2
_MOST_REASONS = 3


@dataclass(frozen=True)
class Toll:
    """What a storm did, and what it cost."""

    blows: dict[str, int]
    rows: int
    lost: int
    superseded: int
    resumed: int
    started_again: int
    failures: list[str]
    wrong: list[str]
    runs: int

    def __str__(self) -> str:
        blows = ", ".join(f"{n} × {kind}" for kind, n in sorted(self.blows.items()))
        reasons = sorted({failure.partition(": ")[2] for failure in self.failures})[:_MOST_REASONS]
        return (
            f"{self.runs} runs; {blows}; {self.resumed} resumes superseded {self.superseded:,} steps, "
            f"{self.started_again} started again, {' '.join([f'{len(self.failures)} failed in between', *reasons])}"
        )


def run(*, minutes: float = MINUTES, db: str = "sqlite", trainers: int = TRAINERS) -> list[Figure]:
    """Measure `storm.kills`, `storm.rows`, `storm.lost` and `storm.wrong`.

    Args:
        minutes: How long the storm lasts.
        db: An empty database's URL; `sqlite` and `postgresql` make one that is gone afterwards.
        trainers: How many work at a time.

    Raises:
        ConfigError: If the database holds runs.
    """
    with _database(db) as database:
        toll = run_storm(database, minutes=minutes, trainers=trainers)
        kind = database.dialect
    kills, due = toll.blows.get("kill", 0), KILLS_PER_MINUTE[kind] * minutes
    load = f"{kind}, {trainers} trainers, {minutes:g} min: {toll}"
    return [
        _figure("kills", kills, "SIGKILLs", due, kills >= due, load),
        _figure("rows", toll.rows, "transitions", None, None, "all runs together"),
        _figure("lost", toll.lost, "transitions", 0, toll.lost == 0, "seen once, not superseded, and gone"),
        _figure("wrong", len(toll.wrong), "breaches", 0, not toll.wrong, "; ".join(toll.wrong[:5]) or "plain SQL"),
    ]


def run_storm(
    db: Database, *, minutes: float, trainers: int, steps: int = STEPS, every_s: float = EVERY_S, seed: int = 0
) -> Toll:
    """Let a storm rage over an empty database, then look at every row."""
    fleet, watch = Fleet(db, trainers, steps=steps), RowWatch(db)
    faults = Faults(db, fleet, seed=seed)
    started = time.monotonic()
    struck = 0
    try:
        while (elapsed := time.monotonic() - started) < 60 * minutes:
            fleet.tend()
            with suppress(StorageError):  # locked or cut just now
                watch.look()
            if elapsed > struck * every_s:
                faults.strike()
                struck += 1
            time.sleep(_LOOK_S)
    finally:
        try:
            faults.calm()
        finally:
            fleet.stop()
    retry_transient(db, watch.look)
    return Toll(
        blows=dict(faults.blows),
        rows=count_rows(db),
        lost=watch.lost,
        superseded=watch.superseded,
        resumed=fleet.resumed,
        started_again=fleet.started_again,
        failures=fleet.failures,
        wrong=find_wrong(db, storm_config(steps)),
        runs=len(list_runs(db, limit=None)),
    )


@contextmanager
def _database(name: str) -> Generator[Database]:
    if name == "sqlite":
        with temporary_database() as db:
            yield db
        return
    if name == "postgresql":
        with server(fsync=True) as server_url, made_database(server_url) as url, _opened(url) as db:
            try:
                yield db
            finally:
                for run_id in list_runs(db, limit=None)["id"]:
                    remove_folder(run_folder(db, run_id))
        return
    with _opened(name) as db:
        if n := len(list_runs(db, limit=None)):
            raise ConfigError(f"A storm needs a database of its own; {db.shown} holds {n} runs. Name an empty one.")
        yield db


@contextmanager
def _opened(url: str) -> Generator[Database]:
    db = open_database(url)
    try:
        yield db
    finally:
        db.dispose()


def _figure(name: str, value: float, unit: str, budget: float | None, met: bool | None, reference: str) -> Figure:
    return {"name": f"storm.{name}", "value": value, "unit": unit, "budget": budget, "met": met, "reference": reference}
