"""A model of the life of runs next to the real storage code: workers of all sweeps and of one, and a user.

Every act is storage's own code on a real database. The model knows which trainers live, when each has sent a heartbeat
and which steps it wrote. It checks after every act: no run is taken from a trainer that has just sent a heartbeat; only
the owner of a run changes it; its steps are those its owner recorded, each once. `all_are_taken` checks what must hold
in the end. `test_life_of_a_run` chooses the orders of acts.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, Literal

from sqlalchemy import JSON, TextClause, insert, select, text

from emtc_core.errors import RunNotFoundError, RunStateError, StorageError
from storage.engine import Database
from storage.maintenance.check import check_run
from storage.models import Base, Run
from storage.recording.writer import DatabaseRecorder
from storage.runs import changes, claims, control, removal
from storage.runs import status as run_status
from storage.runs.claims import TAKEOVER_AFTER_S, RunClaimer
from storage.runs.rows import find_run
from storage.runs.status import HEARTBEAT_S, LOST_AFTER_S, START_LIMIT_S
from storage.runs.sweeps import PlannedRun, save_sweep
from tests.storage.records import CONFIG, make_episode

SWEEP, HOSTS, EPISODE = "aaaa0000", ("alpha", "beta", "gamma"), 10
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
PATIENCE_S = 2 * START_LIMIT_S
"""After this time every run whose trainer has died has another one."""
LOST = (RunStateError, RunNotFoundError)
"""Errors of a trainer that has lost its run."""
Rows = dict[str, list[dict[str, Any]]]
Ending = Literal["finished", "stopped", "failed"]

_KEPT = ("sweeps", "runs")
"""Their rows only change; those of the other tables come and go."""
_TABLES = (*_KEPT, "episodes", "transitions", "transition_summary", "resumes", "commands")


def _columns(name: str) -> list[str]:
    """All but settings and the like, which never change here and which each driver gives in another form."""
    columns = Base.metadata.tables[name].columns
    return [each.name for each in columns if not isinstance(getattr(each.type, "impl", each.type), JSON)]


def _writing(name: str) -> TextClause:
    if name in _KEPT:
        values = ", ".join(f"{column} = :{column}" for column in _columns(name))
        return text(f"UPDATE {name} SET {values} WHERE id = :id")
    values = ", ".join(f":{column}" for column in _columns(name))
    return text(f"INSERT INTO {name} ({', '.join(_columns(name))}) VALUES ({values})")


_READ = {name: text(f"SELECT {', '.join(_columns(name))} FROM {name} ORDER BY 1, 2") for name in _TABLES}
"""As the driver has them: to be kept, compared and written back."""
_WRITE = {name: _writing(name) for name in _TABLES}


@dataclass
class Trainer:
    """What the model knows of one trainer's process."""

    run_id: str
    token: str
    host: str
    number: int
    resume: bool
    beat: float
    """When it last sent a heartbeat [s]; a claim counts as one."""
    step: int = 0
    begun: bool = False
    """It wrote that it runs."""
    ready: bool = False
    """It went back to its checkpoint, too, where it had to."""
    is_paused: bool = False
    is_alive: bool = True
    is_frozen: bool = False


@dataclass(frozen=True)
class Moment:
    """Everything at one moment, to come back to."""

    rows: Rows
    time: float
    n_trainers: int
    trainers: list[Trainer]
    checkpoints: dict[str, int]
    unreachable_at: tuple[float | None, ...]


class Life:
    """The runs of a sweep, and everybody who may act on them."""

    def __init__(self, db: Database, *, runs: int) -> None:
        """Plan so many runs."""
        self.db = db
        self.time, self.n_trainers = 0.0, 0
        self.trainers: list[Trainer] = []
        self.checkpoints: dict[str, int] = {}
        self.claimers = [RunClaimer(db, monotonic=lambda: self.time) for _ in HOSTS]
        plan = [PlannedRun(f"k{i}", f"run {i}", {**CONFIG, "seed": i}, 1000) for i in range(runs)]
        with self.model_time():
            save_sweep(self.db, SWEEP, name="s", plan={"runs": []}, runs=plan, versions={}, jobs=2)
        with self.db.read() as connection:
            planned = connection.execute(select(*Run.__table__.columns).order_by(Run.created_at, Run.id))
            self.planned = {row["id"]: dict(row) for row in planned.mappings()}
        self.runs = list(self.planned)
        self.rows = self._read()
        self.is_spent = False

    @contextmanager
    def model_time(self) -> Generator[None]:
        """Let the storage code read the model's time."""
        original = run_status.read_clock
        modules = [module for module in list(sys.modules.values()) if vars(module).get("read_clock") is original]
        for module in modules:
            module.read_clock = lambda connection: BEGAN + timedelta(seconds=self.time)
        try:
            yield
        finally:
            for module in modules:
                module.read_clock = original

    def living(self) -> list[Trainer]:
        """The trainers whose process exists."""
        return [trainer for trainer in self.trainers if trainer.is_alive]

    def claim(self, machine: int, *, is_of_sweep: bool = False, begins: bool = True) -> None:
        """Let a worker, or a worker of the sweep, claim the next run."""
        claimer = self.claimers[machine]
        with self.model_time():
            claim = claimer.claim_in_sweep(SWEEP, jobs=2) if is_of_sweep else claimer.claim_next()
        if claim is not None:
            self._taken(claim.run_id, claim.token, machine, resume=claim.resume, is_worker=True)
            if begins:
                self.begin(self.trainers[-1])

    def lose_connection(self, machine: int) -> None:
        """Let the database not answer the worker of a machine."""
        self.claimers[machine]._unreachable_at = self.time

    def resume(self, run_id: str) -> None:
        """Let a user on the first machine start or resume a run."""
        token = f"user-{self.n_trainers}"
        with self.model_time():
            try:
                resume = find_run(self.db, run_id).started_at is not None
                claims.claim_to_train(self.db, run_id, token)
            except LOST:
                return
        self._taken(run_id, token, 0, resume=resume, is_worker=False)

    def ask_to_stop(self, run_id: str) -> None:
        """Let a user request a stop."""
        with self.model_time():
            try:
                control.stop_run(self.db, run_id)
            except LOST:
                return

    def delete(self, run_id: str) -> None:
        """Let a user delete a run."""
        with self.model_time():
            try:
                removal.remove_run(self.db, run_id)
            except LOST:
                return
        for trainer in self.living():
            if trainer.run_id == run_id and not trainer.is_frozen:
                self._check_silence(trainer, "deleted")

    def begin(self, trainer: Trainer, *, freezes: bool = False) -> None:
        """Write that it runs, and go back to the last checkpoint unless it freezes in between."""

        def begin() -> None:
            changes.start_run(self.db, trainer.run_id, device="cpu", token=trainer.token)
            trainer.begun, trainer.beat, trainer.ready = True, self.time, not trainer.resume

        self._as_owner(trainer, begin)
        trainer.is_frozen = freezes and trainer.is_alive
        if trainer.is_alive and not trainer.is_frozen and not trainer.ready:
            self._go_back(trainer)

    def _go_back(self, trainer: Trainer) -> None:
        def go_back() -> None:
            step = self.checkpoints.get(trainer.run_id, 0)
            removal.rewind_run(self.db, trainer.run_id, step, token=trainer.token)
            trainer.step, trainer.ready = step, True

        self._as_owner(trainer, go_back)

    def record(self, trainer: Trainer, *, is_file_away: bool = False) -> None:
        """Write an episode. The file of the database may be moved away before, and back once the recorder waits."""

        def record() -> None:
            writer = DatabaseRecorder(self.db, trainer.run_id, token=trainer.token, linger_s=0.0)
            writer._next_env_step = trainer.step + 1
            try:
                with self._file_away(writer) if is_file_away else nullcontext():
                    writer.record_episode(make_episode(trainer.step // EPISODE + 1, trainer.step + 1, EPISODE))
                writer.close()
            except StorageError as error:
                raise (error.__cause__ if isinstance(error.__cause__, LOST) else error) from None
            trainer.step += EPISODE

        self._as_owner(trainer, record)

    @contextmanager
    def _file_away(self, writer: DatabaseRecorder) -> Generator[None]:
        assert self.db.path is not None
        away = self.db.path.rename(self.db.path.with_suffix(".away"))
        try:
            yield
            while writer.blocked is None:
                time.sleep(0.001)
        finally:
            away.rename(self.db.path)

    def pause_or_continue(self, trainer: Trainer) -> None:
        """Write that it pauses, or that it continues."""

        def write() -> None:
            status = "running" if trainer.is_paused else "paused"
            mine = SimpleNamespace(
                _db=self.db, _run_id=trainer.run_id, _token=trainer.token, _acknowledged=deque(), _status=status
            )
            control.DatabaseControl._write(mine)  # pyright: ignore[reportArgumentType] - without its thread
            trainer.is_paused = not trainer.is_paused

        self._as_owner(trainer, write)

    def save_checkpoint(self, trainer: Trainer) -> None:
        """Write a checkpoint, which is not a row. Before it, the trainer waits for its rows, so only the owner does."""
        if find_run(self.db, trainer.run_id).owner_token == trainer.token:
            self.checkpoints[trainer.run_id] = trainer.step

    def end(self, trainer: Trainer, status: Ending) -> None:
        """End the run."""
        self._as_owner(trainer, lambda: changes.finish_run(self.db, trainer.run_id, status, token=trainer.token))
        trainer.is_alive = False

    def give_back(self, trainer: Trainer) -> None:
        """Return the run to the queue."""
        self._as_owner(trainer, lambda: claims.return_to_queue(self.db, trainer.run_id, token=trainer.token))
        trainer.is_alive = False

    def kill(self, trainer: Trainer) -> None:
        """End its process."""
        trainer.is_alive = False

    def freeze(self, trainer: Trainer) -> None:
        """Stop its process, which may continue later."""
        trainer.is_frozen = True

    def wake(self, trainer: Trainer) -> None:
        """Let a stopped process continue."""
        trainer.is_frozen = False
        if not trainer.begun:
            self.begin(trainer)
        elif not trainer.ready:
            self._go_back(trainer)
        else:
            self.record(trainer)

    def pass_time(self, seconds: float) -> None:
        """Let healthy trainers send heartbeats; in truth they do so every few seconds."""
        until, step = self.time + seconds, max(HEARTBEAT_S, seconds / 4)
        while self.time < until:
            self.time = min(until, self.time + step)
            for trainer in self.living():
                if trainer.begun and not trainer.is_frozen:
                    with self.model_time():
                        control.write_heartbeat(self.db, trainer.run_id, trainer.token)
                    trainer.beat = self.time
        self._let_workers_look()

    def _let_workers_look(self) -> None:
        """Workers look at the database every few seconds, which would take long here."""
        for claimer in self.claimers:
            claimer._looked_at = BEGAN + timedelta(seconds=self.time)

    def _taken(self, run_id: str, token: str, machine: int, *, resume: bool, is_worker: bool) -> None:
        """Note a claim, and check that no healthy trainer had the run."""
        for other in self.living():
            if other.run_id != run_id:
                continue
            if not other.is_frozen:
                self._check_silence(other, "taken")
            if is_worker and other.begun and self._run(run_id)["owner_token"] == other.token:
                silent_s = self.time - other.beat
                assert silent_s >= TAKEOVER_AFTER_S, f"a worker took {run_id} {silent_s:.0f} s after its last beat"
                last = self.claimers[machine]._unreachable_at
                assert last is None or self.time - last >= TAKEOVER_AFTER_S, f"{run_id} was taken after an outage"
        self.n_trainers += 1
        self.trainers.append(Trainer(run_id, token, HOSTS[machine], self.n_trainers, resume, beat=self.time))

    def _check_silence(self, trainer: Trainer, verb: str) -> None:
        silent_s = self.time - trainer.beat
        patience_s = LOST_AFTER_S if trainer.begun else START_LIMIT_S
        assert silent_s > patience_s, f"{trainer.run_id} was {verb} {silent_s:.0f} s after its trainer's last beat"

    def _as_owner(self, trainer: Trainer, act: Callable[[], object]) -> None:
        """Let a trainer act, which only the owner may; one that has lost its run ends."""
        self.rows = self._read()
        run = self._run(trainer.run_id)
        with self.model_time():
            try:
                act()
            except LOST:
                trainer.is_alive = False
                return
        is_owner = run is not None and run["owner_token"] == trainer.token
        assert is_owner, f"trainer {trainer.number} acted for {trainer.run_id} after another had taken it"
        assert check_run(self.db, trainer.run_id) == []

    def check(self) -> None:
        """Whether each run has one owner at most, and the steps that this owner has recorded."""
        self.rows = self._read()
        for run in self.rows["runs"]:
            owners = [each for each in self.living() if (each.run_id, each.token) == (run["id"], run["owner_token"])]
            assert len(owners) <= 1, owners
            if owners and owners[0].ready:
                assert run["env_steps"] == owners[0].step, f"{run['id']} has steps that its owner did not record"
            has_owner = run["owner_token"] is not None
            assert has_owner or run["status"] not in ("running", "paused"), f"{run['id']} has no owner"
            assert not (has_owner and run["status"] in ("finished", "stopped", "failed")), f"{run['id']} has an owner"

    def all_are_taken(self) -> None:
        """With every trainer dead, and only a third machine's worker left, it takes each run that is not over.

        A run that a user has asked to stop may stay.
        """
        self.trainers, self.is_spent = [], True
        asked = {each["run_id"] for each in self.rows["commands"]}
        at_work = {each["id"] for each in self.rows["runs"] if each["status"] in ("queued", "running", "paused")}
        taken: set[str] = set()
        until = self.time + PATIENCE_S
        while at_work - asked - taken and self.time < until:
            with self.model_time():
                while (claim := self.claimers[2].claim_next(excluded_ids=taken)) is not None:
                    taken.add(claim.run_id)
            self.time += 65.0
            self._let_workers_look()
        assert at_work - asked <= taken, f"{at_work - asked - taken} was forgotten"

    def _read(self) -> Rows:
        with self.db.read() as connection:
            return {name: [*map(dict, connection.execute(read).mappings())] for name, read in _READ.items()}

    def keep(self) -> Moment:
        """Everything as `check` saw it."""
        trainers = [replace(each) for each in self.living()]
        unreachable_at = tuple(claimer._unreachable_at for claimer in self.claimers)
        return Moment(self.rows, self.time, self.n_trainers, trainers, dict(self.checkpoints), unreachable_at)

    def go_to(self, moment: Moment) -> None:
        """Come back to a moment."""
        now = self._read() if self.is_spent else self.rows
        with self.db.transaction() as connection:
            present = {row["id"] for row in now["runs"]}
            for row in moment.rows["runs"]:
                if row["id"] not in present:
                    connection.execute(insert(Run), self.planned[row["id"]])
            for row in now["runs"]:
                if row["id"] not in {kept["id"] for kept in moment.rows["runs"]}:
                    connection.execute(text("DELETE FROM runs WHERE id = :id"), row)
            for name, rows in moment.rows.items():
                if rows == now[name]:
                    continue
                if name not in _KEPT:
                    connection.exec_driver_sql(f"DELETE FROM {name}")
                if rows:
                    connection.execute(_WRITE[name], rows)
        self.is_spent = False
        self.rows, self.time, self.n_trainers = moment.rows, moment.time, moment.n_trainers
        self.trainers = [replace(each) for each in moment.trainers]
        self.checkpoints = dict(moment.checkpoints)
        self._let_workers_look()
        for claimer, unreachable_at in zip(self.claimers, moment.unreachable_at, strict=True):
            claimer._unreachable_at = unreachable_at

    def key(self) -> tuple[Any, ...]:
        """What the future depends on, with times as how long ago. Equal keys have equal futures."""
        runs = [self._key_of_run(run_id) for run_id in self.runs]
        trainers = [
            (self.runs.index(each.run_id), each.host, self.time - each.beat, each.step, each.resume, each.begun,
             each.ready, each.is_paused, each.is_frozen, self._owns(each))
            for each in self.living()
        ]  # fmt: skip
        saved = [self.checkpoints.get(run_id, 0) for run_id in self.runs]
        outages = [None if (at := claimer._unreachable_at) is None else self.time - at for claimer in self.claimers]
        return (self.rows["sweeps"][0]["status"], *runs, *sorted(trainers), *saved, *outages)

    def _run(self, run_id: str) -> Any:
        """The row of a run; None if it was deleted."""
        return next((row for row in self.rows["runs"] if row["id"] == run_id), None)

    def _owns(self, trainer: Trainer) -> bool:
        run = self._run(trainer.run_id)
        return run is not None and run["owner_token"] == trainer.token

    def _key_of_run(self, run_id: str) -> tuple[Any, ...]:
        if (run := self._run(run_id)) is None:
            return ("deleted",)
        times = (run[name] for name in ("heartbeat_at", "claimed_at", "started_at"))
        asked = [each["requested_at"] for each in self.rows["commands"] if each["run_id"] == run["id"]]
        ago = [None if at is None else self.time - (_aware(at) - BEGAN).total_seconds() for at in (*times, *asked)]
        return (run["status"], run["env_steps"], run["owner_token"] is None, *ago)


def _aware(at: Any) -> datetime:
    """A time as a driver gives it: SQLite's knows none and gives text."""
    return datetime.fromisoformat(at).replace(tzinfo=UTC) if isinstance(at, str) else at
