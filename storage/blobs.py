"""Pack arrays into bytes and unpack them: the format of every BLOB in the database.

A blob consists of (integers little-endian):

    4 bytes   the letters EMTC
    1 byte    format version, now 1
    4 bytes   length of the header
    header    UTF-8 JSON: a list of {"name", "dtype", "shape", "filter", "rows", "sizes"}
    bodies    for each entry of the header, one Zstandard frame per chunk of `rows` rows (the last chunk may
              be shorter). Frame i has `sizes[i]` bytes. A short array is one chunk.

`dtype` is NumPy's little-endian code (`<f4`, `|b1`…). `filter` is the order of the array's bytes before compression.
It puts similar bytes next to each other:

    plain     row-major
    shuffle   byte 0 of all elements, then byte 1 of all elements…
    columns   the array is [rows, columns]: transposed first, then shuffled

Unpacking never executes code from the data (no pickle). Before an array is unpacked, its size in the header is compared
with a limit and with the sizes in its frames. Afterwards it is compared with the unpacked bytes.
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

_PREFIX = struct.Struct("<4sBI")

MAGIC = b"EMTC"
VERSION = 1
EMPTY = _PREFIX.pack(MAGIC, VERSION, 2) + b"[]"
"""The blob of `pack({})`, without arrays."""
CHUNK_ROWS = 65_536
"""Maximum number of rows per compressed chunk."""
MAX_BYTES = 1 << 30
"""Maximum size of the arrays of one blob after unpacking [bytes]. A column of 50 million memory nodes is smaller."""
_COMPRESSION_LEVEL = 1
_MAX_COLUMNS = 4096
"""Arrays with more columns are not transposed, because it does not compress better."""
_MAX_HEADER_BYTES = 1 << 20
_MAX_DIMENSIONS = 8
_DAMAGE_ERRORS = (
    *(zstandard.ZstdError, ValueError, KeyError, IndexError, TypeError, OverflowError, MemoryError),
    *(RecursionError, struct.error),
)
"""Exceptions that a damaged blob can cause."""
_thread_local = threading.local()  # compressors and decompressors cannot be shared between threads


def pack(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Compress named arrays into one blob.

    Source: the format at the top of this module.

    Args:
        arrays: Boolean, integer or floating arrays of any shape.

    Raises:
        ValueError: If an array has another type, for example objects.
    """
    entries: list[dict[str, Any]] = []
    bodies: list[bytes] = []
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise ValueError(f"{name} must be boolean, integer or floating (got {array.dtype})")
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        filter_name, rows = _choose_filter(array), max(1, len(array)) if array.ndim else 1
        rows = min(rows, CHUNK_ROWS)
        chunks = [_compressor().compress(_arrange(chunk, filter_name)) for chunk in _split(array, rows)]
        bodies += chunks
        entry = {"name": name, "dtype": array.dtype.str, "shape": list(array.shape)}
        entries.append(entry | {"filter": filter_name, "rows": rows, "sizes": [len(chunk) for chunk in chunks]})
    header = json.dumps(entries, separators=(",", ":")).encode()
    return b"".join([_PREFIX.pack(MAGIC, VERSION, len(header)), header, *bodies])


def unpack(blob: bytes, *, max_bytes: int = MAX_BYTES) -> dict[str, NDArray[Any]]:
    """Unpack all arrays of a blob. `storage.arrays` unpacks blobs whose arrays must follow rules.

    Source: the format at the top of this module.

    Args:
        blob: A blob made by `pack`.
        max_bytes: Maximum size of all arrays after unpacking [bytes].

    Returns:
        The arrays by name, with the shapes that were packed [unit varies].

    Raises:
        StorageError: If the blob is damaged, has another format, or its arrays have more than `max_bytes`.
    """
    return {packed.name: packed.read() for packed in list_arrays(blob, max_bytes=max_bytes)}


def list_arrays(blob: bytes, *, max_bytes: int = MAX_BYTES) -> "list[PackedArray]":
    """List the arrays of a blob without unpacking them.

    Args:
        blob: A blob made by `pack`.
        max_bytes: Maximum size of all arrays after unpacking [bytes].

    Raises:
        StorageError: If the header is damaged, the blob has another format, or its arrays have more than `max_bytes`.
    """
    with _report_damage():
        return list(_open(blob, max_bytes))


def measure(blob: bytes, *, max_bytes: int = MAX_BYTES) -> int:
    """Return the size of a blob's arrays [bytes], without unpacking them.

    Raises:
        StorageError: If the header or the sizes in the frames are invalid, or the arrays have more than `max_bytes`.
    """
    if blob == EMPTY:  # a thinned database has hundreds of thousands of these
        return 0
    with _report_damage():
        arrays = list(_open(blob, max_bytes))
        for array in arrays:
            for i in range(len(array.starts)):
                array.get_frame(i)  # raises if the size of the frame is wrong
        return sum(array.size_bytes for array in arrays)


@dataclass(frozen=True)
class PackedArray:
    """One array inside a blob, before it is unpacked. The fields are those of the header."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    filter: str
    rows: int
    starts: list[int]  # offsets of the chunks in the blob
    sizes: list[int]
    blob: memoryview

    @property
    def size_bytes(self) -> int:
        """Size of the unpacked array [bytes]."""
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self) -> NDArray[Any]:
        """Unpack the array.

        Source: the format at the top of this module.

        Returns:
            The array, with the shape of the header [unit varies].

        Raises:
            StorageError: If the array is damaged.
        """
        with _report_damage():
            chunks = [
                _restore(_decompressor().decompress(self.get_frame(i)), self.dtype, self._chunk_shape(i), self.filter)
                for i in range(len(self.starts))
            ]
            return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)

    def get_frame(self, i: int) -> memoryview:
        """Return the frame of a chunk.

        Raises:
            ValueError: If the frame does not unpack to the size of the chunk.
        """
        frame = self.blob[self.starts[i] : self.starts[i] + self.sizes[i]]
        if zstandard.frame_content_size(frame) != math.prod(self._chunk_shape(i)) * self.dtype.itemsize:
            raise ValueError("the size of a frame differs from the header")
        return frame

    def _chunk_shape(self, i: int) -> tuple[int, ...]:
        if not self.shape:
            return ()
        return (min(self.rows, self.shape[0] - i * self.rows), *self.shape[1:])


def _open(blob: bytes, max_bytes: int) -> Iterator[PackedArray]:
    """Parse the header of a blob and yield its arrays."""
    magic, version, header_size = _PREFIX.unpack_from(blob)
    if magic != MAGIC:
        raise ValueError("not a blob of EMTC Lab")
    if version != VERSION:
        raise StorageError(
            f"A stored array has format {version}, and this program reads format {VERSION}.",
            reason="newer_format" if version > VERSION else "unknown_format",
            subject=version,
        )
    start = _PREFIX.size + header_size
    if header_size > _MAX_HEADER_BYTES or start > len(blob):
        raise ValueError("the header is too long")
    unpacked = 0
    for entry in json.loads(blob[_PREFIX.size : start]):
        packed = _parse_entry(entry, start, memoryview(blob))
        unpacked += packed.size_bytes
        if unpacked > max_bytes:
            raise StorageError(
                f"A stored blob of {len(blob):,} bytes must unpack to at most {max_bytes:,} bytes "
                f"(got {unpacked:,} or more).",
                reason="too_large",
                subject=max_bytes,
            )
        start += sum(packed.sizes)
        yield packed


def _parse_entry(entry: Mapping[str, Any], start: int, blob: memoryview) -> PackedArray:
    """Parse and validate one entry of a header."""
    dtype, shape, rows, sizes = np.dtype(str(entry["dtype"])), tuple(entry["shape"]), entry["rows"], entry["sizes"]
    are_counts = all(type(number) is int and number >= 0 for number in (*shape, *sizes, rows))
    if not are_counts or dtype.kind not in "biuf" or rows < 1 or len(shape) > _MAX_DIMENSIONS:
        raise ValueError("an entry of the header is not an array")
    if len(sizes) != (max(1, -(-shape[0] // rows)) if shape else 1) or start + sum(sizes) > len(blob):
        raise ValueError("the chunks do not match the array")
    starts = list(accumulate(sizes, initial=start))[:-1]
    return PackedArray(str(entry["name"]), dtype, shape, str(entry["filter"]), rows, starts, sizes, blob)


@contextmanager
def _report_damage() -> Generator[None]:
    """Convert the exceptions of a damaged blob to StorageError."""
    try:
        yield
    except _DAMAGE_ERRORS as error:
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


def _arrange(array: NDArray[Any], filter_name: str) -> bytes:
    """Return the bytes of an array in the order of a filter."""
    if filter_name == "plain":
        return array.tobytes()
    flat = np.ascontiguousarray(array.T if filter_name == "columns" else array).reshape(-1)
    return flat.view(np.uint8).reshape(flat.size, array.dtype.itemsize).T.tobytes()


def _restore(body: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], filter_name: str) -> NDArray[Any]:
    """Return the array from its bytes in the order of a filter."""
    if len(body) != math.prod(shape) * dtype.itemsize:
        raise ValueError("wrong length")
    if filter_name == "plain":
        return np.frombuffer(body, dtype).reshape(shape).copy()
    rows = np.frombuffer(body, np.uint8).reshape(dtype.itemsize, -1)
    flat = np.ascontiguousarray(rows.T).reshape(-1).view(dtype)
    if filter_name == "columns":
        return np.ascontiguousarray(flat.reshape(shape[::-1]).T)
    return flat.reshape(shape)


def _compressor() -> zstandard.ZstdCompressor:
    if not hasattr(_thread_local, "compressor"):
        _thread_local.compressor = zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL)
    return _thread_local.compressor


def _decompressor() -> zstandard.ZstdDecompressor:
    if not hasattr(_thread_local, "decompressor"):
        _thread_local.decompressor = zstandard.ZstdDecompressor()
    return _thread_local.decompressor
