"""Store checkpoints in a local folder and, for a run whose files are at a URL, upload them from there.

The trainer writes to the local folder. A thread uploads the newest checkpoint, so that training does not wait for the
network. A failed upload is repeated with the next checkpoint and at the end. Each trainer writes a lease to the folder
and to the URL. If the two leases are equal, no other trainer had the run, and local checkpoints that are not uploaded
yet are still valid.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from app.jobs.launch import LOG_NAME
from emtc_core.checkpoint_file import list_best, list_checkpoints, list_unused_best, name_best, name_checkpoint, verify
from emtc_core.errors import CheckpointError, RunInterruptedError, StorageError
from emtc_core.training.checkpoint import CheckpointStore
from storage.engine import Database
from storage.files.places import get_run_place, run_folder
from storage.files.remote import RemoteFile, RunFiles
from storage.files.trainer_files import LEASE, check_lease, is_own_lease, make_lease, read_lease, write_lease
from storage.private_files import make_private_folder, read_tail
from storage.retry import Outage, retry_transient
from storage.runs.removal import find_resume_error

_log = logging.getLogger(__name__)
CLOSE_TIMEOUT_S = 600.0
"""Longest time that the end of a run waits for the upload of its last checkpoint [s]."""
_MAX_LOG_BYTES = 4_000_000
_TAIL_BYTES = 65_536


class CheckpointUploader:
    """Uploads the checkpoints, the best policy and the log of one trainer to a URL."""

    def __init__(self, files: RunFiles, folder: Path, *, keep: int, lease: bytes) -> None:
        """Upload from a folder.

        Args:
            files: The run's files at the URL.
            folder: The trainer's local folder.
            keep: Number of checkpoints to keep at the URL.
            lease: Lease of this trainer.
        """
        self._files, self._folder, self._keep, self._lease = files, folder, keep, lease
        self._outage = Outage(_log, f"run {files.run_id}: its checkpoints do not reach {files.url}")
        self._previous_log, self._log_offset = b"", 0
        self._queue: deque[Path] = deque(maxlen=1)
        self._failed: Path | None = None
        self._is_taken_over = False
        self._wake, self._is_closing = threading.Event(), False
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"uploader-{files.run_id}")

    def start(self, find_mismatch: Callable[[int], str | None]) -> None:
        """Download the checkpoint from which the run resumes, write the lease and start the thread.

        Args:
            find_mismatch: Returns why a checkpoint at an env step does not match the recorded rows; None if it does.

        Raises:
            StorageError: If the URL does not answer or is not writable.
        """
        make_private_folder(self._folder)
        if not is_own_lease(self._files, self._folder):
            self._rename_unknown_files()
            self._read_previous_log()
        self._download(find_mismatch)
        self._files.write(LEASE, self._lease)
        write_lease(self._folder, self._lease)
        self._thread.start()

    def queue_checkpoint(self, checkpoint: Path) -> None:
        """Queue a checkpoint for upload. It replaces a checkpoint that is still in the queue."""
        self._queue.append(checkpoint)
        self._wake.set()

    def queue_best(self) -> None:
        """Queue the policy of the best evaluation for upload."""
        self._wake.set()

    def rename_newer(self, env_step: int) -> None:
        """Rename the files at the URL that are newer than the env step from which the run resumed.

        Raises:
            StorageError: If the URL does not answer.
        """
        newer = [file for file in self._files.list_checkpoints() if file.name > name_checkpoint(env_step)]
        newer += [file for file in self._files.list_best() if file.name > name_best(env_step)]
        for file in newer:
            self._files.rename(file.name, f"{Path(file.name).stem}.aside")

    def close(self) -> None:
        """Wait for the last upload, for at most CLOSE_TIMEOUT_S."""
        self._is_closing = True
        self._wake.set()
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive() or self._failed is not None:
            text = "run %s: its last checkpoint is not uploaded to %s yet; it stays in %s"
            _log.warning(text, self._files.run_id, self._files.url, self._folder)

    def _rename_unknown_files(self) -> None:
        """Rename local files that differ from the URL, because another trainer has continued the run since then."""
        remote = {file.name: file for file in (*self._files.list_checkpoints(), *self._files.list_best())}
        for path in [*list_checkpoints(self._folder), *list_best(self._folder)]:
            if path.name not in remote or not self._is_same(path, remote[path.name]):
                path.replace(path.with_suffix(".aside"))

    def _read_previous_log(self) -> None:
        """Read the log of the previous trainer from the URL; uploads of this trainer's log are appended to it."""
        self._previous_log = self._files.read_tail(LOG_NAME, _MAX_LOG_BYTES)
        with suppress(OSError):
            self._log_offset = (self._folder / LOG_NAME).stat().st_size if self._previous_log else 0

    def _download(self, find_mismatch: Callable[[int], str | None]) -> None:
        """Download the newest checkpoints until one is usable. Damaged ones are kept, so that users see them."""
        usable = (path.name for path in reversed(list_checkpoints(self._folder)) if _is_usable(path, find_mismatch))
        newest_local = next(usable, "")
        for file in reversed(self._files.list_checkpoints()):
            path = self._folder / file.name
            if file.name < newest_local:
                return
            if not self._is_same(path, file):
                self._files.download(file.name, path)
            if _is_usable(path, find_mismatch):
                return

    def _is_same(self, path: Path, file: RemoteFile) -> bool:
        """Compare sizes and last bytes. A checkpoint ends with the digests of its parts."""
        if not path.is_file() or path.stat().st_size != file.size:
            return False
        return read_tail(path, _TAIL_BYTES) == self._files.read_tail(file.name, _TAIL_BYTES)

    def _run(self) -> None:
        while not self._is_closing:
            self._wake.wait()
            self._wake.clear()
            self._upload(self._pop_queue() or self._failed)
        self._upload(self._pop_queue() or self._failed)

    def _pop_queue(self) -> Path | None:
        try:
            return self._queue.pop()
        except IndexError:
            return None

    def _upload(self, checkpoint: Path | None) -> None:
        """Upload one checkpoint, the best policy and the log. A failure is logged and does not stop the training."""
        if self._is_taken_over:
            return
        try:
            if checkpoint is not None and checkpoint.is_file():
                is_uploaded = self._files.upload(checkpoint, may_replace=self._has_lease)
                if not is_uploaded:
                    return
            self._upload_best()
            if not self._is_taken_over:
                self._remove_old()
                self._upload_log()
        except (StorageError, OSError) as error:
            if checkpoint is not None and checkpoint.is_file():
                self._failed = checkpoint
            self._outage.failed(f"{error} The upload is repeated with the next checkpoint.")
        else:
            self._failed = None
            self._outage.recovered()

    def _has_lease(self) -> bool:
        """Check at the URL that no other trainer has taken the run, for example after a long network failure."""
        self._is_taken_over = read_lease(self._files) != self._lease
        if self._is_taken_over:
            text = "run %s: another trainer has taken the run; nothing more is uploaded to %s"
            _log.warning(text, self._files.run_id, self._files.url)
        return not self._is_taken_over

    def _upload_best(self) -> None:
        uploaded = {file.name for file in self._files.list_best()}
        for path in list_best(self._folder)[-1:]:
            if path.name not in uploaded:
                with suppress(FileNotFoundError):  # the trainer has just replaced it by a better policy
                    self._files.upload(path, may_replace=self._has_lease)

    def _remove_old(self) -> None:
        names = [file.name for file in self._files.list_checkpoints()]
        old_best = list_unused_best([file.name for file in self._files.list_best()], names[-self._keep :])
        for name in [*names[: -self._keep], *old_best]:
            self._files.remove(name)

    def _upload_log(self) -> None:
        path = self._folder / LOG_NAME
        if path.is_file():
            n_new = max(0, path.stat().st_size - self._log_offset)
            new = read_tail(path, min(n_new, _MAX_LOG_BYTES)) if n_new else b""
            self._files.write(LOG_NAME, (self._previous_log + new)[-_MAX_LOG_BYTES:])


class UploadingStore(CheckpointStore):
    """Checkpoints in a local folder, which are then uploaded to a URL."""

    def __init__(self, folder: Path, uploader: CheckpointUploader, *, keep: int, run_id: str) -> None:
        super().__init__(folder, keep=keep, run_id=run_id)
        self._uploader = uploader

    def save(self, env_step: int, state: dict[str, Any]) -> Path:
        """Write a checkpoint to the local folder and queue it for upload.

        Raises:
            OSError: If the checkpoint cannot be written. Earlier checkpoints are kept.
        """
        path = super().save(env_step, state)
        self._uploader.queue_checkpoint(path)
        return path

    def save_best(self, env_step: int, learner: dict[str, Any]) -> Path | None:
        """Write the policy of the best evaluation to the local folder and queue it for upload.

        Raises:
            OSError: If the policy cannot be written, although the disk is not full.
        """
        path = super().save_best(env_step, learner)
        self._uploader.queue_best()
        return path

    def rename_newer(self, env_step: int) -> None:
        """Rename newer checkpoints in the local folder and at the URL.

        Raises:
            StorageError: If the URL does not answer.
        """
        super().rename_newer(env_step)
        self._uploader.rename_newer(env_step)


@contextmanager
def open_checkpoint_store(database: Database, run_id: str, keep: int) -> Generator[CheckpointStore]:
    """Open the checkpoint store of a run. If the run's files are at a URL, wait at the end for the last upload.

    Args:
        database: An open database.
        run_id: The run.
        keep: Number of checkpoints to keep.

    Raises:
        StorageError: If the URL does not answer, or contains the files of another database. The training has not
            started then.
    """
    folder = retry_transient(database, lambda: run_folder(database, run_id))
    place = retry_transient(database, lambda: get_run_place(database, run_id))
    check_lease(database, place, run_id)
    files, lease = place.files_of(run_id), make_lease(database)
    if files is None:
        write_lease(folder, lease)
        yield CheckpointStore(folder, keep=keep, run_id=run_id)
        return
    uploader = CheckpointUploader(files, folder, keep=keep, lease=lease)
    uploader.start(lambda env_step: retry_transient(database, lambda: find_resume_error(database, run_id, env_step)))
    try:
        yield UploadingStore(folder, uploader, keep=keep, run_id=run_id)
    except (KeyboardInterrupt, RunInterruptedError):  # the user has asked not to wait
        raise
    except BaseException:
        uploader.close()
        raise
    uploader.close()


def _is_usable(path: Path, find_mismatch: Callable[[int], str | None]) -> bool:
    try:
        return find_mismatch(verify(path).env_step) is None
    except CheckpointError:
        return False
