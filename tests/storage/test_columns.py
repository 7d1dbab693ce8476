"""Transitions go to the database column by column: what arrives is what was recorded, missing or not."""

import numpy as np
import pytest
from sqlalchemy import text

from storage.engine import Database
from storage.recording.batch import Column, ColumnarRows, make_batch
from storage.recording.statements import pack_columns, write_batch
from storage.runs.changes import create_run
from tests.storage.records import CONFIG, make_episode

NOTHING = np.zeros(3, bool)


def test_rows_hold_python_values_and_none_where_something_is_missing():
    values = np.array([1.5, np.nan, 2.0])
    columns = ColumnarRows(
        (Column("run"), Column(np.arange(3)), Column(values, np.isnan(values)), Column(values, ~NOTHING)), 3
    )
    assert columns.rows() == [("run", 0, 1.5, None), ("run", 1, None, None), ("run", 2, 2.0, None)]
    assert len(columns) == 3


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


@pytest.mark.parametrize("gated", [True, False])
def test_what_arrives_is_what_was_recorded(db: Database, gated: bool):
    run_id = create_run(db, CONFIG, target_steps=100, versions={})
    batch = make_batch(run_id, [make_episode(1, 1, gated=gated), make_episode(2, 11, gated=gated)])
    with db.transaction() as connection:
        write_batch(connection, run_id, batch)
        stored = connection.execute(text("SELECT * FROM transitions ORDER BY env_step")).all()
    assert batch.transitions is not None
    assert [tuple(row) for row in stored] == batch.transitions.rows()
