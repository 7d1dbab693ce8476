"""Rows as PostgreSQL's binary COPY takes them, made column by column: the server parses no number's text.

Before: `storage.batch`. After: `storage.statements`, which sends the bytes. The format is that of the manual's
chapter on COPY: a count of fields before each row, and before each field its length, -1 for NULL.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Column, Double, Integer, String
from sqlalchemy.types import BigInteger

from storage.batch import Rows

_SIGNATURE = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_TRAILER = b"\xff\xff"
Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]


def can_pack(columns: list[Column[Any]]) -> bool:
    """Tell whether every column is a number or a text, which `pack_rows` can write."""
    return all(isinstance(column.type, BigInteger | Double | Integer | String) for column in columns)


def pack_rows(rows: Rows, columns: list[Column[Any]]) -> bytes:
    """Write rows of numbers and texts as one binary COPY.

    Args:
        rows: Values in the order of the columns; None is NULL.
        columns: The columns, of the types that `can_pack` allows.
    """
    parts = [(_raw(np.full(len(rows), len(columns), ">i2")), np.ones((len(rows), 2), np.bool_))]
    for values, column in zip(zip(*rows, strict=True), columns, strict=True):
        parts += _pack_field(values, column)
    content = np.concatenate([part for part, _ in parts], axis=1)
    kept = np.concatenate([mask for _, mask in parts], axis=1)
    return _SIGNATURE + content[kept].tobytes() + _TRAILER


def _pack_field(values: tuple[Any, ...], column: Column[Any]) -> list[tuple[Bytes, Flags]]:
    """Write one column as lengths and contents, each with a mask of the bytes that are sent."""
    missing = np.array([value is None for value in values])
    content, size = _pack_content(values, missing, column)
    length = np.where(missing, -1, size).astype(">i4")
    places = np.arange(content.shape[1])
    return [(_raw(length), np.ones((len(values), 4), np.bool_)), (content, places < length[:, None])]


def _pack_content(
    values: tuple[Any, ...], missing: Flags, column: Column[Any]
) -> tuple[Bytes, NDArray[np.integer[Any]]]:
    if isinstance(column.type, String):
        texts = np.array([(value or "").encode() for value in values])
        return _raw(texts), np.char.str_len(texts)
    if missing.any():
        values = tuple(0 if value is None else value for value in values)
    kind = ">f8" if isinstance(column.type, Double) else ">i8" if isinstance(column.type, BigInteger) else ">i4"
    numbers = np.array(values, kind)
    return _raw(numbers), np.full(len(values), numbers.itemsize)


def _raw(values: NDArray[Any]) -> Bytes:
    """Look at each value's bytes [n, bytes per value]."""
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
