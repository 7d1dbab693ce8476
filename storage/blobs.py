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

Nothing here runs code from the data: no pickle.
"""

import json
import math
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from emtc_core.errors import StorageError

MAGIC = b"EMTC"
VERSION = 1
_PREFIX = struct.Struct("<4sBI")
CHUNK_ROWS = 65_536
_LEVEL = 1
_MAX_COLUMNS = 4096  # wider arrays are not worth transposing
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


def unpack(blob: bytes) -> dict[str, NDArray[Any]]:
    """Read every array of a blob.

    Raises:
        StorageError: If the blob is damaged or of a newer format.
    """
    with _damage_told():
        return {packed.name: packed.read() for packed in _open(blob)}


def unpack_one(blob: bytes) -> NDArray[Any]:
    """Read the only array of a blob."""
    (array,) = unpack(blob).values()
    return array


def unpack_row(blob: bytes, row: int) -> NDArray[Any]:
    """Read one row of the only array of a blob, decompressing its chunk alone."""
    with _damage_told():
        (packed,) = _open(blob)
        return packed.read_chunk(row // packed.rows)[row % packed.rows]


def find_row(blob: bytes, value: int) -> int | None:
    """Find the row of a value in the only array of a blob, one-dimensional and ascending, or None."""
    with _damage_told():
        (packed,) = _open(blob)
        low, high = 0, len(packed.starts) - 1
        while low < high:  # the last chunk that does not begin above the value
            middle = (low + high + 1) // 2
            low, high = (middle, high) if packed.read_chunk(middle)[0] <= value else (low, middle - 1)
        chunk = packed.read_chunk(low)
        place = int(np.searchsorted(chunk, value))
        return low * packed.rows + place if place < len(chunk) and chunk[place] == value else None


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

    def read(self) -> NDArray[Any]:
        chunks = [self.read_chunk(place) for place in range(len(self.starts))]
        return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)

    def read_chunk(self, place: int) -> NDArray[Any]:
        start = self.starts[place]
        body = _decompressor().decompress(self.blob[start : start + self.sizes[place]])
        shape = self.shape
        if shape:
            shape = (min(self.rows, shape[0] - place * self.rows), *shape[1:])
        return _restore(body, self.dtype, shape, self.filter)


def _open(blob: bytes) -> Iterator[_Packed]:
    magic, version, header_size = _PREFIX.unpack_from(blob)
    if magic != MAGIC:
        raise ValueError("not a blob of EMTC Lab")
    if version > VERSION:
        raise StorageError(f"A stored array has format {version}; this version reads up to {VERSION}.")
    start = _PREFIX.size + header_size
    for entry in json.loads(blob[_PREFIX.size : start]):
        starts = [start + offset for offset in accumulate(entry["sizes"], initial=0)]
        start = starts.pop()
        yield _Packed(
            entry["name"],
            np.dtype(entry["dtype"]),
            tuple(entry["shape"]),
            entry["filter"],
            entry["rows"],
            starts,
            entry["sizes"],
            memoryview(blob),
        )


@contextmanager
def _damage_told() -> Iterator[None]:
    try:
        yield
    except (zstandard.ZstdError, ValueError, KeyError, IndexError, TypeError, struct.error) as error:
        raise StorageError("A stored array is damaged and cannot be read.") from error


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
