"""Questions to a living run: they reach the trainer, and their answers stand beside the curves and in none."""

import pytest
from sqlalchemy import text

from emtc_core.control import Question
from emtc_core.errors import RunStateError
from emtc_core.recorder import AnswerRecord
from storage.engine import Database
from storage.maintenance.check import check_run
from storage.models import get_first_playback
from storage.queries.curves import evaluations
from storage.queries.episode_search import find_playbacks
from storage.queries.episodes import get_playback
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import finish_run, start_run
from storage.runs.claims import claim_to_train, make_token
from storage.runs.control import (
    DatabaseControl,
    EvaluationRequest,
    find_evaluation_request,
    list_evaluation_requests,
    send_command,
)
from storage.runs.removal import rewind_run
from storage.runs.rows import find_run
from tests.storage.records import ME, make_evaluation, record_episodes
from tests.storage.test_control import wait_for


@pytest.fixture
def db(sqlite_db: Database) -> Database:
    """SQLite alone: the statements are simple."""
    return sqlite_db


def start_with_episodes(db: Database, run_id: str, episodes: int = 3) -> DatabaseRecorder:
    start_run(db, run_id, **ME)
    recorder = DatabaseRecorder(db, run_id)
    record_episodes(recorder, episodes)
    recorder.flush()
    return recorder


def read(db: Database, run_id: str, number: int) -> EvaluationRequest:
    found = find_evaluation_request(db, find_run(db, run_id), number)
    assert found is not None
    return found


def rows(db: Database, table: str) -> int:
    with db.read() as connection:
        return connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()


def test_a_question_reaches_the_trainer_with_its_number_and_its_episode(db: Database, run_id: str) -> None:
    start_with_episodes(db, run_id).close()
    control = DatabaseControl(db, run_id)
    first, second = send_command(db, run_id, "evaluate"), send_command(db, run_id, "play", episode=2)
    assert read(db, run_id, first).stage == "waiting"
    assert wait_for(control.poll) == Question("evaluate", first)
    assert wait_for(control.poll) == Question("play", second, repeats_episode=2)
    control.close()
    assert [
        (asked.kind, asked.episode, asked.stage) for asked in list_evaluation_requests(db, find_run(db, run_id))
    ] == [
        ("play", 2, "playing"),
        ("evaluate", None, "playing"),
    ]


def test_an_answer_is_stored_once_and_apart_from_curves_and_evaluations(db: Database, run_id: str) -> None:
    recorder = start_with_episodes(db, run_id)
    recorder.record_evaluation(make_evaluation(10, wins=1))
    recorder.flush()
    before = find_run(db, run_id)
    number = send_command(db, run_id, "play", episode=3)
    for _ in range(2):
        recorder.record_answer(AnswerRecord(number, make_evaluation(30, wins=4), again_of=3))
    recorder.flush()
    after = find_run(db, run_id)
    assert (after.win_rate, after.return_mean, after.mu_w) == (before.win_rate, before.return_mean, before.mu_w)
    recorder.record_evaluation(make_evaluation(30, wins=2))
    recorder.close()
    assert evaluations(db, run_id)["win_rate"].tolist() == [0.25, 0.5]
    answer = read(db, run_id, number).answer
    assert answer is not None
    assert rows(db, "asked_evaluations") == 1
    assert (answer.env_step, answer.wins, answer.episodes, answer.repeated_episode) == (30, 4, 4, 3)
    kept = find_playbacks(db, run_id).frame
    assert kept[["env_step", "episode"]].to_numpy().tolist() == [[30, 0], [30, answer.playback], [10, 0]]
    assert get_playback(db, run_id, 30, answer.playback).won
    assert check_run(db, run_id) == []


def test_a_resume_takes_the_answers_of_superseded_steps_with_them_and_numbers_none_anew(
    db: Database, run_id: str
) -> None:
    recorder = start_with_episodes(db, run_id)
    kept, gone = (send_command(db, run_id, "evaluate") for _ in range(2))
    recorder.record_answer(AnswerRecord(kept, make_evaluation(20)))
    recorder.record_answer(AnswerRecord(gone, make_evaluation(30)))
    recorder.close()
    pending = send_command(db, run_id, "evaluate")
    finish_run(db, run_id, "stopped")
    token = make_token()
    claim_to_train(db, run_id, token)
    start_run(db, run_id, **ME, token=token)
    rewind_run(db, run_id, 20, token=token)
    assert [(asked.id, asked.stage) for asked in list_evaluation_requests(db, find_run(db, run_id))] == [
        (pending, "unanswered"),
        (gone, "unanswered"),
        (kept, "answered"),
    ]
    assert find_playbacks(db, run_id).frame["episode"].tolist() == [get_first_playback(kept)]
    again = send_command(db, run_id, "evaluate")
    recorder = DatabaseRecorder(db, run_id, token=token)
    recorder.record_answer(AnswerRecord(again, make_evaluation(20)))
    recorder.close()
    assert find_playbacks(db, run_id).frame["episode"].tolist() == [get_first_playback(kept), get_first_playback(again)]
    assert read(db, run_id, again).stage == "answered"


def test_what_nobody_can_answer_is_refused_in_words(db: Database, run_id: str) -> None:
    start_with_episodes(db, run_id).close()
    with pytest.raises(RunStateError, match=r"\b9\b"):
        send_command(db, run_id, "play", episode=9)
    with pytest.raises(RunStateError, match="evaluate"):
        send_command(db, run_id, "evaluate", episode=1)
    send_command(db, run_id, "stop")
    with pytest.raises(RunStateError, match=run_id):
        send_command(db, run_id, "evaluate")
    finish_run(db, run_id, "stopped")
    with pytest.raises(RunStateError, match=run_id):
        send_command(db, run_id, "play")
    assert list_evaluation_requests(db, find_run(db, run_id)) == []
