"""Arrays ↔ bytes: the format of every BLOB in the database.

A blob is, in this order (integers little-endian):

    4 bytes   the letters EMTC
    1 byte    format version, now 1
    4 bytes   length of the header
    header    UTF-8 JSON: a list of {"name", "dtype", "shape", "filter", "rows", "sizes"}
    bodies    for each entry of the header, one Zstandard frame per chunk of `rows` rows (the last one may
              be shorter), `sizes[i]` bytes each; short arrays are one chunk

`dtype` is NumPy's little-endian code (`<f4`, `|b1`…). `filter` says how an array's bytes were laid out
before compression, so that similar bytes stand together:

    plain     row-major
    shuffle   byte 0 of all elements, then byte 1 of all elements…
    columns   the array is [rows, columns]: transposed first, then shuffled

Nothing here runs code from the data: no pickle. A blob says how big its arrays are before one byte of them is
unpacked: what it says is checked against a limit, against its own frames, and against what comes out.
"""

import json
import math
import struct
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from emtc_core.errors import StorageError
from storage.guards import shorten

MAGIC = b"EMTC"
VERSION = 1
_PREFIX = struct.Struct("<4sBI")
EMPTY = _PREFIX.pack(MAGIC, VERSION, 2) + b"[]"
"""A blob without arrays, as `pack({})` makes it."""
CHUNK_ROWS = 65_536
_LEVEL = 1
_MAX_COLUMNS = 4096  # wider arrays are not worth transposing
MOST_BYTES = 1 << 30
"""Of all arrays of one blob, unpacked: a column of a memory of 50 million nodes still fits."""
_MOST_HEADER_BYTES = 1 << 20
_MOST_DIMENSIONS = 8
_KINDS = {"f": "f", "i": "iu", "b": "biu"}
_local = threading.local()  # a compressor belongs to one thread


def pack(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Compress named arrays into one blob.

    Args:
        arrays: Boolean, integer or floating arrays of any shape.

    Raises:
        ValueError: If an array holds objects or another type without a fixed layout.
    """
    entries: list[dict[str, Any]] = []
    bodies: list[bytes] = []
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise ValueError(f"{name} must be boolean, integer or floating, got {array.dtype}")
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        layout, rows = _choose_filter(array), max(1, len(array)) if array.ndim else 1
        rows = min(rows, CHUNK_ROWS)
        chunks = [_compressor().compress(_arrange(chunk, layout)) for chunk in _split(array, rows)]
        bodies += chunks
        entry = {"name": name, "dtype": array.dtype.str, "shape": list(array.shape)}
        entries.append(entry | {"filter": layout, "rows": rows, "sizes": [len(chunk) for chunk in chunks]})
    header = json.dumps(entries, separators=(",", ":")).encode()
    return b"".join([_PREFIX.pack(MAGIC, VERSION, len(header)), header, *bodies])


def unpack(blob: bytes, *, most_bytes: int = MOST_BYTES) -> dict[str, NDArray[Any]]:
    """Read every array of a blob.

    Raises:
        StorageError: If the blob is damaged, of a newer format, or bigger than `most_bytes` when unpacked.
    """
    with _damage_told():
        return {packed.name: packed.read() for packed in _open(blob, most_bytes)}


def unpack_as(
    blob: bytes, forms: Mapping[str, str], *, optional: frozenset[str] = frozenset(), most_bytes: int = MOST_BYTES
) -> dict[str, NDArray[Any]]:
    """Read a blob whose arrays have these names and forms; those in `optional` may be missing.

    Args:
        blob: What `pack` made.
        forms: Name → kind and number of dimensions, as "f2": f floating, i integer, b boolean or 0 and 1.
        optional: Names that may be missing.
        most_bytes: Of all arrays, unpacked.

    Raises:
        StorageError: If it has others, or as `unpack` does.
    """
    with _damage_told():
        packed = list(_open(blob, most_bytes))
        found = {each.name for each in packed}
        if not forms.keys() - optional <= found or not all(each.has_form(forms.get(each.name)) for each in packed):
            raise StorageError(
                f"A stored blob must hold {', '.join(forms)}, got {shorten(', '.join(found))}.",
                reason="other_arrays",
                subject=", ".join(found),
            )
        return {each.name: each.read() for each in packed}


def measure(blob: bytes, *, most_bytes: int = MOST_BYTES) -> int:
    """How many bytes a blob's arrays take; they are not unpacked.

    Raises:
        StorageError: As `unpack` does, as far as the header and the frames tell.
    """
    if blob == EMPTY:  # what thinning leaves, a hundred thousand times in a shared study
        return 0
    with _damage_told():
        packed = list(_open(blob, most_bytes))
        for each in packed:
            for place in range(len(each.starts)):
                each.check_frame(place)
        return sum(each.size_bytes for each in packed)


def unpack_one(blob: bytes, form: str | None = None) -> NDArray[Any]:
    """Read the only array of a blob, which must have the form that `unpack_as` describes."""
    with _damage_told():
        (packed,) = _open(blob)
        if form is not None and not packed.has_form(form):
            raise ValueError("the array is of another form")
        return packed.read()


@dataclass(frozen=True)
class _Packed:
    """One array inside a blob, not yet read."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    filter: str
    rows: int
    starts: list[int]  # of the chunks, in the blob
    sizes: list[int]
    blob: memoryview

    def has_form(self, form: str | None) -> bool:
        """Whether this is of a form as "f2": kind and number of dimensions."""
        return form is not None and self.dtype.kind in _KINDS[form[0]] and len(self.shape) == int(form[1:])

    @property
    def size_bytes(self) -> int:
        """How big the array is when it is unpacked."""
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self) -> NDArray[Any]:
        chunks = [self.read_chunk(place) for place in range(len(self.starts))]
        return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)

    def read_chunk(self, place: int) -> NDArray[Any]:
        frame, shape = self.check_frame(place), self._chunk_shape(place)
        return _restore(_decompressor().decompress(frame), self.dtype, shape, self.filter)

    def check_frame(self, place: int) -> memoryview:
        """Find the frame of a chunk, which must say that it unpacks to exactly the chunk."""
        frame = self.blob[self.starts[place] : self.starts[place] + self.sizes[place]]
        if zstandard.frame_content_size(frame) != math.prod(self._chunk_shape(place)) * self.dtype.itemsize:
            raise ValueError("a frame does not hold what the header says")
        return frame

    def _chunk_shape(self, place: int) -> tuple[int, ...]:
        if not self.shape:
            return ()
        return (min(self.rows, self.shape[0] - place * self.rows), *self.shape[1:])


def _open(blob: bytes, most_bytes: int = MOST_BYTES) -> Iterator[_Packed]:
    magic, version, header_size = _PREFIX.unpack_from(blob)
    if magic != MAGIC:
        raise ValueError("not a blob of EMTC Lab")
    if version > VERSION:
        raise StorageError(
            f"A stored array has format {version}; this version reads up to {VERSION}.",
            reason="newer_format",
            subject=version,
        )
    start = _PREFIX.size + header_size
    if header_size > _MOST_HEADER_BYTES or start > len(blob):
        raise ValueError("the header is too long")
    unpacked = 0
    for entry in json.loads(blob[_PREFIX.size : start]):
        packed = _read_entry(entry, start, memoryview(blob))
        unpacked += packed.size_bytes
        if unpacked > most_bytes:
            raise StorageError(
                f"A stored blob must unpack to at most {most_bytes:,} bytes, got {unpacked:,} or more.",
                reason="too_large",
                subject=most_bytes,
            )
        start += sum(packed.sizes)
        yield packed


def _read_entry(entry: Mapping[str, Any], start: int, blob: memoryview) -> _Packed:
    """Read one entry of a header, of which nothing is taken for granted."""
    dtype, shape, rows, sizes = np.dtype(str(entry["dtype"])), tuple(entry["shape"]), entry["rows"], entry["sizes"]
    whole = all(type(number) is int and number >= 0 for number in (*shape, *sizes, rows))
    if not whole or dtype.kind not in "biuf" or rows < 1 or len(shape) > _MOST_DIMENSIONS:
        raise ValueError("an entry of the header is no array")
    if len(sizes) != (max(1, -(-shape[0] // rows)) if shape else 1) or start + sum(sizes) > len(blob):
        raise ValueError("the chunks do not make up the array")
    starts = list(accumulate(sizes, initial=start))[:-1]
    return _Packed(str(entry["name"]), dtype, shape, str(entry["filter"]), rows, starts, sizes, blob)


_DAMAGE = (
    *(zstandard.ZstdError, ValueError, KeyError, IndexError, TypeError, OverflowError, MemoryError),
    *(RecursionError, struct.error),
)


@contextmanager
def _damage_told() -> Generator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise StorageError("A stored array is damaged and cannot be read.", reason="damaged") from error


def _split(array: NDArray[Any], rows: int) -> Iterator[NDArray[Any]]:
    if array.ndim == 0 or len(array) <= rows:
        yield array
        return
    for start in range(0, len(array), rows):
        yield array[start : start + rows]


def _choose_filter(array: NDArray[Any]) -> str:
    if array.dtype.itemsize == 1:
        return "plain"
    return "columns" if array.ndim == 2 and 1 < array.shape[1] <= _MAX_COLUMNS else "shuffle"


def _arrange(array: NDArray[Any], layout: str) -> bytes:
    if layout == "plain":
        return array.tobytes()
    flat = np.ascontiguousarray(array.T if layout == "columns" else array).reshape(-1)
    return flat.view(np.uint8).reshape(flat.size, array.dtype.itemsize).T.tobytes()


def _restore(body: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], layout: str) -> NDArray[Any]:
    if len(body) != math.prod(shape) * dtype.itemsize:
        raise ValueError("wrong length")
    if layout == "plain":
        return np.frombuffer(body, dtype).reshape(shape).copy()
    rows = np.frombuffer(body, np.uint8).reshape(dtype.itemsize, -1)
    flat = np.ascontiguousarray(rows.T).reshape(-1).view(dtype)
    if layout == "columns":
        return np.ascontiguousarray(flat.reshape(shape[::-1]).T)
    return flat.reshape(shape)


def _compressor() -> zstandard.ZstdCompressor:
    if not hasattr(_local, "compressor"):
        _local.compressor = zstandard.ZstdCompressor(level=_LEVEL)
    return _local.compressor


def _decompressor() -> zstandard.ZstdDecompressor:
    if not hasattr(_local, "decompressor"):
        _local.decompressor = zstandard.ZstdDecompressor()
    return _local.decompressor
