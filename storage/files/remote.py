"""Files of runs behind an fsspec URL: listed, measured, put, fetched, renamed and removed, and nothing else.

Only places.py makes one, from this machine's own setting. A file gets its name when all of it is there: it is put
under another one, measured, and moved. Whatever a service, its library or the network says becomes one sentence.
"""

import re
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar, cast

from emtc_core.errors import StorageError
from emtc_core.install import how_to_install
from storage.guards import hide_passwords

PATIENCE_S: Final = 20.0
"""For an answer; a checkpoint itself takes as long as it takes."""
_RUN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,11}")
_OURS: Final = re.compile(
    r"(checkpoint|best)-[0-9]+\.[A-Za-z0-9.]{1,40}|log\.txt|trainer\.json|\.emtc-[0-9a-f]+\.begun"
)
"""Every name that a run's folder at a URL may hold; nothing else is touched."""
_CHECKPOINT: Final = re.compile(r"checkpoint-[0-9]{12}\.pt")
_BEST: Final = re.compile(r"best-[0-9]{12}\.pt")
_PACKAGES: Final = {
    **dict.fromkeys(("sftp", "ssh"), "paramiko"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("abfs", "abfss", "az", "adl"), "adlfs"),
    "smb": "smbprotocol",
}
_BLOCK_BYTES: Final = 2**16
_WITHOUT_FOLDERS: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci"})

Result = TypeVar("Result")


@dataclass(frozen=True)
class RemoteFile:
    """One file at a URL."""

    name: str
    size: int
    stamp: str
    """Changes with its bytes, as far as the service tells."""


@dataclass(frozen=True)
class Remote:
    """A URL under which each run has a folder."""

    url: str

    def files_of(self, run_id: str) -> "RunFiles":
        """The files of a run, whose id was checked."""
        return RunFiles(self, run_id)

    def check(self) -> None:
        """Write a little and remove it again.

        Raises:
            StorageError: If the library is missing, or the place cannot be reached or written.
        """
        name = f"{self.root}/.emtc-{secrets.token_hex(4)}.begun"

        def act() -> None:
            self.make_folder(self.root)
            self.system.pipe_file(name, b"emtc")
            self.system.rm_file(name)

        self.ask(act)

    def list_runs(self) -> dict[str, list[RemoteFile]]:
        """List the files of every run there, by the run's id, in one question.

        Raises:
            StorageError: If it does not answer.
        """
        found: dict[str, list[RemoteFile]] = {}
        for path, info in self.ask(lambda: _listing(self.system, self.root, deep=True)).items():
            run_id, _, name = path[len(self.root) :].strip("/").partition("/")
            if _RUN.fullmatch(run_id) and _OURS.fullmatch(name):
                found.setdefault(run_id, []).append(_remote_file(name, info))
        return found

    def make_folder(self, path: str) -> None:
        """Make a folder where there are folders; in a store of objects it would make a bucket that nobody asked for."""
        if self.url.partition("://")[0] not in _WITHOUT_FOLDERS:
            self.system.makedirs(path, exist_ok=True)

    @property
    def system(self) -> Any:
        """The library's object for this URL."""
        return self._opened[0]

    @property
    def root(self) -> str:
        """The path that the library knows the URL by."""
        return self._opened[1]

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        try:
            system, root = import_module("fsspec.core").url_to_fs(self.url)
        except ImportError as error:
            said = str(error).rstrip(".") or "a package is missing"
            raise StorageError(
                f"{self.url} needs another package: {said}. {self._how_to_install()}",
                reason="missing_package",
                subject=self.url,
            ) from error
        except Exception as error:  # each library has errors of its own
            raise self.failed(error) from error
        return system, str(root).rstrip("/")

    def _how_to_install(self) -> str:
        scheme = self.url.partition("://")[0]
        if scheme in ("s3", "s3a"):
            return f"Install it with: {how_to_install('files')}"
        return f"Install it with: pip install {_PACKAGES[scheme]}" if scheme in _PACKAGES else ""

    def ask(self, act: Callable[[], Result], *, patience_s: float | None = PATIENCE_S) -> Result:
        """Do something there, waiting no longer than `patience_s`: libraries try again for minutes.

        Raises:
            StorageError: If it fails, or takes longer.
        """
        answer: list[Result] = []
        failure: list[BaseException] = []

        def work() -> None:
            try:
                answer.append(act())
            except BaseException as error:  # carried to the caller's thread
                failure.append(error)

        thread = threading.Thread(target=work, daemon=True, name="files")
        thread.start()
        thread.join(patience_s)
        if answer:
            return answer[0]
        self._forget()
        if not failure:
            raise StorageError(
                f"{self.url} did not answer within {patience_s:.0f} s. Is the network there?",
                reason="timeout",
                subject=self.url,
            )
        if isinstance(failure[0], StorageError):
            raise failure[0]
        raise self.failed(failure[0]) from failure[0]

    def _forget(self) -> None:
        """Connect anew next time: libraries keep a connection that was lost."""
        if opened := self.__dict__.pop("_opened", None):
            type(opened[0]).clear_instance_cache()

    def failed(self, error: BaseException) -> StorageError:
        """The error about what a library raised."""
        said = next(iter(hide_passwords(str(error)).strip().splitlines()), "").rstrip(".")
        return StorageError(
            f"{self.url} cannot be used: {said[:300] or type(error).__name__}.", reason="unusable", subject=self.url
        )


@dataclass(frozen=True)
class RunFiles:
    """The files of one run at a URL."""

    remote: Remote
    run_id: str

    @property
    def url(self) -> str:
        """The run's folder, for people."""
        return f"{self.remote.url}/{self.run_id}"

    def list_files(self) -> list[RemoteFile]:
        """List what is there of the names that this program gives; a folder that is not there holds nothing.

        Raises:
            StorageError: If it does not answer.
        """
        found = self.remote.ask(lambda: _listing(self.remote.system, self._folder, deep=False))
        named = sorted((path.rsplit("/", 1)[-1], path) for path in found)
        return [_remote_file(name, found[path]) for name, path in named if _OURS.fullmatch(name)]

    def list_checkpoints(self) -> list[RemoteFile]:
        """List whole checkpoints, oldest first.

        Raises:
            StorageError: If it does not answer.
        """
        return [found for found in self.list_files() if _CHECKPOINT.fullmatch(found.name)]

    def list_best(self) -> list[RemoteFile]:
        """List the policies of best evaluations, oldest first.

        Raises:
            StorageError: If it does not answer.
        """
        return [found for found in self.list_files() if _BEST.fullmatch(found.name)]

    def put(self, file: Path, *, may_enter: Callable[[], bool] = lambda: True) -> bool:
        """Copy a file there: under another name first, and under its own when every byte has arrived.

        Args:
            file: A file of this machine.
            may_enter: Asked when it has arrived; False leaves what is there as it is.

        Returns:
            Whether it entered.

        Raises:
            FileNotFoundError: If the file is no more.
            StorageError: If the copy fails or arrives in another size; what is there stays.
        """
        system, begun = self.remote.system, f"{self._folder}/.emtc-{secrets.token_hex(8)}.begun"

        def act() -> bool:
            with file.open("rb") as source:  # a file that is replaced meanwhile stays the same here
                self.remote.make_folder(self._folder)
                size = _copy(source, system, begun)
            if (arrived := system.info(begun)["size"]) != size:
                raise StorageError(f"{self.url} took {arrived:,} of the {size:,} bytes of {file.name}.")
            if not may_enter():
                system.rm_file(begun)
                return False
            system.mv(begun, self._path(file.name))
            return True

        if not file.is_file():
            raise FileNotFoundError(file)
        try:
            return self.remote.ask(act, patience_s=None)
        except StorageError:
            with suppress(StorageError):
                self.remote.ask(lambda: system.rm_file(begun))
            raise

    def write(self, name: str, data: bytes) -> None:
        """Write a small file.

        Raises:
            StorageError: If it cannot be written.
        """

        def act() -> None:
            self.remote.make_folder(self._folder)
            self.remote.system.pipe_file(self._path(name), data)

        self.remote.ask(act)

    def read_tail(self, name: str, most_bytes: int) -> bytes:
        """Read the end of a file; nothing if it is not there.

        Raises:
            StorageError: If it does not answer.
        """

        def act() -> bytes:
            system, path = self.remote.system, self._path(name)
            try:
                size = int(system.info(path)["size"])
                return system.cat_file(path, start=max(0, size - most_bytes), end=size) if size else b""
            except FileNotFoundError:
                return b""

        return self.remote.ask(act)

    def look_into(self, found: RemoteFile, read: Callable[[BinaryIO], Result]) -> Result:
        """Let `read` look into a file in small pieces, without fetching it.

        Raises:
            StorageError: If it does not answer.
        """

        def act() -> Result:
            with self.remote.system.open(self._path(found.name), "rb", block_size=_BLOCK_BYTES) as file:
                return read(cast("BinaryIO", file))

        return self.remote.ask(act)

    def fetch(self, name: str, to: Path) -> None:
        """Copy a file from there; it gets its name when it is whole.

        Raises:
            StorageError: If it cannot be fetched or written; nothing is left then.
        """
        partial = to.with_suffix(".partial")

        def act() -> None:
            self.remote.system.get_file(self._path(name), str(partial))
            partial.replace(to)

        try:
            self.remote.ask(act, patience_s=None)
        finally:
            partial.unlink(missing_ok=True)

    def rename(self, name: str, new: str) -> None:
        """Give a file another name.

        Raises:
            StorageError: If it does not answer.
        """
        self.remote.ask(lambda: self.remote.system.mv(self._path(name), self._path(new)))

    def remove(self, name: str) -> None:
        """Delete a file; one that is gone already is none.

        Raises:
            StorageError: If it does not answer.
        """

        def act() -> None:
            with suppress(FileNotFoundError):
                self.remote.system.rm_file(self._path(name))

        self.remote.ask(act)

    def remove_all(self) -> None:
        """Delete what `list_files` lists, and the folder if it is empty then.

        Raises:
            StorageError: If it does not answer.
        """
        for found in self.list_files():
            self.remove(found.name)

        def act() -> None:
            with suppress(Exception):  # somebody's file is in it, or the service has no folders
                self.remote.system.rmdir(self._folder)

        self.remote.ask(act)

    @property
    def _folder(self) -> str:
        return f"{self.remote.root}/{self.run_id}"

    def _path(self, name: str) -> str:
        if not _OURS.fullmatch(name):
            raise StorageError(
                f"{name[:80]!r} is no name of a run's file. Nothing at {self.url} was touched.",
                reason="not_a_file_of_a_run",
                subject=name,
            )
        return f"{self._folder}/{name}"


def _copy(source: BinaryIO, system: Any, path: str) -> int:
    """Copy an open file in pieces; the library sends large ones in several parts."""
    size = 0
    with system.open(path, "wb") as target:
        while piece := source.read(2**22):
            target.write(piece)
            size += len(piece)
    return size


def _listing(system: Any, path: str, *, deep: bool) -> dict[str, Any]:
    system.invalidate_cache()
    try:
        if deep:
            return dict(system.find(path, maxdepth=2, detail=True))
        return {info["name"]: info for info in system.ls(path, detail=True) if info.get("type") == "file"}
    except FileNotFoundError:
        return {}


def _remote_file(name: str, info: dict[str, Any]) -> RemoteFile:
    stamps = (info[key] for key in ("ETag", "mtime", "LastModified", "created") if info.get(key))
    return RemoteFile(name, int(info.get("size") or 0), str(next(stamps, "")))
