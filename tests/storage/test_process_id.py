"""A process is found by its pid, its host and its key; what another process table shows proves nothing."""

import os
import subprocess
import sys
from dataclasses import dataclass, replace

import psutil
import pytest

from storage import process_id as identities
from storage.process_id import (
    ProcessId,
    get_process_id,
    is_process_alive,
    is_process_gone,
    is_process_missing,
    observe_process,
    process_columns,
    read_process_id,
)


@dataclass(frozen=True)
class Row:
    pid: int | None
    pid_created_at: float | None
    process_key: str | None
    host: str | None


def make_row(process_id: ProcessId | None) -> Row:
    return Row(**process_columns(process_id))


def test_a_row_has_the_identity_that_was_written_to_it() -> None:
    assert read_process_id(make_row(get_process_id())) == get_process_id()
    assert read_process_id(make_row(None)) is None


def test_this_process_is_found() -> None:
    me = get_process_id()
    assert me.pid == os.getpid()
    assert observe_process(me) == "alive"
    assert is_process_alive(make_row(me))
    assert not is_process_gone(make_row(me))


def test_a_process_that_has_ended_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process_id = get_process_id(child.pid)
        assert observe_process(process_id) == "alive"
        child.communicate(b"\n")
    assert observe_process(process_id) == "ended"
    assert is_process_gone(make_row(process_id))
    with pytest.raises(psutil.NoSuchProcess):
        get_process_id(child.pid)


def test_a_process_whose_pid_was_reused_is_gone() -> None:
    me = get_process_id()
    assert me.key is not None
    assert observe_process(replace(me, key=f"{me.key}0")) == "ended"


def test_a_corrected_clock_does_not_end_a_process() -> None:
    """Linux gives the start of a process in Unix time by the time of the boot, which changes with the clock."""
    me = get_process_id()
    assert me.created_at is not None
    assert observe_process(replace(me, created_at=me.created_at - 3)) == "alive"


@pytest.mark.parametrize("other", ["container", "boot", "earlier version", "hidden by /proc"])
def test_nothing_is_said_about_a_process_that_this_process_table_need_not_show(
    monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    me = get_process_id()
    assert me.key is not None
    boot, namespace, start = me.key.split("/")
    key = {"container": f"{boot}/1/{start}", "boot": f"another/{namespace}/{start}", "earlier version": None}
    unseen = replace(me, pid=2**22 + 1, key=key.get(other, me.key))
    if other == "hidden by /proc":
        monkeypatch.setattr(identities, "_has_pid", lambda pid: True)  # /proc has no folder for this pid
    assert observe_process(unseen) == "unknown"
    assert not is_process_alive(make_row(unseen))
    assert not is_process_gone(make_row(unseen))
    assert is_process_missing(make_row(unseen))


def test_a_process_of_another_host_is_neither_alive_nor_gone() -> None:
    row = make_row(replace(get_process_id(), host="elsewhere"))
    assert not is_process_alive(row)
    assert not is_process_gone(row)


@pytest.mark.parametrize("pid", [-1, 2**22 + 1, 99_999_999_999_999])
def test_an_impossible_pid_of_a_foreign_database_is_gone(pid: int) -> None:
    assert is_process_gone(make_row(replace(get_process_id(), pid=pid)))
