"""Where a trainer's checkpoints go: a folder that it works in, and at a URL what is carried there from it.

A trainer writes as ever; a thread of its own copies the newest checkpoint, so that training does not wait for a
network. What fails is tried again with the next checkpoint and at the end. Each trainer leaves a mark here and there:
where the marks agree, nobody else has had the run meanwhile, and what was not copied yet still counts.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from app.jobs.launch import LOG_NAME
from emtc_core.checkpoint_file import list_best, list_checkpoints, list_idle_best, name_best, name_checkpoint, verify
from emtc_core.errors import CheckpointError, RunInterruptedError, StorageError
from emtc_core.training.checkpoint import CheckpointStore
from storage.engine import Database
from storage.files.places import run_folder, run_place
from storage.files.remote import RemoteFile, RunFiles
from storage.files.trainer_files import LEASE, check_lease, is_ours, make_lease, read_lease, write_lease
from storage.private_files import make_private_folder, read_tail
from storage.retry import Outage, retry_transient
from storage.runs.removal import why_not_resume_at

_log = logging.getLogger(__name__)
LAST_WORDS_S = 600.0
"""How long the end of a run waits for its last checkpoint to arrive."""
_LOG_BYTES = 4_000_000
_END_BYTES = 65_536


class CheckpointUploader:
    """Keeps a URL equal to a trainer's folder."""

    def __init__(self, files: RunFiles, folder: Path, *, keep: int, mark: bytes) -> None:
        """Carry between `folder` and `files`, where as many checkpoints are kept, under a trainer's mark."""
        self._files, self._folder, self._keep, self._mark = files, folder, keep, mark
        self._outage = Outage(_log, f"run {files.run_id}: its checkpoints do not reach {files.url}")
        self._earlier_log, self._log_from = b"", 0
        self._wanted: deque[Path] = deque(maxlen=1)
        self._failed: Path | None = None
        self._is_taken_over = False
        self._wake, self._closing = threading.Event(), False
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"uploader-{files.run_id}")

    def begin(self, why_not: Callable[[int], str | None]) -> None:
        """Fetch what the run goes on from, and leave this trainer's mark.

        Args:
            why_not: Says why a checkpoint at an env step does not fit what was recorded, or None if it does.

        Raises:
            StorageError: If the place does not answer, or cannot be written.
        """
        make_private_folder(self._folder)
        if not is_ours(self._files, self._folder):
            self._set_strangers_aside()
            self._read_earlier_log()
        self._fetch(why_not)
        self._files.write(LEASE, self._mark)
        write_lease(self._folder, self._mark)
        self._thread.start()

    def bring(self, checkpoint: Path) -> None:
        """Have a checkpoint carried soon; one that still waits is passed over for it."""
        self._wanted.append(checkpoint)
        self._wake.set()

    def bring_best(self) -> None:
        """Have the policy of the best evaluation carried soon."""
        self._wake.set()

    def set_newer_aside(self, env_step: int) -> None:
        """Rename what lies beyond a step that the run went back to, there as it was here.

        Raises:
            StorageError: If the place does not answer.
        """
        newer = [each for each in self._files.list_checkpoints() if each.name > name_checkpoint(env_step)]
        newer += [each for each in self._files.list_best() if each.name > name_best(env_step)]
        for found in newer:
            self._files.rename(found.name, f"{Path(found.name).stem}.aside")

    def close(self) -> None:
        """Wait until the last checkpoint has arrived, for LAST_WORDS_S at most."""
        self._closing = True
        self._wake.set()
        self._thread.join(LAST_WORDS_S)
        if self._thread.is_alive() or self._failed is not None:
            _log.warning("run %s: its last checkpoint has not reached %s yet; it stays in %s", *self._places())

    def _places(self) -> tuple[str, str, Path]:
        return self._files.run_id, self._files.url, self._folder

    def _set_strangers_aside(self) -> None:
        """Rename what was left here before another trainer went on with the run and is not what lies there."""
        there = {found.name: found for found in (*self._files.list_checkpoints(), *self._files.list_best())}
        for path in [*list_checkpoints(self._folder), *list_best(self._folder)]:
            if path.name not in there or not self._is_same(path, there[path.name]):
                path.replace(path.with_suffix(".aside"))

    def _read_earlier_log(self) -> None:
        """What an earlier trainer wrote elsewhere stands before what this one writes."""
        self._earlier_log = self._files.read_tail(LOG_NAME, _LOG_BYTES)
        with suppress(OSError):
            self._log_from = (self._folder / LOG_NAME).stat().st_size if self._earlier_log else 0

    def _fetch(self, why_not: Callable[[int], str | None]) -> None:
        """Fetch the newest checkpoints until one is whole and fits; a damaged one is fetched too, and named later."""
        good = (path.name for path in reversed(list_checkpoints(self._folder)) if _is_good(path, why_not))
        newest_here = next(good, "")
        for found in reversed(self._files.list_checkpoints()):
            path = self._folder / found.name
            if found.name < newest_here:
                return
            if not self._is_same(path, found):
                self._files.fetch(found.name, path)
            if _is_good(path, why_not):
                return

    def _is_same(self, path: Path, found: RemoteFile) -> bool:
        """Compare sizes and ends: a checkpoint ends with the digests of all that it holds."""
        if not path.is_file() or path.stat().st_size != found.size:
            return False
        return read_tail(path, _END_BYTES) == self._files.read_tail(found.name, _END_BYTES)

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait()
            self._wake.clear()
            self._carry(self._take() or self._failed)
        self._carry(self._take() or self._failed)

    def _take(self) -> Path | None:
        try:
            return self._wanted.pop()
        except IndexError:
            return None

    def _carry(self, checkpoint: Path | None) -> None:
        """Copy one checkpoint, the best policy and the log; a failure is told once and never ends a training."""
        if self._is_taken_over:
            return
        try:
            if checkpoint is not None and checkpoint.is_file() and not self._files.put(checkpoint, may_enter=self._may):
                return
            self._carry_best()
            if not self._is_taken_over:
                self._drop_old()
                self._carry_log()
        except (StorageError, OSError) as error:
            if checkpoint is not None and checkpoint.is_file():
                self._failed = checkpoint
            self._outage.failed(f"{error} It is tried again with the next checkpoint.")
        else:
            self._failed = None
            self._outage.over()

    def _may(self) -> bool:
        """Ask there whether the run is still this trainer's; one that was long silent may have lost it."""
        self._is_taken_over = read_lease(self._files) != self._mark
        if self._is_taken_over:
            _log.warning("run %s: another trainer has it now; nothing more goes to %s", *self._places()[:2])
        return not self._is_taken_over

    def _carry_best(self) -> None:
        there = {found.name for found in self._files.list_best()}
        for path in list_best(self._folder)[-1:]:
            if path.name not in there:
                with suppress(FileNotFoundError):  # a better one has just taken its place
                    self._files.put(path, may_enter=self._may)

    def _drop_old(self) -> None:
        kept = [found.name for found in self._files.list_checkpoints()]
        idle = list_idle_best([found.name for found in self._files.list_best()], kept[-self._keep :])
        for name in [*kept[: -self._keep], *idle]:
            self._files.remove(name)

    def _carry_log(self) -> None:
        path = self._folder / LOG_NAME
        if path.is_file():
            size = max(0, path.stat().st_size - self._log_from)
            said = self._earlier_log + read_tail(path, min(size, _LOG_BYTES)) if size else self._earlier_log
            self._files.write(LOG_NAME, said[-_LOG_BYTES:])


def _is_good(path: Path, why_not: Callable[[int], str | None]) -> bool:
    try:
        return why_not(verify(path).env_step) is None
    except CheckpointError:
        return False


class UploadingStore(CheckpointStore):
    """Checkpoints in a folder of this machine, each of which is then carried to a URL."""

    def __init__(self, folder: Path, uploader: CheckpointUploader, *, keep: int, run_id: str) -> None:
        super().__init__(folder, keep=keep, run_id=run_id)
        self._uploader = uploader

    def save(self, env_step: int, state: dict[str, Any]) -> Path:
        """Write one checkpoint durably, and have it carried meanwhile.

        Raises:
            OSError: If it cannot be written here; those before it stay.
        """
        path = super().save(env_step, state)
        self._uploader.bring(path)
        return path

    def save_best(self, env_step: int, learner: dict[str, Any]) -> Path | None:
        """Keep the policy of the best evaluation here, and have it carried meanwhile.

        Raises:
            OSError: If it cannot be written here, though there is room.
        """
        path = super().save_best(env_step, learner)
        self._uploader.bring_best()
        return path

    def set_newer_aside(self, env_step: int) -> None:
        """Do it there too.

        Raises:
            StorageError: If the place does not answer.
        """
        super().set_newer_aside(env_step)
        self._uploader.set_newer_aside(env_step)


@contextmanager
def storing(database: Database, run_id: str, keep: int) -> Generator[CheckpointStore]:
    """Store checkpoints where the run says; at a URL, leave only when the last one has arrived.

    Raises:
        StorageError: If the place does not answer, or holds the files of another database; nothing was trained then.
    """
    folder = retry_transient(database, lambda: run_folder(database, run_id))
    place = retry_transient(database, lambda: run_place(database, run_id))
    check_lease(database, place, run_id)
    files, mark = place.files_of(run_id), make_lease(database)
    if files is None:
        make_private_folder(folder)
        if place.recorded is not None:
            write_lease(folder, mark)
        yield CheckpointStore(folder, keep=keep, run_id=run_id)
        return
    uploader = CheckpointUploader(files, folder, keep=keep, mark=mark)
    uploader.begin(lambda env_step: retry_transient(database, lambda: why_not_resume_at(database, run_id, env_step)))
    try:
        yield UploadingStore(folder, uploader, keep=keep, run_id=run_id)
    except (KeyboardInterrupt, RunInterruptedError):  # nobody waits
        raise
    except BaseException:
        uploader.close()
        raise
    uploader.close()
