"""`emtc train | resume` and the worker behind detached runs."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from app.cli.output import DEFAULT_DATABASE, AsJson, DatabaseUrl, RunPrefix, print_json, print_table, say
from app.cli.progress import show_progress
from app.runs.launch import check_startable, launch_run, resume_run
from app.runs.versions import library_versions
from emtc_core.config.resolve import describe_fields, resolve
from emtc_core.errors import EmtcError, RunStateError
from storage.control import send_command
from storage.engine import Database, open_database
from storage.queries.runs import get_run
from storage.runs import create_run


def train(
    env: Annotated[str, typer.Option(help="Environment: see emtc envs")] = "skirmish",
    map: Annotated[str, typer.Option(help="Map or scenario")] = "3m",
    algo: Annotated[str, typer.Option(help="Method and backbone, for instance emtc-qplex")] = "emtc-qplex",
    steps: Annotated[int | None, typer.Option(help="Training length [env steps]; default: the task's own")] = None,
    seed: Annotated[int, typer.Option(help="Seed of every random number")] = 1,
    config: Annotated[Path | None, typer.Option(help="TOML file with sections of settings")] = None,
    set: Annotated[list[str] | None, typer.Option(help="dotted.key=value, repeatable")] = None,
    name: Annotated[str | None, typer.Option(help="Name shown in lists")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Train in a process of its own and return")] = False,
    help_keys: Annotated[bool, typer.Option("--help-keys", help="List every setting and stop")] = False,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> int:
    """Train one run in the foreground, or detached."""
    if help_keys:
        return _print_keys()
    run_config = resolve(env=env, map=map, algo=algo, steps=steps, seed=seed, file=config, overrides=list(set or []))
    check_startable(run_config)
    database = open_database(db)
    if detach:
        run_id = launch_run(database, run_config, name=name)
        say(f"Run {run_id} trains in the background. Watch it with: emtc show {run_id}")
        if json:
            print_json({"run_id": run_id, "status": "queued"})
        return 0
    run_id = create_run(
        database,
        run_config.model_dump(mode="json"),
        name=name,
        target_steps=run_config.train.t_max,
        versions=library_versions(),
    )
    return _train_in_foreground(database, run_id, resume=False, json=json)


def resume(
    run: RunPrefix,
    detach: Annotated[bool, typer.Option("--detach", help="Train in a process of its own and return")] = False,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> int:
    """Go on with a paused run, or with one that stopped, failed or was lost, from its last checkpoint."""
    database = open_database(db)
    row = get_run(database, run)
    if row.live_status == "paused":
        send_command(database, row.id, "resume")
        say(f"Asked run {row.id} to go on.")
        return 0
    if row.live_status not in ("stopped", "failed", "lost"):
        raise RunStateError(f"Run {row.id} is {row.live_status}; only a paused, stopped, failed or lost run resumes.")
    if detach:
        resume_run(database, row.id)
        say(f"Run {row.id} goes on in the background.")
        return 0
    return _train_in_foreground(database, row.id, resume=True, json=json)


def train_worker(
    run_id: str,
    resume: Annotated[bool, typer.Option("--resume")] = False,
    db: DatabaseUrl = DEFAULT_DATABASE,
) -> int:
    """Train a run that another process has created; what a detached trainer executes."""
    from app.runs.training import train_run

    try:
        train_run(open_database(db), run_id, resume=resume)
    except Exception as exc:
        say(str(exc))
        return 1
    return 0


def _train_in_foreground(database: Database, run_id: str, *, resume: bool, json: bool) -> int:
    from app.runs.training import train_run

    started = time.monotonic()
    say(f"Run {run_id}")
    try:
        with show_progress(database, run_id) as on_progress:
            summary = train_run(database, run_id, resume=resume, on_progress=on_progress)
    except Exception as exc:
        sentence = str(exc) if isinstance(exc, EmtcError) else f"Run {run_id} failed: {type(exc).__name__}: {exc}"
        say(sentence)
        if json:
            print_json({"run_id": run_id, "status": "failed", "error": sentence})
        return 1
    wall_seconds = round(time.monotonic() - started, 3)
    if json:
        print_json({"run_id": run_id, "wall_seconds": wall_seconds, **asdict(summary)})
    else:
        win_rate = "–" if summary.win_rate is None else f"{summary.win_rate:.1%}"
        say(f"{summary.status}: {summary.env_steps} env steps in {wall_seconds:.0f} s, test win rate {win_rate}")
    return 0


def _print_keys() -> int:
    rows = [{"key": f.key, "default": f.default, "description": f.description} for f in describe_fields()]
    print_table(rows, title="Settings", empty="")
    return 0
