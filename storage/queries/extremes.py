"""Which two episodes of a run show the most of it? The best and the worst that can be replayed."""

from dataclasses import dataclass
from math import isfinite

from sqlalchemy import and_, func, select

from storage.engine import Database
from storage.models import EpisodeRow, Transition
from storage.queries.episodes import THINNED

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
    """Tell whether a column of a foreign database holds a return."""
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
