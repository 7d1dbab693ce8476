"""Live asks the living run and shows what it answered."""

from collections.abc import Iterator

import numpy as np
import pytest

from emtc_core.recorder import AnswerRecord, EvaluationRecord, PlaybackRecord
from storage.engine import Database
from storage.queries.episodes import get_trajectory
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import finish_run
from storage.runs.control import DatabaseControl, EvaluationRequest, Heartbeat, list_evaluation_requests
from storage.runs.rows import find_run
from tests.pages.seed import seed_run
from tests.pages.test_pages import open_page, said
from tests.storage.test_control import wait_for


@pytest.fixture
def alive(use_database, tmp_path) -> Iterator[tuple[Database, str]]:
    db = use_database(tmp_path / "alive.db")
    run_id = seed_run(db, status="running")
    heart = Heartbeat(db, run_id)
    wait_for(lambda: find_run(db, run_id).live_status == "running")
    yield db, run_id
    heart.close()


def last_question(db: Database, run_id: str) -> EvaluationRequest:
    return list_evaluation_requests(db, find_run(db, run_id))[0]


def answer(db: Database, run_id: str, *, wins: int, episodes: int, again_of: int | None = None) -> None:
    """Take the question as a trainer does, and answer it."""
    control = DatabaseControl(db, run_id)
    question = wait_for(control.poll)
    control.close()
    first = get_trajectory(db, run_id, 1)
    playback = PlaybackRecord(first.state, first.action, first.reward, first.episode_return, won=True)
    won = np.arange(episodes) < wins
    outcome = (np.full(episodes, 2.5, np.float32), np.full(episodes, first.length), won, (playback,))
    recorder = DatabaseRecorder(db, run_id)
    evaluation = EvaluationRecord(find_run(db, run_id).env_steps, *outcome)
    recorder.record_answer(AnswerRecord(question.number, evaluation, again_of=again_of))
    recorder.close()


def test_a_requested_evaluation_is_shown_with_a_link_to_its_replay(alive):
    db, run_id = alive
    app = open_page("live", run=run_id)
    app.button(key="ask-evaluate").click().run()
    assert not app.exception
    assert "waiting for the run …" in said(app)
    answer(db, run_id, wins=24, episodes=32)
    app.run()
    asked = last_question(db, run_id)
    assert asked.answer is not None
    steps = find_run(db, run_id).env_steps
    play = f"{steps}-{asked.answer.playback}"
    assert f"win rate 24/32 at env step {steps:,} · [Replay](replay?run={run_id}&play={play})" in said(app)
    assert "50 % greedy" in [metric.value for metric in app.metric], "no regular evaluation"
    replay = open_page("replay", run=run_id, play=play)
    assert not replay.exception
    assert not replay.error
    assert f"Requested at step {steps}" in said(replay)


def test_a_recorded_training_episode_is_requested_again(alive):
    db, run_id = alive
    app = open_page("live", run=run_id)
    app.text_input(key="ask-episode").set_value("9999").run()
    app.button(key="ask-play-again").click().run()
    assert not app.exception
    assert ["9999" in error.value for error in app.error] == [True]
    assert list_evaluation_requests(db, find_run(db, run_id)) == []
    app.text_input(key="ask-episode").set_value("3").run()
    app.button(key="ask-play-again").click().run()
    assert (last_question(db, run_id).kind, last_question(db, run_id).episode) == ("play", 3)
    answer(db, run_id, wins=1, episodes=1, again_of=3)
    app.run()
    assert "episode 3 again\\: won, return 2\\.5 at env step" in said(app)


def test_replay_requests_its_episode_again(alive):
    db, run_id = alive
    app = open_page("replay", run=run_id, episode="2")
    app.button(key="ask-play-again").click().run()
    assert not app.exception
    asked = last_question(db, run_id)
    assert (asked.kind, asked.episode) == ("play", 2)


def test_an_ended_run_has_no_buttons_of_requests_and_its_open_request_is_lost(alive):
    db, run_id = alive
    app = open_page("live", run=run_id)
    app.button(key="ask-play").click().run()
    finish_run(db, run_id, "stopped")
    app.run()
    assert "not answered" in said(app)
    for page in ("live", "replay"):
        ended = open_page(page, run=run_id, **({"episode": "2"} if page == "replay" else {}))
        assert not ended.exception
        assert not any(str(button.key).startswith("ask-") for button in ended.button), page
