"""The files of checkpoints: how one is written and gets its name, and how its checksums are checked.

    magic | part | part | … | manifest (JSON) | digest of the manifest | length of the manifest | magic

The manifest contains the run id, the env step, the schema and, for each part, its offset, size and digest. The parts
fill the file without a gap, so any damaged bit is detected. This module does not import torch, so that pages can use it
to count the usable checkpoints of a run.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from emtc_core.atomic_file import TEMPORARY_SUFFIX, replace_atomically
from emtc_core.errors import CheckpointError

SCHEMA: Final = 5

FIRST_STEP: Final = 1000
"""Env step of a run's first checkpoint, even if the interval is longer, so that a run that fails early can resume."""

_MAGIC: Final = b"EMTCckpt"
_DIGEST_BYTES: Final = 32
_LENGTH_BYTES: Final = 8
_TAIL_BYTES: Final = _DIGEST_BYTES + _LENGTH_BYTES + len(_MAGIC)
_CHUNK_BYTES: Final = 2**20


class Sink(Protocol):
    """Target of the bytes of one part."""

    def write(self, data: Any, /) -> int:
        """Write bytes and return their number."""
        ...


@dataclass(frozen=True)
class CheckpointPart:
    """One named part of a checkpoint: its position in the file and the digest of its bytes."""

    name: str
    start: int  # offset from the start of the file [bytes]
    size: int  # [bytes]
    digest: str  # SHA-256, hexadecimal


@dataclass(frozen=True)
class CheckpointManifest:
    """Contents of a checkpoint, as listed in the file itself."""

    run_id: str
    env_step: int
    parts: tuple[CheckpointPart, ...]


class _DigestingSink:
    """Writes to a file, and computes the size and the digest of the bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = sha256()
        self.size = 0

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        self._file.write(view)
        self._digest.update(view)
        self.size += view.nbytes
        return view.nbytes

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def flush(self) -> None:
        """Do nothing: there is no buffer here."""


def write_checkpoint(
    path: Path, *, run_id: str, env_step: int, parts: Iterable[tuple[str, Callable[[Sink], None]]]
) -> None:
    """Write a checkpoint under a temporary name, sync it to the disk, and give it its name.

    So a file with the name of a checkpoint is complete, also after a power failure. Before the call, the trainer waits
    until the rows of the checkpoint are on the disk (`Recorder.flush`). If the process is killed, a temporary file
    remains; the next call deletes it.

    Args:
        path: Final path of the checkpoint.
        run_id: The run that it belongs to.
        env_step: Env steps of the run so far.
        parts: Name and writer of each part, in order.

    Raises:
        OSError: If the disk is full or not writable. No temporary file remains then.
    """
    with replace_atomically(path, durable=True, private=True) as file:  # renames the file at the end of the block
        file.write(_MAGIC)
        entries: list[dict[str, Any]] = []
        for name, write in parts:
            start, sink = file.tell(), _DigestingSink(file)
            write(sink)
            entries.append(vars(CheckpointPart(name, start, sink.size, sink.digest)))
        manifest = {"run_id": run_id, "env_step": env_step, "schema": SCHEMA, "parts": entries}
        text = json.dumps(manifest).encode()
        file.write(text + _digest(text) + len(text).to_bytes(_LENGTH_BYTES, "big") + _MAGIC)
    kind = path.stem.partition("-")[0]
    for abandoned in path.parent.glob(f"{kind}-*{TEMPORARY_SUFFIX}"):  # a run has one writer
        abandoned.unlink(missing_ok=True)


def read_manifest(path: Path) -> CheckpointManifest:
    """Read and check the manifest of a checkpoint. The bytes of the parts are not checked.

    Raises:
        CheckpointError: If the file is truncated, damaged, not a checkpoint, or of another schema.
    """
    try:
        with path.open("rb") as file:
            return _read_manifest(path, file, os.fstat(file.fileno()).st_size)
    except OSError as exc:
        raise CheckpointError(f"{path.name} cannot be read: {exc.strerror}.") from exc


def read_part(path: Path, part: CheckpointPart) -> bytes:
    """Read one part and check its digest.

    Raises:
        CheckpointError: If the file cannot be read or the digest differs.
    """
    try:
        with path.open("rb") as file:
            file.seek(part.start)
            data = file.read(part.size)
    except OSError as exc:
        raise CheckpointError(f"{path.name} cannot be read: {exc.strerror}.") from exc
    _check_part(path, part, [data])
    return data


@dataclass(frozen=True)
class CheckpointCheck:
    """Result of checking one checkpoint file."""

    name: str
    env_step: int
    fault: str | None
    """Why the file cannot be used; None if it can."""


def list_checkpoints(folder: Path) -> list[Path]:
    """List a run's checkpoints, oldest first."""
    return sorted(folder.glob("checkpoint-*.pt"))


def list_best(folder: Path) -> list[Path]:
    """List the policies of a run's best evaluations, oldest first. The newest is the best so far."""
    return sorted(folder.glob("best-*.pt"))


def list_unused_best(best: Sequence[str], checkpoints: Sequence[str]) -> list[str]:
    """List the best policies that can be deleted: all but the newest, and the newest up to each checkpoint.

    A run that resumes from a checkpoint loses the later evaluations. The best one up to that step is then its best.

    Args:
        best: File names of the best policies.
        checkpoints: File names of the run's checkpoints.
    """
    steps = {_parse_step(Path(name)): name for name in best}
    bounds = [max(steps, default=0), *(_parse_step(Path(name)) for name in checkpoints)]
    needed = {max((step for step in steps if step <= bound), default=-1) for bound in bounds}
    return [name for step, name in steps.items() if step not in needed]


def check_checkpoints(folder: Path, run_id: str) -> list[CheckpointCheck]:
    """Check every checkpoint of a run, newest first. An unchanged file is read only once per process."""
    return [_check_file(path, run_id) for path in reversed(list_checkpoints(folder))]


def check_best(folder: Path, run_id: str) -> list[CheckpointCheck]:
    """Check the policies of a run's best evaluations, newest first."""
    return [_check_file(path, run_id) for path in reversed(list_best(folder))]


def rename_newer(folder: Path, env_step: int) -> None:
    """Rename the files of later steps to `.aside`, after the run went back to `env_step`."""
    for path in [*list_checkpoints(folder), *list_best(folder)]:
        if _parse_step(path) > env_step:
            path.replace(path.with_suffix(".aside"))


def name_checkpoint(env_step: int) -> str:
    """Return the file name of the checkpoint at a step. Names sort in the order of steps."""
    return f"checkpoint-{env_step:012d}.pt"


def name_best(env_step: int) -> str:
    """Return the file name of the policy whose evaluation at a step is the best so far."""
    return f"best-{env_step:012d}.pt"


def check_owner(path: Path, manifest: CheckpointManifest, run_id: str) -> None:
    """Raise if a checkpoint belongs to another run.

    Args:
        path: The checkpoint, for the message.
        manifest: Its manifest.
        run_id: The run that it must belong to.

    Raises:
        CheckpointError: If the run ids differ.
    """
    if manifest.run_id != run_id:
        raise CheckpointError(f"{path.name} belongs to run {manifest.run_id}, not to {run_id}.")


def _check_file(path: Path, run_id: str) -> CheckpointCheck:
    try:
        manifest = verify(path)
        check_owner(path, manifest, run_id)
    except CheckpointError as exc:
        return CheckpointCheck(path.name, _parse_step(path), str(exc))
    return CheckpointCheck(path.name, manifest.env_step, None)


def verify(path: Path) -> CheckpointManifest:
    """Check every byte of a checkpoint. The result is cached until the file's size or modification time changes.

    Raises:
        CheckpointError: If the file is truncated, damaged, not a checkpoint, or of another schema.
    """
    try:
        stat = path.stat()
    except OSError as exc:
        raise CheckpointError(f"{path.name} cannot be read: {exc.strerror}.") from exc
    result = _verify(path, stat.st_size, stat.st_mtime_ns)
    if isinstance(result, CheckpointError):
        raise CheckpointError(result.message)
    return result


@lru_cache(maxsize=256)
def _verify(path: Path, size: int, changed_ns: int) -> CheckpointManifest | CheckpointError:
    try:
        manifest = read_manifest(path)
        for part in manifest.parts:
            with path.open("rb") as file:
                file.seek(part.start)
                remaining = range(part.size, 0, -_CHUNK_BYTES)
                _check_part(path, part, (file.read(min(n_bytes, _CHUNK_BYTES)) for n_bytes in remaining))
    except CheckpointError as exc:
        return CheckpointError(str(exc))
    return manifest


def _check_part(path: Path, part: CheckpointPart, chunks: Iterable[bytes]) -> None:
    digest = sha256()
    for chunk in chunks:
        digest.update(chunk)
    if digest.hexdigest() != part.digest:
        raise CheckpointError(f"{path.name} is damaged: the checksum of its part {part.name!r} is wrong.")


def _read_manifest(path: Path, file: BinaryIO, size: int) -> CheckpointManifest:
    file.seek(0)
    if size < len(_MAGIC) + _TAIL_BYTES or file.read(len(_MAGIC)) != _MAGIC:
        raise CheckpointError(f"{path.name} is not a checkpoint, or its beginning is damaged.")
    file.seek(size - _TAIL_BYTES)
    tail = file.read(_TAIL_BYTES)
    digest, length = tail[:_DIGEST_BYTES], int.from_bytes(tail[_DIGEST_BYTES : -len(_MAGIC)], "big")
    start = size - _TAIL_BYTES - length
    if not tail.endswith(_MAGIC) or start < len(_MAGIC):
        raise CheckpointError(f"{path.name} is cut short, or its end is damaged.")
    file.seek(start)
    text = file.read(length)
    if _digest(text) != digest:
        raise CheckpointError(f"{path.name} is damaged: the checksum of its manifest is wrong.")
    try:
        return _parse_manifest(path, json.loads(text), parts_end=start)
    except (ValueError, KeyError, TypeError) as exc:
        raise CheckpointError(
            f"{path.name} is not a checkpoint of this program: its manifest is not valid ({exc})."
        ) from exc


def _parse_manifest(path: Path, content: Mapping[str, Any], *, parts_end: int) -> CheckpointManifest:
    if content["schema"] != SCHEMA:
        raise CheckpointError(f"{path.name} has schema {content['schema']}, this version reads schema {SCHEMA}.")
    parts = tuple(CheckpointPart(**part) for part in content["parts"])
    offset = len(_MAGIC)
    for part in parts:
        if part.start != offset:
            raise CheckpointError(
                f"{path.name} is damaged: its part {part.name!r} starts at byte {part.start:,}, not {offset:,}."
            )
        offset += part.size
    if offset != parts_end:
        raise CheckpointError(f"{path.name} is damaged: its parts do not fill the file.")
    return CheckpointManifest(str(content["run_id"]), int(content["env_step"]), parts)


def _parse_step(path: Path) -> int:
    digits = path.stem.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else 0


def _digest(data: bytes) -> bytes:
    return sha256(data).digest()
