"""Arrays survive the way to bytes and back; damage is noticed."""

import contextlib
import json
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from emtc_core.errors import StorageError
from storage import blobs
from storage.blobs import pack, unpack

dtypes = st.one_of(
    hnp.boolean_dtypes(), hnp.integer_dtypes(), hnp.unsigned_integer_dtypes(), hnp.floating_dtypes(sizes=(16, 32, 64))
)
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9))


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.text(min_size=1, max_size=8), arrays, max_size=4), st.integers(1, 9))
def test_every_array_comes_back_as_it_was(named: dict[str, np.ndarray], chunk_rows: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blobs, "CHUNK_ROWS", chunk_rows)
        back, reversed_back = unpack(pack(named)), unpack(pack({name: np.flip(each) for name, each in named.items()}))
    assert list(back) == list(named)
    for name, array in named.items():
        assert back[name].dtype == array.dtype.newbyteorder("=")
        np.testing.assert_array_equal(back[name], array)
        np.testing.assert_array_equal(reversed_back[name], np.flip(array), err_msg="its memory is not contiguous")


def test_states_that_change_little_take_little_room() -> None:
    state = np.repeat(np.random.default_rng(0).random((1, 60), np.float32), 150, axis=0)
    state[:, 0] = np.arange(150)
    assert len(pack({"state": state})) < state.nbytes / 20


def change_version(blob: bytes) -> bytes:
    return blob[:4] + b"\x09" + blob[5:]


@pytest.mark.parametrize(
    "damage",
    [*(lambda blob, n=n: blob[:n] for n in (0, 3, 12, -1)), change_version],
    ids=["empty", "a part of the mark", "a part of the header", "without the last byte", "another version"],
)
def test_a_damaged_blob_is_refused(damage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(StorageError, match="cannot be read"):
        unpack(damage(pack({"a": np.arange(1000.0)})))


def frames_of_zeros(n_bytes: int, chunks: int) -> bytes:
    """A small blob that honestly declares `chunks` frames of `n_bytes` zeros each."""
    compressor = zstandard.ZstdCompressor(level=1)
    frame = compressor.compress(bytes(n_bytes))
    entry = {"name": "a", "dtype": "|b1", "shape": [n_bytes * chunks], "filter": "plain", "rows": n_bytes}
    header = json.dumps([entry | {"sizes": [len(frame)] * chunks}]).encode()
    return blobs._PREFIX.pack(b"EMTC", 1, len(header)) + header + frame * chunks


def most_held(act: Callable[[], object]) -> int:
    """The most bytes that Python and NumPy held at once while something was done."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_small_blob_that_unpacks_to_gigabytes_is_refused_before_it_is_unpacked() -> None:
    blob = frames_of_zeros(1 << 24, chunks=6 * 64)
    assert len(blob) < 300_000

    def read_it() -> None:
        with pytest.raises(StorageError, match=r"^This data cannot be read: .*bytes"):
            unpack(blob)

    assert most_held(read_it) < 1 << 22


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_blob_with_changed_bytes_is_read_or_refused_and_nothing_else(data) -> None:
    blob = bytearray(pack({"a": np.arange(60.0).reshape(20, 3), "b": np.arange(5)}))
    for _ in range(data.draw(st.integers(1, 6))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(StorageError):
        unpack(bytes(blob))


def test_a_blob_without_arrays_is_always_the_same() -> None:
    assert blobs.pack({}) == blobs.EMPTY
    assert blobs.unpack(blobs.EMPTY) == {}
