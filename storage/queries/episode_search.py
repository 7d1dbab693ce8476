"""Which episodes of a run match a search, and which can be replayed?

The database searches the episodes of a run and returns them in pages. Terms of a search:

    1200                    the episode with this number, and the episode that contains env step 1,200
    won, lost               the outcome
    return>5 length<40      a number; also episode, step, epsilon and closed, with = != < <= > >=
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple

import pandas as pd
from sqlalchemy import Boolean, and_, exists, func, literal, not_, or_, select, type_coerce

from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.frames import read_frame
from storage.models import EpisodeRow, EvalEpisode, Run, Transition
from storage.queries.episodes import EMPTY_TRAJECTORY, OUTLINE, Order
from storage.queries.search_terms import Sql, Term, compare_number, is_whole, split_search

MIN_RETURN_SPREAD = 0.5
"""Minimum difference of the returns of two episodes from one node, as a fraction of the range of returns."""
_MAX_REPLAYABLE = 200
_OUTCOMES = {"won": True, "lost": False}
_HAS_TRAJECTORY = func.length(EpisodeRow.trajectory) > len(EMPTY_TRAJECTORY)


class _Outcome(NamedTuple):
    """Return of one episode, and where it began."""

    episode: int
    episode_return: float
    first_node: int | None
    """Memory node of the first state; None if it has no node."""


@dataclass(frozen=True)
class Extremes:
    """Two training episodes with different returns, of those that can be replayed."""

    best: int
    """Number of the episode with the higher return."""
    worst: int
    best_return: float
    worst_return: float
    node: int | None
    """Memory node in which both began; None if these are the highest and the lowest return of all."""
    highest: int
    """Number of the episode with the highest return."""
    n_replayable: int
    n_recorded: int


def find_extremes(db: Database, run_id: str) -> Extremes | None:
    """Which replayable training episodes have the highest and the lowest return, from the same start if possible?

    Two episodes that began in the same memory node are preferred if their returns differ by at least
    MIN_RETURN_SPREAD times the range of returns. Among equal returns the newest episode is used. Returns None if all
    episodes have the same return. Answered from the primary keys of episodes and transitions.
    """
    first = and_(Transition.run_id == EpisodeRow.run_id, Transition.env_step == EpisodeRow.first_env_step)
    statement = (
        select(EpisodeRow.episode, EpisodeRow.episode_return, Transition.slot)
        .outerjoin(Transition, first)
        .where(EpisodeRow.run_id == run_id, _HAS_TRAJECTORY)
        .order_by(EpisodeRow.episode)
    )
    with db.read() as connection:
        rows: Sequence[Any] = connection.execute(statement).all()
        n_recorded = connection.execute(select(func.count()).where(EpisodeRow.run_id == run_id)).scalar_one()
    outcomes: list[_Outcome] = []
    by_node: dict[int, list[_Outcome]] = {}
    for episode, episode_return, node in rows:
        if not isinstance(episode_return, int | float) or not isfinite(episode_return):
            continue  # in a database of another program any value is possible
        outcome = _Outcome(int(episode), float(episode_return), node)
        outcomes.append(outcome)
        if node is not None:
            by_node.setdefault(node, []).append(outcome)
    if not outcomes:
        return None
    best, worst = _find_best_and_worst(outcomes)
    spread = best.episode_return - worst.episode_return
    if spread <= 0:
        return None
    pairs = [_find_best_and_worst(group) for group in by_node.values()]
    high, low = max(pairs, key=lambda pair: pair[0].episode_return - pair[1].episode_return, default=(best, best))
    is_one_node = high.episode_return - low.episode_return >= MIN_RETURN_SPREAD * spread
    if not is_one_node:
        high, low = best, worst
    return Extremes(
        best=high.episode,
        worst=low.episode,
        best_return=high.episode_return,
        worst_return=low.episode_return,
        node=high.first_node if is_one_node else None,
        highest=best.episode,
        n_replayable=len(rows),
        n_recorded=n_recorded,
    )


def _find_best_and_worst(outcomes: list[_Outcome]) -> tuple[_Outcome, _Outcome]:
    """Return the highest and the lowest return of episodes sorted by number, and the newest among equal returns."""
    newest_first = outcomes[::-1]
    best = max(newest_first, key=lambda outcome: outcome.episode_return)
    return best, min(newest_first, key=lambda outcome: outcome.episode_return)


@dataclass(frozen=True)
class EpisodePage:
    """One page of the episodes that match a search. Source: table `episodes`."""

    frame: pd.DataFrame  # one row per episode, with the columns and units of `list_episodes` [unit varies]
    total: int
    """Number of matching episodes on all pages."""
    recorded: int
    """Number of all episodes of the run."""


def find_episodes(
    db: Database,
    run_id: str,
    text: str = "",
    *,
    order_by: Order = "-episode",
    replayable_first: bool = False,
    limit: int = 200,
    offset: int = 0,
) -> EpisodePage:
    """Which training episodes match a search? Answered from the index ix_episodes_outline.

    Args:
        db: An open database.
        run_id: The run.
        text: The search; see the top of this module.
        order_by: Sort column; a leading minus sorts in descending order.
        replayable_first: List the episodes that can be replayed before the others. This reads all rows of the run
            instead of the index.
        limit: Maximum number of rows.
        offset: Number of rows on earlier pages.

    Returns:
        A page with the columns episode, first_env_step, length, episode_return, won, epsilon, closed.

    Raises:
        ConfigError: If the search is invalid.
    """
    columns: dict[str, Any] = {
        "episode": EpisodeRow.episode,
        "step": EpisodeRow.first_env_step,
        "length": EpisodeRow.length,
        "return": EpisodeRow.episode_return,
        "epsilon": EpisodeRow.epsilon,
        "closed": EpisodeRow.closed,
    }

    def match_number(number: int) -> Sql:
        end = EpisodeRow.first_env_step + EpisodeRow.length
        return or_(EpisodeRow.episode == number, (EpisodeRow.first_env_step <= number) & (end > number))

    sort_key = order_by.removeprefix("-")
    column = columns["return" if sort_key == "episode_return" else sort_key]
    order = (column.desc() if order_by.startswith("-") else column, EpisodeRow.episode)
    if replayable_first:
        order = (_HAS_TRAJECTORY.desc(), *order)
    conditions = [_make_condition(term, columns, EpisodeRow.won, match_number) for term in split_search(text)]
    return _read_page(
        db, EpisodeRow.run_id == run_id, OUTLINE, conditions=conditions, order=order, limit=limit, offset=offset
    )


def find_replayable_episodes(
    db: Database, run_id: str, among: Sequence[int] | None = None, *, limit: int | None = _MAX_REPLAYABLE
) -> list[int]:
    """Which training episodes can be replayed? Newest first.

    The trajectories of the others were deleted by thinning or are not part of the bundle.

    Args:
        db: An open database.
        run_id: The run.
        among: Numbers of the episodes to choose from; None: all episodes.
        limit: Maximum number of episodes; None: all.
    """
    conditions = [EpisodeRow.run_id == run_id, _HAS_TRAJECTORY]
    if among is not None:
        conditions.append(EpisodeRow.episode.in_(list(among)))
    newest = select(EpisodeRow.episode).where(*conditions).order_by(EpisodeRow.episode.desc()).limit(limit)
    with db.read() as connection:
        return [int(episode) for episode in connection.execute(newest).scalars()]


def count_replayable_episodes(db: Database, run_id: str) -> int:
    """How many training episodes of a run can be replayed? Reads all rows of the run."""
    count = select(func.count()).where(EpisodeRow.run_id == run_id, _HAS_TRAJECTORY)
    with db.read() as connection:
        return int(connection.execute(count).scalar_one())


def list_replayable_runs(db: Database) -> list[str]:
    """Which runs have at least one training episode that can be replayed? Newest first."""
    has_episode = exists().where(EpisodeRow.run_id == Run.id, _HAS_TRAJECTORY)
    with db.read() as connection:
        run_ids = connection.execute(select(Run.id).where(has_episode).order_by(Run.created_at.desc())).scalars()
        return [str(run_id) for run_id in run_ids]


def find_playbacks(db: Database, run_id: str, text: str = "", *, limit: int = 200, offset: int = 0) -> EpisodePage:
    """Which stored greedy episodes match a search? Newest evaluation first.

    Args:
        db: An open database.
        run_id: The run.
        text: The search: a number is an env step of an evaluation or an episode number.
        limit: Maximum number of rows.
        offset: Number of rows on earlier pages.

    Returns:
        A page with the columns env_step, episode, length, episode_return, won.

    Raises:
        ConfigError: If the search is invalid.
    """
    outline = (
        *(EvalEpisode.env_step, EvalEpisode.episode, EvalEpisode.length),
        *(EvalEpisode.episode_return, EvalEpisode.won),
    )
    columns: dict[str, Any] = {
        "episode": EvalEpisode.episode,
        "step": EvalEpisode.env_step,
        "length": EvalEpisode.length,
        "return": EvalEpisode.episode_return,
    }

    def match_number(number: int) -> Sql:
        return or_(EvalEpisode.env_step == number, EvalEpisode.episode == number)

    conditions = [_make_condition(term, columns, EvalEpisode.won, match_number) for term in split_search(text)]
    order = (EvalEpisode.env_step.desc(), EvalEpisode.episode)
    return _read_page(
        db, EvalEpisode.run_id == run_id, outline, conditions=conditions, order=order, limit=limit, offset=offset
    )


def _read_page(
    db: Database,
    of_run: Sql,
    columns: Sequence[Any],
    *,
    conditions: Sequence[Sql],
    order: Sequence[Any],
    limit: int,
    offset: int,
) -> EpisodePage:
    rows = select(*columns).where(of_run, *conditions).order_by(*order).limit(limit).offset(offset)
    with db.read() as connection:
        recorded = total = connection.execute(select(func.count()).where(of_run)).scalar_one()
        if conditions:
            total = connection.execute(select(func.count()).where(of_run, *conditions)).scalar_one()
        return EpisodePage(read_frame(connection, rows), total, recorded)


def _make_condition(term: Term, columns: Mapping[str, Any], won: Any, match_number: Callable[[int], Sql]) -> Sql:
    if not term.key:
        return _make_word_condition(term.value, won, match_number)
    if term.key not in columns:
        raise ConfigError(f"is not a column of episodes, which have {', '.join(columns)}, won and lost", key=term.key)
    if term.sign == "!=":
        return not_(compare_number(columns[term.key], Term(term.value, term.key)))
    return compare_number(columns[term.key], term)


def _make_word_condition(word: str, won: Any, match_number: Callable[[int], Sql]) -> Sql:
    outcome = _OUTCOMES.get(word.lower())
    if outcome is not None:
        return type_coerce(won, Boolean) == literal(outcome)
    digits = word.replace(",", "").removeprefix("#")
    if not is_whole(digits) or len(digits) > 18:
        raise ConfigError("must be a number, won, lost, or a comparison such as return>5", key="search", value=word)
    return match_number(int(digits))
