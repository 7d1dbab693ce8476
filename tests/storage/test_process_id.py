"""A process is found by its pid, its host and its start time."""

import os
import subprocess
import sys
from dataclasses import dataclass, replace

import psutil
import pytest

from storage.process_id import (
    ProcessId,
    find_process,
    get_process_id,
    is_process_alive,
    is_process_gone,
    process_columns,
    read_process_id,
)


@dataclass(frozen=True)
class Row:
    pid: int | None
    pid_created_at: float | None
    host: str | None


def make_row(process_id: ProcessId | None) -> Row:
    return Row(**process_columns(process_id))


def test_a_row_has_the_identity_that_was_written_to_it() -> None:
    assert read_process_id(make_row(get_process_id())) == get_process_id()
    assert read_process_id(make_row(None)) is None


def test_this_process_is_found() -> None:
    me = get_process_id()
    process = find_process(me)
    assert process is not None
    assert (me.pid, process.pid) == (os.getpid(), os.getpid())
    assert is_process_alive(make_row(me))
    assert not is_process_gone(make_row(me))


def test_a_process_that_has_ended_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process_id = get_process_id(child.pid)
        assert find_process(process_id) is not None
        child.communicate(b"\n")
    assert find_process(process_id) is None
    assert is_process_gone(make_row(process_id))
    with pytest.raises(psutil.NoSuchProcess):
        get_process_id(child.pid)


def test_a_process_whose_pid_was_reused_is_gone() -> None:
    me = get_process_id()
    assert me.created_at is not None
    assert find_process(replace(me, created_at=me.created_at - 1000)) is None
    assert find_process(replace(me, created_at=None)) is not None


def test_a_process_of_another_host_is_neither_alive_nor_gone() -> None:
    row = make_row(replace(get_process_id(), host="elsewhere"))
    assert not is_process_alive(row)
    assert not is_process_gone(row)


@pytest.mark.parametrize("pid", [-1, 2**22 + 1, 99_999_999_999_999])
def test_an_impossible_pid_of_a_foreign_database_is_gone(pid: int) -> None:
    assert is_process_gone(make_row(replace(get_process_id(), pid=pid)))
