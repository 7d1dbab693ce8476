"""Replay's list of episodes: all of them can be found, and the list says how many there are."""

import pytest
import streamlit as st
from sqlalchemy import delete, update

from app.analysis.format import format_number
from app.ui.replay import episode_choice
from storage.models import EpisodeRow, EvalEpisode
from storage.queries.episodes import EMPTY_TRAJECTORY, list_episodes
from tests.pages.seed import seed_run
from tests.pages.test_pages import open_page, said


def options(app) -> list[str]:
    return app.radio(key="replay?episode").options


def test_every_episode_is_found_by_number_outcome_and_return(seeded):
    db, run_id = seeded
    every = list_episodes(db, run_id, "episode")
    app = open_page("replay", run=run_id)
    assert f"{len(every)} episodes." in said(app)
    app.text_input(key="replay?find").set_value("won").run()
    assert not app.exception
    assert len(options(app)) == int(every["won"].sum())
    assert f"{int(every['won'].sum())} of {len(every)} episodes match." in said(app)
    step = int(every["first_env_step"].iloc[4])
    app.text_input(key="replay?find").set_value(f"{step} length>0").run()
    assert any(option.startswith("5 ·") for option in options(app))
    best = every["episode_return"].max()
    app.text_input(key="replay?find").set_value(f"return>={best - 1e-9}").run()
    assert len(options(app)) == int((every["episode_return"] >= best - 1e-9).sum())
    app.text_input(key="replay?find").set_value("sideways").run()
    assert not app.exception
    assert "search must be a number" in "\n".join(error.value for error in app.error)
    app = open_page("replay", run=run_id, find="lost", episode="1")
    assert "Training episode 1" in said(app), "a link opens its episode also if it is not listed"


def thin_out(db, *, keep: list[int]) -> None:
    with db.transaction() as connection:
        connection.execute(
            update(EpisodeRow).where(EpisodeRow.episode.not_in(keep)).values(trajectory=EMPTY_TRAJECTORY)
        )


def test_episodes_with_stored_states_are_listed_first_and_the_newest_of_them_is_played(seeded):
    db, run_id = seeded
    thin_out(db, keep=[2, 5])
    app = open_page("replay", run=run_id)
    assert not app.exception
    assert not app.error
    assert app.radio(key="replay?episode").value == "5"
    labels = app.radio(key="replay?episode").options
    assert [label.split(" ")[0] for label in labels] == ["5", "2", "8", "7", "6", "4", "3", "1"]
    assert sum("states not stored" in label for label in labels) == len(labels) - 2
    assert "2 of the run's 8 episodes can be played and are listed first" in said(app).replace("\\", "")
    linked = open_page("replay", run=run_id, episode="4")
    assert not linked.error, "left out on purpose is no fault"
    assert "deleted by thinning (emtc db thin), or is not part of this bundle" in linked.info[0].value.replace("\\", "")


@pytest.mark.parametrize("keep", [range(1, 9), [2, 5]], ids=["all", "two with states"])
def test_best_against_worst_shows_the_extreme_returns_of_the_episodes_that_can_be_replayed(seeded, keep):
    db, run_id = seeded
    thin_out(db, keep=[*keep])
    app = open_page("replay", run=run_id, find="won")
    app.menu_button(key="compare_menu").click("extremes").run()
    assert not app.exception
    returns = list_episodes(db, run_id).set_index("episode")["episode_return"].loc[[*keep]]
    for name, extreme in (("episode", returns.max()), ("beside", returns.min())):
        (number,) = app.query_params[name]
        assert returns[int(number)] == extreme
        assert f"{number} (return {format_number(extreme)})" in app.toast[0].value
    assert ("Of the 2 of 8 episodes" in app.toast[0].value) == (len(keep) == 2)
    assert app.text_input(key="replay?find").value == ""


def test_without_states_of_training_episodes_an_evaluation_episode_is_played_or_another_run_is_linked(seeded):
    db, run_id = seeded
    thin_out(db, keep=[])
    app = open_page("replay", run=run_id)
    assert not app.exception
    assert not app.info
    assert app.radio(key="replay?play").value
    assert app.segmented_control(key="replay?source").value == "evaluation"
    app.segmented_control(key="replay?source").set_value("training").run()
    assert app.segmented_control(key="replay?source").value == "training"
    assert app.radio(key="replay?episode").value
    with db.transaction() as connection:
        connection.execute(delete(EvalEpisode).where(EvalEpisode.run_id == run_id))
    seed_run(db, name="With states")
    st.cache_data.clear()
    app = open_page("replay", run=run_id)
    assert not app.exception
    assert "contains only the outcomes" in said(app).replace("\\", "")
    assert [link.label for link in app.get("page_link") if link.label == "With states"]


def test_a_long_list_has_pages_and_episodes_with_states_are_on_the_first(seeded, monkeypatch):
    monkeypatch.setattr(episode_choice, "EPISODES_PER_PAGE", 3)
    db, run_id = seeded
    thin_out(db, keep=[1])
    app = open_page("replay", run=run_id)
    assert not app.exception
    assert not app.error
    assert "1–3 of 8 episodes." in said(app)
    assert len(options(app)) == 3
    assert app.radio(key="replay?episode").value == "1"
