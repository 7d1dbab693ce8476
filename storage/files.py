"""The folders of runs: checkpoints, logs and the state file of the recorder.

Each run has one folder, `run_folder`. It is in the folder that the variable EMTC_FILES names, or else next to the
database (`engine.files_root`). A lab mounts a shared folder and sets EMTC_FILES=/shared/emtc on all machines, so that
each of them can resume a run.

How a checkpoint is written is in `emtc_core.checkpoint_file`.
"""

import logging
import os
import shutil
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from emtc_core.errors import StorageError
from storage.engine import Database, files_root, is_read_only
from storage.guards import check_identifier, shorten
from storage.private_files import FILE_MODE, make_private_folder, read_tail

FILES_VARIABLE: Final = "EMTC_FILES"
STATE_FILE: Final = "recorder.state"
REWRITE_S: Final = 2.0
"""Interval at which a waiting recorder writes its state file again."""
_STATE_BYTES: Final = 512

_log = logging.getLogger(__name__)


def get_configured_folder() -> Path | None:
    """Read EMTC_FILES; None if it is not set.

    Raises:
        StorageError: If it is not the absolute path of a folder that exists.
    """
    text = os.environ.get(FILES_VARIABLE, "").strip()
    if not text:
        return None
    if "://" in text:
        raise StorageError(
            f"{FILES_VARIABLE} must be a folder, not a URL. Mount it, and set {FILES_VARIABLE} to the mounted folder."
        )
    try:
        folder = Path(text).expanduser()
    except RuntimeError as error:
        raise StorageError(
            f"{FILES_VARIABLE} is {shorten(text)}, but there is no such user on this machine."
        ) from error
    if not folder.is_absolute():
        raise StorageError(f"{FILES_VARIABLE} must be an absolute path such as /shared/emtc, got {shorten(text)}.")
    if not _is_folder(folder):
        raise StorageError(
            f"{FILES_VARIABLE} is {shorten(text)}, which is not a folder on this machine. Create it or mount it."
        )
    return folder


def get_runs_root(db: Database) -> Path:
    """Return the folder that contains one folder per run: EMTC_FILES, or the folder of the database.

    Raises:
        StorageError: If EMTC_FILES is not the absolute path of a folder that exists.
    """
    return get_configured_folder() or files_root(db)


def run_folder(db: Database, run_id: str) -> Path:
    """Return the folder of a run. It is not created here.

    Raises:
        StorageError: If the id is not valid, or EMTC_FILES is not the absolute path of a folder that exists.
    """
    return get_runs_root(db) / check_identifier(run_id)


def check_files_folder() -> None:
    """Check that EMTC_FILES can be written, before any work starts. Nothing is written if EMTC_READ_ONLY=1.

    Raises:
        StorageError: If it cannot be used.
    """
    folder = get_configured_folder()
    if folder is None or is_read_only():
        return
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"emtc")
    except OSError as error:
        cause = (error.strerror or str(error)).lower()
        raise StorageError(
            f"{FILES_VARIABLE} is {folder}, which cannot be written: {cause}. Choose another folder."
        ) from error


def describe_files_folder(db: Database) -> str:
    """Describe where the checkpoints of the next run are stored, or why EMTC_FILES cannot be used.

    Returns:
        One or two sentences; empty for the folder next to a SQLite file.
    """
    try:
        folder = get_configured_folder()
    except StorageError as error:
        return str(error)
    if folder is not None:
        return f"Checkpoints and logs go to {folder}. Machines with the same {FILES_VARIABLE} can resume the run."
    if db.path is not None:
        return ""
    return (
        f"Checkpoints and logs stay on this machine, in {files_root(db)}, so other machines cannot resume the run. "
        f"To change that, set {FILES_VARIABLE} to a folder that all machines can access."
    )


def explain_missing_files(db: Database) -> str:
    """Explain why the folder of a run may contain no checkpoint: EMTC_FILES was another folder, or a file was moved.

    Returns:
        One sentence that starts with a space.
    """
    if os.environ.get(FILES_VARIABLE, "").strip():
        return f" {FILES_VARIABLE} may have been another folder, or not set, when the run was trained."
    moved = "" if db.path is None else f", or {db.path.name} was moved without the folder {files_root(db).name}"
    return f" {FILES_VARIABLE} may have been set to another folder when the run was trained{moved}."


def list_file_sizes(folder: Path) -> list[int]:
    """List the sizes of all files in the folder of a run [bytes]; empty if it does not exist."""
    return [size for _, size in _walk(folder)]


def measure_folder(folder: Path) -> tuple[int, int]:
    """Return the size of a folder's checkpoints and of its other files [bytes]."""
    checkpoints = others = 0
    for path, size in _walk(folder):
        if is_checkpoint(path):
            checkpoints += size
        else:
            others += size
    return checkpoints, others


def is_checkpoint(path: Path) -> bool:
    """Return whether a file is a checkpoint or a best policy, complete, partial or renamed."""
    return path.name.startswith(("checkpoint-", "best-"))


def remove_run_folder(db: Database, run_id: str) -> None:
    """Delete the folder of a run, if it exists.

    Raises:
        StorageError: As `run_folder`.
    """
    shutil.rmtree(run_folder(db, run_id), ignore_errors=True)


class StateFile:
    """The file STATE_FILE in a run's folder. It contains why the recorder waits, and is blank if it does not.

    The database cannot store the reason, because it is locked, its disk is full or its server cannot be reached. The
    file is created at the start of a training and changed in place, which needs no free disk block. While the recorder
    waits, a thread rewrites the file, so that a fresh file shows that the trainer exists.
    """

    def __init__(self, db: Database, run_id: str) -> None:
        """Determine the path. Nothing is created.

        Raises:
            StorageError: As `run_folder`.
        """
        self._path = run_folder(db, run_id) / STATE_FILE
        self._text = ""
        self._changed, self._is_removed = threading.Condition(), False

    def prepare(self) -> None:
        """Create the file while there is free space, and start the thread that rewrites it.

        Raises:
            StorageError: If the run's folder cannot be written.
        """
        try:
            make_private_folder(self._path.parent)
            self._path.touch(FILE_MODE)
            self._path.write_bytes(_pad(""))
        except OSError as error:
            raise StorageError(f"The run's folder {self._path.parent} cannot be written: {error.strerror}.") from error
        threading.Thread(target=self._rewrite, name="recorder-state", daemon=True).start()

    def write(self, text: str) -> None:
        """Replace the text. An error is only logged."""
        with self._changed:
            self._text = text
            self._write()
            self._changed.notify()

    def remove(self) -> None:
        """Delete the file if it exists, and end the thread."""
        with self._changed:
            self._is_removed = True
            self._changed.notify()
            self._path.unlink(missing_ok=True)

    def _rewrite(self) -> None:
        """Write the file again every REWRITE_S while the recorder waits. Its own writes may block for longer."""
        with self._changed:
            while not self._is_removed:
                self._changed.wait(REWRITE_S if self._text else None)
                if self._text and not self._is_removed:
                    self._write()

    def _write(self) -> None:
        try:
            with self._path.open("r+b") as file:
                file.write(_pad(self._text))
        except OSError as error:
            _log.warning("cannot write %s: %s", self._path, error)


def read_stall_reason(db: Database, run_id: str, *, max_age_s: float) -> str | None:
    """Read why a run's recorder waits; None if it does not wait or its folder is not on this machine.

    Args:
        db: The database.
        run_id: The run.
        max_age_s: A file that was not written for this time does not count, because its trainer has ended [s].
    """
    try:
        path = run_folder(db, run_id) / STATE_FILE
        if time.time() - path.stat().st_mtime > max_age_s:
            return None
        return read_tail(path, _STATE_BYTES).decode(errors="replace").strip() or None
    except (OSError, StorageError):  # there is no file, or EMTC_FILES cannot be used
        return None


def _pad(text: str) -> bytes:
    """Encode a text with a fixed length, so that a change needs no new disk block."""
    return text.encode()[: _STATE_BYTES - 1].ljust(_STATE_BYTES - 1) + b"\n"


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # for example a path that is too long, or a zero byte
        return False


def _walk(folder: Path) -> list[tuple[Path, int]]:
    """List the files of a folder with their sizes [bytes]."""
    files: list[tuple[Path, int]] = []
    for path in folder.rglob("*"):
        with suppress(OSError):  # the trainer has replaced the file
            if not path.is_dir():
                files.append((path, path.lstat().st_size))
    return files
