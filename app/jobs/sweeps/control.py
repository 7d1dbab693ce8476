"""Create, start, stop and continue sweeps, for the command line and the page Sweeps.

A sweep is a set of runs that a sweep file describes. Its plan is the list of these runs. A worker is a process that
trains queued runs. A search is a sweep in which Optuna chooses the settings of each run (trial).
"""

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import psutil
from pydantic import ValidationError

from app.analysis.provenance import library_versions
from app.jobs.estimate import TYPICAL_SPEED_SOURCE, estimate
from app.jobs.gpu import check_fitting_runs, count_fitting_runs
from app.jobs.launch import LOG_NAME, check_startable, spawn
from app.jobs.sweeps.file import SweepFile
from app.jobs.sweeps.plan import Plan, make_plan
from app.jobs.sweeps.study import list_reported_runs
from emtc_core.config.run import RunConfig
from emtc_core.errors import ConfigError, RunStateError
from storage.engine import Database, sweep_folder
from storage.runs.control import stop_run
from storage.runs.rows import RunRow, shown_status
from storage.runs.sweeps import (
    Sweep,
    get_sweep,
    list_sweeps,
    match_imported,
    requeue,
    save_sweep,
    stop_sweep,
    write_worker_heartbeat,
)


def default_jobs(plan: Plan | None = None) -> int:
    """Return the default number of parallel trainers: one for each physical core, because a trainer uses one thread.

    Args:
        plan: The runs. If they use a GPU, the number is at most that of the runs that fit into the GPU's free memory.
    """
    n_cores = max(1, psutil.cpu_count(logical=False) or 1)
    fitting = count_fitting_runs([run.config for run in plan.runs]) if plan else None
    if fitting is None:
        return n_cores
    n_fitting, _ = fitting
    return min(n_cores, n_fitting)


def check_plan(plan: Plan, *, jobs: int | None = None, remote: bool = False) -> None:
    """Check that this machine can train a plan, before anything is created.

    Args:
        plan: The plan.
        jobs: Number of parallel trainers. None: unknown, so their memory on a GPU is not checked.
        remote: Other machines train the plan, so nothing is checked here.

    Raises:
        EnvUnavailableError: If a map or its environment is not available here.
        ConfigError: If CUDA is required and not available, or the runs do not fit into the GPU's memory.
    """
    if remote:
        return
    # Many runs have equal values of the settings that `check_startable` reads. Only one of them is checked.
    distinct_configs: dict[tuple[object, ...], RunConfig] = {}
    for run in plan.runs:
        train = run.config.train
        sizes = (train.replay, train.batch, train.n_envs, train.t_max)  # these decide whether the buffer fits
        devices = (train.device, train.act_device, train.replay_device, run.config.memory.index_device)
        key = (run.config.env.model_dump_json(), *devices, *sizes)
        distinct_configs[key] = run.config
    for config in distinct_configs.values():
        check_startable(config)
    if jobs is not None:
        check_fitting_runs([run.config for run in plan.runs], jobs)


def create_sweep(
    db: Database,
    plan: Plan,
    *,
    jobs: int,
    remote: bool = False,
    seeds: Collection[int] | None = None,
) -> int:
    """Queue the runs of a plan that are not in the database yet; continue the sweep if it is stopped.

    Args:
        db: An open database.
        plan: The runs.
        jobs: Number of parallel trainers.
        remote: Other machines train the runs, so this machine is not checked.
        seeds: Queue only runs with these seeds; None queues all.

    Returns:
        Number of runs that were queued.

    Raises:
        EnvUnavailableError, ConfigError: If this machine cannot train the plan. Nothing is created then.
    """
    check_plan(plan, jobs=jobs, remote=remote)
    was_stopped = plan.id in {sweep.id for sweep in list_sweeps(db) if sweep.status == "stopped"}
    n_queued = save_sweep(
        db,
        plan.id,
        name=plan.file.name,
        plan=plan.to_json(),
        runs=plan.to_rows(seeds),
        versions=library_versions(),
        jobs=jobs,
    )
    if was_stopped:
        n_queued += requeue(db, plan.id, ("stopped",), without=list_reported_runs(db, plan.id))
    return n_queued


def start_in_background(db: Database, sweep_id: str, *, jobs: int, options: Sequence[str] = ()) -> None:
    """Start `emtc sweep ID` as a background process, which ends when all runs of the sweep have ended.

    Args:
        db: An open database.
        sweep_id: The sweep.
        jobs: Number of parallel runs.
        options: Command-line options for another engine than the local one.
    """
    log = sweep_folder(db, sweep_id) / LOG_NAME
    spawn(["app.cli.main", "sweep", sweep_id, "--jobs", str(jobs), *options], log, db=db)
    # The process writes heartbeats only after its imports. Until then, this one shows that the sweep has a worker.
    write_worker_heartbeat(db, sweep_id)


def start_sweep(db: Database, plan: Plan, *, jobs: int) -> None:
    """Queue the runs of a plan. A background process trains them, unless the sweep already has a worker.

    Raises:
        EnvUnavailableError, ConfigError: If this machine cannot train the plan. Nothing is created then.
    """
    create_sweep(db, plan, jobs=jobs)
    if not get_sweep(db, plan.id).has_worker:
        start_in_background(db, plan.id, jobs=jobs)


def stop_sweep_and_runs(db: Database, sweep_id: str) -> tuple[int, int]:
    """Stop a sweep: mark queued runs as stopped, and send a stop command to the trainers.

    Returns:
        Number of runs that were queued, and number of stop commands.
    """
    n_queued, active_ids = stop_sweep(db, sweep_id)
    n_commands = 0
    for run_id in active_ids:
        try:
            stop_run(db, run_id)
            n_commands += 1
        except RunStateError:  # the run or its trainer has just ended
            continue
    return n_queued, n_commands


def requeue_ended(db: Database, sweep_id: str) -> int:
    """Queue the stopped and failed runs of a sweep again; each resumes from its checkpoint if it has one.

    In a search, failed runs are not queued, because Optuna has already used the result of the trial.
    """
    if get_sweep(db, sweep_id).trials:
        return requeue(db, sweep_id, ("stopped",), without=list_reported_runs(db, sweep_id))
    return requeue(db, sweep_id, ("stopped", "failed"))


def continue_sweep(db: Database, sweep: Sweep) -> int:
    """Continue a sweep: queue its planned runs that are not finished and not being trained, and start them.

    Stopped and failed runs resume from their checkpoints; deleted runs are created again. They are trained on this
    machine, unless a worker of the sweep exists.

    Returns:
        Number of queued runs.

    Raises:
        ConfigError: If this version of the program would make another plan from the sweep's file.
    """
    create_sweep(db, remake_plan(sweep), jobs=sweep.jobs, remote=sweep.has_worker)
    requeue_ended(db, sweep.id)
    if not sweep.has_worker:
        start_in_background(db, sweep.id, jobs=sweep.jobs)
    return get_sweep(db, sweep.id).counts["queued"]


@dataclass(frozen=True)
class OpenRuns:
    """Short names of the planned runs that are neither finished nor being trained, in the plan's order."""

    queued: tuple[str, ...] = ()
    """Runs that wait in the queue, and lost runs that a worker will claim."""
    missing: tuple[str, ...] = ()
    """Deleted, stopped and failed runs, and lost runs that no worker will claim."""


def find_imported(sweep: Sweep, runs: Sequence[RunRow]) -> frozenset[str]:
    """Find the keys of the planned runs for which a bundle (file with exported runs) with a finished run was imported.

    Raises:
        ConfigError: If this version of the program would make another plan from the sweep's file.
    """
    # A run of a sweep has its key in `launch_token`; an imported run has none.
    has_imported_run = any(run.launch_token is None and run.status == "finished" for run in runs)
    return match_imported(remake_plan(sweep).to_rows(), runs) if has_imported_run else frozenset()


def find_open_runs(sweep: Sweep, runs: Sequence[RunRow], imported: Set[str]) -> OpenRuns:
    """Find the planned runs of a sweep that wait in the queue, and those that nothing will train.

    Args:
        sweep: The sweep.
        runs: Its runs in the database.
        imported: Keys of the planned runs with an imported result (`find_imported`).
    """
    runs_by_key = {run.launch_token: run for run in runs}
    is_searching = sweep.trials > 0 and sweep.has_worker  # a search queues its trials one by one
    queued: list[str] = []
    missing: list[str] = []
    for planned in sweep.plan.get("runs", ()):
        key = str(planned["key"])
        name = _make_short_name(planned)
        run = runs_by_key.get(key)
        if run is None:
            if key not in imported and not is_searching:
                missing.append(name)
            continue
        status = shown_status(run.live_status, run.tags)
        if status == "queued" or (status == "lost" and sweep.has_worker):
            queued.append(name)
        elif status in ("stopped", "failed", "lost"):
            missing.append(name)
    return OpenRuns(tuple(queued), tuple(missing))


def remake_plan(sweep: Sweep) -> Plan:
    """Make the plan of a stored sweep again.

    Raises:
        ConfigError: If this version of the program would make another plan from the sweep's file.
    """
    rule = f"The plan of sweep {sweep.id} is of another version"
    hint = "Start its sweep file again."
    try:
        plan = make_plan(SweepFile.model_validate(sweep.plan["file"]))
    except ValidationError as exc:
        raise ConfigError(rule, hint=hint) from exc
    if plan.id != sweep.id:
        raise ConfigError(rule, hint=hint)
    return plan


def estimate_cost(db: Database | None, plan: Plan, *, jobs: int) -> tuple[float, float, str]:
    """Estimate the cost of a plan.

    Args:
        db: An open database with earlier runs, or None.
        plan: The plan.
        jobs: Number of parallel trainers.

    Returns:
        Duration [s], disk space [bytes], and the source of the assumed speed.
    """
    estimates = {}  # by the values on which an estimate depends
    seconds = disk_bytes = 0.0
    for run in plan.runs:
        config = run.config
        evaluation = (config.eval.interval, config.eval.episodes)
        key = (run.cell.map, run.cell.algo, config.train.t_max, config.record.snapshots, evaluation)
        if key not in estimates:
            estimates[key] = estimate(db, config)
        seconds += estimates[key].seconds
        disk_bytes += estimates[key].disk_bytes
    n_parallel = max(1, min(jobs, len(plan.runs)))
    speed_sources = [cost.speed_source for cost in estimates.values()]
    return seconds / n_parallel, disk_bytes, _join_speed_sources(speed_sources)


def _make_short_name(planned: Mapping[str, Any]) -> str:
    label = str(planned.get("label", ""))
    seed = f"seed {planned.get('seed')}"
    return f"{label}, {seed}" if label else seed


def _join_speed_sources(sources: Sequence[str]) -> str:
    """Combine the sources of the speeds of several kinds of run into one phrase."""
    if len(set(sources)) == 1:
        return sources[0]
    n_typical = sources.count(TYPICAL_SPEED_SOURCE)
    measured = f"measured here for {len(sources) - n_typical} of {len(sources)} kinds of run"
    return f"{measured}, and a typical speed for the others" if n_typical else measured
