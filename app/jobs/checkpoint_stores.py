"""Where a trainer's checkpoints go: a folder that it works in, and at a URL what is carried there from it."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.jobs.checkpoint_uploader import CheckpointUploader
from emtc_core.errors import RunInterruptedError
from emtc_core.training.checkpoint import CheckpointStore
from storage.engine import Database
from storage.files.places import run_folder, run_place
from storage.files.trainer_files import check_lease, make_lease, write_lease
from storage.private_files import make_private_folder
from storage.runs.rewind import why_not_resume_at


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
    folder, place = run_folder(database, run_id), run_place(database, run_id)
    check_lease(database, place, run_id)
    files, mark = place.files_of(run_id), make_lease(database)
    if files is None:
        make_private_folder(folder)
        if place.recorded is not None:
            write_lease(folder, mark)
        yield CheckpointStore(folder, keep=keep, run_id=run_id)
        return
    uploader = CheckpointUploader(files, folder, keep=keep, mark=mark)
    uploader.begin(lambda env_step: why_not_resume_at(database, run_id, env_step))
    try:
        yield UploadingStore(folder, uploader, keep=keep, run_id=run_id)
    except (KeyboardInterrupt, RunInterruptedError):  # nobody waits
        raise
    except BaseException:
        uploader.close()
        raise
    uploader.close()
