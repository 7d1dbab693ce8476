"""Train one created run in this process: the one place where core and storage meet.

Imported late by the command line, because it loads torch.
"""

import logging
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from app.jobs.checkpoint_stores import storing
from app.jobs.compilation import log_compilation
from app.jobs.launch import LOG_NAME
from app.jobs.provenance import record_provenance
from app.jobs.signals import StopSignals, leave_run, stop_signals
from emtc_core.config.resolve import config_from_stored
from emtc_core.config.run import RunConfig
from emtc_core.control import Control, StopRequested
from emtc_core.devices import choose_device, choose_threads, configure_threads
from emtc_core.envs.registry import check_trusted, make_env
from emtc_core.errors import CheckpointError, EmtcError, RunInterruptedError, RunStateError, StorageError
from emtc_core.plugins import describe_failure, find_culprit, get_plugin
from emtc_core.training.checkpoint import CheckpointStore, Loaded
from emtc_core.training.evaluation import with_shifted_starts
from emtc_core.training.trainer import RunSummary, Trainer
from storage.engine import Database
from storage.files.places import run_folder, run_place
from storage.guards import hide_passwords
from storage.private_files import append_private, make_private_folder
from storage.recording.writer import DatabaseRecorder
from storage.retry import retry_transient
from storage.runs.changes import claim_start, finish_run, start_run
from storage.runs.control import DatabaseControl, Heartbeat
from storage.runs.lifecycle import this_process
from storage.runs.removal import why_not_resume_at
from storage.runs.rows import find_run

_log = logging.getLogger(__name__)


def train_run(
    database: Database,
    run_id: str,
    *,
    resume: bool,
    token: str | None = None,
    signals: StopSignals | None = None,
    on_progress: Callable[[int], None] = lambda env_step: None,
    announce: Callable[[str], None] = lambda text: None,
) -> RunSummary:
    """Train one created run in this process and leave its final status in the database.

    Args:
        database: An open database.
        run_id: The run.
        resume: Go on from its newest usable checkpoint.
        token: By which this process owns the run; without one it takes the run.
        signals: Where signals are heard already; without them this function listens.
        on_progress: Told the env step after each round.
        announce: Told what the run will hold in memory, before the first step, and that kernels are compiled.

    Raises:
        EmtcError: Whatever made the run fail; the run is marked failed with that sentence.
        StopRequested: If a signal came before the first step; the run is marked stopped.
    """
    if signals is None:
        with stop_signals() as heard:
            return train_run(
                database, run_id, resume=resume, token=token, signals=heard, on_progress=on_progress, announce=announce
            )
    if token is None:
        owner = this_process()
        retry_transient(database, lambda: claim_start(database, run_id, owner))
        token = owner.token
    with _ending(database, run_id, token, signals), log_compilation(announce):
        config, device = _begin(database, run_id, token)
        summary = _train(
            *(database, run_id, config, device),
            resume=resume,
            token=token,
            signals=signals,
            on_progress=on_progress,
            announce=announce,
        )
    _end(database, run_id, summary.status, token, signals)
    return summary


def _end(
    database: Database, run_id: str, status: Literal["finished", "stopped"], token: str, signals: StopSignals
) -> None:
    """Write how the run ended, however long the database is locked, full or away."""

    def write() -> None:
        if status == "finished":
            finish_run(database, run_id, status, token=token)
        else:
            leave_run(database, run_id, token, signals)

    try:
        retry_transient(database, write)
    except RunStateError:  # it stands unless an earlier try arrived, and its answer was lost
        row = retry_transient(database, lambda: find_run(database, run_id))
        given_back = signals.gives_back and row.owner_token != token
        if row.status != status and not given_back:
            raise


@contextmanager
def _ending(database: Database, run_id: str, token: str, signals: StopSignals) -> Generator[None]:
    """Leave the reason in the database when a run does not come to its end."""
    try:
        yield
    except StopRequested:
        _end(database, run_id, "stopped", token, signals)
        raise
    except (RunInterruptedError, KeyboardInterrupt) as exc:
        with suppress(StorageError):  # what stood in the way of the rows stands in the way of this one too
            finish_run(database, run_id, "stopped", error=str(exc) or "It was ended at once.", token=token)
        raise
    except StorageError as exc:
        if not signals.broke_in:
            _leave_failed(database, run_id, token, exc)
            raise
        _end(database, run_id, "stopped", token, signals)  # a driver that is broken off may raise an error of its own
        raise StopRequested from exc
    except BaseException as exc:
        _leave_failed(database, run_id, token, exc)
        raise


def _leave_failed(database: Database, run_id: str, token: str, exc: BaseException) -> None:
    """Write why a run failed, as far as disk and database take it."""
    with suppress(OSError, StorageError):  # a full disk, or no place, must not hide what happened
        _keep_traceback(run_folder(database, run_id), in_log=find_culprit(exc) is not None)
    sentence = hide_passwords(str(exc) if isinstance(exc, EmtcError) else describe_failure(exc))
    try:
        retry_transient(database, lambda: finish_run(database, run_id, "failed", error=sentence, token=token))
    except StorageError as error:
        _log.warning("run %s: that it failed could not be written: %s", run_id, error)


def _begin(database: Database, run_id: str, token: str) -> tuple[RunConfig, torch.device]:
    """Read the configuration, choose the device and begin."""
    row = retry_transient(database, lambda: find_run(database, run_id))
    config = config_from_stored(row.config)
    chosen = None
    if config.train.threads == "auto":  # chosen once: a resumed run adds up as it did before
        threads = choose_threads("auto", alone=row.sweep_id is None, beside=config.uses_intrinsic_reward)
        chosen = _with_threads(row.config, threads)
        config = config_from_stored(chosen)
    check_trusted(config.env)  # the row says which module is imported
    _load_outside(run_id, config)
    device = choose_device(config.train.device)
    configure_threads()
    me, files = this_process(token), retry_transient(database, lambda: run_place(database, run_id)).recorded
    start = partial(start_run, database, run_id, token=token, files=files, config=chosen, device=str(device))
    retry_transient(database, lambda: start(pid=me.pid, pid_created_at=me.pid_created_at, host=me.host))
    return config, device


def _with_threads(config: Mapping[str, Any], threads: int) -> dict[str, Any]:
    return {**config, "train": {**config["train"], "threads": threads}}


def _train(
    database: Database,
    run_id: str,
    config: RunConfig,
    device: torch.device,
    *,
    resume: bool,
    token: str,
    signals: StopSignals,
    on_progress: Callable[[int], None],
    announce: Callable[[str], None],
) -> RunSummary:
    with (
        closing(Heartbeat(database, run_id, token=token)),
        closing(DatabaseControl(database, run_id, token=token)) as control,
        storing(database, run_id, config.checkpoint.keep) as store,
        _recording(database, run_id, token) as recorder,
    ):
        loaded = retry_transient(database, lambda: _load(database, run_id, store)) if resume else None
        heard = signals.as_control(control, blocked=lambda: recorder.blocked)
        trainer = _make_trainer(config, recorder, heard, store, device, on_progress)
        retry_transient(database, lambda: record_provenance(database, run_id, config.env, device=device, token=token))
        for line in trainer.memory_plan.describe():
            announce(line)
        if loaded is not None:
            _restore(trainer, loaded, recorder, store)
        return trainer.run()


@contextmanager
def _recording(database: Database, run_id: str, token: str) -> Generator[DatabaseRecorder]:
    """Record, and at a second Ctrl-C end without waiting for a disk or a database that takes nothing.

    Raises:
        RunInterruptedError: At that, with what it cost.
    """
    recorder = DatabaseRecorder(database, run_id, token=token)
    try:
        yield recorder
        recorder.close()
    except KeyboardInterrupt as exc:
        blocked = recorder.blocked
        lost = recorder.abandon()
        why = f" {lost} records could not be written: {blocked}" if lost and blocked else ""
        raise RunInterruptedError(
            f"Run {run_id} was ended at once, without a checkpoint.{why} Go on from the last one with: "
            f"emtc resume {run_id}",
            reason="ended",
            subject=run_id,
        ) from exc
    except BaseException:
        recorder.close()
        raise


def _load(database: Database, run_id: str, store: CheckpointStore) -> Loaded | None:
    """Load the newest checkpoint that fits the rows; without any, a run that has rows is left alone.

    Raises:
        CheckpointError: If there is none and the run has rows: to start from 0 here would remove them.
    """
    loaded = store.load_latest(lambda env_step: why_not_resume_at(database, run_id, env_step))
    if loaded is None and (steps := find_run(database, run_id).env_steps):
        raise CheckpointError(
            f"There is no checkpoint in {store.folder}, and run {run_id} has recorded {steps:,} steps. They stay. "
            f"Start again from step 0, as a new run, with: emtc resume {run_id} --start-again",
            reason="no_checkpoint",
            subject=run_id,
        )
    for reason in loaded.passed_over if loaded else ():
        _log.warning("run %s: a newer checkpoint is passed over: %s", run_id, reason)
    return loaded


def _restore(trainer: Trainer, loaded: Loaded, recorder: DatabaseRecorder, store: CheckpointStore) -> None:
    """Bring the trainer to the checkpoint; only when it stands there are later rows superseded."""
    trainer.set_state(loaded.state)
    recorder.supersede(loaded.env_step, checkpoint=loaded.name, passed_over=loaded.passed_over)
    store.set_newer_aside(loaded.env_step)


def _make_trainer(
    config: RunConfig,
    recorder: DatabaseRecorder,
    control: Control,
    store: CheckpointStore,
    device: torch.device,
    on_progress: Callable[[int], None],
) -> Trainer:
    shifted, copies = with_shifted_starts(config.env, config.eval), min(config.eval.episodes, config.train.n_envs)
    return Trainer(
        config,
        env=make_env(config.env, n_envs=config.train.n_envs),
        eval_env=make_env(config.env, n_envs=copies),
        robust_env=make_env(shifted, n_envs=copies) if shifted else None,
        recorder=recorder,
        control=control,
        checkpoints=store,
        device=device,
        on_progress=on_progress,
    )


def _keep_traceback(folder: Path, *, in_log: bool) -> None:
    """Put the traceback where a developer finds it, a plug-in's into the run's log too; the user gets a sentence."""
    make_private_folder(folder)
    said = f"{hide_passwords(traceback.format_exc())}\n".encode()
    for name in ("traceback.txt", *([LOG_NAME] if in_log else [])):
        with append_private(folder / name) as file:
            file.write(said)


def _load_outside(run_id: str, config: RunConfig) -> None:
    """Import what the run has from outside, and warn where it is of another version than the run began with.

    Raises:
        PluginError: If one cannot be loaded.
    """
    for kind, name in config.list_outside():
        plugin, recorded = get_plugin(kind, name), config.plugins.get(kind, {}).get(name)
        plugin.load()
        if recorded and plugin.origin != recorded:
            told = f"the {kind} {name} was that of {recorded}, and is that of {plugin.origin} now"
            _log.warning("run %s: %s", run_id, told)
