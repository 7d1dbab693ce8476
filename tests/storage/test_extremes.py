"""The best and the worst episode of a run, from one start where that shows most of what there is."""

from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import update

from storage.engine import Database
from storage.models import EpisodeRow
from storage.queries.episode_search import Extremes, find_extremes
from storage.queries.episodes import EMPTY_TRAJECTORY
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import create_run
from tests.storage.records import CONFIG, make_episode


def record(db: Database, run_id: str, returns: list[float], nodes: list[int] | None) -> None:
    recorder = DatabaseRecorder(db, run_id)
    for number, value in enumerate(returns, 1):
        episode = make_episode(number, (number - 1) * 10 + 1, gated=nodes is not None)
        if nodes is not None:
            slots = episode.slots.copy()
            slots[0] = nodes[number - 1]
            episode = replace(episode, slots=slots)
        recorder.record_episode(replace(episode, episode_return=value))
    recorder.close()


@pytest.mark.parametrize(
    ("returns", "nodes", "found"),
    [
        ([5, 0, 20, 3], [1, 2, 3, 4], (3, 2, None, 3)),
        ([5, 0, 20, 12], [7, 8, 9, 7], (3, 2, None, 3)),  # 7 apart from one start is less than half of 20
        ([5, 0, 20, 17], [7, 8, 9, 7], (4, 1, 7, 3)),
        ([20, 20, 0, 0], [1, 1, 1, 1], (2, 4, 1, 2)),  # the newest among equals
        ([20, 0], [-1, -1], (1, 2, None, 1)),  # a start that nothing is stored of is no common one
        ([4, 4, 4], [1, 1, 1], None),
        ([], [], None),
        ([1, 2, 3, 4], None, (4, 1, None, 4)),  # without a memory
        ([np.inf, 3.0, 1.0], [1, 2, 3], (2, 3, None, 2)),
    ],
)
def test_the_two_differ_most_and_begin_together_if_possible(sqlite_db: Database, returns, nodes, found) -> None:
    run_id = create_run(sqlite_db, CONFIG, target_steps=1000, versions={})
    record(sqlite_db, run_id, returns, nodes)
    extremes = find_extremes(sqlite_db, run_id)
    if found is None:
        assert extremes is None
    else:
        assert extremes is not None
        assert (extremes.best, extremes.worst, extremes.node, extremes.highest) == found


def test_what_was_thinned_away_cannot_be_replayed(db: Database, run_id: str) -> None:
    record(db, run_id, [50.0, 3.0, 20.0, -9.0, 1.0], [1, 2, 3, 4, 5])
    with db.transaction() as connection:
        thinned = EpisodeRow.episode.in_((1, 4))
        connection.execute(update(EpisodeRow).where(thinned).values(trajectory=EMPTY_TRAJECTORY))
    assert find_extremes(db, run_id) == Extremes(
        best=3, worst=5, best_return=20, worst_return=1, node=None, highest=3, n_replayable=3, n_recorded=5
    )
