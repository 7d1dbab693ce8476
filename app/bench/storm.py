"""A storm: trainers on one database are killed, stopped, paused, locked out, denied room; their server is taken down.

Workers on machines whose clocks are ten minutes off take runs of it meanwhile, and one of these loses its power.

Is anything lost or wrong? And does an app that looks on with open pages, or who tends the trainers, hold more and more?

Every trainer makes the same run with the same seed, so beside the invariants of the tables, each as plain SQL, one more
thing can be asked: whatever happened to it, each run must have recorded the very rows that the others did. What was
seen to be recorded is held against what stands there.
"""

import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psutil
from sqlalchemy import Connection, text

from app.bench import Figure, make_figure
from app.bench.records import made_database, opened, server, temporary_database
from app.bench.storms.bystanders import Gauge, open_app
from app.bench.storms.fleet import Faults, Fleet, storm_config
from app.bench.storms.machines import SKEWS_S, Machines, open_machines
from emtc_core.config.run import RunConfig
from emtc_core.errors import ConfigError, StorageError
from storage.engine import Database
from storage.files.places import run_folder
from storage.maintenance.check_run import check_run
from storage.private_files import remove_folder
from storage.queries.runs import list_runs
from storage.retry import retry_transient

_PLACES = """
SELECT r.id FROM runs r LEFT JOIN
 (SELECT run_id, count(*) AS n, min(env_step) AS low, max(env_step) AS high FROM transitions GROUP BY run_id) t
 ON t.run_id = r.id
WHERE r.env_steps <> coalesce(t.n, 0) OR (t.n > 0 AND (t.low <> 1 OR t.high <> t.n))"""
_EPISODES = """
SELECT r.id FROM runs r LEFT JOIN
 (SELECT run_id, sum(length) AS steps, count(*) AS n, max(episode) AS last FROM episodes GROUP BY run_id) e
 ON e.run_id = r.id
WHERE r.env_steps <> coalesce(e.steps, 0) OR e.n <> e.last"""
_BETA = """
SELECT count(*) FROM transitions WHERE delta_mem IS NOT NULL AND
 abs(beta - exp(-(delta_mem * :scale) * (delta_mem * :scale) / (2 * tau * tau))) > 1e-5"""
_DELTA = """
SELECT count(*) FROM transitions WHERE delta_mem IS NOT NULL AND
 abs(delta_mem - abs(reward + :gamma * h_next - h)) > 1e-5 * (1 + abs(h))"""
_ORPHANS = """
SELECT count(*) FROM transitions t LEFT JOIN episodes e ON e.run_id = t.run_id AND e.episode = t.episode
WHERE e.episode IS NULL OR t.env_step <> e.first_env_step + t.t"""
_PAST = "SELECT count(*) FROM {table} x JOIN runs r ON r.id = x.run_id WHERE x.env_step > r.env_steps"
_TABLES = ("metrics", "evaluations", "eval_episodes", "gate_stats", "snapshots")
_LONGEST = "SELECT id FROM runs ORDER BY env_steps DESC, id LIMIT 1"
_COMPARED = ("reward", "h", "h_next", "delta_mem", "beta", "tau", "episode", "t", "slot", "next_slot")
_DIFFERENT = f"""
SELECT count(*) FROM transitions a JOIN transitions b ON b.run_id = :longest AND b.env_step = a.env_step
WHERE a.run_id <> :longest AND
 ({" OR ".join(f"coalesce(a.{each}, -7) <> coalesce(b.{each}, -7)" for each in _COMPARED)})"""

MINUTES, TRAINERS, PAGES, WORKERS = 1.0, 4, 3, len(SKEWS_S)
EVERY_S = 2.5
KILLS_PER_MINUTE = {"sqlite": 10, "postgresql": 5}
FLAT, LONG_MINUTES = (30.0, 6.0), 30.0
"""By how much [MB, handles] in an hour what a process holds may grow, in a storm of so many minutes or more."""
_LOOK_S = 0.2
_MOST_REASONS = 3


class RowWatch:
    """Remembers how far each run was seen to be; a step that is gone without being superseded is lost."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._seen: dict[str, int] = {}
        self._last_resume = 0
        self.lost = self.superseded = 0

    def look(self) -> None:
        """Compare what stands there with what was seen before.

        Raises:
            StorageError: If the database cannot be read now.
        """
        with self._db.read() as connection:  # one state of both tables
            rows = connection.execute(text("SELECT id, env_steps FROM runs")).all()
            resumes = connection.execute(
                text("SELECT id, run_id, env_step, reached_env_step FROM resumes WHERE id > :last ORDER BY id"),
                {"last": self._last_resume},
            ).all()
        for resume_id, run_id, env_step, reached in resumes:
            self._notice(run_id, reached)
            self._seen[run_id], self._last_resume = env_step, resume_id
            self.superseded += reached - env_step
        for run_id, env_steps in rows:
            self._notice(run_id, env_steps)
        self.lost += sum(self._seen.pop(gone) for gone in set(self._seen) - {row.id for row in rows})

    def _notice(self, run_id: str, env_steps: int) -> None:
        self.lost += max(0, self._seen.get(run_id, 0) - env_steps)
        self._seen[run_id] = env_steps


def count_rows(db: Database) -> int:
    """Count the transitions that stand in a database."""
    with db.read() as connection:
        return _count(connection, "SELECT count(*) FROM transitions")


def find_wrong(db: Database, config: RunConfig) -> list[str]:
    """Look for breaches in runs of one configuration: gaps, duplicates, wrong β or Δ, rows that differ between runs.

    Returns:
        One sentence per breach.
    """
    values = {"gamma": config.train.gamma, "scale": config.gate.delta_scale}
    with db.read() as connection:
        found = [f"{run_id}: the transitions are not 1…env_steps" for run_id in _ids(connection, _PLACES)]
        found += [f"{run_id}: the episodes do not add up to env_steps" for run_id in _ids(connection, _EPISODES)]
        longest = connection.execute(text(_LONGEST)).scalar_one_or_none()
        counts = {
            "break the equation of β": _count(connection, _BETA, scale=values["scale"]),
            "break the equation of Δ_mem": _count(connection, _DELTA, gamma=values["gamma"]),
            "have no episode": _count(connection, _ORPHANS),
            "differ from the same step of another run": _count(connection, _DIFFERENT, longest=longest),
        } | {
            f"of {table} lie past the end of their run": _count(connection, _PAST.format(table=table))
            for table in _TABLES
        }
        runs = _ids(connection, "SELECT id FROM runs WHERE env_steps > 0")
    found += [f"{n} rows {what}" for what, n in counts.items() if n]
    return found + [breach for run_id in runs for breach in check_run(db, run_id)]


def _ids(connection: Connection, sql: str) -> list[str]:
    return list(connection.execute(text(sql)).scalars())


def _count(connection: Connection, sql: str, **values: Any) -> int:
    return int(connection.execute(text(sql), values).scalar_one())


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
    robbed: int = 0
    machines: str = "no workers"

    def __str__(self) -> str:
        blows = ", ".join(f"{n} × {kind}" for kind, n in sorted(self.blows.items()))
        reasons = sorted({failure.partition(": ")[2] for failure in self.failures})[:_MOST_REASONS]
        return (
            f"{self.runs} runs; {blows}; {self.machines}; {self.resumed} resumes superseded {self.superseded:,} steps, "
            f"{self.started_again} started again, {' '.join([f'{len(self.failures)} failed in between', *reasons])}"
        )


def run(
    *,
    minutes: float = MINUTES,
    db: str = "sqlite",
    trainers: int = TRAINERS,
    pages: int = PAGES,
    workers: int = WORKERS,
) -> list[Figure]:
    """Measure `storm.kills`, `.rows`, `.lost`, `.wrong` and `.robbed`, and how memory and handles grow.

    Args:
        minutes: How long the storm lasts.
        db: An empty database's URL; `sqlite` and `postgresql` make one that is gone afterwards.
        trainers: How many work at a time.
        pages: How many pages of the app are open meanwhile, in a browser; 0 needs none.
        workers: How many machines with a clock that is off have one; 0 needs no C compiler.

    Raises:
        ConfigError: If the database holds runs, there is no browser for the pages, or no clock can be set off.
    """
    with _database(db) as database, ExitStack() as held:
        gauges = [Gauge("tender", psutil.Process())]
        if pages:
            gauges.append(held.enter_context(open_app(database, pages)))
        machines = held.enter_context(open_machines(database, workers, minutes)) if workers else None
        gauges += [machines.gauge()] if machines else []
        toll = run_storm(database, minutes=minutes, trainers=trainers, gauges=gauges, machines=machines)
        kind = database.dialect
    kills, due = toll.blows.get("kill", 0), KILLS_PER_MINUTE[kind] * minutes * min(1.0, trainers / TRAINERS)
    load = f"{kind}, {trainers} trainers, {minutes:g} min: {toll}"
    return [
        make_figure("storm.kills", kills, "SIGKILLs", due, load, met=kills >= due),
        make_figure("storm.rows", toll.rows, "transitions", None, "all runs together"),
        make_figure("storm.lost", toll.lost, "transitions", 0, "seen once, not superseded, and gone"),
        make_figure("storm.robbed", toll.robbed, "trainers", 0, "lived, and another machine took their run"),
        make_figure("storm.wrong", len(toll.wrong), "breaches", 0, "; ".join(toll.wrong[:5]) or "plain SQL"),
        *(figure for gauge in gauges for figure in _growth(gauge, minutes)),
    ]


def _growth(gauge: Gauge, minutes: float) -> list[Figure]:
    """How what a process holds grows; a short storm shows the filling of caches, and is held to nothing."""
    budgets = FLAT if minutes >= LONG_MINUTES else (None, None)
    units = (("memory", "MB/hour"), ("handles", "handles/hour"))
    return [
        make_figure(
            f"storm.{gauge.name}.{what}", slope, unit, budget, gauge.tell(), digits=1,
            met=None if budget is None else slope <= budget,
        )
        for (what, unit), slope, budget in zip(units, gauge.slopes(), budgets, strict=True)
    ]  # fmt: skip


def run_storm(
    db: Database,
    *,
    minutes: float,
    trainers: int,
    gauges: Sequence[Gauge] = (),
    machines: Machines | None = None,
) -> Toll:
    """Let a storm rage over an empty database, then look at every row."""
    fleet, watch = Fleet(db, trainers), RowWatch(db)
    faults = Faults(db, fleet, seed=0, more={"blackout": machines.strike} if machines else {})
    started = time.monotonic()
    struck = 0
    try:
        while (elapsed := time.monotonic() - started) < 60 * minutes:
            fleet.tend()
            if machines:
                machines.tend()
            with suppress(StorageError):  # locked or cut just now
                watch.look()
            for gauge in gauges:
                gauge.look()
            if elapsed > struck * EVERY_S:
                faults.strike()
                struck += 1
            time.sleep(_LOOK_S)
    finally:
        try:
            faults.calm()
        finally:
            fleet.stop()
            if machines:
                machines.stop()
    retry_transient(db, watch.look)
    return Toll(
        blows=dict(faults.blows),
        rows=count_rows(db),
        lost=watch.lost,
        superseded=watch.superseded,
        resumed=fleet.resumed,
        started_again=fleet.started_again,
        failures=fleet.failures,
        wrong=find_wrong(db, storm_config()),
        runs=len(list_runs(db, limit=None)),
        **machines.tell() if machines else {},
    )


@contextmanager
def _database(name: str) -> Generator[Database]:
    if name == "sqlite":
        with temporary_database() as db:
            yield db
        return
    if name == "postgresql":
        with server(fsync=True) as server_url, made_database(server_url) as url, opened(url) as db:
            try:
                yield db
            finally:
                for run_id in list_runs(db, limit=None)["id"]:
                    remove_folder(run_folder(db, run_id))
        return
    with opened(name) as db:
        if n := len(list_runs(db, limit=None)):
            raise ConfigError(f"must hold no runs, but holds {n}", key=db.safe_url, hint="Name an empty database.")
        yield db
