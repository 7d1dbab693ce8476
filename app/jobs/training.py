"""Train one created run in this process. This module connects `emtc_core` with `storage`.

A process owns a run by a token, a random text. It writes the token to the row of the run when it claims the run. A
recorder writes the records of the training to the database. On a signal, a run is stopped, or it returns to the queue
if a worker (a process that trains queued runs) started it.

The module loads torch, so the command line imports it late.
"""

import logging
import os
import socket
import traceback
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from app.jobs.env_calls import EnvCalls
from app.jobs.external_env import ExternalEnv, check_fits
from app.jobs.launch import LOG_NAME
from app.jobs.provenance import record_provenance
from app.jobs.signals import StopSignals, handle_stop_signals, record_stop
from emtc_core.config.resolve import config_from_stored
from emtc_core.config.run import RunConfig
from emtc_core.config.train import EnvConfig
from emtc_core.control import Control, StopRequested
from emtc_core.devices import choose_device
from emtc_core.envs.base import VectorEnv
from emtc_core.envs.registry import describe_env, is_external, make_env
from emtc_core.errors import CheckpointError, EmtcError, RunInterruptedError, RunStateError, StorageError
from emtc_core.install import memory_bytes
from emtc_core.memory_estimate import describe_memory
from emtc_core.threads import choose_threads, configure_threads
from emtc_core.training.checkpoint import CheckpointStore, LoadedCheckpoint
from emtc_core.training.evaluation import make_robust_env_config
from emtc_core.training.trainer import RunSummary, Trainer
from storage.engine import Database
from storage.files import run_folder
from storage.guards import hide_passwords
from storage.private_files import make_private_folder, open_private_append
from storage.recording.writer import DatabaseRecorder
from storage.retry import retry_transient
from storage.runs.changes import finish_run, start_run
from storage.runs.claims import claim_to_train, make_token, return_to_queue
from storage.runs.control import DatabaseControl, Heartbeat
from storage.runs.removal import find_resume_error
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
    gpu_share: float = 1.0,
) -> RunSummary:
    """Train one created run in this process and record its final status in the database.

    Args:
        database: An open database.
        run_id: The run.
        resume: Continue from the newest usable checkpoint.
        token: Token by which this process owns the run. None: this function claims the run.
        signals: The signal handler, if one is already installed. None: this function installs one.
        on_progress: Called with the env step after each round.
        announce: Called with lines for the user: the planned memory use.
        gpu_share: Fraction of the GPU's memory that the run may use, if `train.gpu_share` is auto.

    Raises:
        EmtcError: If the run failed. The run is marked failed with the same message.
        StopRequested: If a signal arrived before the first step. The run is marked stopped.
    """
    with handle_stop_signals() if signals is None else nullcontext(signals) as handler:
        if token is None:
            token = new_token = make_token()
            retry_transient(database, lambda: claim_to_train(database, run_id, new_token))
        with _record_failures(database, run_id, token, handler):
            config, device = _mark_started(database, run_id, token, gpu_share)
            summary = _train(
                database,
                run_id,
                config,
                device,
                resume=resume,
                token=token,
                signals=handler,
                on_progress=on_progress,
                announce=announce,
            )
        _record_end(database, run_id, summary.status, token, handler)
        return summary


def _record_end(
    database: Database, run_id: str, status: Literal["finished", "stopped"], token: str, signals: StopSignals
) -> None:
    """Record how the run ended. Retry while the database is locked, full or unreachable."""

    def write() -> None:
        if status == "finished":
            finish_run(database, run_id, status, token=token)
        else:
            record_stop(database, run_id, token, signals)

    try:
        retry_transient(database, write)
    except RunStateError:
        # An earlier attempt may have been committed although the connection failed before its reply. Then the end is
        # recorded, and this is not an error.
        row = retry_transient(database, lambda: find_run(database, run_id))
        is_requeued = signals.must_requeue and row.owner_token != token
        if row.status != status and not is_requeued:
            raise


@contextmanager
def _record_failures(database: Database, run_id: str, token: str, signals: StopSignals) -> Generator[None]:
    """Record the reason in the database if the run does not finish."""
    try:
        yield
    except StopRequested:
        _record_end(database, run_id, "stopped", token, signals)
        raise
    except (RunInterruptedError, KeyboardInterrupt) as exc:
        with suppress(StorageError):  # the database did not store the records, so this update may fail too
            if signals.must_requeue:
                return_to_queue(database, run_id, token=token)
            else:
                finish_run(database, run_id, "stopped", error=str(exc) or "It was ended at once.", token=token)
        raise
    except StorageError as exc:
        if not signals.interrupted_start:
            _record_failure(database, run_id, token, exc)
            raise
        # A signal interrupted the database driver, which raised its own error instead of StopRequested.
        _record_end(database, run_id, "stopped", token, signals)
        raise StopRequested from exc
    except BaseException as exc:
        _record_failure(database, run_id, token, exc)
        raise


def _record_failure(database: Database, run_id: str, token: str, exc: BaseException) -> None:
    """Write the traceback to the run's log and the message to the database, if these are writable."""
    with suppress(OSError, StorageError):  # a full disk or an unreachable folder must not hide the first error
        _write_traceback(run_folder(database, run_id))
    message = hide_passwords(str(exc) if isinstance(exc, EmtcError) else f"{type(exc).__name__}: {exc}")
    try:
        retry_transient(database, lambda: finish_run(database, run_id, "failed", error=message, token=token))
    except StorageError as error:
        _log.warning("run %s: its failure could not be recorded: %s", run_id, error)


def _mark_started(database: Database, run_id: str, token: str, gpu_share: float) -> tuple[RunConfig, torch.device]:
    """Read the configuration, choose device, threads and share of the GPU, and mark the run as running."""
    row = retry_transient(database, lambda: find_run(database, run_id))
    config = config_from_stored(row.config)
    # These settings are chosen again at each start. They are not written to the stored configuration.
    changes: dict[str, Any] = {}
    if row.host not in (None, socket.gethostname()):
        changes = {"act_device": "auto", "gpu_share": gpu_share}
    elif config.train.gpu_share == "auto":
        changes = {"gpu_share": gpu_share}
    config = config.model_copy(update={"train": config.train.model_copy(update=changes)})
    device = choose_device(config.train.device)
    n_threads = 1
    if device.type == "cpu":
        n_threads = choose_threads(config.train.threads, is_alone=row.sweep_id is None)
    configure_threads(n_threads)
    retry_transient(database, lambda: start_run(database, run_id, device=str(device), token=token))
    return config, device


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
    store = CheckpointStore(run_folder(database, run_id), keep=config.checkpoint.keep, run_id=run_id)
    with (
        closing(Heartbeat(database, run_id, token=token)),
        closing(DatabaseControl(database, run_id, token=token)) as control,
        _open_recorder(database, run_id, token) as recorder,
    ):
        checkpoint = retry_transient(database, lambda: _load_checkpoint(database, run_id, store)) if resume else None
        signals.on_stuck = partial(_end_at_once, database, run_id, token, signals, recorder)
        control_with_signals = signals.as_control(control, get_blocked_reason=lambda: recorder.blocked)
        trainer = _make_trainer(config, recorder, control_with_signals, store, device, on_progress, signals.env_calls)
        retry_transient(database, lambda: record_provenance(database, run_id, config.env, device=device, token=token))
        lines = describe_memory(trainer.memory_sizes, gpu_sizes=trainer.gpu_sizes, host_bytes=memory_bytes())
        for line in lines:
            announce(line)
        if checkpoint is not None:
            # Set the state first, because it may fail. Then mark the rows after the checkpoint as replaced.
            trainer.set_state(checkpoint.state)
            recorder.supersede(checkpoint.env_step, checkpoint=checkpoint.name, skipped_checkpoints=checkpoint.skipped)
            store.rename_newer(checkpoint.env_step)
        return trainer.run()


@contextmanager
def _open_recorder(database: Database, run_id: str, token: str) -> Generator[DatabaseRecorder]:
    """Open the recorder. On a second Ctrl-C, drop unwritten records instead of waiting for the disk or database.

    Raises:
        RunInterruptedError: On a second Ctrl-C, with the number of dropped records.
    """
    recorder = DatabaseRecorder(database, run_id, token=token)
    try:
        yield recorder
        recorder.close()
    except KeyboardInterrupt as exc:
        blocked_reason = recorder.blocked
        n_lost = recorder.abandon()
        reason = f" {n_lost} records could not be written: {blocked_reason}" if n_lost and blocked_reason else ""
        raise RunInterruptedError(
            f"Run {run_id} was ended at once, without a checkpoint.{reason} Resume it from the last checkpoint with: "
            f"emtc resume {run_id}"
        ) from exc
    except BaseException:
        recorder.close()
        raise


def _load_checkpoint(database: Database, run_id: str, store: CheckpointStore) -> LoadedCheckpoint | None:
    """Load the newest checkpoint that matches the recorded rows; None if there is neither a checkpoint nor a row.

    Raises:
        CheckpointError: If the run has rows but no checkpoint. A start from step 0 would delete these rows.
    """
    checkpoint = store.load_latest(lambda env_step: find_resume_error(database, run_id, env_step))
    steps = find_run(database, run_id).env_steps
    if checkpoint is None and steps > 0:
        raise CheckpointError(
            f"There is no checkpoint in {store.folder}, and run {run_id} has recorded {steps:,} steps. They are kept. "
            f"Start again from step 0, as a new run, with: emtc resume {run_id} --start-again"
        )
    for reason in checkpoint.skipped if checkpoint else ():
        _log.warning("run %s: a newer checkpoint is skipped: %s", run_id, reason)
    return checkpoint


def _make_trainer(
    config: RunConfig,
    recorder: DatabaseRecorder,
    control: Control,
    store: CheckpointStore,
    device: torch.device,
    on_progress: Callable[[int], None],
    env_calls: EnvCalls,
) -> Trainer:
    def make_eval_env(env_config: EnvConfig) -> VectorEnv:
        n_envs = min(config.eval.episodes, config.train.n_envs)
        return env_calls.watch(env_calls.run("its start", make_env, env_config, n_envs=n_envs))

    def make_train_env() -> VectorEnv:
        env = env_calls.run("its start", make_env, config.env, n_envs=config.train.n_envs)
        if is_external(config.env):
            check_fits(config, env.info)
            env = ExternalEnv(env, describe_env(config.env))
        return env_calls.watch(env)

    robust_env_config = make_robust_env_config(config.env)
    return Trainer(
        config,
        env=make_train_env(),
        eval_env=make_eval_env(config.env),
        robust_env=make_eval_env(robust_env_config) if robust_env_config else None,
        recorder=recorder,
        control=control,
        checkpoints=store,
        device=device,
        on_progress=on_progress,
    )


def _end_at_once(database: Database, run_id: str, token: str, signals: StopSignals, recorder: DatabaseRecorder) -> None:
    """Write all records and the end of a run, and end this process, whose main thread hangs in an environment."""
    try:
        recorder.flush()
        _record_end(database, run_id, "stopped", token, signals)
    finally:
        os._exit(1)


def _write_traceback(folder: Path) -> None:
    """Append the traceback to the run's log."""
    make_private_folder(folder)
    with open_private_append(folder / LOG_NAME) as file:
        file.write(f"{hide_passwords(traceback.format_exc())}\n".encode())
