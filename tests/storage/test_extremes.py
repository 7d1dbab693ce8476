"""The best and the worst episode of a run, from one start where that shows most of what there is."""

from dataclasses import replace

import numpy as np
import pytest

from storage.engine import Database
from storage.queries.episode_search import Extremes, find_extremes
from storage.recording.writer import DatabaseRecorder
from tests.storage.records import make_episode


def found_in(db: Database, run_id: str) -> tuple[int, int, int | None] | None:
    extremes = find_extremes(db, run_id)
    return None if extremes is None else (extremes.best, extremes.worst, extremes.node)


def record(db: Database, run_id: str, returns: list[float], nodes: list[int]) -> None:
    recorder = DatabaseRecorder(db, run_id)
    for number, (value, node) in enumerate(zip(returns, nodes, strict=True), 1):
        episode = make_episode(number, (number - 1) * 10 + 1)
        slots = episode.slots.copy()
        slots[0] = node
        recorder.record_episode(replace(episode, episode_return=value, slots=slots))
    recorder.close()


@pytest.mark.parametrize(
    ("returns", "nodes", "found"),
    [
        ([5, 0, 20, 3], [1, 2, 3, 4], (3, 2, None)),
        ([5, 0, 20, 12], [7, 8, 9, 7], (3, 2, None)),  # 7 apart from one start is less than half of 20
        ([5, 0, 20, 17], [7, 8, 9, 7], (4, 1, 7)),
        ([20, 20, 0, 0], [1, 1, 1, 1], (2, 4, 1)),  # the newest among equals
        ([20, 0], [-1, -1], (1, 2, None)),  # a start that nothing is stored of is no common one
        ([4, 4, 4], [1, 1, 1], None),
        ([], [], None),
    ],
)
def test_the_two_differ_most_and_begin_together_if_possible(db: Database, run_id: str, returns, nodes, found) -> None:
    record(db, run_id, returns, nodes)
    assert found_in(db, run_id) == found


def test_the_highest_return_need_not_be_of_the_two_that_begin_together(db: Database, run_id: str) -> None:
    record(db, run_id, [5, 0, 20, 17], [7, 8, 9, 7])
    extremes = find_extremes(db, run_id)
    assert extremes is not None
    assert (extremes.best, extremes.highest) == (4, 3)


def test_a_run_without_a_memory_has_extremes_too(db: Database, run_id: str) -> None:
    recorder = DatabaseRecorder(db, run_id)
    for number in range(1, 5):
        recorder.record_episode(
            replace(make_episode(number, (number - 1) * 10 + 1, gated=False), episode_return=float(number))
        )
    recorder.close()
    assert found_in(db, run_id) == (4, 1, None)


def test_what_was_thinned_away_cannot_be_replayed(db: Database, run_id: str) -> None:
    from sqlalchemy import update

    from storage.models import EpisodeRow
    from storage.queries.episodes import EMPTY_TRAJECTORY

    record(db, run_id, [50.0, 3.0, 20.0, -9.0, 1.0], [1, 2, 3, 4, 5])
    with db.transaction() as connection:
        thinned = EpisodeRow.episode.in_((1, 4))
        connection.execute(update(EpisodeRow).where(thinned).values(trajectory=EMPTY_TRAJECTORY))
    assert find_extremes(db, run_id) == Extremes(
        best=3, worst=5, best_return=20, worst_return=1, node=None, highest=3, n_replayable=3, n_recorded=5
    )


def test_a_return_that_is_no_number_is_passed_over(db: Database, run_id: str) -> None:
    record(db, run_id, [np.inf, 3.0, 1.0], [1, 2, 3])
    assert found_in(db, run_id) == (2, 3, None)
