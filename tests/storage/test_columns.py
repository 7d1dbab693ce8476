"""Transitions go to the database column by column: what arrives is what was recorded, missing or not."""

import numpy as np

from storage.recording.batch import Column, ColumnarRows
from storage.recording.statements import pack_columns

NOTHING = np.zeros(3, bool)


def test_a_copy_leaves_out_what_is_missing_and_nothing_else():
    values = np.array([1.0, 2.0, 3.0])
    fields = (Column("ab"), Column(np.array([7, 8, 9], np.int32)), Column(values, np.array([False, True, False])))
    head, tail = b"PGCOPY\n\xff\r\n\x00" + bytes(8), b"\xff\xff"

    def row(number: int, value: float | None) -> bytes:
        last = b"\xff" * 4 if value is None else b"\0\0\0\x08" + np.array(value, ">f8").tobytes()
        return b"\0\3" + b"\0\0\0\2ab" + b"\0\0\0\4" + np.array(number, ">i4").tobytes() + last

    expected = head + row(7, 1.0) + row(8, None) + row(9, 3.0) + tail
    assert pack_columns(ColumnarRows(fields, 3)) == expected
    none_at_all = ColumnarRows((*fields[:2], Column(values, ~NOTHING)), 3)
    assert pack_columns(none_at_all) == head + b"".join(row(n, None) for n in (7, 8, 9)) + tail
