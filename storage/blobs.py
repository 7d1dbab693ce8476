"""Arrays ↔ bytes: the format of every BLOB in the database.

A blob is, in this order (integers little-endian):

    4 bytes   the letters EMTC
    1 byte    format version, now 1
    4 bytes   length of the header
    header    UTF-8 JSON: a list of {"name", "dtype", "shape", "filter", "size"}
    bodies    one Zstandard frame of `size` bytes per entry of the header, in its order

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
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from emtc_core.errors import StorageError

MAGIC = b"EMTC"
VERSION = 1
_PREFIX = struct.Struct("<4sBI")
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
        layout = _choose_filter(array)
        body = _compressor().compress(_arrange(array, layout))
        bodies.append(body)
        shape = list(array.shape)
        entries.append({"name": name, "dtype": array.dtype.str, "shape": shape, "filter": layout, "size": len(body)})
    header = json.dumps(entries, separators=(",", ":")).encode()
    return b"".join([_PREFIX.pack(MAGIC, VERSION, len(header)), header, *bodies])


def unpack(blob: bytes) -> dict[str, NDArray[Any]]:
    """Read every array of a blob.

    Raises:
        StorageError: If the blob is damaged or of a newer format.
    """
    try:
        return {entry["name"]: _restore(_decompressor().decompress(body), entry) for entry, body in _entries(blob)}
    except (zstandard.ZstdError, ValueError, KeyError, TypeError, struct.error) as error:
        raise StorageError("A stored array is damaged and cannot be read.") from error


def unpack_one(blob: bytes) -> NDArray[Any]:
    """Read the only array of a blob."""
    (array,) = unpack(blob).values()
    return array


def _entries(blob: bytes) -> Iterator[tuple[dict[str, Any], memoryview]]:
    magic, version, header_size = _PREFIX.unpack_from(blob)
    if magic != MAGIC:
        raise ValueError("not a blob of EMTC Lab")
    if version > VERSION:
        raise StorageError(f"A stored array has format {version}; this version reads up to {VERSION}.")
    start = _PREFIX.size + header_size
    for entry in json.loads(blob[_PREFIX.size : start]):
        yield entry, memoryview(blob)[start : start + entry["size"]]
        start += entry["size"]


def _choose_filter(array: NDArray[Any]) -> str:
    if array.dtype.itemsize == 1:
        return "plain"
    return "columns" if array.ndim == 2 and 1 < array.shape[1] <= _MAX_COLUMNS else "shuffle"


def _arrange(array: NDArray[Any], layout: str) -> bytes:
    if layout == "plain":
        return array.tobytes()
    flat = np.ascontiguousarray(array.T if layout == "columns" else array).reshape(-1)
    return flat.view(np.uint8).reshape(flat.size, array.dtype.itemsize).T.tobytes()


def _restore(body: bytes, entry: Mapping[str, Any]) -> NDArray[Any]:
    dtype, shape = np.dtype(entry["dtype"]), tuple(entry["shape"])
    if len(body) != math.prod(shape) * dtype.itemsize:
        raise ValueError("wrong length")
    if entry["filter"] == "plain":
        return np.frombuffer(body, dtype).reshape(shape).copy()
    rows = np.frombuffer(body, np.uint8).reshape(dtype.itemsize, -1)
    flat = np.ascontiguousarray(rows.T).reshape(-1).view(dtype)
    if entry["filter"] == "columns":
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
