"""`emtc train`, `emtc resume`, and the hidden command `emtc train-worker`, which is the process of a detached run."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from app.analysis.provenance import library_versions
from app.analysis.quantities import get_success_threshold, name_success
from app.cli.arguments import DEFAULT_DATABASE, AsJson, DatabaseUrl, Runs, Steps, Where, choose_runs
from app.cli.output import print_json, print_message, print_table
from app.cli.progress import show_run_progress
from app.cli.runs import apply_to_runs
from app.jobs.launch import check_startable, launch_run
from app.jobs.resume import (
    CheckpointStatus,
    check_can_restart,
    claim_to_resume,
    examine_checkpoints,
    restart_run,
    resume_run,
)
from app.jobs.signals import StopSignals, handle_stop_signals
from app.jobs.train_process import mark_stopped, train_detached, train_with_signals
from emtc_core.config.resolve import describe_fields, resolve
from emtc_core.control import StopRequested
from emtc_core.envs.registry import get_default_map
from emtc_core.errors import EmtcError
from storage.engine import Database, open_database
from storage.files import describe_files_folder
from storage.runs.changes import create_run
from storage.runs.changes import start_again as create_restarted_run
from storage.runs.claims import make_token
from storage.runs.control import send_and_wait
from storage.runs.rows import RunRow, find_run


def train(
    env: Annotated[str | None, typer.Option(help="Environment: see emtc envs; default: skirmish")] = None,
    map: Annotated[
        str | None, typer.Option(help="Map or scenario; default: 3m, or the first one of a plug-in environment")
    ] = None,
    algo: Annotated[str | None, typer.Option(help="Method and backbone; default: emtc-qplex")] = None,
    steps: Steps = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random number; default: 1")] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with sections of settings; options win over it")
    ] = None,
    set: Annotated[list[str] | None, typer.Option(help="dotted.key=value, repeatable")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run in lists")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Train in a background process and return")] = False,
    help_keys: Annotated[bool, typer.Option("--help-keys", help="List all settings and exit")] = False,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> int:
    """Train one run in the foreground, or detached."""
    if help_keys:
        settings = [
            {"key": field.key, "default": field.default, "description": field.description}
            for field in describe_fields()
        ]
        print_table(settings, title="Settings")
        return 0
    run_config = resolve(
        env=env,
        map=map,
        algo=algo,
        steps=steps,
        seed=seed,
        file=config,
        overrides=list(set or []),
        find_default_map=get_default_map,
    )
    check_startable(run_config)
    database = open_database(db)
    if message := describe_files_folder(database):
        print_message(message)
    if detach:
        run_id = launch_run(database, run_config, name=name)
        print_message(f"Run {run_id} trains in the background. Watch it with: emtc show {run_id}")
        if json:
            print_json({"run_id": run_id, "status": "starting"})
        return 0
    with handle_stop_signals() as signals:
        token = make_token()
        run_id = create_run(
            database,
            run_config.model_dump(mode="json"),
            name=name,
            target_steps=run_config.train.t_max,
            versions=library_versions(),
            token=token,
        )
        return _train_in_foreground(database, run_id, token, signals, resume=False, json=json)


def resume(
    runs: Runs = None,
    where: Where = None,
    start_again: Annotated[
        bool, typer.Option("--start-again", help="Start from step 0 as a new run, with this one as its parent")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Train in a background process and return")] = False,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> int:
    """Resume paused runs, and stopped, failed or lost ones from their newest usable checkpoints."""
    # --start-again --detach: create and train a new run in the background, for each run.
    # --detach, or all runs are paused: resume each run in the background. A paused trainer still exists.
    # otherwise: restart or resume the only run in the foreground.
    database = open_database(db, create=False)
    run_ids = choose_runs(database, runs, where)
    rows = {run_id: find_run(database, run_id) for run_id in run_ids}
    is_each_paused = all(row.live_status == "paused" for row in rows.values())
    if start_again and detach:
        prints_json = json and len(run_ids) == 1  # stdout contains exactly one JSON value
        return apply_to_runs(run_ids, lambda run_id: _restart_in_background(database, run_id, json=prints_json))
    if detach or (is_each_paused and not start_again):
        return apply_to_runs(run_ids, lambda run_id: _resume_in_background(database, rows[run_id]))
    if len(run_ids) > 1:
        raise typer.BadParameter("Only one run can be trained in the foreground. Resume several with --detach.")
    run_id = run_ids[0]
    row = rows[run_id]
    if start_again:
        check_can_restart(row)
        with handle_stop_signals() as signals:
            token = make_token()
            new_run_id = create_restarted_run(database, run_id, versions=library_versions(), token=token)
            print_message(f"Run {new_run_id} starts from step 0. Run {run_id} is not changed.")
            return _train_in_foreground(database, new_run_id, token, signals, resume=False, json=json)
    _print_resume_point(examine_checkpoints(database, row))
    with handle_stop_signals() as signals:
        token = claim_to_resume(database, run_id)
        return _train_in_foreground(database, run_id, token, signals, resume=True, json=json)


def _restart_in_background(database: Database, run_id: str, *, json: bool) -> str:
    new_run_id = restart_run(database, run_id)
    if json:
        print_json({"run_id": new_run_id, "parent_id": run_id, "status": "starting"})
    return f"Run {new_run_id} starts from step 0 in the background. Run {run_id} is not changed."


def _resume_in_background(database: Database, row: RunRow) -> str:
    if row.live_status == "paused":
        return send_and_wait(database, row.id, "resume")
    _print_resume_point(examine_checkpoints(database, row))
    resume_run(database, row.id)
    return f"Run {row.id} resumes in the background."


def _print_resume_point(status: CheckpointStatus) -> None:
    """Print which checkpoint is used, which are skipped, and how many recorded steps are trained again (superseded)."""
    if status.usable is None:
        return
    for fault in status.faults:
        print_message(f"Skipped: {fault}")
    if status.superseded_steps:
        print_message(
            f"Resuming from step {status.usable.env_step:,} ({status.usable.name}). "
            f"{status.superseded_steps:,} later steps are superseded when the trainer has loaded it."
        )


def train_detached_run(
    run_id: str,
    resume: Annotated[bool, typer.Option("--resume")] = False,
    token: Annotated[str | None, typer.Option("--token")] = None,
    worker_pid: Annotated[int | None, typer.Option("--worker")] = None,
    gpu_share: Annotated[float, typer.Option("--gpu-share")] = 1.0,
    db: DatabaseUrl = DEFAULT_DATABASE,
) -> int:
    """Train a run that another process has created. A detached trainer runs this command."""
    return train_detached(
        db, run_id, announce=print_message, token=token, resume=resume, worker_pid=worker_pid, gpu_share=gpu_share
    )


def _train_in_foreground(
    database: Database, run_id: str, token: str, signals: StopSignals, *, resume: bool, json: bool
) -> int:
    started = time.monotonic()
    try:
        print_message(f"Run {run_id}")
        with show_run_progress(database, run_id) as on_progress:
            summary = train_with_signals(
                database, run_id, token, signals, resume=resume, announce=print_message, on_progress=on_progress
            )
    except StopRequested:
        mark_stopped(database, run_id, token, signals, announce=print_message)
        if json:
            print_json({"run_id": run_id, "status": "stopped", "env_steps": find_run(database, run_id).env_steps})
        return 0
    except Exception as exc:
        message = str(exc) if isinstance(exc, EmtcError) else f"Run {run_id} failed: {type(exc).__name__}: {exc}"
        print_message(message)
        if json:
            print_json({"run_id": run_id, "status": "failed", "error": message})
        return 1
    wall_seconds = round(time.monotonic() - started, 3)
    if json:
        print_json({"run_id": run_id, "wall_seconds": wall_seconds, **asdict(summary)})
        return 0
    threshold = get_success_threshold(find_run(database, run_id).config)
    if threshold is None:
        label = "win rate"
        rate = summary.win_rate
    else:
        label = name_success(threshold)
        rate = summary.success_rate
    percent = "–" if rate is None else f"{100 * rate:.1f} %"
    print_message(
        f"{summary.status}: {summary.env_steps} env steps in {wall_seconds:.0f} s, last test {label} {percent}"
    )
    return 0
