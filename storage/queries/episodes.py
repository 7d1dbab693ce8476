"""What happened in one episode, and which episodes of a run are like this?

Trajectories of training episodes and of greedy playbacks; all episodes of a run, searched by the database and cut into
pages:

    1200                    the episode of this number, and the one in which env step 1,200 was made
    won, lost               by outcome
    return>5 length<40      by a number; also episode, step, epsilon and closed, with = != < <= > >=
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sqlalchemy import Boolean, and_, exists, func, literal, not_, or_, select, type_coerce

from emtc_core.errors import ConfigError, LeftOutError, StorageError
from storage.blobs import EMPTY, unpack_as
from storage.engine import Database
from storage.frames import read_frame
from storage.guards import damaged
from storage.models import EpisodeRow, EvalEpisode, Run, Transition
from storage.queries.search_terms import Sql, Term, compare_number, is_whole, split_search

Floats = NDArray[np.float64]
_FORMS = {"state": "f2", "action": "i2", "reward": "f1", "slots": "i1"}
_EPISODES_AT_ONCE = 200
MOST_TRAJECTORY_BYTES = 256 << 20
"""Unpacked: a long episode of a big game takes a hundredth."""
THINNED = EMPTY
"""What stands where a trajectory was thinned away: the blob of no array."""
OUTLINE = (
    *(EpisodeRow.episode, EpisodeRow.first_env_step, EpisodeRow.length),
    *(EpisodeRow.episode_return, EpisodeRow.won, EpisodeRow.epsilon, EpisodeRow.closed),
)
"""What is told of a training episode in a list."""
Order = Literal["episode", "-episode", "episode_return", "-episode_return", "length", "-length"]

_OUTCOMES = {"won": True, "lost": False}


@dataclass(frozen=True)
class Trajectory:
    """One episode: what happened, and what the gate said of each step (NaN where it said nothing).

    A playback has no slots and no verdict; its `env_step` is that of its evaluation.
    """

    run_id: str
    episode: int
    env_step: int  # of its first transition; of the evaluation for a playback
    won: bool
    episode_return: float
    state: NDArray[np.float32]  # [T+1, S]
    action: NDArray[np.int64]  # [T, N]
    reward: NDArray[np.float32]  # [T]
    slots: NDArray[np.int64] | None = None  # [T+1]; -1 where nothing is stored
    h: Floats | None = None  # [T]
    h_next: Floats | None = None  # [T]
    delta_mem: Floats | None = None  # [T]
    beta: Floats | None = None  # [T]
    tau: float | None = None

    @property
    def length(self) -> int:
        """Number of transitions T."""
        return len(self.reward)

    @property
    def first_env_step(self) -> int:
        """Env step of the first transition."""
        return self.env_step


def get_trajectory(db: Database, run_id: str, episode: int) -> Trajectory:
    """What happened in this training episode, and how did the gate judge it?

    Raises:
        LeftOutError: If its states were thinned away, or left out of a bundle.
        StorageError: If the run has no such episode.
    """
    outline = select(*OUTLINE, EpisodeRow.trajectory)
    key = (EpisodeRow.run_id == run_id, EpisodeRow.episode == episode)
    verdict = select(Transition.h, Transition.h_next, Transition.delta_mem, Transition.beta, Transition.tau)
    with db.read() as connection:
        row = connection.execute(outline.where(*key)).one_or_none()
        if row is None:
            raise StorageError(f"Run {run_id} has no episode {episode}.", reason="not_found", subject=episode)
        if not isinstance(row.first_env_step, int) or not isinstance(row.length, int):
            raise damaged("episodes", (row.first_env_step, row.length), "two whole numbers")
        span = Transition.env_step.between(row.first_env_step, row.first_env_step + row.length - 1)
        steps = connection.execute(verdict.where(Transition.run_id == run_id, span).order_by(Transition.env_step)).all()
    if row.trajectory == THINNED:
        raise LeftOutError(
            f"The trajectory of episode {episode} of run {run_id} was thinned away, or left out of a bundle; its "
            "outcome and the run's curves stay. Look at an evaluation episode instead.",
            reason="removed",
            subject=episode,
        )
    arrays = read_arrays(row.trajectory)
    outcome = (run_id, episode, row.first_env_step, row.won, row.episode_return)
    if not steps and row.length == len(arrays["reward"]):  # its transitions were thinned away
        return Trajectory(*outcome, **arrays)
    if not len(steps) == row.length == len(arrays["reward"]):
        raise StorageError(f"Episode {episode} of run {run_id} is damaged: its steps and its trajectory differ.")
    h, h_next, delta_mem, beta, tau = np.array([tuple(step) for step in steps], np.float64).reshape(-1, 5).T
    known_tau = tau[~np.isnan(tau)]
    return Trajectory(
        *outcome,
        **arrays,
        h=h,
        h_next=h_next,
        delta_mem=delta_mem,
        beta=beta,
        tau=float(known_tau[0]) if len(known_tau) else None,
    )


def iter_states(db: Database, run_id: str, episodes: Iterable[int]) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Which states did these training episodes pass through? Episode and states [T+1, S], a few episodes at a time.

    Raises:
        StorageError: If an episode is missing, or its trajectory was thinned away.
    """
    for told in iter_trajectories(db, run_id, episodes):
        yield told.episode, told.state


def iter_trajectories(db: Database, run_id: str, episodes: Iterable[int]) -> Iterator[Trajectory]:
    """What happened in these training episodes, in order of number? Without verdicts, a few episodes at a time.

    Raises:
        StorageError: If an episode is missing, or its trajectory was thinned away.
    """
    columns = (
        *(EpisodeRow.episode, EpisodeRow.first_env_step, EpisodeRow.won, EpisodeRow.episode_return),
        EpisodeRow.trajectory,
    )
    remaining = iter(sorted(set(episodes)))
    while chunk := list(islice(remaining, _EPISODES_AT_ONCE)):
        statement = select(*columns).where(EpisodeRow.run_id == run_id, EpisodeRow.episode.in_(chunk))
        with db.read() as connection:
            found = {row.episode: row for row in connection.execute(statement)}
        for episode in chunk:
            row = found.get(episode)
            if row is None or row.trajectory == THINNED:
                raise StorageError(
                    f"The states of episode {episode} of run {run_id} are gone. Choose another run.",
                    reason="not_found",
                    subject=episode,
                )
            outcome = (run_id, episode, row.first_env_step, row.won, row.episode_return)
            yield Trajectory(*outcome, **read_arrays(row.trajectory))


def get_playback(db: Database, run_id: str, env_step: int, episode: int) -> Trajectory:
    """What happened in this greedy episode of the evaluation at `env_step`?

    Raises:
        StorageError: If it was not kept.
    """
    columns = (EvalEpisode.won, EvalEpisode.episode_return, EvalEpisode.trajectory)
    key = (EvalEpisode.run_id == run_id, EvalEpisode.env_step == env_step, EvalEpisode.episode == episode)
    with db.read() as connection:
        row = connection.execute(select(*columns).where(*key)).one_or_none()
    if row is None:
        raise StorageError(
            f"Run {run_id} keeps no playback {episode} of the evaluation at step {env_step}.",
            reason="not_found",
            subject=episode,
        )
    return Trajectory(run_id, episode, env_step, row.won, row.episode_return, **read_arrays(row.trajectory))


def list_episodes(db: Database, run_id: str, order_by: Order = "-episode", limit: int = 200) -> pd.DataFrame:
    """Which training episodes are there? A leading minus sorts downwards.

    Returns:
        episode, first_env_step, length, episode_return, won, epsilon, closed.
    """
    column = getattr(EpisodeRow, order_by.removeprefix("-"))
    order = column.desc() if order_by.startswith("-") else column
    statement = select(*OUTLINE).where(EpisodeRow.run_id == run_id)
    with db.read() as connection:
        return read_frame(connection, statement.order_by(order, EpisodeRow.episode).limit(limit))


def read_arrays(blob: bytes) -> dict[str, Any]:
    """Read a trajectory: T actions, rewards and slots, and T + 1 states."""
    arrays = unpack_as(blob, _FORMS, optional=frozenset({"slots"}), most_bytes=MOST_TRAJECTORY_BYTES)
    n_steps = len(arrays["reward"])
    lengths = {"state": n_steps + 1, "action": n_steps, "slots": n_steps + 1}
    if any(name in arrays and len(arrays[name]) != length for name, length in lengths.items()):
        raise StorageError("A stored trajectory is damaged: its arrays are not of one length.")
    for name in ("action", "slots"):
        if name in arrays:
            arrays[name] = arrays[name].astype(np.int64)
    return arrays


_Row = tuple[int, float, int | None]
"""Episode, return, and the node of its first state."""


ENOUGH = 0.5
"""Share of the run's whole spread of returns that two episodes from one node must differ by to be preferred."""


@dataclass(frozen=True)
class Extremes:
    """Two training episodes, and the node that both began in, where they did."""

    best: int
    worst: int
    node: int | None


def find_extremes(db: Database, run_id: str) -> Extremes | None:
    """Which replayable training episodes had the highest and the lowest return, from the same start if possible?

    Two that began in the same node of the memory are preferred if their returns differ by at least `ENOUGH` of what
    the best and the worst of all do; among equals the newest is taken. None where all episodes returned the same.
    Answered from the primary keys of episodes and transitions.
    """
    first = and_(Transition.run_id == EpisodeRow.run_id, Transition.env_step == EpisodeRow.first_env_step)
    statement = (
        select(EpisodeRow.episode, EpisodeRow.episode_return, Transition.slot)
        .outerjoin(Transition, first)
        .where(EpisodeRow.run_id == run_id, func.length(EpisodeRow.trajectory) > len(THINNED))
        .order_by(EpisodeRow.episode)
    )
    with db.read() as connection:
        rows = connection.execute(statement).all()
    known = [(int(row.episode), float(row.episode_return), row.slot) for row in rows if _is_number(row.episode_return)]
    if not known:
        return None
    best, worst = _ends(known)
    spread = best[1] - worst[1]
    if spread <= 0:
        return None
    in_one = [_ends(group) for group in _group(known).values()]
    high, low = max(in_one, key=lambda ends: ends[0][1] - ends[1][1], default=(best, best))
    if high[1] - low[1] >= ENOUGH * spread:
        return Extremes(high[0], low[0], high[2])
    return Extremes(best[0], worst[0], None)


def _is_number(value: object) -> bool:
    """Whether a column of a foreign database holds a return."""
    return isinstance(value, int | float) and isfinite(value)


def _group(rows: list[_Row]) -> dict[int, list[_Row]]:
    """Put the episodes that began in the same node together."""
    groups: dict[int, list[_Row]] = {}
    for row in rows:
        if row[2] is not None:
            groups.setdefault(row[2], []).append(row)
    return groups


def _ends(rows: list[_Row]) -> tuple[_Row, _Row]:
    """Pick the highest and the lowest return, the newest among equals; rows come oldest first."""
    newest_first = rows[::-1]
    return max(newest_first, key=lambda row: row[1]), min(newest_first, key=lambda row: row[1])


@dataclass(frozen=True)
class EpisodePage:
    """One page of episodes, how many match on all pages, and how many there are."""

    frame: pd.DataFrame
    total: int
    recorded: int


def find_episodes(
    db: Database, run_id: str, text: str = "", *, order_by: Order = "-episode", limit: int = 200, offset: int = 0
) -> EpisodePage:
    """Which training episodes match? Answered from the index ix_episodes_outline.

    Returns:
        episode, first_env_step, length, episode_return, won, epsilon, closed.

    Raises:
        ConfigError: If the search is none.
    """
    numbers: dict[str, Any] = {
        "episode": EpisodeRow.episode,
        "step": EpisodeRow.first_env_step,
        "length": EpisodeRow.length,
        "return": EpisodeRow.episode_return,
        "epsilon": EpisodeRow.epsilon,
        "closed": EpisodeRow.closed,
    }

    def is_number(number: int) -> Sql:
        after = EpisodeRow.first_env_step + EpisodeRow.length
        return or_(EpisodeRow.episode == number, (EpisodeRow.first_env_step <= number) & (after > number))

    column = numbers[{"episode_return": "return"}.get(order_by.removeprefix("-"), order_by.removeprefix("-"))]
    order = (column.desc() if order_by.startswith("-") else column, EpisodeRow.episode)
    terms = [_condition(term, numbers, EpisodeRow.won, is_number) for term in split_search(text)]
    return _read(db, EpisodeRow.run_id == run_id, OUTLINE, terms, order, (limit, offset))


def find_kept(db: Database, run_id: str, among: Sequence[int] | None = None) -> list[int]:
    """Which training episodes, or which of these, can be replayed? The newest 200, newest first.

    Of others the states were thinned away or left out.
    """
    kept = (EpisodeRow.run_id == run_id, func.length(EpisodeRow.trajectory) > len(THINNED))
    asked = () if among is None else (EpisodeRow.episode.in_(list(among)),)
    rows = select(EpisodeRow.episode).where(*kept, *asked).order_by(EpisodeRow.episode.desc()).limit(200)
    with db.read() as connection:
        return [int(each) for each in connection.execute(rows).scalars()]


def runs_with_states(db: Database) -> list[str]:
    """Which runs have a training episode that can be replayed? Looks at each run's episodes until it finds one."""
    is_kept = (EpisodeRow.run_id == Run.id, func.length(EpisodeRow.trajectory) > len(THINNED))
    rows = select(Run.id).where(exists().where(*is_kept)).order_by(Run.created_at.desc())
    with db.read() as connection:
        return [str(each) for each in connection.execute(rows).scalars()]


def find_playbacks(db: Database, run_id: str, text: str = "", *, limit: int = 200, offset: int = 0) -> EpisodePage:
    """Which greedy episodes were kept and match? Newest first.

    Returns:
        env_step, episode, length, episode_return, won.

    Raises:
        ConfigError: If the search is none.
    """
    columns = (
        *(EvalEpisode.env_step, EvalEpisode.episode, EvalEpisode.length),
        *(EvalEpisode.episode_return, EvalEpisode.won),
    )
    numbers: dict[str, Any] = {
        "episode": EvalEpisode.episode,
        "step": EvalEpisode.env_step,
        "length": EvalEpisode.length,
        "return": EvalEpisode.episode_return,
    }

    def is_number(number: int) -> Sql:
        return or_(EvalEpisode.env_step == number, EvalEpisode.episode == number)

    terms = [_condition(term, numbers, EvalEpisode.won, is_number) for term in split_search(text)]
    order = (EvalEpisode.env_step.desc(), EvalEpisode.episode)
    return _read(db, EvalEpisode.run_id == run_id, columns, terms, order, (limit, offset))


def _read(
    db: Database,
    of_run: Sql,
    columns: Sequence[Any],
    terms: Sequence[Sql],
    order: Sequence[Any],
    cut: tuple[int, int],
) -> EpisodePage:
    limit, offset = cut
    rows = select(*columns).where(of_run, *terms).order_by(*order).limit(limit).offset(offset)
    with db.read() as connection:
        recorded = connection.execute(select(func.count()).where(of_run)).scalar_one()
        total = connection.execute(select(func.count()).where(of_run, *terms)).scalar_one() if terms else recorded
        return EpisodePage(read_frame(connection, rows), total, recorded)


def _condition(term: Term, numbers: Mapping[str, Any], won: Any, is_number: Any) -> Sql:
    if not term.key:
        return _word(term.value, won, is_number)
    if term.key not in numbers:
        raise ConfigError(f"is not a column of episodes, which have {', '.join(numbers)}, won and lost", key=term.key)
    if term.sign == "!=":
        return not_(compare_number(numbers[term.key], Term(term.value, term.key)))
    return compare_number(numbers[term.key], term)


def _word(word: str, won: Any, is_number: Any) -> Sql:
    if (outcome := _OUTCOMES.get(word.lower())) is not None:
        return type_coerce(won, Boolean) == literal(outcome)
    digits = word.replace(",", "").removeprefix("#")
    if not is_whole(digits) or len(digits) > 18:
        raise ConfigError("must be a number, won, lost, or a comparison such as return>5", key="search", value=word)
    return is_number(int(digits))
