"""Save and restore every stateful part of a run.

A checkpoint holds tensors and plain values only and is loaded with `weights_only`, so reading one executes nothing.
How it lies on disk, and how damage is found, is in `checkpoint_file`.
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
    UNSIGNED,
    Sink,
    check_archive,
    check_owner,
    list_best,
    list_checkpoints,
    list_idle_best,
    name_best,
    name_checkpoint,
    read_manifest,
    read_part,
    set_newer_aside,
    write_checkpoint,
)
from emtc_core.control import StopRequested
from emtc_core.errors import CheckpointError
from emtc_core.recorder import EvaluationRecord

_log = logging.getLogger(__name__)
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
ROOM_PATIENCE_S, ROOM_POLL_S = 300.0, 1.0


class Loaded(NamedTuple):
    """A checkpoint that was read whole, and what stood in the way of newer ones."""

    env_step: int
    state: dict[str, Any]
    name: str
    passed_over: tuple[str, ...]
    """Why each newer checkpoint was not used, newest first."""


class BestSoFar:
    """The best evaluation so far, by win rate, then by mean return; of equals the later."""

    def __init__(self) -> None:
        self._score = (-math.inf, -math.inf)

    def beats(self, record: EvaluationRecord) -> bool:
        """Whether an evaluation is the best now; then it is the one to beat."""
        score = (record.win_rate, record.return_mean)
        is_best = score >= self._score
        self._score = max(score, self._score)
        return is_best

    def get_state(self) -> list[float]:
        """What a checkpoint keeps of it."""
        return [*self._score]

    def set_state(self, state: list[float]) -> None:
        """Go on from `get_state`."""
        self._score = (state[0], state[1])


class CheckpointStore:
    """The checkpoints of one run in one folder, newest last, and the policy of its best evaluation beside them.

    At most one is written at a time; what stands under a checkpoint's name is whole.
    """

    def __init__(self, folder: Path, *, keep: int, run_id: str = "") -> None:
        self.folder = folder
        self._keep = keep
        self._run_id = run_id
        self._is_full = False
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._under_way: Future[str | None] | None = None

    def begin(self, env_step: int, state: dict[str, Any]) -> None:
        """Write one checkpoint while training goes on, after the one before; a full disk takes none.

        Args:
            env_step: Where the run stands.
            state: Shares nothing with the run, which changes meanwhile.

        Raises:
            OSError: If something else than room was missing for the one before.
        """
        self._finish()
        self._under_way = self._pool.submit(self.save_if_room, env_step, state)

    def wait(self) -> None:
        """Wait for the checkpoint under way, whatever becomes of it."""
        if self._under_way is not None:
            self._under_way.exception()  # waits, and raises nothing

    def _finish(self) -> None:
        self.wait()
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def leave(self, env_step: int, state: dict[str, Any]) -> None:
        """Write the last checkpoint of a run, waiting for room.

        Raises:
            OSError: If something else than room is missing.
            CheckpointError: If there is no room in the end.
        """
        self._finish()
        until = time.monotonic() + ROOM_PATIENCE_S
        while reason := self.save_if_room(env_step, state):
            if time.monotonic() >= until:
                raise CheckpointError(
                    f"The checkpoint at step {env_step:,} found no room for {ROOM_PATIENCE_S:.0f} s: {reason}. "
                    "All rows are recorded. Make room and resume: the run goes on from the checkpoint before.",
                    reason="no_room",
                    subject=env_step,
                )
            time.sleep(ROOM_POLL_S)

    def save(self, env_step: int, state: dict[str, Any]) -> Path:
        """Write one checkpoint durably, then drop the ones beyond `keep`.

        Raises:
            OSError: If it cannot be written; those before it stay.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / name_checkpoint(env_step)
        parts = [(name, _writer(value)) for name, value in state.items()]
        write_checkpoint(path, run_id=self._run_id, env_step=env_step, parts=parts)
        for old in self.list()[: -self._keep]:
            old.unlink(missing_ok=True)
        self._drop_idle_best()
        return path

    def save_best(self, env_step: int, learner: dict[str, Any]) -> Path | None:
        """Keep the learner alone, whose evaluation is the best so far; a full disk takes none.

        Raises:
            OSError: If something else than room is missing, here or for the checkpoint under way.
        """
        self._finish()
        path = self.folder / name_best(env_step)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_checkpoint(path, run_id=self._run_id, env_step=env_step, parts=[("learner", _writer(learner))])
        except (OSError, RuntimeError) as exc:
            if (reason := _why_no_room(exc)) is None:
                raise
            _log.warning("run %s: the best policy, at step %d, is not kept: %s", self._run_id, env_step, reason)
            return None
        self._drop_idle_best()
        return path

    def _drop_idle_best(self) -> None:
        kept, best = self.list(), list_best(self.folder)
        for name in list_idle_best([each.name for each in best], [each.name for each in kept]):
            (self.folder / name).unlink(missing_ok=True)

    def save_if_room(self, env_step: int, state: dict[str, Any]) -> str | None:
        """Write one checkpoint, or say why there is no room for it now; those before it stay.

        Raises:
            OSError: If something else than room is missing.
        """
        try:
            self.save(env_step, state)
        except (OSError, RuntimeError) as exc:
            if (reason := _why_no_room(exc)) is None:
                raise
            if not self._is_full:
                _log.warning("run %s: no checkpoint at step %d: %s", self._run_id, env_step, reason)
            self._is_full = True
            return reason
        self._is_full = False
        return None

    def list(self) -> list[Path]:
        """List the checkpoints, oldest first."""
        return list_checkpoints(self.folder)

    def set_newer_aside(self, env_step: int) -> None:
        """Rename what lies beyond a step that the run went back to, so that nothing takes it for the run's state."""
        set_newer_aside(self.folder, env_step)

    def load_latest(self, why_not: Callable[[int], str | None] = lambda env_step: None) -> Loaded | None:
        """Load the newest usable checkpoint, or None if there is none at all.

        Args:
            why_not: Says why a checkpoint at an env step does not fit what was recorded, or None if it does.

        Raises:
            CheckpointError: If checkpoints exist but none can be used; it gives the reason of each.
        """
        faults: list[CheckpointError] = []
        for path in reversed(self.list()):
            try:
                env_step, state = load(path, run_id=self._run_id)
                if reason := why_not(env_step):
                    raise CheckpointError(f"{path.name} does not fit: {reason}", reason="other_run", subject=path.name)
            except CheckpointError as exc:
                faults.append(exc)
            else:
                return Loaded(env_step, state, path.name, tuple(map(str, faults)))
        if faults:
            message = f"No checkpoint in {self.folder} can be used. {' '.join(map(str, faults))}"
            raise CheckpointError(message, reason=faults[0].reason, subject=self.folder)
        return None


def load(path: Path, *, run_id: str = "") -> tuple[int, dict[str, Any]]:
    """Load one checkpoint of a run, checking every byte and executing nothing.

    Raises:
        CheckpointError: If the file is truncated, damaged, foreign or of another run.
    """
    manifest = read_manifest(path)
    check_owner(path, manifest, run_id)
    if manifest.schema == UNSIGNED:
        return _load_unsigned(path)
    return manifest.env_step, {part.name: _read(path, read_part(path, part)) for part in manifest.parts}


def load_part(path: Path, name: str, *, run_id: str = "") -> tuple[int, Any]:
    """Load one part of a checkpoint and leave the others, which may be gigabytes, alone.

    Returns:
        The checkpoint's env step, and the part.

    Raises:
        CheckpointError: If the file is truncated, damaged, foreign or of another run, or has no such part.
    """
    manifest = read_manifest(path)
    check_owner(path, manifest, run_id)
    if manifest.schema == UNSIGNED:
        env_step, state = _load_unsigned(path)
        if name in state:
            return env_step, state[name]
    for part in manifest.parts:
        if part.name == name:
            return manifest.env_step, _read(path, read_part(path, part))
    raise CheckpointError(f"{path.name} has no part {name!r}.")


def _why_no_room(error: BaseException | None) -> str | None:
    """Read from an error, or from what caused it, that the disk is full; None if it is about something else."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return error.strerror or str(error)
        error = error.__cause__ or error.__context__
    return None


def _writer(value: Any) -> Callable[[Sink], None]:
    return partial(_write_tensors, value)


def _write_tensors(value: Any, sink: Sink) -> None:
    """Let torch write without checksums of its own: the file has a digest of every byte."""
    before = get_crc32_options()
    set_crc32_options(False)
    try:
        torch.save(value, sink)  # type: ignore[arg-type]  # it needs nothing of a file but `write`
    finally:
        set_crc32_options(before)


def _load_unsigned(path: Path) -> tuple[int, dict[str, Any]]:
    """Load what an earlier version wrote: one archive, which names no run."""
    check_archive(path)
    content = _read(path, path.read_bytes())
    try:
        return int(content["env_step"]), content["state"]
    except (KeyError, TypeError, ValueError) as exc:
        raise CheckpointError(f"{path.name} is not a checkpoint: {exc}.") from exc


def _read(path: Path, data: bytes) -> Any:
    try:
        return torch.load(BytesIO(data), map_location="cpu", weights_only=True)
    except StopRequested:  # a signal that came meanwhile says nothing of the file
        raise
    except Exception as exc:  # what torch's reader raises over a foreign file is not documented
        raise CheckpointError(f"{path.name} is not a readable checkpoint: {exc}.") from exc
