"""The life of runs as a state machine (`life`): two workers, a worker of the sweep and a user, with deaths and outages.

Explored by `search`, the same in every run of these tests, on SQLite and PostgreSQL:

- one run, every order of up to 3 acts from its creation, and of up to 2 acts from each of six places that are up to
  nine acts further in its life (`BEGINNINGS`);
- two runs, 10 orders of 25 acts drawn by hypothesis.

An act is one of `acts`. After each act `Life.check` holds, and from each new state `Life.all_are_taken`. The default
run tries orders that are one act shorter, on SQLite, and finds planted faults, each from one of the places. The slow
tests go one act deeper and draw 300 orders.
"""

import logging
import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from storage.engine import Database, open_database
from storage.recording import writer
from tests.postgres import temporary_postgres_database
from tests.storage.life import HOSTS, Life, Moment, Trainer

IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
BY_CHANCE = settings(
    max_examples=10, stateful_step_count=25, deadline=None, suppress_health_check=[*HealthCheck], print_blob=True
)
BUDGET = settings(BY_CHANCE, derandomize=True, database=None)
Act = tuple[str, Callable[[], None]]
Opening = Callable[[], AbstractContextManager[Database]]


@contextmanager
def file_in_memory() -> Generator[Database]:
    """A new database whose disk is memory."""
    folder = tempfile.mkdtemp(prefix="emtc-life-", dir=IN_MEMORY)
    try:
        db = open_database(f"sqlite:///{folder}/x.db")
        yield db
        db.dispose()
    finally:
        shutil.rmtree(folder)


def acts(life: Life) -> list[Act]:
    """All that may happen now."""
    found: list[Act] = []
    for machine, host in enumerate(HOSTS[:2]):
        found.append((f"{host}'s worker claims", partial(life.claim, machine)))
        found.append(
            (f"{host}'s worker claims for one that does not begin", partial(life.claim, machine, begins=False))
        )
        found.append((f"{host}'s worker cannot reach the database", partial(life.lose_connection, machine)))
    found.append(("a worker of the sweep claims", partial(life.claim, 0, is_of_sweep=True)))
    for number, run_id in enumerate(life.runs):
        found.append((f"a user resumes run {number}", partial(life.resume, run_id)))
        found.append((f"a user stops run {number}", partial(life.ask_to_stop, run_id)))
        found.append((f"a user deletes run {number}", partial(life.delete, run_id)))
    for trainer in life.living():
        found += of_trainer(life, trainer)
    for seconds in (9.0, 130.0, 400.0):
        found.append((f"{seconds:.0f} s pass", partial(life.pass_time, seconds)))
    return found


def of_trainer(life: Life, trainer: Trainer) -> list[Act]:
    """What one trainer may do, and what may happen to it."""
    name = f"trainer {trainer.number} "
    if trainer.is_frozen:
        return [(name + "wakes", partial(life.wake, trainer))]
    if not trainer.begun:
        freezes = (name + "begins and freezes", partial(life.begin, trainer, freezes=True))
        mine = [(name + "begins", partial(life.begin, trainer)), *([freezes] if trainer.resume else [])]
    else:
        mine = [
            (name + "records", partial(life.record, trainer)),
            (name + "saves a checkpoint", partial(life.save_checkpoint, trainer)),
            (name + "pauses or continues", partial(life.pause_or_continue, trainer)),
            (name + "finishes", partial(life.end, trainer, "finished")),
            (name + "gives back", partial(life.give_back, trainer)),
        ]
    return [*mine, (name + "dies", partial(life.kill, trainer)), (name + "freezes", partial(life.freeze, trainer))]


def fresh(life: Life) -> None:
    """Nothing has happened yet."""


def trained(life: Life) -> None:
    """The first machine trains the run, has a checkpoint of it and is past it."""
    life.claim(0)
    life.record(life.trainers[0])
    life.save_checkpoint(life.trainers[0])
    life.record(life.trainers[0])


def silent(life: Life) -> None:
    """Its trainer has been frozen for so long that anybody may have the run."""
    trained(life)
    life.freeze(life.trainers[0])
    life.pass_time(400.0)


def lost(life: Life) -> None:
    """Its trainer has been frozen for so long that the run is lost, but no worker may have it yet."""
    trained(life)
    life.freeze(life.trainers[0])
    life.pass_time(9.0)


def claimed_again(life: Life) -> None:
    """The other machine has claimed it then, and its trainer has not begun yet."""
    silent(life)
    life.claim(1, begins=False)
    assert len(life.trainers) == 2, "a run whose trainer is silent was forgotten"


def taken_over(life: Life) -> None:
    """The other machine's trainer has gone on from the checkpoint."""
    claimed_again(life)
    life.begin(life.trainers[1])
    life.record(life.trainers[1])


def between(life: Life) -> None:
    """The other machine's trainer, too, froze for as long, after it began and before it went back to the checkpoint."""
    claimed_again(life)
    life.begin(life.trainers[1], freezes=True)
    life.pass_time(400.0)


BEGINNINGS = (taken_over, between, claimed_again, silent, lost, trained, fresh)


def explore(life: Life, depth: int) -> tuple[int, int]:
    """Try every order of up to so many acts; orders that lead to the same state count as one from there on.

    Returns:
        How many acts were tried, and how many led to a new state.
    """
    seen = {life.key()}
    layer: list[tuple[tuple[str, ...], Moment]] = [((), life.keep())]
    tried = 0
    for _ in range(depth):
        reached: list[tuple[tuple[str, ...], Moment]] = []
        for order, moment in layer:
            life.go_to(moment)
            for number in range(len(acts(life))):
                life.go_to(moment)
                name, act = acts(life)[number]
                tried += 1
                with said((*order, name)):
                    act()
                    life.check()
                    if (key := life.key()) in seen:
                        continue
                    seen.add(key)
                    reached.append(((*order, name), life.keep()))
                    life.all_are_taken()
        layer = reached
    return tried, len(seen) - 1


@contextmanager
def said(order: tuple[str, ...]) -> Generator[None]:
    """Name the order in which something went wrong."""
    try:
        yield
    except Exception as error:
        error.add_note("In this order: " + "; ".join(order))
        raise


def orders_of(life: Life) -> type[RuleBasedStateMachine]:
    """Acts in orders that hypothesis draws."""
    start = life.keep()

    class Orders(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            life.go_to(start)

        @rule(data=st.data())
        def something_happens(self, data: st.DataObject) -> None:
            able = [*acts(life), *fuller_acts(life)]
            name = data.draw(st.sampled_from([name for name, _ in able]))
            dict(able)[name]()

        @invariant()
        def nothing_is_wrong(self) -> None:
            life.check()

        def teardown(self) -> None:
            life.all_are_taken()

    return Orders


def fuller_acts(life: Life) -> list[Act]:
    """Several acts in one, which orders by chance seldom hold."""
    able = [each for each in life.living() if each.begun and not each.is_frozen]
    return [
        *((f"trainer {each.number} fails", partial(life.end, each, "failed")) for each in able),
        *(
            (
                f"trainer {each.number} records, with the file away at first",
                partial(life.record, each, is_file_away=True),
            )
            for each in able
            if life.db.path is not None
        ),
        *((f"the run of trainer {each.number} changes hands", partial(change_hands, life, each)) for each in able),
    ]


def change_hands(life: Life, trainer: Trainer) -> None:
    """Its trainer freezes for so long that the other machine takes what is free, and wakes up."""
    life.freeze(trainer)
    life.pass_time(400.0)
    for _ in life.runs:
        life.claim(1 - HOSTS.index(trainer.host))
    life.wake(trainer)


def search(opening: Opening, *, deeper: int = 0, budget: settings = BUDGET) -> int:
    """Everything that is explored; returns how many acts were tried in every order."""
    tried = sum(explore_from(opening, each, deeper + (3 if each is fresh else 2)) for each in BEGINNINGS)
    with opening() as db:
        run_state_machine_as_test(orders_of(Life(db, runs=2)), settings=budget)
    return tried


def explore_from(opening: Opening, beginning: Callable[[Life], None], depth: int) -> int:
    """Try every order of up to so many acts of one run from a place in its life; returns how many acts were tried."""
    with opening() as db:
        life = Life(db, runs=1)
        beginning(life)
        life.check()
        return explore(life, depth)[0]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "BATCH_STEPS", 1)
    monkeypatch.setattr(writer, "_MIN_RETRY_S", 0.001)
    logging.getLogger(writer.__name__).disabled = True  # it tells of every trainer that has lost its run


def test_no_short_order_of_events_trains_a_run_twice_or_forgets_one() -> None:
    assert search(file_in_memory, deeper=-1) > 100


@pytest.mark.ci
@pytest.mark.postgres
def test_no_order_of_events_trains_a_run_twice_or_forgets_one(postgres_server: str, postgres_template: str) -> None:
    @contextmanager
    def database() -> Generator[Database]:
        with temporary_postgres_database(postgres_server, postgres_template) as copy:
            db = open_database(copy)
            yield db
            db.dispose()

    assert search(database, deeper=-1) > 100


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_longer_order_of_events_does_so() -> None:
    assert search(file_in_memory, deeper=1, budget=settings(BY_CHANCE, max_examples=300)) > 5500


def accept_everyone(*arguments: Any) -> None:
    """Let every process write to every run."""


Fault = tuple[Callable[[Life], None], str, dict[str, Any]]
"""Where in the life of a run the search begins, what it says, and what is replaced."""
FAULTS: dict[str, Fault] = {
    "a run that is taken while it sends heartbeats": (
        trained, "last beat", {"storage.runs.status.LOST_AFTER_S": -1.0}
    ),
    "a worker that takes a run over at once": (
        lost, "a worker took", {"storage.runs.claims.measure_silence_s": lambda *_: 1e9}
    ),
    "a start that is never awaited": (claimed_again, "last beat", {"storage.runs.status.START_LIMIT_S": 0.0}),
    "a trainer that writes without a token": (
        taken_over,
        "after another had taken it",
        {
            "storage.recording.statements.check_owned": accept_everyone,
            "storage.recording.writer.check_owned": accept_everyone,
            "storage.runs.removal.check_owner": accept_everyone,
            "storage.runs.changes.check_owner": accept_everyone,
        },
    ),
    "rows written without a token": (
        taken_over,
        "after another had taken it",
        {
            "storage.recording.statements.check_owned": accept_everyone,
            "storage.recording.writer.check_owned": accept_everyone,
        },
    ),
    "a way back without a token": (
        between, "after another had taken it", {"storage.runs.removal.check_owner": accept_everyone}
    ),
    "a dead run that no worker claims": (
        silent, "was forgotten", {"storage.runs.claims.measure_silence_s": lambda *_: 0.0}
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_the_same_search_finds_a_planted_fault(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    beginning, message, planted = FAULTS[fault]
    for name, faulty in planted.items():
        monkeypatch.setattr(name, faulty)
    with pytest.raises(AssertionError, match=message):
        explore_from(file_in_memory, beginning, 2)
