"""Replay's list of episodes: all of them can be found, and the list says how many there are."""

import pytest
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


def test_a_long_list_has_pages(seeded, monkeypatch):
    run_id = seeded[1]
    monkeypatch.setattr(episode_choice, "EPISODES_PER_PAGE", 3)
    app = open_page("replay", run=run_id)
    assert "1–3 of 8 episodes." in said(app)
    assert len(options(app)) == 3


@pytest.mark.parametrize("query", [{"episode": "2"}, {"play": "1-0"}, {"find": "lost", "episode": "1"}])
def test_a_link_opens_its_episode_whatever_is_listed(seeded, query):
    app = open_page("replay", run=seeded[1], **query)
    assert not app.exception
    if "episode" in query:
        assert f"Training episode {query['episode']}" in said(app)


def thin_out(db, *, keep: list[int]) -> None:
    with db.transaction() as connection:
        connection.execute(
            update(EpisodeRow).where(EpisodeRow.episode.not_in(keep)).values(trajectory=EMPTY_TRAJECTORY)
        )


def test_the_page_begins_with_an_episode_whose_states_are_kept(seeded):
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


def test_the_best_and_the_worst_are_those_of_the_episodes_that_can_be_replayed(seeded):
    db, run_id = seeded
    thin_out(db, keep=[2, 5])
    app = open_page("replay", run=run_id)
    app.menu_button(key="compare_menu").click("extremes").run()
    returns = list_episodes(db, run_id).set_index("episode")["episode_return"]
    assert not app.exception
    assert app.toast[0].value.startswith("Of the 2 of 8 episodes that can be replayed, ")
    for episode in (2, 5):
        assert f"{episode} (return {format_number(returns[episode])})" in app.toast[0].value


def test_the_page_begins_with_evaluation_episodes_if_no_other_states_are_kept(seeded):
    db, run_id = seeded
    thin_out(db, keep=[])
    app = open_page("replay", run=run_id)
    assert not app.exception
    assert not app.info
    assert app.radio(key="replay?play").value
    assert app.segmented_control(key="replay?source").value == "evaluation"


def test_a_run_of_which_only_outcomes_are_kept_links_the_runs_that_can_be_replayed(seeded):
    db, run_id = seeded
    thin_out(db, keep=[])
    with db.transaction() as connection:
        connection.execute(delete(EvalEpisode).where(EvalEpisode.run_id == run_id))
    seed_run(db, name="With states")
    app = open_page("replay", run=run_id)
    assert not app.exception
    assert "contains only the outcomes" in said(app).replace("\\", "")
    assert [link.label for link in app.get("page_link") if link.label == "With states"]


def test_an_episode_without_states_is_not_sent_to_evaluation_episodes_that_are_not_stored(seeded):
    db, run_id = seeded
    thin_out(db, keep=[2])
    with db.transaction() as connection:
        connection.execute(delete(EvalEpisode).where(EvalEpisode.run_id == run_id))
    app = open_page("replay", run=run_id, episode="4")
    assert "deleted by thinning" in app.info[0].value
    assert "Look at an evaluation episode" not in app.info[0].value


def test_an_episode_beyond_the_first_page_is_found_to_begin_with(seeded, monkeypatch):
    monkeypatch.setattr("app.ui.replay.episode_choice.EPISODES_PER_PAGE", 3)
    db, run_id = seeded
    thin_out(db, keep=[1])
    app = open_page("replay", run=run_id)
    assert not app.exception
    assert not app.error
    assert app.radio(key="replay?episode").value == "1"
