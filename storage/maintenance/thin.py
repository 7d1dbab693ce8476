"""Thin a run: its curves are kept; rows are counted first, then removed in bounded steps, never while anybody works."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection, delete, func, select, update

from storage.engine import Database
from storage.files.places import run_folder, run_place
from storage.files.trainer_files import check_lease, with_reserve
from storage.maintenance.sizes import TRANSITION_BYTES, octets, snapshot_octets
from storage.models import EpisodeRow, ProjectionRow, SnapshotRow, Transition
from storage.private_files import is_checkpoint, list_own_files
from storage.queries.episodes import THINNED
from storage.runs import lifecycle
from storage.runs.lifecycle import Event
from storage.runs.rows import find_run, locked_row, state_now

_STEPS_AT_ONCE = 100_000
_EPISODES_AT_ONCE = 500


@dataclass(frozen=True)
class Thinning:
    """What shall go."""

    trajectories: bool = False
    transitions: bool = False
    checkpoints: bool = False
    snapshots_every: int = 1
    """Keep the last snapshot and every n-th before it; 1 keeps all."""

    @property
    def is_nothing(self) -> bool:
        """Whether nothing is asked for."""
        return self == Thinning()


@dataclass(frozen=True)
class Gone:
    """What goes, or went: so many of a kind, and about so many bytes."""

    trajectories: int = 0
    transitions: int = 0
    snapshots: int = 0
    checkpoints: int = 0
    size_bytes: int = 0

    def __add__(self, other: "Gone") -> "Gone":
        return Gone(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    def __str__(self) -> str:
        kinds = {"trajectory": self.trajectories, "transition": self.transitions}
        kinds |= {"snapshot": self.snapshots, "checkpoint": self.checkpoints}
        parts = [f"{n:,} {_plural(kind) if n != 1 else kind}" for kind, n in kinds.items() if n]
        n_bytes = self.size_bytes
        size = f"{n_bytes / 1e6:,.1f} MB" if n_bytes >= 1e6 else f"{n_bytes / 1e3:,.0f} kB"
        return f"{', '.join(parts)} (about {size})" if parts else "nothing"


def _plural(kind: str) -> str:
    return f"{kind.removesuffix('y')}ies" if kind.endswith("y") else f"{kind}s"


def count_thinning(db: Database, run_id: str, what: Thinning) -> Gone:
    """Count what `thin_run` would remove of a run.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If somebody works on it.
    """
    lifecycle.check(run_id, state_now(find_run(db, run_id)), Event.THIN)
    with db.read() as connection:
        total = Gone()
        if what.trajectories:
            size = octets(connection, EpisodeRow.trajectory)
            whole = select(func.count(), func.sum(size)).where(EpisodeRow.run_id == run_id, size > len(THINNED))
            n, taken = connection.execute(whole).one()
            total += Gone(trajectories=n, size_bytes=int(taken or 0))
        if what.transitions:
            n = connection.execute(select(func.count()).where(Transition.run_id == run_id)).scalar_one()
            total += Gone(transitions=n, size_bytes=n * TRANSITION_BYTES)
        for snapshot_id in _surplus(connection, run_id, what.snapshots_every):
            total += Gone(snapshots=1, size_bytes=_snapshot_bytes(connection, snapshot_id))
    if what.checkpoints:
        sizes = [size for size, _ in _checkpoints(db, run_id)]
        total += Gone(checkpoints=len(sizes), size_bytes=sum(sizes))
    return total


def thin_run(db: Database, run_id: str, what: Thinning) -> Gone:
    """Remove what is told of a run; where it ends too early, the same again goes on.

    The file of a SQLite database keeps its size: the room is used again, or given back by a vacuum.

    Returns:
        What went.

    Raises:
        RunNotFoundError: If there is no such run.
        RunStateError: If somebody works on it, or takes it meanwhile.
    """
    gone = count_thinning(db, run_id, what)
    if what.checkpoints:  # first: on a full disk what follows needs some room
        files = _checkpoints(db, run_id)
        with db.transaction() as connection:  # nobody takes the run while its files go
            _check(connection, run_id)
            for _, remove in files:
                remove()
    with_reserve(db, lambda: _forget_rows(db, run_id, what))
    return gone


def _forget_rows(db: Database, run_id: str, what: Thinning) -> None:
    with db.read() as connection:
        surplus = _surplus(connection, run_id, what.snapshots_every)
    for snapshot_id in surplus:
        with db.transaction() as connection:
            _check(connection, run_id)
            connection.execute(delete(SnapshotRow).where(SnapshotRow.id == snapshot_id))  # its projections go with it
    if what.trajectories:
        _forget_trajectories(db, run_id)
    if what.transitions:
        _forget_transitions(db, run_id)


def _checkpoints(db: Database, run_id: str) -> list[tuple[int, Callable[[], None]]]:
    """List a run's checkpoints wherever they lie: the size of each, and what removes it."""
    place = run_place(db, run_id)
    check_lease(db, place, run_id)
    files = place.files_of(run_id)
    here = [path for path in list_own_files(run_folder(db, run_id)) if is_checkpoint(path.name)]
    there = [found for found in files.list_files() if is_checkpoint(found.name)] if files else []
    return [
        *((path.lstat().st_size, partial(path.unlink, missing_ok=True)) for path in here),
        *((found.size, partial(files.remove, found.name)) for found in there if files),
    ]


def _check(connection: Connection, run_id: str) -> None:
    lifecycle.check(run_id, state_now(locked_row(connection, run_id)), Event.THIN)


def _forget_trajectories(db: Database, run_id: str) -> None:
    with db.read() as connection:
        last = connection.execute(select(func.max(EpisodeRow.episode)).where(EpisodeRow.run_id == run_id)).scalar() or 0
    for first in range(0, last + 1, _EPISODES_AT_ONCE):
        with db.transaction() as connection:
            _check(connection, run_id)
            some = EpisodeRow.episode.between(first, first + _EPISODES_AT_ONCE - 1)
            is_whole = octets(connection, EpisodeRow.trajectory) > len(THINNED)
            thinned = update(EpisodeRow).where(EpisodeRow.run_id == run_id, some, is_whole)
            connection.execute(thinned.values(trajectory=THINNED))


def _forget_transitions(db: Database, run_id: str) -> None:
    """Remove the first one first: without it, readers take the sums."""
    with db.read() as connection:
        span = select(func.min(Transition.env_step), func.max(Transition.env_step)).where(Transition.run_id == run_id)
        first, last = connection.execute(span).one()
    for start in range(first or 0, (last or -1) + 1, _STEPS_AT_ONCE):
        with db.transaction() as connection:
            _check(connection, run_id)
            some = Transition.env_step.between(start, start + _STEPS_AT_ONCE - 1)
            connection.execute(delete(Transition).where(Transition.run_id == run_id, some))


def _surplus(connection: Connection, run_id: str, every: int) -> list[int]:
    """List the snapshots that go, when the last and every n-th before it stay."""
    ordered = select(SnapshotRow.id).where(SnapshotRow.run_id == run_id).order_by(SnapshotRow.env_step.desc())
    ids: Iterable[int] = connection.execute(ordered).scalars()
    return [snapshot_id for place, snapshot_id in enumerate(ids) if place % max(1, every)]


def _snapshot_bytes(connection: Connection, snapshot_id: int) -> int:
    of_it = ProjectionRow.snapshot_id == snapshot_id
    sums = (
        select(snapshot_octets(connection)).where(SnapshotRow.id == snapshot_id),
        select(func.sum(octets(connection, ProjectionRow.coordinates))).where(of_it),
    )
    return sum(int(connection.execute(each).scalar() or 0) for each in sums)
