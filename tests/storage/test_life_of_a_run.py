"""The life of runs as a state machine: two workers, a sweeper and a person, in any order, with kills and bad clocks.

Every act is storage's own code on a real database; the model beside it knows who lives, writes and what was written.
Held after every act: no run is taken from a trainer that beat a moment ago, no step is there twice and none is missing.
Held in the end: every run that is not over is taken by somebody once its trainer is dead.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from sqlalchemy import update

from app.bench.records import made_database
from emtc_core.errors import RunStateError, StorageError
from storage import clock
from storage.engine import Database, open_database
from storage.maintenance.check_run import check_run
from storage.models import Run
from storage.recording import recorder
from storage.recording.recorder import DatabaseRecorder
from storage.runs import claims, lifecycle
from storage.runs.changes import claim_start, finish_run, start_run
from storage.runs.claims import Worker, claim_any, claim_run, count_work, give_back
from storage.runs.control import send_command
from storage.runs.lifecycle import HEARTBEAT_S, LOST_AFTER_S, START_LIMIT_S, Owner
from storage.runs.removal import rewind_run
from storage.runs.rows import find_run
from storage.runs.sweeps import PlannedRun, save_sweep
from tests.storage.records import CONFIG, make_episode

BUDGET = settings(
    max_examples=20, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)
IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
SWEEP, HOSTS, EPISODE = "aaaa0000", ("alpha", "beta"), 10
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Trainer:
    """What the model knows of one trainer's process."""

    run_id: str
    token: str
    host: str
    pid: int
    resume: bool
    beat: float
    """When it last gave a sign of life, in true seconds; a claim counts as one."""
    step: int = 0
    checkpoint: int = 0
    begun: bool = False
    is_alive: bool = True
    is_frozen: bool = False


class Life(RuleBasedStateMachine):
    """Acts in any order; a subclass names the database."""

    url = ""
    skews: tuple[float, ...] = (0.0, 0.0)
    """How far the clocks of the two machines are ahead [s]; a server's database has a clock of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.skew, self.pids = 0.0, 0.0, 1000
        self.trainers: list[Trainer] = []
        self.checkpoints: dict[str, int] = {}
        self.watches = {host: claims._Watch() for host in HOSTS}
        self.db: Database = self.open()
        plan = [PlannedRun(f"k{i}", f"run {i}", {**CONFIG, "seed": i}, 1000) for i in range(2)]
        with self.seen_from(0):
            save_sweep(self.db, SWEEP, name="s", plan={"runs": []}, runs=plan, versions={}, jobs=2)
        with self.db.read() as connection:
            self.runs = list(connection.exec_driver_sql("SELECT id FROM runs ORDER BY created_at").scalars())

    def open(self) -> Database:
        raise NotImplementedError

    @contextmanager
    def seen_from(self, machine: int) -> Iterator[None]:
        """Act on a machine: by its clock, and with what its worker has seen."""
        skew = self.skews[machine] if self.db.dialect == "sqlite" else 0.0
        before = (clock.now, claims.time, claims._WATCH)
        clock.now = lambda: BEGAN + timedelta(seconds=self.time + skew)
        claims.time = SimpleNamespace(monotonic=lambda: self.time)
        claims._WATCH = self.watches[HOSTS[machine]]
        try:
            yield
        finally:
            clock.now, claims.time, claims._WATCH = before

    def worker(self, machine: int) -> Worker:
        self.pids += 1
        return Worker(self.pids, float(self.pids), HOSTS[machine])

    def taken(self, run_id: str, token: str, host: str, pid: int, *, resume: bool) -> None:
        """Note a claim, which must not have come while a healthy trainer had the run."""
        for other in self.trainers:
            if other.run_id == run_id and other.is_alive and not other.is_frozen:
                silent = self.time - other.beat
                patience_s = LOST_AFTER_S if other.begun else START_LIMIT_S
                assert silent > patience_s, f"{run_id} was taken {silent:.0f} s after its trainer's last beat"
        self.trainers.append(Trainer(run_id, token, host, pid, resume, beat=self.time))

    def able(self, *, begun: bool = True) -> list[Trainer]:
        """The trainers that could act now, the newest first."""
        return [each for each in self.trainers[::-1] if each.is_alive and not each.is_frozen and each.begun == begun]

    def acting(self, number: int, *, begun: bool = True) -> Trainer:
        """One of them."""
        able = self.able(begun=begun)
        return able[number % len(able)]

    def as_trainer(self, trainer: Trainer, act: Any) -> bool:
        """Let a trainer act; one that has lost its run ends."""
        with self.seen_from(HOSTS.index(trainer.host)):
            try:
                act()
            except RunStateError:
                trainer.is_alive = False
                return False
        return True

    def wrote(self, run_id: str) -> None:
        """After every act that writes rows: no step is there twice, and none is missing."""
        assert check_run(self.db, run_id) == []

    numbers = st.integers(0, 3)
    machines = st.integers(0, 1)

    @rule(machine=machines, is_sweeper=st.booleans(), begins=st.sampled_from([True, True, False]))
    def a_worker_or_the_sweeper_claims(self, machine: int, is_sweeper: bool, begins: bool) -> None:
        me = self.worker(machine)
        with self.seen_from(machine):
            claim = claim_run(self.db, SWEEP, me, jobs=2) if is_sweeper else claim_any(self.db, me)
        if claim is not None:
            self.taken(claim.run_id, claim.token, me.host, me.pid, resume=claim.resume)
            if begins:
                self.begin(self.trainers[-1])

    @precondition(lambda self: not any(self.skews) or self.db.dialect != "sqlite")
    @rule(number=numbers)
    def a_person_resumes(self, number: int) -> None:
        run_id = self.runs[number % len(self.runs)]
        me = self.worker(0)
        owner = Owner(me.pid, me.pid_created_at, me.host, f"person-{me.pid}")
        with self.seen_from(0):
            resume = find_run(self.db, run_id).started_at is not None
            try:
                claim_start(self.db, run_id, owner)
            except RunStateError:
                return
        self.taken(run_id, owner.token, me.host, me.pid, resume=resume)

    @rule(number=numbers)
    def a_person_asks_to_stop(self, number: int) -> None:
        with self.seen_from(0):
            try:
                send_command(self.db, self.runs[number % len(self.runs)], "stop")
            except RunStateError:
                return

    @precondition(lambda self: self.able(begun=False))
    @rule(number=numbers)
    def a_trainer_begins(self, number: int) -> None:
        self.begin(self.acting(number, begun=False))

    def begin(self, trainer: Trainer) -> None:
        process = {"pid": trainer.pid, "pid_created_at": float(trainer.pid), "host": trainer.host}

        def begin() -> None:
            start_run(self.db, trainer.run_id, **process, device="cpu", token=trainer.token)
            trainer.begun, trainer.beat = True, self.time
            if trainer.resume:
                trainer.step = trainer.checkpoint = self.checkpoints.get(trainer.run_id, 0)
                rewind_run(self.db, trainer.run_id, trainer.step, token=trainer.token)
                self.wrote(trainer.run_id)

        self.as_trainer(trainer, begin)

    @precondition(lambda self: self.able())
    @rule(number=numbers)
    def a_trainer_records(self, number: int) -> None:
        self.record(self.acting(number))

    def record(self, trainer: Trainer) -> None:
        def record() -> None:
            writer = DatabaseRecorder(self.db, trainer.run_id, token=trainer.token, linger_s=0.0)
            writer._next_env_step = trainer.step + 1
            try:
                writer.record_episode(make_episode(trainer.step // EPISODE + 1, trainer.step + 1, EPISODE))
                writer.close()
            except StorageError as error:
                raise (error.__cause__ if isinstance(error.__cause__, RunStateError) else error) from None
            trainer.step += EPISODE
            self.wrote(trainer.run_id)

        self.as_trainer(trainer, record)

    @precondition(lambda self: self.able())
    @rule(number=numbers)
    def a_trainer_writes_a_checkpoint(self, number: int) -> None:
        trainer = self.acting(number)
        if find_run(self.db, trainer.run_id).owner_token == trainer.token:
            self.checkpoints[trainer.run_id] = trainer.checkpoint = trainer.step

    @precondition(lambda self: self.able())
    @rule(number=numbers, status=st.sampled_from(["finished", "stopped", "failed"]))
    def a_trainer_ends(self, number: int, status: Any) -> None:
        trainer = self.acting(number)
        self.as_trainer(trainer, lambda: finish_run(self.db, trainer.run_id, status, token=trainer.token))
        self.checkpoints[trainer.run_id] = min(trainer.step, self.checkpoints.get(trainer.run_id, 0))
        trainer.is_alive = False

    @precondition(lambda self: self.able())
    @rule(number=numbers)
    def a_trainer_gives_back(self, number: int) -> None:
        trainer = self.acting(number)
        self.as_trainer(trainer, lambda: give_back(self.db, trainer.run_id, token=trainer.token))
        trainer.is_alive = False

    @precondition(lambda self: self.able())
    @rule(number=numbers, how=st.sampled_from(["killed", "frozen"]))
    def a_trainer_is_killed_or_frozen(self, number: int, how: str) -> None:
        trainer = self.acting(number)
        trainer.is_alive, trainer.is_frozen = how == "frozen", how == "frozen"

    @precondition(lambda self: self.able())
    @rule(number=numbers, wakes_up=st.booleans())
    def a_run_changes_hands(self, number: int, wakes_up: bool) -> None:
        """A trainer is frozen for so long that others take what is free; by single acts a search seldom gets there."""
        trainer = self.acting(number)
        self.record(trainer)
        trainer.is_frozen = trainer.is_alive
        self.time_passes(400.0)
        for _ in self.runs:
            self.a_worker_or_the_sweeper_claims(1 - HOSTS.index(trainer.host), is_sweeper=False, begins=True)
        if wakes_up:
            self.whoever_is_frozen_wakes_up()

    @precondition(lambda self: any(each.is_frozen for each in self.trainers))
    @rule()
    def whoever_is_frozen_wakes_up(self) -> None:
        """And goes on with what it was doing: it records."""
        for trainer in self.trainers:
            if trainer.is_frozen:
                trainer.is_frozen = False
                self.record(trainer)

    @rule(seconds=st.sampled_from([1.0, 7.0, 130.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        """Trainers that live beat, and workers look in between; both do so every few seconds."""
        until, step = self.time + seconds, max(HEARTBEAT_S, seconds / 8)
        while self.time < until:
            self.time = min(until, self.time + step)
            for machine in (0, 1) if step > LOST_AFTER_S else ():
                with self.seen_from(machine):
                    count_work(self.db, SWEEP)
            for trainer in self.trainers:
                if trainer.is_alive and not trainer.is_frozen and trainer.begun:
                    self._beat(trainer)

    def _beat(self, trainer: Trainer) -> None:
        mine = (Run.id == trainer.run_id, Run.owner_token == trainer.token, Run.status.in_(("running", "paused")))
        with self.seen_from(HOSTS.index(trainer.host)), self.db.transaction() as connection:
            connection.execute(update(Run).where(*mine).values(heartbeat_at=clock.now()))
        trainer.beat = self.time

    @invariant()
    def at_most_one_trainer_may_write(self) -> None:
        for run_id in self.runs:
            token = find_run(self.db, run_id).owner_token
            able = [each for each in self.trainers if (each.run_id, each.token) == (run_id, token) and each.is_alive]
            assert len(able) <= 1, able

    def teardown(self) -> None:
        """With every trainer dead, whatever is not over is taken in the end."""
        for trainer in self.trainers:
            trainer.is_alive = False
        asked = {run_id for run_id in self.runs if find_run(self.db, run_id).stop_asked_at is not None}
        open_runs = [each for each in self.runs if find_run(self.db, each).status in ("queued", "running", "paused")]
        claimed: set[str] = set()
        for _ in range(12):
            self.time += 200
            for machine in (0, 1):
                me = self.worker(machine)
                with self.seen_from(machine):
                    while (claim := claim_any(self.db, me)) is not None and claim.run_id not in claimed:
                        claimed.add(claim.run_id)
        self.db.dispose()
        assert set(open_runs) - asked <= claimed, "a run was forgotten"


_TEMPLATE: list[Path] = []


class OnSqlite(Life):
    """Two machines that share a disk, whose clocks are ten minutes apart."""

    skews = (0.0, 600.0)

    def open(self) -> Database:
        self.folder = Path(tempfile.mkdtemp(prefix="emtc-life-", dir=IN_MEMORY))
        if not _TEMPLATE:
            _TEMPLATE.append(Path(tempfile.mkdtemp(prefix="emtc-life-", dir=IN_MEMORY)) / "template.db")
            open_database(f"sqlite:///{_TEMPLATE[0]}").dispose()
        return open_database(f"sqlite:///{shutil.copy(_TEMPLATE[0], self.folder / 'x.db')}")

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            shutil.rmtree(self.folder)


class OnOneClock(OnSqlite):
    """Two machines whose clocks agree, and a person who resumes."""

    skews = (0.0, 0.0)


class Behind(OnSqlite):
    """The other machine's clock is behind: its living runs look silent to everybody."""

    skews = (0.0, -600.0)


PLANTED = settings(BUDGET, max_examples=300, phases=(Phase.generate,), report_multiple_bugs=False)
"""A search by chance may miss a fault, so these tests are slow ones. Of twelve searches for each, all found it: the
heartbeat after 4 to 81 orders of events, half of them within 25, the token after 4 to 31, half of them within 8."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "BATCH_STEPS", 1)


@pytest.mark.parametrize("machine", [OnSqlite, OnOneClock, Behind], ids=lambda kind: kind.__name__)
def test_no_order_of_events_trains_a_run_twice_or_forgets_one(machine: type[Life]) -> None:
    run_state_machine_as_test(machine, settings=BUDGET)


@pytest.mark.postgres
@pytest.mark.slow
def test_no_order_of_events_does_so_on_a_server(postgres_server: str, postgres_template: str) -> None:
    class OnServer(Life):
        def open(self) -> Database:
            self.made = made_database(postgres_server, postgres_template)
            return open_database(self.made.__enter__())

        def teardown(self) -> None:
            try:
                super().teardown()
            finally:
                self.made.__exit__(None, None, None)

    run_state_machine_as_test(OnServer, settings=BUDGET)


class TrustingWatch(claims._Watch):
    """The fault that was there: another machine's heartbeat is judged by one's own clock, and by nothing else."""

    def look_at(self, row: Any) -> float:
        return float("inf") if (clock.now() - row.heartbeat_at).total_seconds() > LOST_AFTER_S else 0.0


@pytest.mark.slow
def test_a_heartbeat_judged_by_ones_own_clock_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "_Watch", TrustingWatch)
    with pytest.raises(AssertionError, match="last beat"):
        run_state_machine_as_test(OnSqlite, settings=PLANTED)


@pytest.mark.slow
def test_a_claim_without_a_token_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody_asks(*arguments: Any) -> None:
        """Let every process write for every run."""

    monkeypatch.setattr("storage.recording.statements.check_owned", nobody_asks)
    monkeypatch.setattr("storage.runs.removal.check_token", nobody_asks)
    monkeypatch.setattr("storage.runs.changes.check_token", nobody_asks)
    with pytest.raises((AssertionError, StorageError, ExceptionGroup)):
        run_state_machine_as_test(OnOneClock, settings=PLANTED)
    assert lifecycle.check_owned is not nobody_asks
