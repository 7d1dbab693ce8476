"""`emtc sweep`: plan, run, continue and stop sweeps. `emtc worker`: train queued runs on any machine."""

import os
import re
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from typing import Annotated, Any, get_args

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from app.analysis.format import format_duration, format_number, format_percent, format_size
from app.analysis.settings import write_value
from app.cli.arguments import DEFAULT_DATABASE, AsJson, DatabaseUrl, Steps
from app.cli.output import print_json, print_message, print_table
from app.jobs.gpu import check_fitting_runs
from app.jobs.sweeps import control
from app.jobs.sweeps.file import change_settings, find_sweep_file, is_sweep_file, list_templates
from app.jobs.sweeps.plan import Plan, make_plan, parse_seeds
from app.jobs.sweeps.ray_engine import Cluster, connect, count_slots, make_cluster, run_sweep_on_ray
from app.jobs.sweeps.study import RUN, check_storage, find_best_trial, find_study
from app.jobs.sweeps.worker import LeaveRequest, WorkerLoop, handle_leave_signals, summarize
from emtc_core.errors import StorageError
from storage.engine import Database, check_not_read_only, open_database
from storage.files import check_files_folder, describe_files_folder
from storage.retry import open_with_retry
from storage.runs.rows import PRUNED, shown_status
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
        return _print_templates(json=json)
    if list_:
        return _print_sweeps(open_database(db, read_only=True), json=json)
    if file is None:
        raise typer.BadParameter("Give a sweep file or a template. List templates with: emtc sweep --list-templates")
    if stop:
        return _stop(open_database(db, create=False), file, set or (), steps)
    if _ID.fullmatch(file) and not is_sweep_file(file):
        has_other_options = any((seeds, set, steps, dry_run, queue, retry, detach))
        plan = _read_stored_plan(open_database(db, create=False), file, has_other_options=has_other_options)
        cluster = _choose_cluster(plan, engine, address, cpus_per_run, gpus_per_run)
        return _continue_stored(db, plan, jobs, cluster=cluster, json=json)
    plan = make_plan(change_settings(find_sweep_file(file), set or (), steps=steps))
    selected_seeds = None if seeds is None else parse_seeds(seeds, plan)
    cluster = _choose_cluster(plan, engine, address, cpus_per_run, gpus_per_run)
    at_once = jobs or control.default_jobs(plan)
    if dry_run:
        return _print_plan(db, plan, at_once, selected_seeds, json=json)
    cluster = None if queue else cluster
    if plan.file.optuna:
        check_storage(db)
    is_remote = queue or (cluster is not None and cluster.address is not None)
    control.check_plan(plan, jobs=None if cluster else at_once, remote=is_remote)
    with connect(cluster, db) if cluster else nullcontext() as ray:
        if cluster and cluster.address and not jobs:
            at_once = count_slots(ray, cluster)
        database = open_database(db)
        only_queue = queue and not detach and not plan.file.optuna  # a process must ask for the trials of a search
        queued = control.create_sweep(database, plan, jobs=at_once, remote=True, seeds=selected_seeds)
        queued += control.retry(database, plan.id) if retry else 0
        _print_files_folder(database)
        if detach or only_queue:
            return _start_in_background(database, plan, queued, at_once, cluster=cluster, detach=detach, json=json)
        print_message(_describe_start(plan, queued, at_once, queue=queue))
        return _run(database, plan, at_once, ray=ray, cluster=cluster, trains=not queue, json=json)


def _read_stored_plan(database: Database, sweep_id: str, *, has_other_options: bool) -> Plan:
    """Make the plan of a stored sweep, which `emtc sweep ID` continues. A sweep in the background is such a command."""
    if has_other_options:
        raise typer.BadParameter("With the id of a sweep, only --stop, --jobs and the options of --engine are valid.")
    return control.remake_plan(get_sweep(database, sweep_id))


def _continue_stored(db: str, plan: Plan, jobs: int | None, *, cluster: Cluster | None, json: bool) -> int:
    at_once = jobs or control.default_jobs(plan)
    if cluster is None:
        check_fitting_runs([run.config for run in plan.runs], at_once)
    with connect(cluster, db) if cluster else nullcontext() as ray:
        return _run(open_database(db), plan, at_once, ray=ray, cluster=cluster, json=json)


def _print_files_folder(database: Database) -> None:
    if message := describe_files_folder(database):
        print_message(message)


def _stop(database: Database, name: str, settings: Sequence[str], steps: int | None) -> int:
    """Stop the sweep of a sweep file or a template, or the one whose id starts with `name`."""
    if is_sweep_file(name):
        sweep_id = make_plan(change_settings(find_sweep_file(name), settings, steps=steps)).id
    else:
        sweep_id = get_sweep(database, name).id
    n_queued, n_commands = control.stop_sweep_and_runs(database, sweep_id)
    print_message(
        f"Stopped sweep {sweep_id}: {n_queued} run(s) removed from the queue, {n_commands} stop command(s) sent."
    )
    return 0


def _describe_start(plan: Plan, queued: int, jobs: int, *, queue: bool) -> str:
    if plan.file.optuna:
        hint = " Train them, on this machine or others, with: emtc worker" if queue else ""
        return f"Search {plan.id}: {len(plan.runs)} trials, {jobs} at the same time.{hint}"
    return f"Sweep {plan.id}: {len(plan.runs)} runs, {queued} queued now, {jobs} at the same time."


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
    if (address, cpus, gpus) != (None, None, None):
        raise typer.BadParameter("--address, --cpus-per-run and --gpus-per-run need --engine ray.")
    return None


def _start_in_background(
    database: Database,
    plan: Plan,
    queued: int,
    jobs: int,
    *,
    cluster: Cluster | None,
    detach: bool,
    json: bool,
) -> int:
    """Start the sweep in the background with `detach`. Otherwise leave the queued runs to workers."""
    summary = f"Sweep {plan.id}: {len(plan.runs)} runs, {queued} queued now"
    if detach:
        print_message(f"{summary}, {jobs} at the same time.")
        control.start_in_background(database, plan.id, jobs=jobs, options=cluster.as_options() if cluster else ())
        print_message(
            f"It runs in the background. Watch it with: emtc sweep --list; stop it with: emtc sweep {plan.id} --stop"
        )
    else:
        print_message(f"{summary}. Train them, on this machine or others, with: emtc worker")
    if json:
        print_json({"sweep_id": plan.id, "name": plan.file.name, "status": "active", "runs": len(plan.runs)})
    return 0


def _run(
    database: Database,
    plan: Plan,
    jobs: int,
    *,
    ray: Any,
    cluster: Cluster | None,
    trains: bool = True,
    json: bool,
) -> int:
    check_not_read_only("train runs")
    sweep_id, env_modules = plan.id, plan.env_modules
    try:
        with handle_leave_signals() as leave, _progress_bar() as on_progress:
            if cluster:
                ended = run_sweep_on_ray(
                    ray,
                    cluster,
                    database,
                    sweep_id,
                    jobs=jobs,
                    leave=leave,
                    announce=print_message,
                    on_progress=on_progress,
                    env_modules=env_modules,
                )
            else:
                ended = _run_here(
                    database,
                    sweep_id,
                    jobs,
                    n_runs=len(plan.runs),
                    trains=trains,
                    leave=leave,
                    on_progress=on_progress,
                    env_modules=env_modules,
                )
    except KeyboardInterrupt:
        print_message("Ended immediately. The same command resumes the runs from their last checkpoints.")
        return 1
    if leave.is_requested:
        print_message("Interrupted: its runs are queued again. Continue with the same command.")
        return 1
    print_message(_summary(ended))
    best = _find_best_trial(database, ended)
    if best is not None:
        settings = " ".join(
            f"--set {key}={write_value(value) if isinstance(value, bool) else value}"
            for key, value in best["settings"].items()
        )
        print_message(
            f"Best trial: {best['trial']}, run {best['run']}, value {best['value']:.4g}, with {settings}. It has one "
            "seed. Train it over more seeds on the page Sweeps."
        )
    rows = sweep_runs(database, sweep_id)
    if json:
        columns = ("id", "name", "map", "algo", "seed", "env_steps", "win_rate", "return_mean", "error")
        runs = [
            {name: getattr(row, name) for name in columns} | {"status": shown_status(row.live_status, row.tags)}
            for row in rows
        ]
        saved = {"steps_saved": round(ended.steps_saved, 4), "best": best} if ended.trials else {}
        print_json({"sweep_id": ended.id, "name": ended.name, "status": ended.state, **saved, "runs": runs})
    return 1 if any(row.live_status in ("failed", "lost", "queued") for row in rows) else 0


def _run_here(
    database: Database,
    sweep_id: str,
    jobs: int,
    *,
    n_runs: int,
    trains: bool,
    leave: LeaveRequest,
    on_progress: Callable[[Sweep], None],
    env_modules: Collection[str],
) -> Sweep:
    """Run the worker loop for a sweep or a search. Without `trains`, only workers train its runs."""
    from app.jobs.sweeps.search import open_search  # loads the analysis of curves

    is_search = get_sweep(database, sweep_id).trials > 0
    with open_search(database, sweep_id, jobs=jobs) if is_search else nullcontext() as search:
        loop = WorkerLoop(
            database,
            jobs=jobs if trains else 0,
            leave=leave,
            announce=print_message,
            sweep_id=sweep_id,
            at_most=jobs,
            update_search=search.update if search else None,
            on_progress=on_progress,
            n_runs=n_runs,
            lowers_priority=True,
            env_modules=env_modules,
        )
        ended = loop.run_sweep(sweep_id)
        if search and not leave.is_requested:
            search.finish()
    return ended


def _find_best_trial(database: Database, sweep: Sweep) -> dict[str, Any] | None:
    """Find the best trial of a search: its number, run, value and settings; None for another sweep."""
    study = find_study(database, sweep.id) if sweep.trials else None
    best = None if study is None else find_best_trial(study)
    if best is None:
        return None
    return {"trial": best.number, "run": best.user_attrs.get(RUN), "value": best.value, "settings": dict(best.params)}


def _summary(sweep: Sweep) -> str:
    counts = ", ".join(f"{n} {status}" for status, n in sorted(sweep.counts.items()))
    saved = f" Pruning saved {format_percent(sweep.steps_saved)} of the steps of its trials." if sweep.trials else ""
    return f"Sweep {sweep.id}: {counts}.{saved}"


@contextmanager
def _progress_bar() -> Generator[Callable[[Sweep], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("sweep", total=1.0)

        def update(sweep: Sweep) -> None:
            counts, seconds = sweep.counts, sweep.seconds_left()
            n = sweep.trials or len(sweep.runs)
            description = f"{counts['finished']} of {n} runs, {counts['running']} running"
            description += f", {counts['pruned']} pruned" if sweep.trials else ""
            if counts["failed"]:
                description += f", {counts['failed']} failed"
            if seconds:
                description += f", ≈ {format_duration(seconds)} left"
            progress.update(task, completed=sweep.progress, description=description)

        yield update


def _print_plan(db: str, plan: Plan, jobs: int, selected_seeds: Collection[int] | None, *, json: bool) -> int:
    if selected_seeds is not None:
        plan = replace(plan, runs=tuple(run for run in plan.runs if run.seed in selected_seeds))
    control.check_plan(plan, jobs=jobs)
    try:
        database = open_database(db, read_only=True)
    except StorageError:  # there is no database yet, and a dry run does not create one
        database = None
    seconds, disk, basis = control.estimate_cost(database, plan, jobs=jobs)
    rows: list[dict[str, Any]] = [
        {
            "run": i,
            "map": run.cell.map,
            "algo": run.cell.algo,
            "what": run.cell.label or "–",
            "seed": run.seed,
            "steps": run.config.train.t_max,
        }
        for i, run in enumerate(plan.runs, 1)
    ]
    if json:
        expected = {"expected_seconds": round(seconds), "expected_disk_bytes": round(disk), "basis": basis}
        print_json({"sweep_id": plan.id, "name": plan.file.name, "jobs": jobs, **expected, "runs": rows})
        return 0
    print_table(rows, title=f"{plan.file.name} (sweep {plan.id})")
    print_message(
        f"≈ {format_duration(seconds)} with {jobs} at the same time, ≈ {format_size(disk)} on disk. Speed: {basis}."
    )
    return 0


def _print_templates(*, json: bool) -> int:
    rows = [
        {"template": name, "runs": len(make_plan(file).runs), "maps": ", ".join(file.map), "question": file.about}
        for name, file in list_templates().items()
    ]
    print_table(rows, title="Templates", json=json)
    return 0


def _print_sweeps(database: Database, *, json: bool) -> int:
    rows = [
        {
            "id": item.id,
            "name": item.name,
            "status": item.state,
            "runs": len(item.runs),
            **{status: item.counts[status] for status in (*get_args(Status), PRUNED)},
            "done": round(item.progress, 4) if json else format_percent(item.progress),
            "seconds_left": item.seconds_left() if json else format_duration(item.seconds_left()),
            "worker": item.has_worker if json else ("running" if item.has_worker else format_number(None)),
        }
        for item in list_sweeps(database)
    ]
    print_table(rows, title="Sweeps", empty="No sweeps yet. Start one with: emtc sweep ablation-demo", json=json)
    return 0


def worker(
    once: Annotated[bool, typer.Option("--once", help="Exit when no run is queued, instead of waiting")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Trainers at the same time")] = 1,
    gpu: Annotated[int | None, typer.Option(min=0, help="Index of the GPU that the trainers use")] = None,
    sweep: Annotated[
        str | None, typer.Option(help="Train only runs of this sweep; its id or a beginning of it")
    ] = None,
    env_module: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Also train runs whose map is NAME:factory; NAME is imported; repeatable"),
    ] = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> int:
    """Claim queued and lost runs of the database and train them. SIGTERM or SIGUSR1 returns them to the queue."""
    with handle_leave_signals() as leave:
        check_not_read_only("train runs")
        check_files_folder()
        database = open_with_retry(db, report=print_message, is_cancelled=lambda: leave.is_requested)
        _print_files_folder(database)
        if gpu is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)  # the trainers inherit it
        try:
            loop = WorkerLoop(
                database,
                jobs=jobs,
                leave=leave,
                announce=print_message,
                sweep_id=get_sweep(database, sweep).id if sweep else None,
                env_modules=env_module or (),
            )
            done = loop.run(once=once)
        except KeyboardInterrupt:
            print_message("Ended immediately. The next worker resumes the runs from their last checkpoints.")
            return 1
    print_message(summarize(done))
    if json:
        print_json([asdict(run) for run in done])
    return 0
