"""Two episodes on Replay: selected, linked, of two runs, and of environments without a renderer."""

import json

from sqlalchemy import update

from storage.models import Transition
from tests.pages.conftest import read_address
from tests.pages.seed import seed_run, seed_zoo_run
from tests.pages.test_pages import open_page, said


def player(app) -> dict:
    """Read what the player was given."""
    data = next(each.proto.bytes for each in app.get("bidi_component") if each.proto.bytes)
    return json.loads(data[4 : 4 + int.from_bytes(data[:4], "little")])["meta"]


def titles(app) -> list[str]:
    return [side["title"] for side in player(app)["sides"]]


def test_a_second_episode_is_added_selected_and_removed(seeded):
    app = open_page("replay", run=seeded[1], episode="3")
    assert len(titles(app)) == 1
    app.menu_button(key="compare_menu").click("another").run()
    assert not app.exception
    assert len(titles(app)) == 2
    assert titles(app)[0].startswith("Training episode 3")
    assert read_address(app)["beside"] == "8"
    app.selectbox(key="replay?beside").set_value("5").run()
    assert titles(app)[1].startswith("Training episode 5")
    assert (read_address(app)["episode"], read_address(app)["beside"]) == ("3", "5")
    app.menu_button(key="compare_menu").click("none").run()
    assert not app.exception
    assert len(titles(app)) == 1
    assert "beside" not in read_address(app)


def test_a_link_opens_two_training_episodes_or_a_training_and_an_evaluation_episode(seeded):
    app = open_page("replay", run=seeded[1], episode="2", beside="7", t="4")
    assert [title.split(",")[0] for title in titles(app)] == ["Training episode 2", "Training episode 7"]
    assert player(app)["start"] == 4
    step = open_page("replay", run=seeded[1]).segmented_control(key="replay?source").set_value("evaluation").run()
    chosen = step.radio(key="replay?play").value
    app = open_page("replay", run=seeded[1], episode="2", beside_play=chosen)
    assert not app.exception
    assert titles(app)[1].startswith("Evaluation at step")
    app.segmented_control(key="replay?beside_source").set_value("training").run()
    assert not app.exception
    assert titles(app)[1].startswith("Training episode")
    assert "beside_play" not in read_address(app)


def test_the_second_episode_may_be_of_another_run(seeded):
    db, run_id = seeded
    other = seed_run(db, name="Another")
    app = open_page("replay", run=run_id, episode="1", beside="2")
    app.selectbox(key="replay?beside_run").set_value(other).run()
    assert not app.exception
    assert read_address(app)["beside_run"] == other
    assert [f"({run_id})" in titles(app)[0], f"Another ({other})" in titles(app)[1]] == [True, True]
    linked = open_page("replay", **read_address(app))
    assert titles(linked) == titles(app)


def test_a_run_without_a_gate_has_no_empty_panels(seeded):
    db = seeded[0]
    bare = seed_run(db, gate="none")
    with db.transaction() as connection:
        values = {"delta_mem": None, "beta": None}
        connection.execute(update(Transition).where(Transition.run_id == bare).values(values))
    app = open_page("replay", run=bare, episode="1")
    assert not app.exception
    assert "β" not in [panel["title"] for panel in player(app)["panels"]]
    assert said(app).count("Gate off") == 1
    app = open_page("replay", run=seeded[1], episode="1")
    assert "β" in [panel["title"] for panel in player(app)["panels"]]
    assert "Gate off" not in said(app)


def test_an_environment_without_a_renderer_is_played_as_its_state_also_next_to_another_one(seeded):
    db, run_id = seeded
    zoo = seed_zoo_run(db)
    app = open_page("replay", run=zoo, episode="1")
    assert not app.exception
    assert not app.error
    assert "No picture for this environment" in said(app)
    assert player(app)["sides"][0]["entries"] == ["state 0", "state 1", "state 2"]
    app = open_page("replay", run=run_id, episode="1", beside="1", beside_run=zoo)
    assert not app.exception
    assert not app.error
    assert [bool(side["units"]) for side in player(app)["sides"]] == [True, False]
