"""Save, start, stop and continue sweeps: what the command line and the page share."""

import os
import socket
from collections.abc import Collection, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from pydantic import ValidationError

from app.analysis.provenance import library_versions
from app.jobs.launch import GUESSED, LOG_NAME, check_startable, estimate, spawn
from app.jobs.sweeps.file import SweepFile
from app.jobs.sweeps.plan import Plan, make_plan
from app.jobs.sweeps.study import told_runs
from emtc_core.config.run import RunConfig
from emtc_core.errors import ConfigError, RunStateError
from storage.engine import Database, sweep_folder
from storage.runs.claims import Worker
from storage.runs.control import send_command
from storage.runs.rows import RunRow, shown_status
from storage.runs.sweeps import (
    Sweep,
    attach_scheduler,
    get_sweep,
    list_sweeps,
    match_imported,
    requeue,
    save_sweep,
    stop_sweep,
)


def default_jobs() -> int:
    """One trainer for each physical core: each computes on one thread."""
    return max(1, psutil.cpu_count(logical=False) or 1)


def this_process() -> Worker:
    """This process by host, pid and start, which no other one ever has."""
    return Worker(os.getpid(), psutil.Process().create_time(), socket.gethostname())


def check_plan(plan: Plan, *, elsewhere: bool = False) -> None:
    """Refuse a plan that this machine cannot run, before anything is created; one for elsewhere is judged there.

    Raises:
        EnvUnavailableError: If a map or its environment is not here.
        ConfigError: If CUDA is asked for and there is none.
    """
    if elsewhere:
        return
    asked: dict[tuple[object, ...], RunConfig] = {}
    for run in plan.runs:
        train = run.config.train
        sizes = (train.replay, train.batch, train.n_envs, train.t_max)  # what decides whether the episodes fit
        asked[run.config.env.model_dump_json(), train.device, train.replay_device, *sizes] = run.config
    for config in asked.values():
        check_startable(config)


def create_sweep(
    db: Database,
    plan: Plan,
    *,
    jobs: int,
    elsewhere: bool = False,
    for_workers: bool = False,
    seeds: Collection[int] | None = None,
) -> int:
    """Queue the runs of a plan that the database does not have yet, and let a stopped sweep go on.

    Args:
        db: An open database.
        plan: The runs.
        jobs: Trainers at once.
        elsewhere: Other machines train it: what is missing on this one does not matter.
        for_workers: `emtc worker` trains its runs, and no scheduler is to be started.
        seeds: Queue only runs with these seeds; None queues all.

    Returns:
        How many runs were queued.

    Raises:
        EnvUnavailableError, ConfigError: If this machine cannot run it; nothing is created.
    """
    check_plan(plan, elsewhere=elsewhere)
    was_stopped = plan.id in {sweep.id for sweep in list_sweeps(db) if sweep.status == "stopped"}
    queued = save_sweep(
        db,
        plan.id,
        name=plan.file.name,
        plan=plan.to_json() | ({"for_workers": True} if for_workers else {}),
        runs=plan.to_rows(seeds),
        versions=library_versions(),
        jobs=jobs,
    )
    return queued + (requeue(db, plan.id, ("stopped",), without=told_runs(db, plan.id)) if was_stopped else 0)


def start_scheduler(db: Database, sweep_id: str, *, jobs: int, options: Sequence[str] = ()) -> None:
    """Start a scheduler in the background, which goes on until no run of the sweep is left to do.

    Args:
        db: An open database.
        sweep_id: The sweep.
        jobs: Runs at once.
        options: Of the command line, for an engine other than the local one.
    """
    arguments = ["app.cli.main", "sweep-worker", sweep_id, "--jobs", str(jobs), *options]
    process = spawn(arguments, scheduler_log(db, sweep_id), db=db)
    with suppress(psutil.NoSuchProcess):  # noted here, so that nobody starts another before this one notes itself
        worker = Worker(process.pid, psutil.Process(process.pid).create_time(), socket.gethostname())
        attach_scheduler(db, sweep_id, worker, jobs=jobs)


def scheduler_log(db: Database, sweep_id: str) -> Path:
    """The log of a sweep's background scheduler."""
    return sweep_folder(db, sweep_id) / LOG_NAME


def stop(db: Database, sweep_id: str) -> tuple[int, int]:
    """Stop a sweep: what is queued becomes stopped, what trains is asked to stop.

    Returns:
        How many runs were stopped in the queue, and how many were asked.
    """
    left_queue, active = stop_sweep(db, sweep_id)
    asked = 0
    for run_id in active:
        try:
            send_command(db, run_id, "stop")
            asked += 1
        except RunStateError:  # it has ended, or its trainer died, in the meantime
            continue
    return left_queue, asked


def retry(db: Database, sweep_id: str) -> int:
    """Queue a sweep's stopped and failed runs again; each goes on from its checkpoint where it has one."""
    if get_sweep(db, sweep_id).trials:  # of a failed trial Optuna was told, and chose on
        return requeue(db, sweep_id, ("stopped",), without=told_runs(db, sweep_id))
    return requeue(db, sweep_id, ("stopped", "failed"))


def go_on(db: Database, sweep: Sweep) -> int:
    """Queue exactly the planned runs of a sweep that nobody works on and that have not finished, and start them.

    That is: stopped and failed ones, which go on from their checkpoints, and deleted ones, which are made anew. A
    scheduler is started on this machine unless a scheduler or a worker takes the runs anyway.

    Returns:
        How many runs are queued.

    Raises:
        ConfigError: If another version of the program wrote the plan and it would now be another one.
    """
    plan = plan_of(sweep)
    elsewhere = sweep.is_attended and not sweep.has_scheduler  # workers train it
    create_sweep(db, plan, jobs=sweep.jobs, elsewhere=elsewhere, for_workers=sweep.is_for_workers)
    retry(db, sweep.id)
    if not sweep.is_attended:
        start_scheduler(db, sweep.id, jobs=sweep.jobs)
    return get_sweep(db, sweep.id).counts["queued"]


@dataclass(frozen=True)
class OpenRuns:
    """The planned runs of a sweep that are neither done nor being trained, by short name, in the plan's order."""

    queued: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Deleted, stopped and failed runs, and lost ones that no scheduler and no worker will take."""


def find_imported(sweep: Sweep, runs: Sequence[RunRow]) -> frozenset[str]:
    """Find the planned runs of a sweep that finished runs out of a bundle have done, by key.

    Raises:
        ConfigError: If this version would make another plan of the sweep's file.
    """
    is_imported = any(run.launch_token is None and run.status == "finished" for run in runs)
    return match_imported(plan_of(sweep).to_rows(), runs) if is_imported else frozenset()


def find_open_runs(sweep: Sweep, runs: Sequence[RunRow], imported: Set[str]) -> OpenRuns:
    """Find the planned runs of a sweep that wait, and those that nothing will train.

    Args:
        sweep: The sweep.
        runs: Its runs in the database.
        imported: Keys of the planned runs that imported runs have done (`find_imported`).
    """
    known = {run.launch_token: run for run in runs}
    is_to_come = sweep.trials > 0 and sweep.has_scheduler  # a search that goes on queues its trials one by one
    queued, missing = list[str](), list[str]()
    for planned in sweep.plan.get("runs", ()):
        run = known.get(str(planned["key"]))
        if run is None:
            if str(planned["key"]) not in imported and not is_to_come:
                missing.append(_short_name(planned))
            continue
        status = shown_status(run.live_status, run.tags)
        if status == "queued" or (status == "lost" and (sweep.is_attended or run.started_at is None)):
            queued.append(_short_name(planned))
        elif status in ("stopped", "failed", "lost"):
            missing.append(_short_name(planned))
    return OpenRuns(tuple(queued), tuple(missing))


def _short_name(planned: Mapping[str, Any]) -> str:
    label, seed = str(planned.get("label", "")), f"seed {planned.get('seed')}"
    return f"{label}, {seed}" if label else seed


def plan_of(sweep: Sweep) -> Plan:
    """Make the plan of a stored sweep again.

    Raises:
        ConfigError: If another version of the program wrote it and it would now be another one.
    """
    try:
        plan = make_plan(SweepFile.model_validate(sweep.plan["file"]))
    except ValidationError as exc:
        raise ConfigError(f"The plan of sweep {sweep.id} is of another version", hint="Start its file anew.") from exc
    if plan.id != sweep.id:
        raise ConfigError(f"The plan of sweep {sweep.id} is of another version", hint="Start its file anew.")
    return plan


def expected_cost(db: Database | None, plan: Plan, *, jobs: int) -> tuple[float, float, str]:
    """Estimate a whole plan: seconds with `jobs` trainers at once, bytes of disk, and where the speed comes from."""
    known = {}
    seconds = disk = 0.0
    for run in plan.runs:
        facts = (run.cell.map, run.cell.algo, run.config.train.t_max, run.config.record.snapshots)
        if facts not in known:
            known[facts] = estimate(db, run.config)
        seconds += known[facts].seconds
        disk += known[facts].disk_bytes
    return seconds / max(1, min(jobs, len(plan.runs))), disk, _say_basis([each.basis for each in known.values()])


def _say_basis(bases: Sequence[str]) -> str:
    """Where the speeds come from, in one phrase that does not contradict itself."""
    guessed = bases.count(GUESSED)
    if len(set(bases)) == 1:
        return bases[0]
    told = f"measured here for {len(bases) - guessed} of {len(bases)} kinds of run"
    return f"{told}, and a guess for the others" if guessed else told
