"""Arrays survive the way to bytes and back; damage is noticed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from emtc_core.errors import StorageError
from storage import blobs
from storage.blobs import find_row, pack, unpack, unpack_one, unpack_row

dtypes = st.one_of(
    hnp.boolean_dtypes(), hnp.integer_dtypes(), hnp.unsigned_integer_dtypes(), hnp.floating_dtypes(sizes=(16, 32, 64))
)
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9))


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text(min_size=1, max_size=8), arrays, max_size=4), st.integers(1, 9))
def test_every_array_comes_back_as_it_was(named: dict[str, np.ndarray], chunk_rows: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blobs, "CHUNK_ROWS", chunk_rows)
        back = unpack(pack(named))
    assert list(back) == list(named)
    for name, array in named.items():
        assert back[name].dtype == array.dtype.newbyteorder("=")
        np.testing.assert_array_equal(back[name], array)


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(-50, 50), min_size=1), st.integers(1, 9))
def test_single_rows_are_found_and_read_through_chunks(values: set[int], chunk_rows: int) -> None:
    ascending = np.array(sorted(values))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blobs, "CHUNK_ROWS", chunk_rows)
        keys, squares = pack({"keys": ascending}), pack({"squares": np.stack([ascending, ascending**2], axis=1)})
    for value in range(-51, 52):
        row = find_row(keys, value)
        if value not in values:
            assert row is None
        else:
            assert row is not None
            assert unpack_row(squares, row).tolist() == [value, value**2]


def test_nothing_is_found_in_an_empty_array() -> None:
    assert find_row(pack({"keys": np.zeros(0, np.int64)}), 1) is None


def test_a_slice_that_is_not_contiguous_is_packed_by_value() -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::-1]
    np.testing.assert_array_equal(unpack_one(pack({"a": array})), array)


def test_states_that_change_little_take_little_room() -> None:
    state = np.repeat(np.random.default_rng(0).random((1, 60), np.float32), 150, axis=0)
    state[:, 0] = np.arange(150)
    assert len(pack({"state": state})) < state.nbytes / 20


def test_objects_are_refused() -> None:
    with pytest.raises(ValueError, match="a must be"):
        pack({"a": np.array(["x"], object)})


@pytest.mark.parametrize("cut", [0, 3, 12, -1])
def test_a_damaged_blob_is_noticed(cut: int) -> None:
    blob = pack({"a": np.arange(1000.0)})
    with pytest.raises(StorageError):
        unpack(blob[:cut])


def test_a_newer_format_is_named() -> None:
    blob = bytearray(pack({"a": np.arange(3)}))
    blob[4] = 9
    with pytest.raises(StorageError, match="format 9"):
        unpack(bytes(blob))
