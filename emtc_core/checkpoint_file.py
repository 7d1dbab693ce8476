"""The file that a checkpoint lies in: whose it is, which step, and a checksum of every byte.

    magic | part | part | … | manifest (JSON) | digest of the manifest | its length | magic

The manifest names the run, the env step, the schema and, for each part, where it lies and its digest; the parts fill
the file without a gap. So a damaged bit is found wherever it is. Nothing here knows what a part means, and nothing
needs torch: the pages ask this module how many good checkpoints a run has.
"""

import json
import os
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from emtc_core.errors import CheckpointError

SCHEMA: Final = 3
BLAKE: Final = 2
"""The schema before: parts have BLAKE2b digests, which take twice the time where a processor knows SHA-256."""
UNSIGNED: Final = 1
"""The schema of the earliest versions: a zip archive with checksums of its own, which names no run."""

FIRST_STEP: Final = 1000
"""When a run leaves its first checkpoint, however long the interval: a run that dies young has one to go on from."""

_MAGIC: Final = b"EMTCckpt"
_SHA: Final = "sha256:"
_DIGEST_BYTES: Final = 16
_LENGTH_BYTES: Final = 8
_TAIL_BYTES: Final = _DIGEST_BYTES + _LENGTH_BYTES + len(_MAGIC)
_CHUNK_BYTES: Final = 2**20


class Sink(Protocol):
    """Where a part's writer puts its bytes."""

    def write(self, data: Any, /) -> int: ...


@dataclass(frozen=True)
class Part:
    """One named piece of a checkpoint: where it lies in the file and the digest of its bytes."""

    name: str
    start: int
    size: int
    digest: str  # "sha256:" and hexadecimal digits; BLAKE2b's have no name before them


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself."""

    run_id: str | None  # None: of a schema that named no run
    env_step: int
    schema: int
    parts: tuple[Part, ...]


class _Measured:
    """Counts and digests what passes through to a file."""

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
        return f"{_SHA}{self._digest.hexdigest()}"

    def flush(self) -> None:
        """Nothing is held here."""


def write_checkpoint(
    path: Path, *, run_id: str, env_step: int, parts: Iterable[tuple[str, Callable[[Sink], None]]]
) -> None:
    """Write a checkpoint durably: a killed writer leaves a `.partial`, which the next one removes.

    Args:
        path: Where it shall stand.
        run_id: The run that it belongs to.
        env_step: Where the run stands.
        parts: Name and writer of each part, in order.

    Raises:
        OSError: If there is no room; then nothing is left.
    """
    partial = path.with_suffix(".partial")
    try:
        _write(partial, run_id=run_id, env_step=env_step, parts=parts)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    partial.replace(path)
    for abandoned in path.parent.glob(f"{path.stem.partition('-')[0]}-*.partial"):  # a run has one writer
        abandoned.unlink(missing_ok=True)


def _write(partial: Path, *, run_id: str, env_step: int, parts: Iterable[tuple[str, Callable[[Sink], None]]]) -> None:
    with partial.open("wb") as file:
        file.write(_MAGIC)
        written = [_write_part(file, name, write) for name, write in parts]
        manifest = {"run_id": run_id, "env_step": env_step, "schema": SCHEMA, "parts": [vars(part) for part in written]}
        text = json.dumps(manifest).encode()
        file.write(text + _digest(text) + len(text).to_bytes(_LENGTH_BYTES, "big") + _MAGIC)
        file.flush()
        os.fsync(file.fileno())


def read_manifest(path: Path) -> Manifest:
    """Read what a checkpoint says of itself, checking everything but the bytes of its parts.

    Raises:
        CheckpointError: If it is truncated, foreign, damaged or of a newer schema.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if file.read(2) == b"PK":
                return Manifest(None, _step_in_name(path), UNSIGNED, ())
            return _read_manifest(path, file, size)
    except OSError as exc:
        raise CheckpointError(
            f"{path.name} cannot be read: {exc.strerror}.", reason="not_readable", subject=path.name
        ) from exc


def read_part(path: Path, part: Part) -> bytes:
    """Read one part and check it.

    Raises:
        CheckpointError: If its bytes are not those that were written.
    """
    try:
        with path.open("rb") as file:
            file.seek(part.start)
            data = file.read(part.size)
    except OSError as exc:
        raise CheckpointError(
            f"{path.name} cannot be read: {exc.strerror}.", reason="not_readable", subject=path.name
        ) from exc
    _check_part(path, part, [data])
    return data


@dataclass(frozen=True)
class Examined:
    """One checkpoint of a run as it stands in the folder."""

    name: str
    env_step: int
    fault: str | None
    """Why it cannot be used, or None."""


def list_checkpoints(folder: Path) -> list[Path]:
    """List a run's checkpoints, oldest first."""
    return sorted(folder.glob("checkpoint-*.pt"))


def list_best(folder: Path) -> list[Path]:
    """List the policies of a run's best evaluations, oldest first: the newest is that of the best so far."""
    return sorted(folder.glob("best-*.pt"))


def list_idle_best(best: Sequence[str], checkpoints: Sequence[str]) -> list[str]:
    """List the best policies that nothing needs: needed are the newest, and the newest before each kept checkpoint.

    A run that goes back to a checkpoint loses the evaluations after it, and the best of those before it counts again.
    """
    steps = {_step_in_name(Path(name)): name for name in best}
    moments = [max(steps, default=0), *(_step_in_name(Path(name)) for name in checkpoints)]
    needed = {max((step for step in steps if step <= moment), default=-1) for moment in moments}
    return [name for step, name in steps.items() if step not in needed]


def examine(folder: Path, run_id: str) -> list[Examined]:
    """Check every checkpoint of a run without loading one, newest first; a file is read once as long as it stays."""
    return [_examine(path, run_id) for path in reversed(list_checkpoints(folder))]


def examine_best(folder: Path, run_id: str) -> list[Examined]:
    """Check the policies of a run's best evaluations, newest first."""
    return [_examine(path, run_id) for path in reversed(list_best(folder))]


def examine_open(name: str, file: BinaryIO, size: int, run_id: str) -> Examined:
    """Check an open checkpoint that lies elsewhere, but for the bytes of its parts: whoever fetches it checks those."""
    path = Path(name)
    try:
        manifest = _read_manifest(path, file, size)
        check_owner(path, manifest, run_id)
    except CheckpointError as exc:
        return Examined(name, _step_in_name(path), str(exc))
    return Examined(name, manifest.env_step, None)


def set_newer_aside(folder: Path, env_step: int) -> None:
    """Rename what lies beyond a step that the run went back to, so that nothing takes it for the run's state."""
    for path in [*list_checkpoints(folder), *list_best(folder)]:
        if _step_in_name(path) > env_step:
            path.replace(path.with_suffix(".aside"))


def name_checkpoint(env_step: int) -> str:
    """File name of the checkpoint at a step, so that names sort as steps do."""
    return f"checkpoint-{env_step:012d}.pt"


def name_best(env_step: int) -> str:
    """File name of the policy that an evaluation at a step found to be the best so far."""
    return f"best-{env_step:012d}.pt"


def check_owner(path: Path, manifest: Manifest, run_id: str) -> None:
    """Refuse a checkpoint that says that it belongs to another run.

    Raises:
        CheckpointError: If it does.
    """
    if manifest.run_id not in (None, run_id):
        raise CheckpointError(
            f"{path.name} belongs to run {manifest.run_id}, not to {run_id}.", reason="other_run", subject=path.name
        )


def _examine(path: Path, run_id: str) -> Examined:
    try:
        manifest = verify(path)
        check_owner(path, manifest, run_id)
    except CheckpointError as exc:
        return Examined(path.name, _step_in_name(path), str(exc))
    return Examined(path.name, manifest.env_step, None)


def verify(path: Path) -> Manifest:
    """Check every byte of a checkpoint; a file that has not changed since is not read again.

    Raises:
        CheckpointError: If it is truncated, foreign, damaged or of a newer schema.
    """
    try:
        stat = path.stat()
    except OSError as exc:
        raise CheckpointError(
            f"{path.name} cannot be read: {exc.strerror}.", reason="not_readable", subject=path.name
        ) from exc
    found = _verify(path, stat.st_size, stat.st_mtime_ns)
    if isinstance(found, CheckpointError):
        raise CheckpointError(found.message, reason=found.reason, subject=found.subject)
    return found


def check_archive(path: Path) -> None:
    """Check an unsigned checkpoint by the checksums of its archive.

    Raises:
        CheckpointError: If one is wrong or the archive cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError) as exc:
        raise CheckpointError(
            f"{path.name} is not a readable checkpoint: {exc}.", reason="damaged", subject=path.name
        ) from exc
    if broken is not None:
        raise CheckpointError(
            f"{path.name} is damaged: the checksum of {broken} is wrong.", reason="checksum", subject=path.name
        )


@lru_cache(maxsize=256)
def _verify(path: Path, size: int, changed_ns: int) -> Manifest | CheckpointError:
    try:
        manifest = read_manifest(path)
        if manifest.schema == UNSIGNED:
            check_archive(path)
        for part in manifest.parts:
            _verify_part(path, part)
    except CheckpointError as exc:
        return CheckpointError(str(exc), reason=exc.reason, subject=exc.subject)
    return manifest


def _verify_part(path: Path, part: Part) -> None:
    with path.open("rb") as file:
        file.seek(part.start)
        left = range(part.size, 0, -_CHUNK_BYTES)
        _check_part(path, part, (file.read(min(each, _CHUNK_BYTES)) for each in left))


def _check_part(path: Path, part: Part, chunks: Iterable[bytes]) -> None:
    digest, name = (sha256(), _SHA) if part.digest.startswith(_SHA) else (blake2b(digest_size=_DIGEST_BYTES), "")
    for chunk in chunks:
        digest.update(chunk)
    if f"{name}{digest.hexdigest()}" != part.digest:
        raise CheckpointError(
            f"{path.name} is damaged: the checksum of its part {part.name!r} is wrong.",
            reason="checksum",
            subject=path.name,
        )


def _write_part(file: BinaryIO, name: str, write: Callable[[Sink], None]) -> Part:
    start, sink = file.tell(), _Measured(file)
    write(sink)
    return Part(name, start, sink.size, sink.digest)


def _read_manifest(path: Path, file: BinaryIO, size: int) -> Manifest:
    file.seek(0)
    if size < len(_MAGIC) + _TAIL_BYTES or file.read(len(_MAGIC)) != _MAGIC:
        raise CheckpointError(
            f"{path.name} is not a checkpoint, or its beginning is damaged.", reason="damaged", subject=path.name
        )
    file.seek(size - _TAIL_BYTES)
    tail = file.read(_TAIL_BYTES)
    digest, length = tail[:_DIGEST_BYTES], int.from_bytes(tail[_DIGEST_BYTES : -len(_MAGIC)], "big")
    start = size - _TAIL_BYTES - length
    if not tail.endswith(_MAGIC) or start < len(_MAGIC):
        raise CheckpointError(f"{path.name} is cut short, or its end is damaged.", reason="damaged", subject=path.name)
    file.seek(start)
    text = file.read(length)
    if _digest(text) != digest:
        raise CheckpointError(
            f"{path.name} is damaged: the checksum of its manifest is wrong.", reason="checksum", subject=path.name
        )
    try:
        return _parse(path, json.loads(text), ends_at=start)
    except (ValueError, KeyError, TypeError) as exc:
        raise CheckpointError(
            f"{path.name} is no checkpoint of this program: its manifest lacks {exc}.",
            reason="damaged",
            subject=path.name,
        ) from exc


def _parse(path: Path, said: Mapping[str, Any], *, ends_at: int) -> Manifest:
    if said["schema"] not in (BLAKE, SCHEMA):
        raise CheckpointError(
            f"{path.name} has schema {said['schema']}, this version reads up to {SCHEMA}.",
            reason="newer_schema",
            subject=path.name,
        )
    parts = tuple(Part(**part) for part in said["parts"])
    place = len(_MAGIC)
    for part in parts:
        if part.start != place:
            raise CheckpointError(
                f"{path.name} is damaged: its part {part.name!r} does not lie where it should.",
                reason="damaged",
                subject=path.name,
            )
        place += part.size
    if place != ends_at:
        raise CheckpointError(f"{path.name} is damaged: its parts do not fill it.", reason="damaged", subject=path.name)
    return Manifest(str(said["run_id"]), int(said["env_step"]), int(said["schema"]), parts)


def _step_in_name(path: Path) -> int:
    digits = path.stem.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else 0


def _digest(data: bytes) -> Any:
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()
