"""Train one created run in this process: the one place where core and storage meet.

Imported late by the command line, because it loads torch.
"""

import signal
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch

from emtc_core.checkpoint import CheckpointStore
from emtc_core.config.resolve import config_from_stored
from emtc_core.config.run import RunConfig
from emtc_core.control import Command, Control
from emtc_core.device import choose_device, configure_threads
from emtc_core.envs.registry import make_env
from emtc_core.errors import EmtcError
from emtc_core.trainer import RunSummary, Trainer
from storage.control import DatabaseControl, Heartbeat
from storage.engine import Database, run_folder
from storage.queries.runs import get_run
from storage.recorder import DatabaseRecorder
from storage.runs import finish_run, rewind_run, start_run


def train_run(
    database: Database,
    run_id: str,
    *,
    resume: bool,
    on_progress: Callable[[int], None] = lambda env_step: None,
) -> RunSummary:
    """Train one created run in this process and leave its final status in the database.

    Raises:
        EmtcError: Whatever made the run fail; the run is marked failed with that sentence.
    """
    config, device = _prepare(database, run_id)
    process = psutil.Process()
    start_run(
        database,
        run_id,
        pid=process.pid,
        pid_created_at=process.create_time(),
        host=socket.gethostname(),
        device=str(device),
    )
    store = CheckpointStore(run_folder(database, run_id), keep=config.checkpoint.keep)
    try:
        saved = _rewind(database, run_id, store, resume=resume)
        with (
            closing(Heartbeat(database, run_id)),
            closing(DatabaseControl(database, run_id)) as control,
            signals_as_stop(control) as stoppable,
            closing(DatabaseRecorder(database, run_id)) as recorder,
        ):
            trainer = _make_trainer(config, recorder, stoppable, store, device, on_progress)
            if saved is not None:
                trainer.set_state(saved)
            summary = trainer.run()
    except BaseException as exc:
        _keep_traceback(run_folder(database, run_id))
        sentence = str(exc) if isinstance(exc, EmtcError) else f"{type(exc).__name__}: {exc}"
        finish_run(database, run_id, "failed", error=sentence)
        raise
    finish_run(database, run_id, summary.status)
    return summary


def _prepare(database: Database, run_id: str) -> tuple[RunConfig, torch.device]:
    """Read the configuration and choose the device; a queued run that cannot start here fails with the reason."""
    row = get_run(database, run_id)
    try:
        config = config_from_stored(row.config)
        device = choose_device(config.train.device)
    except EmtcError as exc:
        if row.status == "queued":
            finish_run(database, run_id, "failed", error=str(exc))
        raise
    configure_threads(config.train.threads)
    return config, device


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
    config: RunConfig,
    recorder: DatabaseRecorder,
    control: Control,
    store: CheckpointStore,
    device: torch.device,
    on_progress: Callable[[int], None],
) -> Trainer:
    return Trainer(
        config,
        env=make_env(config.env, n_envs=config.train.n_envs),
        eval_env=make_env(config.env, n_envs=min(config.eval.episodes, config.train.n_envs)),
        recorder=recorder,
        control=control,
        checkpoints=store,
        device=device,
        on_progress=on_progress,
    )


def _rewind(database: Database, run_id: str, store: CheckpointStore, *, resume: bool) -> dict[str, Any] | None:
    """Go back to the last checkpoint; rows recorded after it are superseded and removed first."""
    if not resume:
        return None
    env_step, state = store.load_latest() or (0, None)
    rewind_run(database, run_id, env_step)
    return state


def _keep_traceback(folder: Path) -> None:
    """Put the traceback where a developer finds it; the user gets a sentence."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "traceback.txt").write_text(traceback.format_exc(), encoding="utf-8")
