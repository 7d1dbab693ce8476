"""The storm: trainers on one database are killed, stopped, paused, locked out and short of disk space.

A private PostgreSQL server also has outages. Workers on simulated machines, whose clocks are ten minutes wrong on a
server, take runs of a sweep meanwhile. One of these machines loses its power repeatedly.

Two questions are answered. Are recorded rows lost or wrong? Do memory and handles grow in an app with open pages, in
a worker, or in the process that controls the trainers?

All trainers make the same run with the same seed. Therefore all runs must have identical rows, in addition to the
invariants of the tables. Each invariant is one SQL query. The number of recorded env steps is read repeatedly during
the storm and compared with the rows at the end.

    python -m tests.torture.storm --minutes 10 --trainers 2 --db postgresql
"""

import argparse
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psutil
from sqlalchemy import Connection, text

from emtc_core.config.run import RunConfig
from emtc_core.errors import ConfigError, StorageError
from storage.engine import Database
from storage.files import remove_run_folder
from storage.maintenance.check import check_run
from storage.queries.runs import list_runs
from storage.retry import retry_transient
from tests.records import opened_database, temporary_database, temporary_server_database
from tests.report import BenchResult, add_json_option, limited, make_result, run_and_report
from tests.torture.fleet import FaultInjector, Fleet, storm_config
from tests.torture.growth import Gauge, open_app
from tests.torture.machines import SKEWS_S, Machines, open_machines

MINUTES, TRAINERS, PAGES, WORKERS = 1.0, 4, 3, len(SKEWS_S)
FAULT_INTERVAL_S = 2.5
KILLS_PER_MINUTE = {"sqlite": 10, "postgresql": 5}
GROWTH_LIMITS, LONG_STORM_MINUTES = (30.0, 6.0), 30.0
"""Limits of the growth [MB/hour, handles/hour]. They apply to storms of at least LONG_STORM_MINUTES."""
_CHECK_INTERVAL_S = 0.2
_MAX_REASONS = 3

_GAPS = """
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
_AFTER_END = "SELECT count(*) FROM {table} x JOIN runs r ON r.id = x.run_id WHERE x.env_step > r.env_steps"
_TABLES = ("metrics", "evaluations", "eval_episodes", "gate_stats", "snapshots")
_LONGEST = "SELECT id FROM runs ORDER BY env_steps DESC, id LIMIT 1"
_COMPARED = ("reward", "h", "h_next", "delta_mem", "beta", "tau", "episode", "t", "slot", "next_slot")
_DIFFERENT = f"""
SELECT count(*) FROM transitions a JOIN transitions b ON b.run_id = :longest AND b.env_step = a.env_step
WHERE a.run_id <> :longest AND
 ({" OR ".join(f"coalesce(a.{column}, -7) <> coalesce(b.{column}, -7)" for column in _COMPARED)})"""


@dataclass(frozen=True)
class StormOutcome:
    """The injected faults of a storm and the state of the database afterwards."""

    fault_counts: dict[str, int]
    rows: int
    n_lost: int
    superseded: int
    resumed: int
    restarted: int
    failures: list[str]
    wrong: list[str]
    runs: int
    ownership_lost: int = 0
    sweep_summary: str = "no workers"

    def __str__(self) -> str:
        faults = ", ".join(f"{n} × {kind}" for kind, n in sorted(self.fault_counts.items()))
        reasons = sorted({failure.partition(": ")[2] for failure in self.failures})[:_MAX_REASONS]
        return (
            f"{self.runs} runs; {faults}; {self.sweep_summary}; {self.resumed} resumes superseded "
            f"{self.superseded:,} steps, {self.restarted} restarted, "
            f"{' '.join([f'{len(self.failures)} failed meanwhile', *reasons])}"
        )


class RowWatch:
    """Reads the env steps of all runs repeatedly. A step that disappears without being superseded is lost."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._env_steps: dict[str, int] = {}
        self._last_resume = 0
        self.n_lost = self.superseded = 0

    def update(self) -> None:
        """Compare the env steps in the database with the env steps at the last update.

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
            self._set_env_steps(run_id, reached)
            self._env_steps[run_id], self._last_resume = env_step, resume_id
            self.superseded += reached - env_step
        for run_id, env_steps in rows:
            self._set_env_steps(run_id, env_steps)
        deleted = set(self._env_steps) - {row.id for row in rows}
        self.n_lost += sum(self._env_steps.pop(run_id) for run_id in deleted)

    def _set_env_steps(self, run_id: str, env_steps: int) -> None:
        self.n_lost += max(0, self._env_steps.get(run_id, 0) - env_steps)
        self._env_steps[run_id] = env_steps


def count_rows(db: Database) -> int:
    """Return the number of transitions in a database."""
    with db.read() as connection:
        return _count(connection, "SELECT count(*) FROM transitions")


def find_wrong(db: Database, config: RunConfig) -> list[str]:
    """Check runs of one configuration: gaps, duplicates, wrong β or Δ, rows that differ between runs.

    Returns:
        One sentence per violation.
    """
    values = {"gamma": config.train.gamma, "scale": config.gate.delta_scale}
    with db.read() as connection:
        wrong = [f"{run_id}: the transitions are not 1…env_steps" for run_id in _list_ids(connection, _GAPS)]
        wrong += [
            f"{run_id}: the sum of the episode lengths is not env_steps" for run_id in _list_ids(connection, _EPISODES)
        ]
        longest = connection.execute(text(_LONGEST)).scalar_one_or_none()
        counts = {
            "violate the equation of β": _count(connection, _BETA, scale=values["scale"]),
            "violate the equation of Δ_mem": _count(connection, _DELTA, gamma=values["gamma"]),
            "have no episode": _count(connection, _ORPHANS),
            "differ from the same step of another run": _count(connection, _DIFFERENT, longest=longest),
        } | {
            f"of {table} are after the end of their run": _count(connection, _AFTER_END.format(table=table))
            for table in _TABLES
        }
        run_ids = _list_ids(connection, "SELECT id FROM runs WHERE env_steps > 0")
    wrong += [f"{n} rows {violation}" for violation, n in counts.items() if n]
    return wrong + [fault for run_id in run_ids for fault in check_run(db, run_id)]


def run(
    *,
    minutes: float = MINUTES,
    db: str = "sqlite",
    trainers: int = TRAINERS,
    pages: int = PAGES,
    workers: int = WORKERS,
) -> list[BenchResult]:
    """Measure `storm.kills`, `.rows`, `.lost`, `.wrong`, `.ownership_lost`, and the growth of memory and handles.

    Args:
        minutes: Duration of the storm.
        db: URL of an empty database. `sqlite` and `postgresql` create a temporary one.
        trainers: Number of trainers at a time.
        pages: Number of app pages that are open in a browser. 0 needs no browser.
        workers: Number of machines with a worker, on a server with a wrong clock. 0 needs no C compiler.

    Raises:
        ConfigError: If the database has runs, no browser exists for the pages, or no clock can be changed.
    """
    with _open_empty_database(db) as database, ExitStack() as stack:
        gauges = [Gauge("controller", psutil.Process())]
        if pages:
            gauges.append(stack.enter_context(open_app(database, pages)))
        machines = stack.enter_context(open_machines(database, workers, minutes)) if workers else None
        gauges += [machines.make_gauge()] if machines else []
        outcome = run_storm(database, minutes=minutes, trainers=trainers, gauges=gauges, machines=machines)
        dialect = database.dialect
    kills = outcome.fault_counts.get("kill", 0)
    min_kills = KILLS_PER_MINUTE[dialect] * minutes * min(1.0, trainers / TRAINERS)
    load = f"{dialect}, {trainers} trainers, {minutes:g} min: {outcome}"
    return [
        make_result("storm.kills", kills, "SIGKILLs", min_kills, load, met=kills >= min_kills),
        make_result("storm.rows", outcome.rows, "transitions", None, "all runs together"),
        make_result("storm.lost", outcome.n_lost, "transitions", 0, "read once, not superseded, and missing later"),
        make_result(
            "storm.ownership_lost", outcome.ownership_lost, "trainers", 0, "alive while another machine took their run"
        ),
        make_result("storm.wrong", len(outcome.wrong), "violations", 0, "; ".join(outcome.wrong[:5]) or "plain SQL"),
        *(result for gauge in gauges for result in _make_growth_results(gauge, minutes)),
    ]


def run_storm(
    db: Database,
    *,
    minutes: float,
    trainers: int,
    gauges: Sequence[Gauge] = (),
    machines: Machines | None = None,
) -> StormOutcome:
    """Run a storm on an empty database, then check every row."""
    fleet, watch = Fleet(db, trainers), RowWatch(db)
    injector = FaultInjector(db, fleet, seed=0, more={"blackout": machines.inject_blackout} if machines else {})
    started = time.monotonic()
    n_faults = 0
    try:
        while (elapsed := time.monotonic() - started) < 60 * minutes:
            fleet.restart_ended()
            if machines:
                machines.restart_ended()
            with suppress(StorageError):  # the database is locked or disconnected now
                watch.update()
            for gauge in gauges:
                gauge.measure()
            if elapsed > n_faults * FAULT_INTERVAL_S:
                injector.inject()
                n_faults += 1
            time.sleep(_CHECK_INTERVAL_S)
    finally:
        try:
            injector.wait()
        finally:
            fleet.stop()
            if machines:
                machines.stop()
    retry_transient(db, watch.update)
    return StormOutcome(
        fault_counts=dict(injector.counts),
        rows=count_rows(db),
        n_lost=watch.n_lost,
        superseded=watch.superseded,
        resumed=fleet.resumed,
        restarted=fleet.restarted,
        failures=fleet.failures,
        wrong=find_wrong(db, storm_config()),
        runs=len(list_runs(db, limit=None)),
        ownership_lost=machines.count_ownership_lost() if machines else 0,
        sweep_summary=machines.summarize_sweep() if machines else "no workers",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, run the storm and print the results."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture.storm", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--minutes", type=limited(float, 0.05, 1440), default=MINUTES, help="duration (%(default)s)")
    parser.add_argument(
        "--trainers", type=limited(int, 1, 64), default=TRAINERS, help="number of trainers at a time (%(default)s)"
    )
    parser.add_argument(
        "--db", default="sqlite", help="URL of an empty database; sqlite and postgresql create a temporary one"
    )
    parser.add_argument(
        "--pages", type=limited(int, 0, 20), default=PAGES, help="number of open pages of the app (%(default)s)"
    )
    parser.add_argument(
        "--workers",
        type=limited(int, 0, WORKERS),
        default=WORKERS,
        help="number of workers; on a server their clocks are ten minutes wrong (%(default)s)",
    )
    add_json_option(parser)
    options = vars(parser.parse_args(arguments))
    return run_and_report("storm", run, json=options.pop("json"), **options)


@contextmanager
def _open_empty_database(name: str) -> Generator[Database]:
    if name == "sqlite":
        with temporary_database() as db:
            yield db
        return
    if name == "postgresql":
        with temporary_server_database(fsync=True) as db:
            try:
                yield db
            finally:
                for run_id in list_runs(db, limit=None)["id"]:
                    remove_run_folder(db, run_id)
        return
    with opened_database(name) as db:
        if n := len(list_runs(db, limit=None)):
            raise ConfigError(
                f"must have no runs (has {n})", key=db.safe_url, hint="Give the URL of an empty database."
            )
        yield db


def _make_growth_results(gauge: Gauge, minutes: float) -> list[BenchResult]:
    """Report the growth of one process. The limits do not apply to short storms, in which caches are filled."""
    limits = GROWTH_LIMITS if minutes >= LONG_STORM_MINUTES else (None, None)
    units = (("memory", "MB/hour"), ("handles", "handles/hour"))
    return [
        make_result(
            f"storm.{gauge.name}.{quantity}", slope, unit, limit, gauge.describe(), digits=1,
            met=None if limit is None else slope <= limit,
        )
        for (quantity, unit), slope, limit in zip(units, gauge.compute_slopes(), limits, strict=True)
    ]  # fmt: skip


def _list_ids(connection: Connection, sql: str) -> list[str]:
    return list(connection.execute(text(sql)).scalars())


def _count(connection: Connection, sql: str, **values: Any) -> int:
    return int(connection.execute(text(sql), values).scalar_one())


if __name__ == "__main__":
    sys.exit(main())
