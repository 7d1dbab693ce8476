"""Which episodes of a run are like this? Every one of them, searched by the database and cut into pages.

1200                    the episode of this number, and the one in which env step 1,200 was made
won, lost               by outcome
return>5 length<40      by a number; also episode, step, epsilon and closed, with = != < <= > >=
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from sqlalchemy import Boolean, exists, func, literal, not_, or_, select, type_coerce

from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.frames import read_frame
from storage.models import EpisodeRow, EvalEpisode, Run
from storage.queries.episodes import OUTLINE, THINNED, Order
from storage.queries.terms import Sql, Term, compare_number, is_whole, split_search

_OUTCOMES = {"won": True, "lost": False}


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


def find_kept(db: Database, run_id: str, among: Sequence[int] | None = None, *, limit: int = 200) -> list[int]:
    """Which training episodes can be replayed, newest first? Of others the states were thinned away or left out.

    Args:
        db: An open database.
        run_id: The run.
        among: Only these episodes are asked about.
        limit: At most so many.
    """
    kept = (EpisodeRow.run_id == run_id, func.length(EpisodeRow.trajectory) > len(THINNED))
    asked = () if among is None else (EpisodeRow.episode.in_(list(among)),)
    rows = select(EpisodeRow.episode).where(*kept, *asked).order_by(EpisodeRow.episode.desc()).limit(limit)
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
        raise ConfigError(f'Episodes have {", ".join(numbers)}, won and lost, but no "{term.key[:80]}".')
    if term.sign == "!=":
        return not_(compare_number(numbers[term.key], Term(term.value, term.key)))
    return compare_number(numbers[term.key], term)


def _word(word: str, won: Any, is_number: Any) -> Sql:
    if (outcome := _OUTCOMES.get(word.lower())) is not None:
        return type_coerce(won, Boolean) == literal(outcome)
    digits = word.replace(",", "").removeprefix("#")
    if not is_whole(digits) or len(digits) > 18:
        raise ConfigError(f'Episodes are found by a number, won, lost, or as in return>5, got "{word[:80]}".')
    return is_number(int(digits))
