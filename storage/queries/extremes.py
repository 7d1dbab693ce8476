"""Which two episodes of a run show the most of it? The best and the worst that can be replayed."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from sqlalchemy import and_, func, select

from storage.engine import Database
from storage.frames import read_frame
from storage.models import EpisodeRow, Transition
from storage.queries.episodes import THINNED

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
        frame = read_frame(connection, statement)
    frame = frame[np.isfinite(frame["episode_return"].to_numpy(np.float64, na_value=np.nan))]
    if not len(frame):
        return None
    best, worst = _ends(frame)
    if frame["episode_return"][best] <= frame["episode_return"][worst]:
        return None
    spread = float(frame["episode_return"][best] - frame["episode_return"][worst])
    shared = _widest_node(frame[frame["slot"].notna()])
    if shared is not None and shared[0] >= ENOUGH * spread:
        _, best, worst = shared
        return Extremes(int(frame["episode"][best]), int(frame["episode"][worst]), int(frame["slot"][best]))
    return Extremes(int(frame["episode"][best]), int(frame["episode"][worst]), None)


def _ends(frame: pd.DataFrame) -> tuple[int, int]:
    """Name the rows of the highest and the lowest return, the newest among equals."""
    newest_first = frame["episode_return"].iloc[::-1]
    return int(newest_first.idxmax()), int(newest_first.idxmin())


def _widest_node(frame: pd.DataFrame) -> tuple[float, int, int] | None:
    """Find the node whose episodes differ most: by how much, and the rows of its best and its worst."""
    if not len(frame):
        return None
    returns = frame.groupby("slot")["episode_return"]
    node = (returns.max() - returns.min()).idxmax()
    own = frame[frame["slot"] == node]
    best, worst = _ends(own)
    return float(own["episode_return"][best] - own["episode_return"][worst]), best, worst
