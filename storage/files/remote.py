"""Files of runs at a URL, through fsspec: list, measure, upload, download, rename and delete.

Only `places` makes a `Remote`, from the setting of this machine. A file is uploaded under a temporary name, its size is
checked, and then it is renamed. Errors of any service, library or network become a StorageError with one sentence.

Why not `universal-pathlib`: its paths forward to the same fsspec calls, without a timeout, without the new connection
after an error, and without the check of an upload, which are most of this module.
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

from emtc_core.atomic_file import replace_atomically
from emtc_core.errors import StorageError
from emtc_core.install import get_install_command
from storage.guards import hide_passwords

TIMEOUT_S: Final = 20.0
"""Timeout of a call. The transfer of a checkpoint has no timeout."""
_RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,11}")
_FILE_NAME: Final = re.compile(
    r"(checkpoint|best)-[0-9]+\.[A-Za-z0-9.]{1,40}|log\.txt|trainer\.json|\.emtc-[0-9a-f]+\.begun"
)
"""Names of files that this program writes to a run's folder. Other files are never changed."""
_CHECKPOINT: Final = re.compile(r"checkpoint-[0-9]{12}\.pt")
_BEST_POLICY: Final = re.compile(r"best-[0-9]{12}\.pt")
_PACKAGES: Final = {
    **dict.fromkeys(("sftp", "ssh"), "paramiko"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("abfs", "abfss", "az", "adl"), "adlfs"),
    "smb": "smbprotocol",
}
"""URL scheme → package that fsspec needs for it."""
_OBJECT_STORES: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci"})
"""URL schemes of services without folders."""
_READ_BLOCK_BYTES: Final = 2**16
_WRITE_BLOCK_BYTES: Final = 2**22
_MAX_ERROR_LENGTH: Final = 300

Result = TypeVar("Result")


@dataclass(frozen=True)
class RemoteFile:
    """One file at a URL."""

    name: str
    size: int
    """Size [bytes]."""
    stamp: str
    """ETag or time of the last change; empty if the service does not provide it."""


@dataclass(frozen=True)
class Remote:
    """A URL with one folder per run."""

    url: str

    def files_of(self, run_id: str) -> "RunFiles":
        """Return the files of a run. The caller has validated the id."""
        return RunFiles(self, run_id)

    def check(self) -> None:
        """Write a small file and delete it.

        Raises:
            StorageError: If a package is missing, or the URL cannot be reached or written.
        """
        path = f"{self.root}/.emtc-{secrets.token_hex(4)}.begun"

        def write_and_delete() -> None:
            self.make_folder(self.root)
            self.filesystem.pipe_file(path, b"emtc")
            self.filesystem.rm_file(path)

        self.call(write_and_delete)

    def list_runs(self) -> dict[str, list[RemoteFile]]:
        """List the files of all runs in one call, by run id.

        Raises:
            StorageError: If the URL does not respond.
        """
        runs: dict[str, list[RemoteFile]] = {}
        for path, info in self.call(lambda: _list_folder(self.filesystem, self.root, recursive=True)).items():
            run_id, _, name = path[len(self.root) :].strip("/").partition("/")
            if _RUN_ID.fullmatch(run_id) and _FILE_NAME.fullmatch(name):
                runs.setdefault(run_id, []).append(_make_remote_file(name, info))
        return runs

    def make_folder(self, path: str) -> None:
        """Create a folder, except in an object store, where the call could create a bucket."""
        if self.url.partition("://")[0] not in _OBJECT_STORES:
            self.filesystem.makedirs(path, exist_ok=True)

    @property
    def filesystem(self) -> Any:
        """The fsspec file system of this URL."""
        return self._filesystem_and_root[0]

    @property
    def root(self) -> str:
        """The path of the URL in the file system."""
        return self._filesystem_and_root[1]

    @cached_property
    def _filesystem_and_root(self) -> tuple[Any, str]:
        try:
            filesystem, root = import_module("fsspec.core").url_to_fs(self.url)
        except ImportError as error:
            scheme = self.url.partition("://")[0]
            package = (
                get_install_command("files") if scheme in ("s3", "s3a") else f"pip install {_PACKAGES.get(scheme)}"
            )
            advice = f" Install it with: {package}" if scheme in ("s3", "s3a", *_PACKAGES) else ""
            reason = str(error).rstrip(".") or "a package is missing"
            raise StorageError(
                f"{self.url} needs another package: {reason}.{advice}", reason="missing_package", subject=self.url
            ) from error
        except Exception as error:  # each library has its own error classes
            raise self._make_error(error) from error
        return filesystem, str(root).rstrip("/")

    def call(self, function: Callable[[], Result], *, timeout_s: float | None = TIMEOUT_S) -> Result:
        """Call a function in a thread with a timeout, because libraries retry for minutes.

        After an error the connection is closed, because libraries keep a broken connection.

        Args:
            function: The function.
            timeout_s: Timeout [s]; None for no timeout.

        Raises:
            StorageError: If the function fails or does not return in time.
        """
        results: list[Result] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                results.append(function())
            except BaseException as error:  # raised again in the caller's thread
                errors.append(error)

        thread = threading.Thread(target=run, daemon=True, name="files")
        thread.start()
        thread.join(timeout_s)
        if results:
            return results[0]
        if connected := self.__dict__.pop("_filesystem_and_root", None):
            type(connected[0]).clear_instance_cache()
        if not errors:
            raise StorageError(
                f"{self.url} did not answer within {timeout_s:.0f} s. Check the network connection.",
                reason="timeout",
                subject=self.url,
            )
        if isinstance(errors[0], StorageError):
            raise errors[0]
        raise self._make_error(errors[0]) from errors[0]

    def _make_error(self, error: BaseException) -> StorageError:
        """Make a StorageError from the first line of a library's error."""
        reason = next(iter(hide_passwords(str(error)).strip().splitlines()), "").rstrip(".")
        return StorageError(
            f"{self.url} cannot be used: {reason[:_MAX_ERROR_LENGTH] or type(error).__name__}.",
            reason="unusable",
            subject=self.url,
        )


@dataclass(frozen=True)
class RunFiles:
    """The files of one run at a URL."""

    remote: Remote
    run_id: str

    @property
    def url(self) -> str:
        """URL of the run's folder, for messages."""
        return f"{self.remote.url}/{self.run_id}"

    def list_files(self) -> list[RemoteFile]:
        """List the files with names that this program writes; empty if the folder does not exist.

        Raises:
            StorageError: If the URL does not respond.
        """
        infos = self.remote.call(lambda: _list_folder(self.remote.filesystem, self._folder, recursive=False))
        paths = sorted((path.rsplit("/", 1)[-1], path) for path in infos)
        return [_make_remote_file(name, infos[path]) for name, path in paths if _FILE_NAME.fullmatch(name)]

    def list_checkpoints(self) -> list[RemoteFile]:
        """List the complete checkpoints, oldest first.

        Raises:
            StorageError: If the URL does not respond.
        """
        return [file for file in self.list_files() if _CHECKPOINT.fullmatch(file.name)]

    def list_best(self) -> list[RemoteFile]:
        """List the policies of the best evaluations, oldest first.

        Raises:
            StorageError: If the URL does not respond.
        """
        return [file for file in self.list_files() if _BEST_POLICY.fullmatch(file.name)]

    def upload(self, file: Path, *, may_replace: Callable[[], bool] = lambda: True) -> bool:
        """Upload a file: under a temporary name first, and renamed when all bytes have arrived.

        Args:
            file: A file on this machine.
            may_replace: Called after the upload. If it returns False, the upload is deleted and nothing is replaced.

        Returns:
            Whether the file has its name now.

        Raises:
            FileNotFoundError: If the file does not exist.
            StorageError: If the upload fails or has another size. An existing file is not changed.
        """
        filesystem, temporary_path = self.remote.filesystem, f"{self._folder}/.emtc-{secrets.token_hex(8)}.begun"

        def upload() -> bool:
            size = 0
            with file.open("rb") as source:  # reads the same content if the file is replaced meanwhile
                self.remote.make_folder(self._folder)
                with filesystem.open(temporary_path, "wb") as target:
                    while block := source.read(_WRITE_BLOCK_BYTES):
                        target.write(block)
                        size += len(block)
            if (uploaded := filesystem.info(temporary_path)["size"]) != size:
                raise StorageError(f"{self.url} received {uploaded:,} of the {size:,} bytes of {file.name}.")
            if not may_replace():
                filesystem.rm_file(temporary_path)
                return False
            filesystem.mv(temporary_path, self._path(file.name))
            return True

        if not file.is_file():
            raise FileNotFoundError(file)
        try:
            return self.remote.call(upload, timeout_s=None)
        except StorageError:
            with suppress(StorageError):
                self.remote.call(lambda: filesystem.rm_file(temporary_path))
            raise

    def write(self, name: str, data: bytes) -> None:
        """Write a small file.

        Raises:
            StorageError: If it cannot be written.
        """

        def write() -> None:
            self.remote.make_folder(self._folder)
            self.remote.filesystem.pipe_file(self._path(name), data)

        self.remote.call(write)

    def read_tail(self, name: str, most_bytes: int) -> bytes:
        """Read the last `most_bytes` of a file; empty if it does not exist.

        Raises:
            StorageError: If the URL does not respond.
        """

        def read() -> bytes:
            filesystem, path = self.remote.filesystem, self._path(name)
            try:
                size = int(filesystem.info(path)["size"])
                return filesystem.cat_file(path, start=max(0, size - most_bytes), end=size) if size else b""
            except FileNotFoundError:
                return b""

        return self.remote.call(read)

    def read_blocks(self, file_info: RemoteFile, read: Callable[[BinaryIO], Result]) -> Result:
        """Call `read` with an open file, which downloads only the blocks that are read.

        Raises:
            StorageError: If the URL does not respond.
        """

        def open_and_read() -> Result:
            path = self._path(file_info.name)
            with self.remote.filesystem.open(path, "rb", block_size=_READ_BLOCK_BYTES) as file:
                return read(cast("BinaryIO", file))

        return self.remote.call(open_and_read)

    def download(self, name: str, to: Path) -> None:
        """Download a file under a temporary name and rename it when it is complete.

        Raises:
            StorageError: If it cannot be downloaded. No incomplete file remains.
        """

        def download() -> None:
            with replace_atomically(to) as file:
                self.remote.filesystem.get_file(self._path(name), file.name)

        self.remote.call(download, timeout_s=None)

    def rename(self, name: str, new: str) -> None:
        """Rename a file.

        Raises:
            StorageError: If the URL does not respond.
        """
        self.remote.call(lambda: self.remote.filesystem.mv(self._path(name), self._path(new)))

    def remove(self, name: str) -> None:
        """Delete a file if it exists.

        Raises:
            StorageError: If the URL does not respond.
        """

        def delete() -> None:
            with suppress(FileNotFoundError):
                self.remote.filesystem.rm_file(self._path(name))

        self.remote.call(delete)

    def remove_all(self) -> None:
        """Delete all files of `list_files`, and then the folder if it is empty.

        Raises:
            StorageError: If the URL does not respond.
        """
        for file in self.list_files():
            self.remove(file.name)

        def delete_folder() -> None:
            with suppress(Exception):  # it contains other files, or the service has no folders
                self.remote.filesystem.rmdir(self._folder)

        self.remote.call(delete_folder)

    @property
    def _folder(self) -> str:
        return f"{self.remote.root}/{self.run_id}"

    def _path(self, name: str) -> str:
        """Return the path of a file in the run's folder.

        Raises:
            StorageError: If this program does not write files with this name.
        """
        if not _FILE_NAME.fullmatch(name):
            raise StorageError(
                f"{name[:80]!r} is not a file name of a run. Nothing at {self.url} was changed.",
                reason="not_a_file_of_a_run",
                subject=name,
            )
        return f"{self._folder}/{name}"


def _list_folder(filesystem: Any, path: str, *, recursive: bool) -> dict[str, Any]:
    """List the files in a folder, or also one level below it: path → info; empty if the folder does not exist."""
    filesystem.invalidate_cache()
    try:
        if recursive:
            return dict(filesystem.find(path, maxdepth=2, detail=True))
        return {info["name"]: info for info in filesystem.ls(path, detail=True) if info.get("type") == "file"}
    except FileNotFoundError:
        return {}


def _make_remote_file(name: str, info: dict[str, Any]) -> RemoteFile:
    stamps = (info[key] for key in ("ETag", "mtime", "LastModified", "created") if info.get(key))
    return RemoteFile(name, int(info.get("size") or 0), str(next(stamps, "")))
