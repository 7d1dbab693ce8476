"""Pack arrays with a JSON header into the one bytes payload that a canvas component takes.

Layout: uint32 header length, the header padded with spaces to a multiple of 4, then the arrays, each padded
to 4 bytes. `assets/common.js` reads it. Text in the header is data for the browser, never markup.
"""

import json
import struct
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

_TYPES = {"float32": "f4", "int32": "i4", "uint8": "u1"}


def pack_payload(meta: Mapping[str, object], arrays: Mapping[str, NDArray[np.generic]]) -> bytes:
    """Pack a header and float, integer or boolean arrays (sent as float32, int32, uint8); bytes stay bytes."""
    entries, chunks, offset = [], [], 0
    for name, array in arrays.items():
        narrow = _narrow(array)
        entries.append({"name": name, "dtype": _TYPES[narrow.dtype.name], "offset": offset, "size": int(narrow.size)})
        chunk = narrow.tobytes()
        chunks.append(chunk + b"\0" * (-len(chunk) % 4))
        offset += len(chunks[-1])
    header = json.dumps({"meta": meta, "arrays": entries}, allow_nan=False).encode()
    header += b" " * (-len(header) % 4)
    return struct.pack("<I", len(header)) + header + b"".join(chunks)


def _narrow(array: NDArray[np.generic]) -> NDArray[np.generic]:
    if array.dtype.name in ("bool", "uint8"):
        return np.ascontiguousarray(array, dtype=np.uint8)
    kind = np.int32 if np.issubdtype(array.dtype, np.integer) else np.float32
    return np.ascontiguousarray(array, dtype=kind)
