"""Where the checkpoints and logs of a run lie: beside the database, or in the one place that EMTC_FILES names.

    EMTC_FILES=/shared/emtc        a folder: trainers work in it
    EMTC_FILES=s3://bucket/emtc    any URL that fsspec knows: trainers work beside the database and copy there

The place is recorded with the run when it begins. What a database says of places is data, not an instruction: a
recorded place is used only where this machine's own setting names the same one, so nothing outside is read, written,
deleted or called over a network because a row says so. How a URL is read and written is in `remote`.
"""

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

VARIABLE: Final = "EMTC_FILES"
_LONGEST: Final = 1000
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_STRANGE: Final = re.compile(r"[\x00-\x20\x7f-\x9f\ud800-\udfff]")
_MAY_NAME_A_USER: Final = frozenset({"sftp", "ssh", "ftp", "smb"})
_KEPT_S: Final = {True: 60.0, False: 10.0}  # of a check that passed, and of one that did not


@dataclass(frozen=True)
class Place:
    """Where the files of runs lie."""

    recorded: str | None
    """As it stands in `runs.files`; None: beside the database."""
    root: Path
    """The folder on this machine in which a trainer works, one folder in it for each run."""
    remote: Remote | None = None
    """Where they are copied to, and fetched from."""

    def files_of(self, run_id: str) -> RunFiles | None:
        """A run's files at a URL; None where a folder holds them."""
        return self.remote.files_of(check_identifier(run_id)) if self.remote else None

    def show(self, run_id: str) -> str:
        """The folder of a run, for people."""
        return f"{self.recorded}/{run_id}" if self.remote else str(self.root / run_id)


def configured() -> str | None:
    """Read EMTC_FILES; None where it is not set.

    Raises:
        StorageError: If it names neither a folder by its whole path nor a URL without secrets.
    """
    text = os.environ.get(VARIABLE, "").strip()
    return _read_setting(text) if text else None


def place_of(db: Database, recorded: str | None) -> Place:
    """Find the place that a row names, if this machine's own setting names it too.

    Raises:
        StorageError: If it does not: which EMTC_FILES would.
    """
    if recorded is None:
        return Place(None, files_root(db))
    if why_not := why_no_place(recorded):
        raise StorageError(why_not, reason="other_place", subject=recorded)
    if _URL.match(recorded):
        return Place(recorded, files_root(db), Remote(recorded))
    return Place(recorded, _existing(recorded))


def why_no_place(recorded: str) -> str | None:
    """Why the place that a row names is not used here, or None if it is; nothing is opened."""
    try:
        setting = configured()
    except StorageError as error:
        return str(error)
    return None if recorded == setting else _why_elsewhere(recorded, setting)


def run_place(db: Database, run_id: str) -> Place:
    """Find the place of a run's files: the recorded one, or for a run that has not begun the one it will get.

    Raises:
        StorageError: If the files lie where this machine may not look.
    """
    check_identifier(run_id)
    with db.read() as connection:
        row = connection.execute(select(Run.files, Run.started_at).where(Run.id == run_id)).one_or_none()
    if row is None or row.started_at is None:
        return place_of(db, configured())
    return place_of(db, row.files)


def run_folder(db: Database, run_id: str) -> Path:
    """The folder on this machine of a run's log and checkpoints; it is not created here.

    Raises:
        StorageError: If the id is none, the folder is or holds a link or a special file, or the run's files lie where
            this machine may not look.
    """
    return find_folder(run_place(db, run_id).root, check_identifier(run_id))


def local_folder(db: Database, run_id: str) -> Path:
    """The folder beside the database for what concerns this machine alone, wherever the run's checkpoints lie.

    Raises:
        StorageError: If the id is none, or the folder is or holds a link or a special file.
    """
    return find_folder(files_root(db), check_identifier(run_id))


def explain_missing(db: Database, run_id: str) -> str:
    """Where the files of a run are looked for beside its database, and how they get there if they are elsewhere."""
    if db.path is None:
        return ""
    root = files_root(db)
    known = {folder for place in {db.path.parent, root.parent} for folder in place.glob(f"*.files/{run_id}")}
    others = sorted(folder for folder in known if folder.parent != root)
    if not others:
        return (
            f" They lie beside the database, in a folder of its name: where {db.path.name} was moved from, "
            f"{root.name} must come along."
        )
    old, new = (others[0], root / run_id) if root.exists() else (others[0].parent, root)
    return (
        f" {others[0]} holds files of this run: if the database had that name before, move them (mv "
        f"{shlex.quote(str(old))} {shlex.quote(str(new))})."
    )


def check_place() -> None:
    """Refuse an EMTC_FILES that cannot be written from here, before any work starts; a reader tries nothing.

    Raises:
        StorageError: In one sentence.
    """
    setting = configured()
    if setting is None or is_read_only():
        return
    known = _CHECKED.get(setting)
    if known is None or time.monotonic() - known[0] > _KEPT_S[known[1] is None]:
        known = _CHECKED[setting] = (time.monotonic(), _try(setting))
    if (found := known[1]) is not None:
        raise StorageError(found.message, hint=found.hint, reason=found.reason, subject=found.subject)


_CHECKED: dict[str, tuple[float, StorageError | None]] = {}


def describe_place(db: Database) -> str:
    """Where the next run's checkpoints go, where that is not simply beside a file; else an empty text."""
    setting = configured()
    if setting is not None:
        return f"Checkpoints and logs go to {setting}. Another machine can go on if its {VARIABLE} names the same."
    if db.path is not None:
        return ""
    return (
        f"Checkpoints and logs stay on this machine, in {files_root(db)}: no other one can go on with the run. "
        f"Set {VARIABLE} to a folder or a URL that all of them reach to change that."
    )


def _read_setting(text: str) -> str:
    if len(text) > _LONGEST or _STRANGE.search(text.replace(" ", "")):
        raise StorageError(
            f"{VARIABLE} must be a folder or a URL, got {shorten(hide_passwords(text))}.",
            reason="not_a_place",
            subject=VARIABLE,
        )
    return _read_url(text) if _URL.match(text) else _read_folder(text)


def _read_url(text: str) -> str:
    """Bring a URL to the one form that is recorded and compared."""
    try:
        parts = urlsplit(text)
        has_secret = parts.password is not None
    except ValueError as error:
        raise StorageError(
            f"{VARIABLE} must be a folder or a URL, got {shorten(text)}.", reason="not_a_place", subject=VARIABLE
        ) from error
    if has_secret or (parts.username is not None and parts.scheme not in _MAY_NAME_A_USER):
        raise StorageError(
            f"{VARIABLE} must not hold a password or a key: it is recorded with every run. Leave it out of "
            f"{parts.scheme}://…, and give it as that service's own tools read it, for instance AWS_ACCESS_KEY_ID.",
            reason="password",
            subject=VARIABLE,
        )
    if "::" in text or parts.query or parts.fragment or not (parts.netloc or parts.path.strip("/")):
        raise StorageError(
            f"{VARIABLE} must be a plain URL as s3://bucket/folder or sftp://host/folder, without ?, # and ::, "
            f"got {shorten(text)}.",
            reason="not_a_url",
            subject=VARIABLE,
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _read_folder(text: str) -> str:
    try:
        folder = Path(text).expanduser()
    except RuntimeError as error:
        raise StorageError(
            f"{VARIABLE} names {shorten(text)}, and there is no such user here.",
            reason="unknown_user",
            subject=VARIABLE,
        ) from error
    if not folder.is_absolute():
        raise StorageError(
            f"{VARIABLE} must be a whole path as /shared/emtc, or a URL, got {shorten(text)}.",
            reason="not_absolute",
            subject=VARIABLE,
        )
    return os.path.normpath(folder)


def _existing(setting: str) -> Path:
    """Follow the path that this machine's user has set, which may be a link, to the folder."""
    folder = Path(setting).resolve()
    if not folder.is_dir():
        raise StorageError(
            f"{VARIABLE} names {setting}, which is no folder here. Make it, or mount what holds it.",
            reason="not_found",
            subject=setting,
        )
    return folder


def _try(setting: str) -> StorageError | None:
    """Write a little and remove it again; return why that fails, or None."""
    try:
        if _URL.match(setting):
            Remote(setting).check()
            return None
        with tempfile.TemporaryFile(dir=_existing(setting)) as file:
            file.write(b"emtc")
    except StorageError as error:
        return StorageError(error.message, hint=error.hint, reason=error.reason, subject=error.subject)
    except OSError as error:
        cause = (error.strerror or str(error)).lower()
        message = f"{VARIABLE} names {setting}, which cannot be written: {cause}."
        return StorageError(message, hint="Choose another folder, or a URL.", reason="not_writable", subject=setting)
    return None


def _why_elsewhere(recorded: str, setting: str | None) -> str:
    here = f"{VARIABLE} is {setting}" if setting else f"{VARIABLE} is not set"
    try:
        is_ours = _read_setting(recorded) == recorded
    except StorageError:
        is_ours = False
    if not is_ours:
        return (
            f"The database says that this run's files lie at {shorten(hide_passwords(recorded))}, which EMTC Lab never "
            "writes: nothing there is read, written or deleted. See: emtc db check"
        )
    return (
        f"This run's checkpoints and log lie at {recorded}, and here {here}: nothing there is read, written or "
        f"deleted. Set {VARIABLE}={recorded} where that can be reached."
    )
