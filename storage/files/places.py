"""The place of the checkpoints and logs of runs: a folder or a URL that contains one folder per run.

The default place is the folder next to the database. The variable EMTC_FILES sets another one:

    EMTC_FILES=/shared/emtc        a folder: trainers write to it directly
    EMTC_FILES=s3://bucket/emtc    a URL that fsspec supports: trainers write next to the database and copy to the URL

The place is recorded with the run when it starts. A recorded place is used only if EMTC_FILES on this machine names the
same place, because a database can come from another person. So a manipulated database cannot make this
program access other folders or hosts. Files at a URL are read and written in `remote`.
"""

import math
import os
import re
import shlex
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from sqlalchemy import select

from emtc_core.errors import StorageError
from storage.engine import Database, files_root, is_read_only
from storage.files.remote import Remote, RunFiles
from storage.guards import check_identifier, hide_passwords, shorten
from storage.models import Run
from storage.private_files import find_folder

FILES_VARIABLE: Final = "EMTC_FILES"
_MAX_LENGTH: Final = 1000
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_INVALID_CHARACTERS: Final = re.compile(r"[\x00-\x20\x7f-\x9f\ud800-\udfff]")
_SCHEMES_WITH_USER: Final = frozenset({"sftp", "ssh", "ftp", "smb"})
_CHECK_TTL_S: Final = {True: 60.0, False: 10.0}
"""How long the result of a write test is cached [s], by whether the test succeeded."""
_check_results: dict[str, tuple[float, StorageError | None]] = {}
"""Setting → time of its last write test on the monotonic clock, and the error, if any."""


@dataclass(frozen=True)
class FilesPlace:
    """A folder or a URL for the files of runs. It has one folder per run."""

    recorded: str | None
    """Value of `runs.files`; None for the folder next to the database."""
    root: Path
    """Folder on this machine in which a trainer works."""
    remote: Remote | None = None
    """URL to which trainers copy the files and from which they fetch them."""

    def files_of(self, run_id: str) -> RunFiles | None:
        """Return the files of a run at the URL; None if the place is a folder."""
        return self.remote.files_of(check_identifier(run_id)) if self.remote else None

    def show(self, run_id: str) -> str:
        """Return the folder of a run as text for people."""
        return f"{self.recorded}/{run_id}" if self.remote else str(self.root / run_id)


def get_configured_place() -> str | None:
    """Read EMTC_FILES in its normal form; None if it is not set.

    Raises:
        StorageError: If it is neither an absolute path of a folder nor a URL without secrets.
    """
    text = os.environ.get(FILES_VARIABLE, "").strip()
    return _normalize(text) if text else None


def get_place(db: Database, recorded: str | None) -> FilesPlace:
    """Return the place that is recorded with a run.

    Args:
        db: The database of the run.
        recorded: Value of `runs.files`.

    Raises:
        StorageError: If EMTC_FILES on this machine does not name the same place. The message names the needed value.
    """
    if recorded is None:
        return FilesPlace(None, files_root(db))
    if reason := explain_unusable_place(recorded):
        raise StorageError(reason, reason="other_place", subject=recorded)
    if _URL.match(recorded):
        return FilesPlace(recorded, files_root(db), Remote(recorded))
    return FilesPlace(recorded, _find_folder(recorded))


def explain_unusable_place(recorded: str) -> str | None:
    """Explain why a recorded place is not used on this machine; None if it is used. Nothing is opened."""
    try:
        setting = get_configured_place()
    except StorageError as error:
        return str(error)
    if recorded == setting:
        return None
    try:
        is_normal = _normalize(recorded) == recorded
    except StorageError:
        is_normal = False
    if not is_normal:
        return (
            f"In the database, the files of this run are at {shorten(hide_passwords(recorded))}. This is "
            "not a value that EMTC Lab writes, so nothing there is read, written or deleted. See: emtc db check"
        )
    state = f"{FILES_VARIABLE} is {setting}" if setting else f"{FILES_VARIABLE} is not set"
    return (
        f"The checkpoints and the log of this run are at {recorded}, but on this machine {state}: nothing there is "
        f"read, written or deleted. Set {FILES_VARIABLE}={recorded} on a machine that can access this place."
    )


def get_run_place(db: Database, run_id: str) -> FilesPlace:
    """Return the place of a run's files: the recorded one, or the configured one if the run has not started yet.

    Raises:
        StorageError: If EMTC_FILES on this machine does not name the recorded place.
    """
    check_identifier(run_id)
    with db.read() as connection:
        row = connection.execute(select(Run.files, Run.started_at).where(Run.id == run_id)).one_or_none()
    if row is None or row.started_at is None:
        return get_place(db, get_configured_place())
    return get_place(db, row.files)


def run_folder(db: Database, run_id: str) -> Path:
    """Return the folder on this machine for a run's log and checkpoints. It is not created here.

    Raises:
        StorageError: If the id is not valid, the folder is or contains a link or a special file, or EMTC_FILES on this
            machine does not name the recorded place.
    """
    return find_folder(get_run_place(db, run_id).root, check_identifier(run_id))


def local_folder(db: Database, run_id: str) -> Path:
    """Return the folder next to the database for files that only this machine needs.

    Raises:
        StorageError: If the id is not valid, or the folder is or contains a link or a special file.
    """
    return find_folder(files_root(db), check_identifier(run_id))


def explain_missing(db: Database, run_id: str) -> str:
    """Explain in which folder the files of a run are expected, and how to copy them there if another folder has them.

    Returns:
        One or two sentences that start with a space; empty for a database on a server.
    """
    if db.path is None:
        return ""
    root = files_root(db)
    candidates = {folder for parent in {db.path.parent, root.parent} for folder in parent.glob(f"*.files/{run_id}")}
    others = sorted(folder for folder in candidates if folder.parent != root)
    if not others:
        return (
            f" They are expected next to the database, in the folder {root.name}. "
            f"If {db.path.name} was moved, move {root.name} as well."
        )
    old, new = (others[0], root / run_id) if root.exists() else (others[0].parent, root)
    return (
        f" {others[0]} contains files of this run. To use them with this database, copy them (cp -r "
        f"{shlex.quote(str(old))} {shlex.quote(str(new))})."
    )


def check_place() -> None:
    """Check that the configured place can be written, before any work starts. Nothing is checked if EMTC_READ_ONLY=1.

    Raises:
        StorageError: If it cannot be written.
    """
    setting = get_configured_place()
    if setting is None or is_read_only():
        return
    tested_at, error = _check_results.get(setting, (-math.inf, None))
    if time.monotonic() - tested_at > _CHECK_TTL_S[error is None]:
        tested_at, error = _check_results[setting] = (time.monotonic(), _test_writing(setting))
    if error is not None:  # a new error, because the traceback of a raised one would be kept in the cache
        raise StorageError(error.message, hint=error.hint, reason=error.reason, subject=error.subject)


def describe_place(db: Database) -> str:
    """Describe where the checkpoints of the next run are stored; empty for the folder next to a SQLite file."""
    setting = get_configured_place()
    if setting is not None:
        return f"Checkpoints and logs go to {setting}. Machines with the same {FILES_VARIABLE} can resume the run."
    if db.path is not None:
        return ""
    return (
        f"Checkpoints and logs stay on this machine, in {files_root(db)}, so other machines cannot resume the run. "
        f"To change that, set {FILES_VARIABLE} to a folder or a URL that all machines can access."
    )


def _normalize(text: str) -> str:
    """Convert a setting to the normal form that is recorded and compared.

    Raises:
        StorageError: If it is neither an absolute path of a folder nor a URL without secrets.
    """
    if len(text) > _MAX_LENGTH or _INVALID_CHARACTERS.search(text.replace(" ", "")):
        raise StorageError(
            f"{FILES_VARIABLE} must be a folder or a URL, got {shorten(hide_passwords(text))}.",
            reason="not_a_place",
            subject=FILES_VARIABLE,
        )
    if _URL.match(text):
        return _normalize_url(text)
    try:
        folder = Path(text).expanduser()
    except RuntimeError as error:
        raise StorageError(
            f"{FILES_VARIABLE} is {shorten(text)}, but there is no such user on this machine.",
            reason="unknown_user",
            subject=FILES_VARIABLE,
        ) from error
    if not folder.is_absolute():
        raise StorageError(
            f"{FILES_VARIABLE} must be an absolute path such as /shared/emtc, or a URL, got {shorten(text)}.",
            reason="not_absolute",
            subject=FILES_VARIABLE,
        )
    return os.path.normpath(folder)


def _normalize_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        has_password = parts.password is not None
    except ValueError as error:
        raise StorageError(
            f"{FILES_VARIABLE} must be a folder or a URL, got {shorten(text)}.",
            reason="not_a_place",
            subject=FILES_VARIABLE,
        ) from error
    if has_password or (parts.username is not None and parts.scheme not in _SCHEMES_WITH_USER):
        raise StorageError(
            f"{FILES_VARIABLE} must not contain a password or a key, because it is recorded with every run. Remove "
            f"it from "
            f"{parts.scheme}://…, and provide it as the tools of that service expect, for instance AWS_ACCESS_KEY_ID.",
            reason="password",
            subject=FILES_VARIABLE,
        )
    if "::" in text or parts.query or parts.fragment or not (parts.netloc or parts.path.strip("/")):
        raise StorageError(
            f"{FILES_VARIABLE} must be a URL such as s3://bucket/folder or sftp://host/folder, without ?, # and ::, "
            f"got {shorten(text)}.",
            reason="not_a_url",
            subject=FILES_VARIABLE,
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _find_folder(setting: str) -> Path:
    """Resolve the configured path to a folder. It may be a link, because the user of this machine has set it."""
    folder = Path(setting).resolve()
    if not folder.is_dir():
        raise StorageError(
            f"{FILES_VARIABLE} is {setting}, which is not a folder on this machine. Create it or mount it.",
            reason="not_found",
            subject=setting,
        )
    return folder


def _test_writing(setting: str) -> StorageError | None:
    """Write a small file to a place and delete it; return the error, or None."""
    try:
        if _URL.match(setting):
            Remote(setting).check()
            return None
        with tempfile.TemporaryFile(dir=_find_folder(setting)) as file:
            file.write(b"emtc")
    except StorageError as error:  # a new error without a traceback, because the result is cached
        return StorageError(error.message, hint=error.hint, reason=error.reason, subject=error.subject)
    except OSError as error:
        cause = (error.strerror or str(error)).lower()
        message = f"{FILES_VARIABLE} is {setting}, which cannot be written: {cause}."
        return StorageError(message, hint="Choose another folder or a URL.", reason="not_writable", subject=setting)
    return None
