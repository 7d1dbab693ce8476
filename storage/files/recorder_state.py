"""Why a recorder waits, told beside the database: a full disk or a locked database cannot hold the reason.

The file is made while there is room and changed in place, which needs no new disk block.
"""

import logging

from emtc_core.errors import StorageError
from storage.engine import Database
from storage.files.places import local_folder
from storage.files.reserve import keep_reserve
from storage.private_files import make_private_folder, read_tail

_log = logging.getLogger(__name__)
_BYTES = 512


class StateFile:
    """The file `recorder.state` in a run's folder; blank while all is well."""

    def __init__(self, db: Database, run_id: str) -> None:
        """Choose the file; nothing is created yet."""
        self._db, self._path = db, local_folder(db, run_id) / "recorder.state"

    def prepare(self) -> None:
        """Make the file while there is room.

        Raises:
            StorageError: If the run's folder cannot be written.
        """
        try:
            make_private_folder(self._path.parent)
            keep_reserve(self._db)
            self._path.write_bytes(_padded(""))
        except OSError as error:
            raise StorageError(f"The run's folder {self._path.parent} cannot be written: {error.strerror}.") from error

    def write(self, text: str) -> None:
        """Replace the text; what cannot be written goes to the log."""
        try:
            with self._path.open("r+b") as file:
                file.write(_padded(text))
        except OSError as error:
            _log.warning("cannot write %s: %s", self._path, error)

    def read(self) -> str | None:
        """Read the reason, or None while all is well."""
        return read_tail(self._path, _BYTES).decode(errors="replace").strip() or None

    def remove(self) -> None:
        """Take the file away; idempotent."""
        self._path.unlink(missing_ok=True)


def stall_reason(db: Database, run_id: str) -> str | None:
    """Why a run's recorder waits, as far as this host can see, or None."""
    try:
        return StateFile(db, run_id).read()
    except StorageError:  # a foreign folder that is not read
        return None


def _padded(text: str) -> bytes:
    return text.encode()[: _BYTES - 1].ljust(_BYTES - 1) + b"\n"
