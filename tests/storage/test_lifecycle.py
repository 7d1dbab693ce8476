"""The life of a run: random sequences of everything that may happen, held against the one table of transitions."""

import atexit
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import update

from emtc_core.errors import RunNotFoundError, RunStateError
from storage.engine import Database, open_database
from storage.models import Run
from storage.process_id import ProcessId, get_process_id
from storage.queries.runs import list_runs
from storage.recording.writer import DatabaseRecorder
from storage.runs import lifecycle
from storage.runs.changes import claim_start, create_run, finish_run, start_again, start_run
from storage.runs.claims import ClaimedRun, return_to_queue
from storage.runs.control import DatabaseControl, request_stop, send_command
from storage.runs.lifecycle import LOST_AFTER_S, START_LIMIT_S, TRANSITIONS, Event, Owner, State, make_owner
from storage.runs.removal import remove_run
from storage.runs.rows import find_run, get_state
from tests.errors import raises
from tests.storage.records import CONFIG, record_episodes

STORED = {
    State.CREATED: ("queued",),
    State.STARTING: ("queued",),
    State.RUNNING: ("running",),
    State.PAUSED: ("paused",),
    State.STOPPING: ("queued", "running", "paused"),
    State.STOPPED: ("stopped",),
    State.FINISHED: ("finished",),
    State.FAILED: ("failed",),
    State.LOST: ("queued", "running", "paused"),
}
"""The words of `runs.status` under which each state may stand."""
ENDINGS = {"finished": Event.FINISH, "stopped": Event.STOP, "failed": Event.FAIL}


def start_sleeper() -> subprocess.Popen[bytes]:
    """A real process in the part of a trainer: what counts of it here is that it lives or not."""
    return subprocess.Popen(["sleep", "600"])


@cache
def shared_database() -> Database:
    """One database for all examples: each makes its own run."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return open_database(f"sqlite:///{Path(folder) / 'emtc.db'}")


def name_owner(process: subprocess.Popen[bytes]) -> Owner:
    return make_owner(get_process_id(process.pid))


def set_run(db: Database, run_id: str, **values: Any) -> None:
    with db.transaction() as connection:
        connection.execute(update(Run).where(Run.id == run_id).values(**values))


@contextmanager
def refused_unless(allowed: bool) -> Iterator[None]:
    """The table decides: what it holds succeeds, what it does not is refused in a sentence."""
    if allowed:
        yield
        return
    with pytest.raises(RunStateError):
        yield


class LifeOfARun(RuleBasedStateMachine):
    """One run, one process that has it at most, and a clock that may be turned."""

    def __init__(self) -> None:
        super().__init__()
        self.db = shared_database()
        self.process: subprocess.Popen[bytes] | None = None
        self.owner: Owner | None = None
        self.state: State | None = State.CREATED
        self.steps = 0

    def teardown(self) -> None:
        self.end_process()

    def end_process(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    @initialize(owned=st.booleans())
    def create(self, owned: bool) -> None:
        """Either somebody starts it now, or it waits in a queue."""
        if owned:
            self.process = start_sleeper()
            self.owner = name_owner(self.process)
            self.state = State.STARTING
        self.run_id = create_run(self.db, CONFIG, target_steps=1000, versions={}, owner=self.owner)

    @precondition(lambda self: not self.exists)
    @rule(owned=st.booleans())
    def create_another(self, owned: bool) -> None:
        """After a delete life goes on with a new run."""
        self.end_process()
        self.owner, self.state, self.steps = None, State.CREATED, 0
        self.create(owned)

    @property
    def alive(self) -> bool:
        return self.process is not None

    @property
    def exists(self) -> bool:
        return self.state is not None

    def move(self, event: Event) -> None:
        """Follow the table; a state with two ways by one event would be a fault of the table."""
        (way,) = [way for way in TRANSITIONS if way.before == self.state and way.event == event]
        self.state = way.after

    def allows(self, event: Event) -> bool:
        return self.state is not None and lifecycle.allows(self.state, event)

    # ---- what people and launchers do ----

    @precondition(lambda self: self.exists)
    @rule()
    def claim(self) -> None:
        """Start or resume: whoever takes the run over is its owner from then on."""
        taken = start_sleeper()
        owner, allowed = name_owner(taken), self.allows(Event.CLAIM)
        if self.state == State.LOST and self.alive and find_run(self.db, self.run_id).status != "queued":
            allowed = False  # it may wake up
        with refused_unless(allowed):
            claim_start(self.db, self.run_id, owner)
        if allowed:
            self.end_process()
            self.process, self.owner = taken, owner
            self.move(Event.CLAIM)
        else:
            taken.kill()
            taken.wait()

    @precondition(lambda self: self.exists)
    @rule()
    def ask_to_stop(self) -> None:
        if self.state == State.CREATED:
            request_stop(self.db, self.run_id, patience_s=0)
            self.move(Event.LEAVE_QUEUE)
            return
        allowed = self.allows(Event.REQUEST_STOP)
        with refused_unless(allowed):
            send_command(self.db, self.run_id, "stop")
        if allowed:
            self.move(Event.REQUEST_STOP)

    @precondition(lambda self: self.exists)
    @rule()
    def delete(self) -> None:
        allowed = self.allows(Event.DELETE)
        if self.state == State.LOST and self.alive and find_run(self.db, self.run_id).status != "queued":
            allowed = False
        with refused_unless(allowed):
            remove_run(self.db, self.run_id)
        if allowed:
            self.move(Event.DELETE)

    @precondition(lambda self: self.exists)
    @rule()
    def start_again(self) -> None:
        """Makes another run and changes nothing of this one."""
        before = find_run(self.db, self.run_id)
        free = self.state in (State.CREATED, State.STOPPED, State.FAILED, State.FINISHED) or (
            self.state == State.LOST and not (self.alive and before.status != "queued")
        )
        with refused_unless(free):
            child = start_again(self.db, self.run_id, versions={})
            assert find_run(self.db, child).parent_id == self.run_id
            assert find_run(self.db, child).config == before.config
            remove_run(self.db, child)
        assert find_run(self.db, self.run_id) == before

    # ---- what the owner does ----

    @precondition(lambda self: self.exists and self.alive)
    @rule()
    def begin(self) -> None:
        assert self.owner is not None
        late = self.state == State.LOST and find_run(self.db, self.run_id).status == "queued"
        allowed = self.allows(Event.BEGIN) and find_run(self.db, self.run_id).status == "queued"
        with refused_unless(allowed or late):
            owner = self.owner
            start_run(self.db, self.run_id, owner.process, device="cpu", token=owner.token)
        if late:
            self.state = find_run(self.db, self.run_id).state
            assert self.state in (State.RUNNING, State.STOPPING)
        elif allowed:
            self.move(Event.BEGIN)

    @precondition(lambda self: self.exists and self.alive and self.state in (State.RUNNING, State.STOPPING))
    @rule()
    def record(self) -> None:
        assert self.owner is not None
        if find_run(self.db, self.run_id).status == "queued":
            return
        recorder = DatabaseRecorder(self.db, self.run_id, token=self.owner.token)
        record_episodes(recorder, 1, start=self.steps // 10 + 1)
        recorder.close()
        self.steps += 10

    @precondition(lambda self: self.state in (State.RUNNING, State.PAUSED) and self.alive)
    @rule()
    def pause_or_go_on(self) -> None:
        assert self.owner is not None
        control = DatabaseControl(self.db, self.run_id, token=self.owner.token)
        control.set_status("paused" if self.state == State.RUNNING else "running")
        control.close()
        self.move(Event.PAUSE if self.state == State.RUNNING else Event.CONTINUE)

    @precondition(lambda self: self.exists and self.owner is not None and self.alive)
    @rule(ending=st.sampled_from(sorted(ENDINGS)))
    def end(self, ending: Any) -> None:
        assert self.owner is not None
        silent = self.state == State.LOST  # its owner is here after all
        known = lifecycle.refine(row := find_run(self.db, self.run_id), row.status) if silent else self.state
        allowed = known is not None and lifecycle.allows(known, ENDINGS[ending])
        with refused_unless(allowed):
            finish_run(self.db, self.run_id, ending, token=self.owner.token)
        if allowed:
            self.state = State(ending)
            self.end_process()

    @precondition(lambda self: self.exists and self.owner is not None and self.alive)
    @rule()
    def give_back(self) -> None:
        """A machine is needed elsewhere: the run waits again, unless somebody wanted it to stop or to pause."""
        assert self.owner is not None
        row = find_run(self.db, self.run_id)
        state = lifecycle.refine(row, row.status)
        stays = state in (State.STOPPING, State.PAUSED)
        allowed = row.owner_token == self.owner.token and (stays or lifecycle.allows(state, Event.RETURN_TO_QUEUE))
        claim = ClaimedRun(self.run_id, resume=False, token=self.owner.token)
        with refused_unless(allowed):
            return_to_queue(self.db, self.run_id, token=self.owner.token, claim=claim)
        if allowed:
            self.state = State.STOPPED if stays else State.CREATED
            self.end_process()

    @precondition(lambda self: self.exists)
    @rule()
    def a_stranger_writes_nothing(self) -> None:
        """An earlier owner that wakes up has lost its say."""
        if find_run(self.db, self.run_id).owner_token is None:
            return
        before = find_run(self.db, self.run_id)
        with raises(RunStateError, reason="other_owner"):
            finish_run(self.db, self.run_id, "failed", token="of an earlier owner")
        with raises(RunStateError, reason="other_owner"):
            start_run(self.db, self.run_id, ProcessId(1, "x", 0.0), device=None, token="of another")
        assert find_run(self.db, self.run_id) == before

    # ---- what time and machines do ----

    @precondition(lambda self: self.exists and self.alive)
    @rule()
    def kill(self) -> None:
        self.end_process()
        if self.allows(Event.LOSE):
            self.move(Event.LOSE)

    @precondition(lambda self: self.state is not None and lifecycle.allows(self.state, Event.LOSE))
    @rule()
    def time_out(self) -> None:
        """Silence, or a start that takes too long."""
        past = datetime.now(UTC) - timedelta(seconds=START_LIMIT_S + LOST_AFTER_S + 1)
        row = find_run(self.db, self.run_id)
        if row.status == "queued":
            set_run(self.db, self.run_id, claimed_at=past)
        else:
            set_run(self.db, self.run_id, heartbeat_at=past)
        self.move(Event.LOSE)

    @precondition(lambda self: self.state == State.LOST and self.alive)
    @rule()
    def wake(self) -> None:
        row = find_run(self.db, self.run_id)
        if row.status == "queued":
            return
        set_run(self.db, self.run_id, heartbeat_at=datetime.now(UTC))
        self.state = lifecycle.refine(row, row.status)
        assert lifecycle.allows(State.LOST, Event.WAKE)

    # ---- what holds at every moment ----

    @invariant()
    def is_shown_as_what_it_is(self) -> None:
        if not hasattr(self, "run_id"):
            return
        if self.state is None:
            with pytest.raises(RunNotFoundError):
                find_run(self.db, self.run_id)
            return
        row = find_run(self.db, self.run_id)
        assert row.state == self.state
        assert row.status in STORED[row.state]
        assert row.env_steps == self.steps
        if self.state in (State.STARTING, State.RUNNING, State.PAUSED, State.STOPPING):
            assert self.alive, "a run without a process is shown at work"
            assert row.owner_token is not None

    @invariant()
    def is_never_stuck(self) -> None:
        """Whoever is not at work can be started or deleted by a person."""
        if self.state is not None and not self.alive:
            assert lifecycle.allows(self.state, Event.DELETE)


LifeOfARun.TestCase.settings = settings(
    max_examples=30,
    stateful_step_count=20,
    deadline=None,
    phases=(Phase.reuse, Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
test_a_run_follows_the_table = LifeOfARun.TestCase


def test_every_state_can_be_reached_and_left() -> None:
    ends = {way.after for way in TRANSITIONS}
    assert ends == {*State, None}
    for state in State:
        assert any(way.before == state for way in TRANSITIONS), state


def test_the_table_has_one_way_by_each_event_and_says_how_it_is_undone() -> None:
    single = [(way.before, way.event) for way in TRANSITIONS if way.event != Event.WAKE]
    assert len(single) == len(set(single))
    assert all(way.undone_by and way.actor for way in TRANSITIONS)


def test_of_two_owners_one_writes(db: Database, run_id: str) -> None:
    first, second = make_owner(), make_owner()
    claim_start(db, run_id, first)
    start_run(db, run_id, first.process, device="cpu", token=first.token)
    asleep = DatabaseRecorder(db, run_id, token=first.token)
    record_episodes(asleep, 2)
    asleep.flush()
    set_run(db, run_id, heartbeat_at=datetime.now(UTC) - timedelta(hours=1), host="elsewhere")
    claim_start(db, run_id, second)
    record_episodes(asleep, 1, start=3)
    with raises(RunStateError, reason="other_owner"):
        raise_cause(asleep)
    assert find_run(db, run_id).env_steps == 20
    with raises(RunStateError, reason="other_owner"):
        finish_run(db, run_id, "finished", token=first.token)
    assert find_run(db, run_id).state == State.STARTING


def raise_cause(recorder: DatabaseRecorder) -> None:
    try:
        recorder.close()
    except Exception as exc:
        raise exc.__cause__ or exc from None


def test_a_start_that_takes_too_long_is_lost_and_its_trainer_comes_too_late(db: Database, run_id: str) -> None:
    slow, next_one = make_owner(), make_owner()
    claim_start(db, run_id, slow)
    assert list_runs(db)[["status", "state"]].to_numpy().tolist() == [["queued", "starting"]]
    set_run(db, run_id, claimed_at=datetime.now(UTC) - timedelta(seconds=START_LIMIT_S + 1))
    assert find_run(db, run_id).state == State.LOST
    claim_start(db, run_id, next_one)
    with raises(RunStateError, reason="other_owner"):
        start_run(db, run_id, slow.process, device="cpu", token=slow.token)
    start_run(db, run_id, slow.process, device="cpu", token=next_one.token)
    assert find_run(db, run_id).state == State.RUNNING


def test_a_run_that_nobody_has_leaves_the_queue_when_it_is_stopped(db: Database, run_id: str) -> None:
    assert get_state(find_run(db, run_id)) == State.CREATED
    assert "removed from the queue" in request_stop(db, run_id)
    assert find_run(db, run_id).state == State.STOPPED
    assert list_runs(db)["state"].tolist() == ["stopped"]
