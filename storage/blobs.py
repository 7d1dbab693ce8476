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

Unpacking never executes code from the data (no pickle). The sizes in the header are compared with `MAX_BYTES` and with
the sizes in the frames before memory is allocated.
"""

import json
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from storage.guards import make_unreadable_error

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
_DTYPE_KINDS = "biuf"
"""Kinds of the NumPy types that a blob can contain: boolean, integer and floating. Objects would need pickle."""
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
        if array.dtype.kind not in _DTYPE_KINDS:
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


def unpack(blob: bytes) -> dict[str, NDArray[Any]]:
    """Unpack all arrays of a blob.

    Source: the format at the top of this module.

    Args:
        blob: A blob made by `pack`.

    Returns:
        The arrays by name, with the shapes that were packed [unit varies].

    Raises:
        StorageError: If the blob cannot be read, or its arrays have more than `MAX_BYTES`.
    """
    try:
        return _unpack(blob)
    except _DAMAGE_ERRORS as error:
        raise make_unreadable_error(error) from error


def unpack_array(blob: bytes) -> NDArray[Any]:
    """Unpack a blob that contains one array.

    Source: the format at the top of this module.

    Args:
        blob: A blob made by `pack` from one array.

    Returns:
        The array, with the shape that was packed [unit varies].

    Raises:
        StorageError: If the blob cannot be read, or contains another number of arrays.
    """
    arrays = list(unpack(blob).values())
    if len(arrays) != 1:
        raise make_unreadable_error(f"a blob of one array contains {len(arrays)}")
    return arrays[0]


def _unpack(blob: bytes) -> dict[str, NDArray[Any]]:
    magic, version, header_bytes = _PREFIX.unpack_from(blob)
    if (magic, version) != (MAGIC, VERSION):
        raise ValueError("it is not a blob of this version of EMTC Lab")
    start = _PREFIX.size + header_bytes
    entries = json.loads(blob[_PREFIX.size : start])
    frames: dict[str, list[bytes]] = {}
    size_bytes = 0
    for entry in entries:
        frames[entry["name"]] = []
        for frame_bytes in entry["sizes"]:
            frame = blob[start : start + frame_bytes]
            frames[entry["name"]].append(frame)
            size_bytes += zstandard.frame_content_size(frame)
            start += frame_bytes
    if size_bytes > MAX_BYTES:
        raise ValueError(f"its arrays have {size_bytes:,} bytes, and at most {MAX_BYTES:,} are allowed")
    return {entry["name"]: _unpack_array(entry, frames[entry["name"]]) for entry in entries}


def _unpack_array(entry: Mapping[str, Any], frames: Sequence[bytes]) -> NDArray[Any]:
    dtype, shape, rows = np.dtype(entry["dtype"]), entry["shape"], entry["rows"]
    if dtype.kind not in _DTYPE_KINDS:
        raise ValueError(f"it contains an array of type {dtype}")
    chunks: list[NDArray[Any]] = []
    for i, frame in enumerate(frames):
        chunk_shape = (min(rows, shape[0] - i * rows), *shape[1:]) if shape else ()
        chunks.append(_restore(_decompressor().decompress(frame), dtype, chunk_shape, entry["filter"]))
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks)


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
