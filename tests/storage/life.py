"""A model of the life of runs beside the real storage code: two machines with workers, a sweeper, a person, bad clocks.

A worker may live in a container that has the host name of its machine, the clock by which psutil tells the start of a
process may be corrected. Every act is storage's own code on a real
database. The model knows who lives, who beat when and who wrote what, and holds after every act: no run is taken from
a trainer that gave a sign of life a moment ago; only the owner of a run does anything for it; its steps are those its
owner recorded, each once. `all_are_taken` holds what must hold in the end. Which orders
of acts are tried is the business of `test_life_of_a_run`.
"""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, Literal

import psutil
from sqlalchemy import JSON, TextClause, text

from emtc_core.errors import RunStateError, StorageError
from storage import clock, process_id
from storage.engine import Database
from storage.maintenance.check import check_run
from storage.models import Base
from storage.process_id import ProcessId
from storage.recording.writer import DatabaseRecorder
from storage.runs import changes, claims, control, removal
from storage.runs.lifecycle import HEARTBEAT_S, LOST_AFTER_S, START_LIMIT_S, Owner
from storage.runs.rows import find_run
from storage.runs.sweeps import PlannedRun, save_sweep
from tests.storage.records import CONFIG, make_episode

SWEEP, HOSTS, EPISODE = "aaaa0000", ("alpha", "beta", "gamma"), 10
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
PATIENCE_S = 2 * START_LIMIT_S
"""After so long whatever had a trainer that died has another."""
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
    process: ProcessId
    resume: bool
    beat: float
    """When it last gave a sign of life, in true seconds; a claim counts as one."""
    step: int = 0
    begun: bool = False
    """It wrote that it runs."""
    ready: bool = False
    """It went back to its checkpoint, too, where it had to."""
    is_alive: bool = True
    is_frozen: bool = False

    @property
    def pid(self) -> int:
        """Its pid, of which no two are the same here."""
        return self.process.pid

    @property
    def host(self) -> str:
        """The name of its machine."""
        return self.process.host


@dataclass(frozen=True)
class Moment:
    """All there is at one moment, to come back to."""

    rows: Rows
    time: float
    pids: int
    correction: float
    trainers: list[Trainer]
    checkpoints: dict[str, int]
    watches: dict[str, claims._SilenceTimer]


class Life:
    """The runs of a sweep, and everybody who may act on them."""

    def __init__(self, db: Database, *, skews: tuple[float, float], runs: int) -> None:
        """Plan so many runs; the skews are how far two machines' clocks are ahead of the third's [s].

        A server has a clock of its own, by which all go.
        """
        self.db, self.skews = db, (*skews, 0.0) if db.dialect == "sqlite" else (0.0, 0.0, 0.0)
        self.time, self.pids, self.correction = 0.0, 1000, 0.0
        self.shown_processes = SimpleNamespace(**{**vars(psutil), "Process": self._show})
        self.trainers: list[Trainer] = []
        self.checkpoints: dict[str, int] = {}
        self.watches = {host: claims._SilenceTimer() for host in HOSTS}
        plan = [PlannedRun(f"k{i}", f"run {i}", {**CONFIG, "seed": i}, 1000) for i in range(runs)]
        with self.seen_from(0):
            save_sweep(self.db, SWEEP, name="s", plan={"runs": []}, runs=plan, versions={}, jobs=2)
        with self.db.read() as connection:
            self.runs = list(connection.exec_driver_sql("SELECT id FROM runs ORDER BY created_at, id").scalars())
        self.rows = self._read()
        self.is_spent = False

    @contextmanager
    def seen_from(self, machine: int) -> Generator[None]:
        """Act on a machine: by its clock, with its processes in sight, and with what its worker has seen."""
        parts = (
            (clock, "now"),
            (claims, "time"),
            (claims, "_SILENCE"),
            (process_id, "socket"),
            (process_id, "psutil"),
            (process_id, "_find_pid_space"),
            (process_id, "_has_pid"),
            (process_id, "_read_start"),
        )
        before = [getattr(*part) for part in parts]
        clock.now = lambda: BEGAN + timedelta(seconds=self.time + self.skews[machine])
        claims.time = SimpleNamespace(monotonic=lambda: self.time)
        claims._SILENCE = self.watches[HOSTS[machine]]
        process_id.socket = SimpleNamespace(gethostname=lambda: HOSTS[machine])
        process_id.psutil = self.shown_processes
        shown = f"boot/{HOSTS[machine]}"
        process_id._find_pid_space = lambda: shown
        process_id._has_pid = lambda pid: f"{shown}/{pid}" in {each.process.key for each in self.living()}
        process_id._read_start = str
        try:
            yield
        finally:
            for (module, name), value in zip(parts, before, strict=True):
                setattr(module, name, value)

    def living(self) -> list[Trainer]:
        """The trainers whose process is there."""
        return [each for each in self.trainers if each.is_alive]

    def claim(
        self, machine: int, *, is_sweeper: bool = False, begins: bool = True, is_in_container: bool = False
    ) -> None:
        """Let a worker, or a sweeper that knows of one sweep, take the next run."""
        me = self._process(machine)
        if is_in_container:
            me = replace(me, key=f"boot/container/{me.pid}")
        with self.seen_from(machine):
            claim = claims.claim_run(self.db, SWEEP, me, jobs=2) if is_sweeper else claims.claim_next_run(self.db, me)
        if claim is not None:
            self._taken(claim.run_id, claim.token, me, resume=claim.resume)
            if begins:
                self.begin(self.trainers[-1])

    def resume(self, run_id: str) -> None:
        """Let a person on the first machine go on with a run."""
        me = self._process(0)
        owner = Owner(me, f"person-{me.pid}")
        with self.seen_from(0):
            resume = find_run(self.db, run_id).started_at is not None
            try:
                changes.claim_start(self.db, run_id, owner)
            except RunStateError:
                return
        self._taken(run_id, owner.token, me, resume=resume)

    def ask_to_stop(self, run_id: str) -> None:
        """Let a person ask for it."""
        with self.seen_from(0):
            try:
                control.send_command(self.db, run_id, "stop")
            except RunStateError:
                return

    def begin(self, trainer: Trainer, *, freezes: bool = False) -> None:
        """Write that it runs, and go back to the last checkpoint unless it freezes in between."""

        def begin() -> None:
            changes.start_run(self.db, trainer.run_id, trainer.process, device="cpu", token=trainer.token)
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
                raise (error.__cause__ if isinstance(error.__cause__, RunStateError) else error) from None
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

    def save_checkpoint(self, trainer: Trainer) -> None:
        """Write a checkpoint, which is no row."""
        if find_run(self.db, trainer.run_id).owner_token == trainer.token:
            self.checkpoints[trainer.run_id] = trainer.step

    def correct_clock(self) -> None:
        """Correct the clock by 3 s, which moves the time of the boot and the start of every process in Unix time."""
        self.correction += 3.0

    def end(self, trainer: Trainer, status: Ending) -> None:
        """End the run."""
        self._as_owner(trainer, lambda: changes.finish_run(self.db, trainer.run_id, status, token=trainer.token))
        trainer.is_alive = False

    def give_back(self, trainer: Trainer) -> None:
        """Leave the machine to others."""
        self._as_owner(trainer, lambda: claims.return_to_queue(self.db, trainer.run_id, token=trainer.token))
        trainer.is_alive = False

    def kill(self, trainer: Trainer) -> None:
        """End its process."""
        trainer.is_alive = False

    def freeze(self, trainer: Trainer) -> None:
        """Stop its process, which may wake up."""
        trainer.is_frozen = True

    def wake(self, trainer: Trainer) -> None:
        """Let a frozen one go on with what it was doing."""
        trainer.is_frozen = False
        if not trainer.begun:
            self.begin(trainer)
        elif not trainer.ready:
            self._go_back(trainer)
        else:
            self.record(trainer)

    def pass_time(self, seconds: float) -> None:
        """Let trainers that live beat, and workers look in between; in truth both do so every few seconds."""
        until, step = self.time + seconds, max(HEARTBEAT_S, seconds / 4)
        while self.time < until:
            for machine in (0, 1):
                with self.seen_from(machine):
                    claims.count_claimable_and_active(self.db, SWEEP)
            self.time = min(until, self.time + step)
            for trainer in self.living():
                if trainer.begun and not trainer.is_frozen:
                    with self.seen_from(HOSTS.index(trainer.host)):
                        mine = SimpleNamespace(_db=self.db, _run_id=trainer.run_id, _token=trainer.token)
                        control.Heartbeat._beat(mine)  # pyright: ignore[reportArgumentType] - without its thread
                    trainer.beat = self.time

    def _process(self, machine: int) -> ProcessId:
        self.pids += 1
        return ProcessId(self.pids, HOSTS[machine], self.pids + self.correction, f"boot/{HOSTS[machine]}/{self.pids}")

    def _show(self, pid: int) -> SimpleNamespace:
        """Show a process as psutil does."""
        return SimpleNamespace(status=lambda: "running", create_time=lambda: pid + self.correction)

    def _taken(self, run_id: str, token: str, who: ProcessId, *, resume: bool) -> None:
        """Note a claim, which must not have come while a healthy trainer had the run."""
        for other in self.living():
            if other.run_id == run_id and not other.is_frozen:
                silent = self.time - other.beat
                patience_s = LOST_AFTER_S if other.begun else START_LIMIT_S
                assert silent > patience_s, f"{run_id} was taken {silent:.0f} s after its trainer's last beat"
        self.trainers.append(Trainer(run_id, token, who, resume, beat=self.time))

    def _as_owner(self, trainer: Trainer, act: Callable[[], object]) -> None:
        """Let a trainer act, which nobody but the owner may; one that has lost its run ends."""
        owner = find_run(self.db, trainer.run_id).owner_token
        with self.seen_from(HOSTS.index(trainer.host)):
            try:
                act()
            except RunStateError:
                trainer.is_alive = False
                return
        assert owner == trainer.token, f"process {trainer.pid} acted for {trainer.run_id} after another had taken it"
        assert check_run(self.db, trainer.run_id) == []

    def check(self) -> None:
        """Whether each run has one owner at most, and the steps that this owner has recorded."""
        self.rows = self._read()
        for run in self.rows["runs"]:
            owners = [each for each in self.living() if (each.run_id, each.token) == (run["id"], run["owner_token"])]
            assert len(owners) <= 1, owners
            if owners and owners[0].ready:
                assert run["env_steps"] == owners[0].step, f"{run['id']} has steps that its owner did not record"

    def all_are_taken(self) -> None:
        """With every trainer dead, and nobody but a third machine's worker left, it takes whatever is not over.

        A run that somebody has asked to stop may stay.
        """
        self.trainers, self.is_spent = [], True
        asked = {each["run_id"] for each in self.rows["commands"]}
        at_work = {each["id"] for each in self.rows["runs"] if each["status"] in ("queued", "running", "paused")}
        taken: set[str] = set()
        until = self.time + PATIENCE_S
        while at_work - asked - taken and self.time < until:
            with self.seen_from(2):
                while (claim := claims.claim_next_run(self.db, self._process(2), excluded_ids=taken)) is not None:
                    taken.add(claim.run_id)
            self.time += 65.0
        assert at_work - asked <= taken, f"{at_work - asked - taken} was forgotten"

    def _read(self) -> Rows:
        with self.db.read() as connection:
            return {name: [*map(dict, connection.execute(read).mappings())] for name, read in _READ.items()}

    def keep(self) -> Moment:
        """All there is now, as `check` saw it."""
        trainers = [replace(each) for each in self.living()]
        now = (self.rows, self.time, self.pids, self.correction)
        return Moment(*now, trainers, dict(self.checkpoints), deepcopy(self.watches))

    def go_to(self, moment: Moment) -> None:
        """Come back to a moment."""
        now = self._read() if self.is_spent else self.rows
        with self.db.transaction() as connection:
            for name, rows in moment.rows.items():
                if rows == now[name]:
                    continue
                if name not in _KEPT:
                    connection.exec_driver_sql(f"DELETE FROM {name}")
                if rows:
                    connection.execute(_WRITE[name], rows)
        self.is_spent = False
        self.rows, self.time, self.pids, self.correction = moment.rows, moment.time, moment.pids, moment.correction
        self.trainers = [replace(each) for each in moment.trainers]
        self.checkpoints, self.watches = dict(moment.checkpoints), deepcopy(moment.watches)

    def key(self) -> tuple[Any, ...]:
        """What the future depends on: names of processes left out, times as how long ago. Equal keys, equal futures."""
        runs = [self._key_of_run(self._run(run_id)) for run_id in self.runs]
        trainers = [
            (self.runs.index(each.run_id), each.host, self.time - each.beat, each.step, each.resume, each.begun,
             each.ready, each.is_frozen, each.token == self._run(each.run_id)["owner_token"])
            for each in self.living()
        ]  # fmt: skip
        saved = [self.checkpoints.get(run_id, 0) for run_id in self.runs]
        status = self.rows["sweeps"][0]["status"]
        return (status, *runs, *sorted(trainers), *saved)

    def _run(self, run_id: str) -> dict[str, Any]:
        return next(row for row in self.rows["runs"] if row["id"] == run_id)

    def _key_of_run(self, run: dict[str, Any]) -> tuple[Any, ...]:
        times = (run[name] for name in ("heartbeat_at", "claimed_at", "started_at"))
        asked = [each["requested_at"] for each in self.rows["commands"] if each["run_id"] == run["id"]]
        ago = [None if at is None else self.time - (_aware(at) - BEGAN).total_seconds() for at in (*times, *asked)]
        here = [each.pid for each in self.living()]
        stands = (run["status"], run["owner_token"], run["heartbeat_at"])
        watched = [self._watched(self.watches[host], run["id"], stands) for host in HOSTS]
        has_process = None if run["pid"] is None else (run["pid"] in here, "container" in (run["process_key"] or ""))
        is_anybodys = run["owner_token"] is None
        return (run["status"], run["env_steps"], run["host"], has_process, is_anybodys, *watched, *ago)

    def _watched(self, watch: claims._SilenceTimer, run_id: str, stands: tuple[Any, ...]) -> float | None:
        seen, since = watch._last_change.get(run_id, (None, 0.0))
        return self.time - since if seen == stands else None


def _aware(at: Any) -> datetime:
    """A time as a driver gives it: SQLite's knows none and gives text."""
    return datetime.fromisoformat(at).replace(tzinfo=UTC) if isinstance(at, str) else at
