"""A file is replaced as a whole or not at all."""

import os
import stat
from pathlib import Path

import pytest

from emtc_core.atomic_file import replace_atomically


@pytest.mark.parametrize("durable", [False, True])
def test_the_new_content_appears_at_the_end_of_the_block(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    with replace_atomically(path, durable=durable) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_after_an_exception_the_old_content_remains_and_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")

    def write_half() -> None:
        with replace_atomically(path) as file:
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_only_the_owner_reads_a_private_file(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        modes = []
        for private in (True, False):
            with replace_atomically(tmp_path / "file", private=private) as file:
                file.write(b"x")
            modes.append(stat.S_IMODE((tmp_path / "file").stat().st_mode))
    finally:
        os.umask(mask)
    assert modes == [0o600, 0o644]
