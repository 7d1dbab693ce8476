"""Save and restore the state of a run.

A checkpoint contains tensors and plain values only. It is loaded with `weights_only`, so no code of the file runs.
The file format and its checksums are in `checkpoint_file`.
"""

import errno
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.serialization import get_crc32_options, set_crc32_options

from emtc_core.checkpoint_file import (
    Sink,
    check_owner,
    list_best,
    list_checkpoints,
    list_unused_best,
    name_best,
    name_checkpoint,
    read_manifest,
    read_part,
    rename_newer,
    write_checkpoint,
)
from emtc_core.control import StopRequested
from emtc_core.errors import CheckpointError
from emtc_core.recorder import EvaluationRecord

_log = logging.getLogger(__name__)
_UNWRITABLE_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS})
"""Errors that the user can correct while the run trains: a full disk, or a folder that is not writable."""
FULL_DISK_TIMEOUT_S, RETRY_INTERVAL_S = 300.0, 1.0
"""How long the last checkpoint of a run waits for disk space, and the time between two attempts [s]."""
MIN_INTERVAL_S = 60.0
"""Minimum time between two checkpoints that are due by `checkpoint.interval` [s]. At 5,000 env steps/s, a checkpoint of
1.2 GB, with 700,000 states and 5,000 episodes, would be due every 4 s, and the training would wait for the disk."""


class LoadedCheckpoint(NamedTuple):
    """The newest usable checkpoint, and the faults of newer ones."""

    env_step: int
    state: dict[str, Any]
    name: str
    skipped: tuple[str, ...]
    """Fault of each newer checkpoint, newest first."""


class BestSoFar:
    """Score of the best evaluation so far: win rate, then mean return. With equal scores the later one is best."""

    def __init__(self) -> None:
        self._score = (-math.inf, -math.inf)

    def update(self, record: EvaluationRecord) -> bool:
        """Store the score of an evaluation if it is the best so far; return whether it is."""
        score = (record.win_rate, record.return_mean)
        is_best = score >= self._score
        self._score = max(score, self._score)
        return is_best

    def get_state(self) -> list[float]:
        """Return the best score, for a checkpoint."""
        return [*self._score]

    def set_state(self, state: list[float]) -> None:
        """Restore the result of `get_state`."""
        self._score = (state[0], state[1])


class CheckpointStore:
    """The folder with the checkpoints of one run and the policy of its best evaluation.

    One thread writes one checkpoint at a time. A file gets its final name only when it is complete.
    """

    def __init__(self, folder: Path, *, keep: int, run_id: str = "", min_interval_s: float = MIN_INTERVAL_S) -> None:
        """Prepare the folder's name. The folder is created when a file is written.

        Args:
            folder: The folder.
            keep: Number of checkpoints that are kept.
            run_id: The run. It is written to each file, and files of other runs are refused.
            min_interval_s: Minimum time between the starts of two background saves [s].
        """
        self.folder = folder
        self._min_interval_s, self._last_save_s = min_interval_s, -math.inf
        self._keep = keep
        self._run_id = run_id
        self._is_full = False
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._running_save: Future[str | None] | None = None

    def is_background_save_due(self) -> bool:
        """Whether the minimum time since the last background save has passed. The first one is always due."""
        return time.monotonic() - self._last_save_s >= self._min_interval_s

    def save_in_background(self, env_step: int, state: dict[str, Any]) -> None:
        """Start to write one checkpoint in the background, after the previous one.

        A full disk or a write-protected folder is not an error.

        Args:
            env_step: Env steps of the run so far.
            state: State of the run. It must not share memory with the run, which continues to train.

        Raises:
            OSError: If the previous checkpoint failed for another reason.
        """
        self._finish_running_save()
        self._last_save_s = time.monotonic()
        self._running_save = self._pool.submit(self.try_save, env_step, state)

    def wait(self) -> None:
        """Wait until the background save has ended. A failure of it is not raised here."""
        if self._running_save is not None:
            self._running_save.exception()  # waits and returns the error

    def _finish_running_save(self) -> None:
        self.wait()
        save, self._running_save = self._running_save, None
        if save is not None:
            save.result()

    def save_final(self, env_step: int, state: dict[str, Any]) -> None:
        """Write the last checkpoint of a run. If the folder cannot be written, retry for up to `FULL_DISK_TIMEOUT_S`.

        Args:
            env_step: Env steps of the run so far.
            state: State of the run.

        Raises:
            OSError: If a save fails for another reason than a full disk or a write-protected folder.
            CheckpointError: If the folder still cannot be written after the wait.
        """
        self._finish_running_save()
        deadline = time.monotonic() + FULL_DISK_TIMEOUT_S
        while reason := self.try_save(env_step, state):
            if time.monotonic() >= deadline:
                raise CheckpointError(
                    f"The checkpoint at step {env_step:,} could not be written for {FULL_DISK_TIMEOUT_S:.0f} s: "
                    f"{reason}. All rows are recorded. Free disk space or make the folder writable, and resume: the "
                    "run continues from the checkpoint before."
                )
            time.sleep(RETRY_INTERVAL_S)

    def save(self, env_step: int, state: dict[str, Any]) -> Path:
        """Write one checkpoint, sync it to disk, and delete all but the newest `keep`.

        Raises:
            OSError: If it cannot be written. Earlier checkpoints are not deleted then.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.folder / name_checkpoint(env_step)
        parts = [(name, partial(_write_tensors, value)) for name, value in state.items()]
        write_checkpoint(path, run_id=self._run_id, env_step=env_step, parts=parts)
        for old in self.list()[: -self._keep]:
            old.unlink(missing_ok=True)
        self._delete_unused_best()
        return path

    def save_best(self, env_step: int, learner: dict[str, Any]) -> Path | None:
        """Write the learner of the best evaluation so far.

        Returns:
            Path of the file, or None if the folder cannot be written.

        Raises:
            OSError: If this file or the background save fails for another reason.
        """
        self._finish_running_save()
        path = self.folder / name_best(env_step)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            parts = [("learner", partial(_write_tensors, learner))]
            write_checkpoint(path, run_id=self._run_id, env_step=env_step, parts=parts)
        except (OSError, RuntimeError) as exc:
            if (reason := _find_unwritable(exc)) is None:
                raise
            _log.warning("run %s: the best policy, at step %d, was not saved: %s", self._run_id, env_step, reason)
            return None
        self._delete_unused_best()
        return path

    def _delete_unused_best(self) -> None:
        names = [path.name for path in list_best(self.folder)]
        for name in list_unused_best(names, [path.name for path in self.list()]):
            (self.folder / name).unlink(missing_ok=True)

    def try_save(self, env_step: int, state: dict[str, Any]) -> str | None:
        """Write one checkpoint. Earlier checkpoints are not deleted if this fails.

        Returns:
            None if it was written, or the system's error text if the disk is full or the folder write-protected.

        Raises:
            OSError: If it fails for another reason.
        """
        try:
            self.save(env_step, state)
        except (OSError, RuntimeError) as exc:
            if (reason := _find_unwritable(exc)) is None:
                raise
            if not self._is_full:
                _log.warning("run %s: the checkpoint at step %d was not saved: %s", self._run_id, env_step, reason)
            self._is_full = True
            return reason
        self._is_full = False
        return None

    def list(self) -> list[Path]:
        """List the checkpoints, oldest first."""
        return list_checkpoints(self.folder)

    def rename_newer(self, env_step: int) -> None:
        """Rename the files of later steps to `.aside`, after the run went back to `env_step`."""
        rename_newer(self.folder, env_step)

    def load_latest(
        self, find_mismatch: Callable[[int], str | None] = lambda env_step: None
    ) -> LoadedCheckpoint | None:
        """Load the newest usable checkpoint.

        Args:
            find_mismatch: Returns why a checkpoint at this env step does not match the recorded rows; None if it does.

        Returns:
            The checkpoint, or None if the folder has none.

        Raises:
            CheckpointError: If checkpoints exist but none can be used. The message contains the fault of each.
        """
        faults: list[CheckpointError] = []
        for path in reversed(self.list()):
            try:
                env_step, state = load(path, run_id=self._run_id)
                if reason := find_mismatch(env_step):
                    raise CheckpointError(f"{path.name} does not fit: {reason}")
            except CheckpointError as exc:
                faults.append(exc)
            else:
                return LoadedCheckpoint(env_step, state, path.name, tuple(map(str, faults)))
        if faults:
            message = f"No checkpoint in {self.folder} can be used. {' '.join(map(str, faults))}"
            raise CheckpointError(message)
        return None


def load(path: Path, *, run_id: str = "") -> tuple[int, dict[str, Any]]:
    """Load one checkpoint of a run and check the checksum of every byte. No code of the file runs.

    Returns:
        The checkpoint's env step, and its parts by name.

    Raises:
        CheckpointError: If the file is truncated, damaged, not a checkpoint, or of another run.
    """
    manifest = read_manifest(path)
    check_owner(path, manifest, run_id)
    return manifest.env_step, {part.name: _load_tensors(path, read_part(path, part)) for part in manifest.parts}


def load_part(path: Path, name: str, *, run_id: str = "") -> tuple[int, Any]:
    """Load one part of a checkpoint without reading the others, which may have gigabytes.

    Args:
        path: The checkpoint.
        name: Name of the part, for example "learner".
        run_id: The run that the checkpoint must belong to.

    Returns:
        The checkpoint's env step, and the part.

    Raises:
        CheckpointError: If the file is truncated, damaged, not a checkpoint, of another run, or has no such part.
    """
    manifest = read_manifest(path)
    check_owner(path, manifest, run_id)
    for part in manifest.parts:
        if part.name == name:
            return manifest.env_step, _load_tensors(path, read_part(path, part))
    raise CheckpointError(f"{path.name} has no part {name!r}.")


def _find_unwritable(error: BaseException | None) -> str | None:
    """Return the system's text if an error, or a cause of it, is one of `_UNWRITABLE_ERRORS`; else None."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _UNWRITABLE_ERRORS:
            return error.strerror or str(error)
        error = error.__cause__ or error.__context__
    return None


def _write_tensors(value: Any, sink: Sink) -> None:
    """Write a value with torch.save, without its CRC32 checksums: the file has a SHA-256 of every byte."""
    before = get_crc32_options()
    set_crc32_options(False)
    try:
        torch.save(value, sink)  # type: ignore[arg-type]  # torch.save calls only `write`
    finally:
        set_crc32_options(before)


def _load_tensors(path: Path, data: bytes) -> Any:
    try:
        return torch.load(BytesIO(data), map_location="cpu", weights_only=True)
    except StopRequested:  # raised by a signal handler, not by the file
        raise
    except Exception as exc:  # torch.load does not document its errors for other files
        raise CheckpointError(f"{path.name} is not a readable checkpoint: {exc}.") from exc
