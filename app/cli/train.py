"""`emtc train | resume` and the worker behind detached runs: the one place where core and storage meet."""

import platform
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import psutil
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from app.cli.output import DEFAULT_DATABASE, AsJson, DatabaseUrl, RunPrefix, print_json, say
from emtc_core import __version__
from emtc_core.config.resolve import config_from_stored, describe_fields, resolve
from emtc_core.config.run import RunConfig
from emtc_core.control import Command, Control
from emtc_core.envs.registry import check_available
from emtc_core.errors import EmtcError, RunStateError
from storage.engine import Database, open_database, run_folder
from storage.queries.runs import get_run
from storage.runs import create_run, find_run, finish_run, rewind_run, start_run

if TYPE_CHECKING:
    from emtc_core.trainer import RunSummary, Trainer

LIBRARIES = ("torch", "numpy", "numba", "scipy", "sqlalchemy", "gfootball", "smac", "jaxmarl", "pettingzoo")


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
    check_available(run_config.env)
    database = open_database(db)
    if detach:
        from app.launch import launch_run

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
    row = get_run(database, find_run(database, run).id)
    if row.live_status == "paused":
        from storage.control import send_command

        send_command(database, row.id, "resume")
        say(f"Asked run {row.id} to go on.")
        return 0
    if row.live_status not in ("stopped", "failed", "lost"):
        raise RunStateError(f"Run {row.id} is {row.live_status}; only a paused, stopped, failed or lost run resumes.")
    if detach:
        from app.launch import resume_run

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
    try:
        train_run(open_database(db), run_id, resume=resume)
    except EmtcError as exc:
        say(str(exc))
        return 1
    return 0


def train_run(
    database: Database,
    run_id: str,
    *,
    resume: bool,
    on_progress: Callable[[int], None] = lambda env_step: None,
) -> "RunSummary":
    """Train one created run in this process and leave its final status in the database.

    Raises:
        EmtcError: Whatever made the run fail; the run is marked failed with that sentence.
    """
    from emtc_core.device import choose_device, configure_threads
    from storage.control import DatabaseControl, Heartbeat
    from storage.recorder import DatabaseRecorder

    config = config_from_stored(get_run(database, run_id).config)
    device = choose_device(config.train.device)
    configure_threads(config.train.threads)
    process = psutil.Process()
    start_run(
        database,
        run_id,
        pid=process.pid,
        pid_created_at=process.create_time(),
        host=socket.gethostname(),
        device=str(device),
    )
    try:
        with Heartbeat(database, run_id), signals_as_stop(DatabaseControl(database, run_id)) as control:
            recorder = DatabaseRecorder(database, run_id)
            try:
                trainer = _make_trainer(database, run_id, config, recorder, control, device, on_progress)
                _restore(database, run_id, trainer, resume=resume)
                summary = trainer.run()
            finally:
                recorder.close()
    except BaseException as exc:
        sentence = str(exc) if isinstance(exc, EmtcError) else f"{type(exc).__name__}: {exc}"
        finish_run(database, run_id, "failed", error=sentence)
        raise
    finish_run(database, run_id, summary.status)
    return summary


def library_versions() -> dict[str, str]:
    """Collect the versions that a run stores."""
    found = {"emtc_lab": __version__, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@contextmanager
def signals_as_stop(control: Control) -> Iterator[Control]:
    """Read SIGTERM and SIGINT as a stop command; a second SIGINT ends the process at once."""
    wrapped = _SignalControl(control)
    previous = {s: signal.signal(s, wrapped.on_signal) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield wrapped
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        close = getattr(control, "close", None)
        if close is not None:
            close()


class _SignalControl:
    def __init__(self, inner: Control) -> None:
        self._inner = inner
        self._stop = False

    def on_signal(self, number: int, frame: object) -> None:
        if self._stop and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._stop = True

    def poll(self) -> Command | None:
        return "stop" if self._stop else self._inner.poll()

    def set_status(self, status: Any) -> None:
        self._inner.set_status(status)


def _make_trainer(
    database: Database,
    run_id: str,
    config: RunConfig,
    recorder: Any,
    control: Control,
    device: Any,
    on_progress: Callable[[int], None],
) -> "Trainer":
    from emtc_core.checkpoint import CheckpointStore
    from emtc_core.envs.registry import make_env
    from emtc_core.trainer import Trainer

    return Trainer(
        config,
        env=make_env(config.env, n_envs=config.train.n_envs),
        eval_env=make_env(config.env, n_envs=min(config.eval.episodes, config.train.n_envs)),
        recorder=recorder,
        control=control,
        checkpoints=CheckpointStore(run_folder(database, run_id), keep=config.checkpoint.keep),
        device=device,
        on_progress=on_progress,
    )


def _restore(database: Database, run_id: str, trainer: "Trainer", *, resume: bool) -> None:
    """Go back to the last checkpoint; rows recorded after it are superseded and removed first."""
    if not resume:
        return
    latest = trainer.checkpoints.load_latest()
    rewind_run(database, run_id, latest[0] if latest else 0)
    if latest:
        trainer.set_state(latest[1])


def _train_in_foreground(database: Database, run_id: str, *, resume: bool, json: bool) -> int:
    target = get_run(database, run_id).target_steps
    started = time.monotonic()
    say(f"Run {run_id}")
    try:
        with _progress_bar(target) as on_progress:
            summary = train_run(database, run_id, resume=resume, on_progress=on_progress)
    except EmtcError as exc:
        say(str(exc))
        if json:
            print_json({"run_id": run_id, "status": "failed", "error": str(exc)})
        return 1
    wall_seconds = round(time.monotonic() - started, 3)
    if json:
        print_json({"run_id": run_id, "wall_seconds": wall_seconds, **asdict(summary)})
    else:
        win_rate = "–" if summary.win_rate is None else f"{summary.win_rate:.1%}"
        say(f"{summary.status}: {summary.env_steps} env steps in {wall_seconds:.0f} s, test win rate {win_rate}")
    return 0


@contextmanager
def _progress_bar(total: int) -> Iterator[Callable[[int], None]]:
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("env steps"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("training", total=total)
        yield lambda env_step: progress.update(task, completed=min(env_step, total))


def _print_keys() -> int:
    from app.cli.output import print_table

    rows = [{"key": f.key, "default": f.default, "description": f.description} for f in describe_fields()]
    print_table(rows, title="Settings", empty="")
    return 0
