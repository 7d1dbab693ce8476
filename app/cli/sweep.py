"""`emtc sweep`: plan, run, continue, stop and list sweeps.

A sweep file describes a grid of runs, or a search, whose runs (trials) have settings that Optuna chooses. The plan
lists all runs. They are queued in the database and trained by this process, by `emtc worker`, or by Ray on a cluster.
"""

import re
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from typing import Annotated, Any, get_args

import typer

from app.analysis.format import MISSING, format_duration, format_percent, format_size
from app.cli.arguments import DEFAULT_DATABASE, AsJson, DatabaseUrl, Steps
from app.cli.output import print_json, print_message, print_table
from app.cli.progress import show_sweep_progress
from app.jobs.gpu import check_fitting_runs
from app.jobs.sweeps import control
from app.jobs.sweeps.file import change_settings, find_sweep_file, is_sweep_file, list_templates
from app.jobs.sweeps.plan import Plan, make_plan, parse_seeds
from app.jobs.sweeps.ray_engine import Cluster, connect, count_slots, make_cluster, run_sweep_on_ray
from app.jobs.sweeps.study import BestTrial, check_storage, read_best_trial
from app.jobs.sweeps.worker import handle_leave_signals, run_sweep_here
from emtc_core.errors import StorageError
from storage.engine import Database, check_not_read_only, open_database
from storage.files import describe_files_folder
from storage.runs.rows import PRUNED, RunRow, shown_status
from storage.runs.status import Status
from storage.runs.sweeps import Sweep, get_sweep, list_sweeps, sweep_runs

Jobs = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Trainers at the same time; default: one per physical core, as many as fit into the GPU's memory, or as "
        "many as the cluster can run",
    ),
]
Engine = Annotated[str, typer.Option(help="local: processes on this machine; ray: workers on the nodes of a cluster")]
Address = Annotated[
    str | None,
    typer.Option(help="Ray: HOST:PORT of the head node, or auto; default: RAY_ADDRESS, otherwise a local Ray"),
]
CpusPerRun = Annotated[float | None, typer.Option(min=0.01, help="Ray: CPUs per run; default: its number of threads")]
GpusPerRun = Annotated[
    float | None,
    typer.Option(min=0, help="Ray: GPUs per run, may be a fraction; default: 1 if train.device=cuda, otherwise 0"),
]
_ID = re.compile("[0-9a-f]{8}")
"""Id of a stored sweep."""


def sweep(
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="Sweep file, name of a template, or id of a stored sweep"),
    ] = None,
    engine: Engine = "local",
    jobs: Jobs = None,
    address: Address = None,
    cpus_per_run: CpusPerRun = None,
    gpus_per_run: GpusPerRun = None,
    seeds: Annotated[str | None, typer.Option(help="Queue only these seeds of the file, for example 1-3,5")] = None,
    steps: Steps = None,
    set: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A setting for all runs, as in the table [set] of the file; repeatable"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the runs and their expected cost; create nothing")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Run in the background and return")] = False,
    queue: Annotated[bool, typer.Option("--queue", help="Queue the runs for emtc worker and return")] = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="Queue the stopped and failed runs of the sweep again")
    ] = False,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the sweep: queued runs and trainers")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the sweeps of the database")] = False,
    templates: Annotated[
        bool, typer.Option("--list-templates", help="List the sweep files that are part of EMTC Lab")
    ] = False,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> int:
    """Train every run of a sweep file. The same command, or one with the sweep's id, continues an interrupted sweep."""
    if templates:
        _print_templates(json=json)
        return 0
    if list_:
        _print_sweeps(open_database(db, read_only=True), json=json)
        return 0
    if file is None:
        raise typer.BadParameter("Give a sweep file or a template. List templates with: emtc sweep --list-templates")
    if stop:
        _stop(open_database(db, create=False), file, set or (), steps)
        return 0
    if _ID.fullmatch(file) and not is_sweep_file(file):
        if any((seeds, set, steps, dry_run, queue, retry, detach)):
            raise typer.BadParameter(
                "With the id of a sweep, only --stop, --jobs and the options of --engine are valid."
            )
        plan = control.remake_plan(get_sweep(open_database(db, create=False), file))
        cluster = _choose_cluster(plan, engine, address, cpus_per_run, gpus_per_run)
        return _continue_stored(db, plan, jobs or control.default_jobs(plan), cluster=cluster, json=json)
    plan = make_plan(change_settings(find_sweep_file(file), set or (), steps=steps))
    selected_seeds = None if seeds is None else parse_seeds(seeds, plan)
    cluster = _choose_cluster(plan, engine, address, cpus_per_run, gpus_per_run)
    if dry_run:
        _print_plan(db, plan, jobs or control.default_jobs(plan), selected_seeds, json=json)
        return 0
    return _start(
        db,
        plan,
        jobs=jobs,
        seeds=selected_seeds,
        cluster=None if queue else cluster,
        queue=queue,
        retry=retry,
        detach=detach,
        json=json,
    )


def _continue_stored(db: str, plan: Plan, n_parallel: int, *, cluster: Cluster | None, json: bool) -> int:
    """Continue a stored sweep until its runs have ended. With --detach, a background process calls this.

    `n_parallel` is the number of parallel trainers: the option --jobs or its default.
    """
    if cluster is None:
        check_fitting_runs([run.config for run in plan.runs], n_parallel)
    with _connect(cluster, db) as ray:
        return _run(open_database(db), plan, n_parallel, ray=ray, cluster=cluster, trains_runs=True, json=json)


def _start(
    db: str,
    plan: Plan,
    *,
    jobs: int | None,
    seeds: Collection[int] | None,
    cluster: Cluster | None,
    queue: bool,
    retry: bool,
    detach: bool,
    json: bool,
) -> int:
    """Queue the runs of a plan, and train them.

    They are trained by this process, on `cluster`, with `detach` by a background process, or with `queue` by workers.
    `jobs` is the option --jobs; `n_parallel` is this number or its default.
    """
    if plan.file.optuna:
        check_storage(db)
    n_parallel = jobs or control.default_jobs(plan)
    uses_other_machines = cluster is not None and cluster.address is not None
    control.check_plan(plan, jobs=None if cluster else n_parallel, remote=queue or uses_other_machines)
    with _connect(cluster, db) as ray:
        if cluster and uses_other_machines and not jobs:  # only a connected cluster reports its size
            n_parallel = count_slots(ray, cluster)
        database = open_database(db)
        # remote=True: the plan is not checked again, because `check_plan` was called above
        n_queued = control.create_sweep(database, plan, jobs=n_parallel, remote=True, seeds=seeds)
        if retry:
            n_queued += control.requeue_ended(database, plan.id)
        if message := describe_files_folder(database):  # where the checkpoints are stored
            print_message(message)
        if detach:
            options = cluster.as_options() if cluster else ()
            control.start_in_background(database, plan.id, jobs=n_parallel, options=options)
        _print_start(plan, n_queued, n_parallel, queue=queue, detach=detach)
        # The trials of a search are queued one after another by this process. With --queue, it does only this, and
        # workers train the trials.
        is_search = bool(plan.file.optuna)
        if not detach and (is_search or not queue):
            return _run(database, plan, n_parallel, ray=ray, cluster=cluster, trains_runs=not queue, json=json)
    if json:
        print_json({"sweep_id": plan.id, "name": plan.file.name, "status": "active", "runs": len(plan.runs)})
    return 0


def _choose_cluster(
    plan: Plan, engine: str, address: str | None, cpus: float | None, gpus: float | None
) -> Cluster | None:
    """Return the cluster with the resources per run; None for this machine."""
    if plan.file.optuna and engine != "local":
        raise typer.BadParameter("A search runs with --engine local, or with --queue and emtc worker on any machine.")
    if engine not in ("local", "ray"):
        raise typer.BadParameter(f"--engine must be local or ray, got {engine!r}.")
    if engine == "ray":
        return make_cluster(address, [run.config for run in plan.runs], cpus=cpus, gpus=gpus)
    if address is not None or cpus is not None or gpus is not None:
        raise typer.BadParameter("--address, --cpus-per-run and --gpus-per-run need --engine ray.")
    return None


def _connect(cluster: Cluster | None, db: str) -> AbstractContextManager[Any]:
    """Connect to a cluster and yield the module `ray`; without a cluster, yield None."""
    return connect(cluster, db) if cluster else nullcontext()


def _run(
    database: Database,
    plan: Plan,
    n_parallel: int,
    *,
    ray: Any,
    cluster: Cluster | None,
    trains_runs: bool,
    json: bool,
) -> int:
    """Run a sweep until all of its runs have ended, print the results and return the exit code.

    `trains_runs` is whether this process trains the runs. If it is False, it only queues the trials of a search.
    """
    check_not_read_only("train runs")
    try:
        with handle_leave_signals() as interrupt, show_sweep_progress() as on_progress:
            if cluster:
                final_sweep = run_sweep_on_ray(
                    ray,
                    cluster,
                    database,
                    plan.id,
                    jobs=n_parallel,
                    leave=interrupt,
                    announce=print_message,
                    on_progress=on_progress,
                    env_modules=plan.env_modules,
                )
            else:
                final_sweep = run_sweep_here(
                    database,
                    plan.id,
                    jobs=n_parallel,
                    n_runs=len(plan.runs),
                    trains_runs=trains_runs,
                    leave=interrupt,
                    announce=print_message,
                    on_progress=on_progress,
                    env_modules=plan.env_modules,
                )
    except KeyboardInterrupt:
        print_message("Ended immediately. The same command resumes the runs from their last checkpoints.")
        return 1
    if interrupt.is_requested:  # by SIGINT (Ctrl+C), SIGTERM or SIGUSR1
        print_message("Interrupted: its runs are queued again. Continue with the same command.")
        return 1
    rows = sweep_runs(database, plan.id)
    best_trial = read_best_trial(database, final_sweep.id) if final_sweep.trials else None
    _print_results(final_sweep, rows, best_trial, json=json)
    return 1 if any(row.live_status in ("failed", "lost", "queued") for row in rows) else 0


def _print_results(sweep: Sweep, rows: Sequence[RunRow], best: BestTrial | None, *, json: bool) -> None:
    counts = ", ".join(f"{n} {status}" for status, n in sorted(sweep.counts.items()))
    saved = f" Pruning saved {format_percent(sweep.steps_saved)} of the steps of its trials." if sweep.trials else ""
    print_message(f"Sweep {sweep.id}: {counts}.{saved}")
    if best:
        print_message(
            f"Best trial: {best.trial}, run {best.run}, value {best.value:.4g}, with {best.options}. It has one seed. "
            "Train it over more seeds on the page Sweeps."
        )
    if not json:
        return
    result: dict[str, Any] = {"sweep_id": sweep.id, "name": sweep.name, "status": sweep.state}
    if sweep.trials:
        result["steps_saved"] = round(sweep.steps_saved, 4)
        result["best"] = asdict(best) if best else None
    columns = ("id", "name", "map", "algo", "seed", "env_steps", "win_rate", "return_mean", "error")
    result["runs"] = [
        {name: getattr(row, name) for name in columns} | {"status": shown_status(row.live_status, row.tags)}
        for row in rows
    ]
    print_json(result)


def _stop(database: Database, name: str, settings: Sequence[str], steps: int | None) -> None:
    """Stop the sweep of a sweep file or a template, or the one whose id starts with `name`."""
    if is_sweep_file(name):
        sweep_id = make_plan(change_settings(find_sweep_file(name), settings, steps=steps)).id
    else:
        sweep_id = get_sweep(database, name).id
    n_queued, n_commands = control.stop_sweep_and_runs(database, sweep_id)
    print_message(
        f"Stopped sweep {sweep_id}: {n_queued} run(s) removed from the queue, {n_commands} stop command(s) sent."
    )


def _print_start(plan: Plan, n_queued: int, n_parallel: int, *, queue: bool, detach: bool) -> None:
    """Print how many runs are queued, and who trains them."""
    summary = f"Sweep {plan.id}: {len(plan.runs)} runs, {n_queued} queued now"
    worker_hint = "Train them, on this machine or others, with: emtc worker"
    if detach:
        print_message(f"{summary}, {n_parallel} at the same time.")
        print_message(
            f"It runs in the background. Watch it with: emtc sweep --list; stop it with: emtc sweep {plan.id} --stop"
        )
    elif plan.file.optuna:
        search = f"Search {plan.id}: {len(plan.runs)} trials, {n_parallel} at the same time."
        print_message(f"{search} {worker_hint}" if queue else search)
    elif queue:
        print_message(f"{summary}. {worker_hint}")
    else:
        print_message(f"{summary}, {n_parallel} at the same time.")


def _print_plan(db: str, plan: Plan, n_parallel: int, selected_seeds: Collection[int] | None, *, json: bool) -> None:
    """Print the runs of a plan and their expected cost."""
    if selected_seeds is not None:
        plan = replace(plan, runs=tuple(run for run in plan.runs if run.seed in selected_seeds))
    control.check_plan(plan, jobs=n_parallel)
    try:
        database = open_database(db, read_only=True)
    except StorageError:  # there is no database yet, and a dry run does not create one
        database = None
    seconds, disk_bytes, basis = control.estimate_cost(database, plan, jobs=n_parallel)
    rows: list[dict[str, Any]] = [
        {
            "run": number,
            "map": run.cell.map,
            "algo": run.cell.algo,
            "what": run.cell.label or "–",  # name of the combination of the grid: "3m, lam = 0.1"
            "seed": run.seed,
            "steps": run.config.train.t_max,
        }
        for number, run in enumerate(plan.runs, start=1)
    ]
    if json:
        cost = {"expected_seconds": round(seconds), "expected_disk_bytes": round(disk_bytes), "basis": basis}
        print_json({"sweep_id": plan.id, "name": plan.file.name, "jobs": n_parallel, **cost, "runs": rows})
        return
    print_table(rows, title=f"{plan.file.name} (sweep {plan.id})")
    print_message(
        f"≈ {format_duration(seconds)} with {n_parallel} at the same time, ≈ {format_size(disk_bytes)} on disk. "
        f"Speed: {basis}."
    )


def _print_templates(*, json: bool) -> None:
    rows = [
        {"template": name, "runs": len(make_plan(file).runs), "maps": ", ".join(file.map), "question": file.about}
        for name, file in list_templates().items()
    ]
    print_table(rows, title="Templates", json=json)


def _print_sweeps(database: Database, *, json: bool) -> None:
    rows: list[dict[str, Any]] = []
    for stored in list_sweeps(database):
        row: dict[str, Any] = {"id": stored.id, "name": stored.name, "status": stored.state, "runs": len(stored.runs)}
        # one column for each status: the number of runs with it
        row |= {status: stored.counts[status] for status in (*get_args(Status), PRUNED)}
        seconds_left = stored.seconds_left()
        if json:
            row |= {"done": round(stored.progress, 4), "seconds_left": seconds_left, "worker": stored.has_worker}
        else:
            worker = "running" if stored.has_worker else MISSING
            row |= {
                "done": format_percent(stored.progress),
                "seconds_left": format_duration(seconds_left),
                "worker": worker,
            }
        rows.append(row)
    print_table(rows, title="Sweeps", empty="No sweeps yet. Start one with: emtc sweep ablation-demo", json=json)
