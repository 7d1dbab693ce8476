"""Episodes found by number, outcome, return and length, against looking at every one of them."""

import pandas as pd
import pytest
from sqlalchemy import update

from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.models import EpisodeRow
from storage.queries.episode_search import count_replayable_episodes, find_episodes, find_playbacks
from storage.queries.episodes import EMPTY_TRAJECTORY, list_episodes
from storage.recording.writer import DatabaseRecorder
from tests.storage.records import make_episode, make_evaluation, record_episodes


@pytest.fixture
def recorded(db: Database, run_id: str) -> tuple[Database, str, pd.DataFrame]:
    recorder = DatabaseRecorder(db, run_id)
    record_episodes(recorder, 30)
    recorder.record_episode(make_episode(31, 301, 25))
    recorder.record_evaluation(make_evaluation(100))
    recorder.record_evaluation(make_evaluation(200))
    recorder.close()
    return db, run_id, list_episodes(db, run_id, "episode")


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("", lambda row: True),
        ("17", lambda row: row.episode == 17 or row.first_env_step <= 17 < row.first_env_step + row.length),
        ("#310", lambda row: row.episode == 310 or row.first_env_step <= 310 < row.first_env_step + row.length),
        ("won", lambda row: row.won),
        ("lost length>20", lambda row: not row.won and row.length > 20),
        ("length>20", lambda row: row.length > 20),
        ("return>5", lambda row: row.episode_return > 5),
        ("return<=5 won", lambda row: row.episode_return <= 5 and row.won),
        ("episode!=3 step<100", lambda row: row.episode != 3 and row.first_env_step < 100),
        ("episode=3", lambda row: row.episode == 3),
        ("epsilon<0.1", lambda row: row.epsilon < 0.1),
        ("99999", lambda row: False),
    ],
)
def test_a_search_finds_what_looking_at_every_episode_finds(recorded, text, fits) -> None:
    db, run_id, every = recorded
    expected = [row.episode for row in every.itertuples() if fits(row)]
    whole = find_episodes(db, run_id, text, order_by="episode")
    assert whole.frame["episode"].tolist() == expected
    assert (whole.total, whole.recorded) == (len(expected), 31)
    paged = [find_episodes(db, run_id, text, order_by="episode", limit=7, offset=start) for start in range(0, 31, 7)]
    assert [episode for page in paged for episode in page.frame["episode"]] == expected


@pytest.mark.parametrize("order", ["-episode", "episode_return", "-episode_return", "-length"])
def test_episodes_are_sorted_by_a_column_and_then_by_number(recorded, order: str) -> None:
    db, run_id, every = recorded
    column, is_ascending = order.removeprefix("-"), not order.startswith("-")
    expected = every.sort_values(column, ascending=is_ascending, kind="stable")
    assert list_episodes(db, run_id, order)["episode"].tolist() == expected["episode"].tolist()
    found = find_episodes(db, run_id, "won", order_by=order)
    assert found.frame["episode"].tolist() == expected.loc[expected["won"], "episode"].tolist()


def test_episodes_that_can_be_replayed_are_first_on_all_pages(recorded) -> None:
    db, run_id, _ = recorded
    with db.transaction() as connection:
        removed = update(EpisodeRow).where(EpisodeRow.episode.not_in([3, 20, 31]))
        connection.execute(removed.values(trajectory=EMPTY_TRAJECTORY))
    pages = [find_episodes(db, run_id, limit=7, offset=start, replayable_first=True) for start in range(0, 31, 7)]
    others = [episode for episode in range(31, 0, -1) if episode not in (3, 20, 31)]
    assert [episode for page in pages for episode in page.frame["episode"]] == [31, 20, 3, *others]
    assert count_replayable_episodes(db, run_id) == 3


def test_playbacks_are_found_too(recorded) -> None:
    db, run_id, _ = recorded
    assert find_playbacks(db, run_id, "100").frame["env_step"].tolist() == [100]
    assert find_playbacks(db, run_id, "step>100 won").total == 1
    assert find_playbacks(db, run_id, "lost").total == 0


@pytest.mark.parametrize("text", ["sideways", "return>much", "beta>0.5", "9" * 19, "x " * 51, "won;drop"])
def test_what_means_nothing_is_one_sentence(recorded, text) -> None:
    db, run_id, _ = recorded
    with pytest.raises(ConfigError):
        find_episodes(db, run_id, text)
    with pytest.raises(ConfigError):
        find_playbacks(db, run_id, text)
