"""The Notebook page, and the button *Pin* of a figure."""

import pytest

from app.notebook.view import freeze
from app.ui.page_url import OPENED_BOX
from storage.notebook import create_entry, edit_entry, get_entry, get_figure, list_entries
from storage.runs.removal import remove_run
from tests.app.test_notebook_export import make_chart, make_cloud
from tests.pages.test_pages import open_page, said


def press_pin(app, figure: str, *, title: str = "", note: str = ""):
    if figure.startswith("live-"):  # opened, as by a press: Live draws the form only then
        app.session_state[OPENED_BOX] = f"{figure}-pin"
        app.run()
    token = app.session_state[f"{figure}-pin-token"]
    if title:
        app.text_input(key=f"{figure}-pin-title-{token}").set_value(title)
    if note:
        app.text_area(key=f"{figure}-pin-note-{token}").set_value(note)
    return app.button(key=f"{figure}-pin-save-{token}").click().run()


def test_a_chart_pinned_on_live_is_listed_in_the_notebook(seeded):
    db, run_id = seeded
    app = press_pin(
        open_page("live", run=run_id, x="0-200"), "live-gate-dynamics-Δ̄_mem", title="β dips", note="See *here*."
    )
    assert not app.exception
    row = list_entries(db)[0]
    assert (row.title, row.body, row.run_id) == ("β dips", "See *here*.", run_id)
    assert row.view["page"] == "live"
    assert row.view["query"] == {"run": [run_id], "x": ["0-200"]}
    assert row.view["runs"][0]["code_version"] == "test"
    page = open_page("notebook")
    assert not page.exception
    assert "#### β dips" in said(page)
    assert "See *here*." in said(page)
    assert "Seeded run" in said(page)


@pytest.mark.parametrize(
    ("page", "query", "key", "figure"),
    [
        ("live", {}, "live-outcomes-win rate", "outcomes"),
        ("live", {"metrics": "train/loss"}, "live-metrics-Selected metrics", "metrics"),
        ("memory", {}, "atlas", "memory-atlas"),
        ("memory", {"point": "3"}, "point-trajectory", "trajectory"),
        ("replay", {"episode": "2"}, "replay", "trajectory"),
    ],
)
def test_every_figure_can_be_pinned_without_title_and_note(seeded, page, query, key, figure):
    db, run_id = seeded
    app = press_pin(open_page(page, run=run_id, **query), key)
    assert not app.exception
    row = list_entries(db)[0]
    assert row.view["figure"] == figure
    assert row.view["page"] == page
    assert row.title
    assert get_figure(db, row.id)["figure"]["caption"]
    assert any("Saved as entry" in str(each.value) for each in app.success)
    assert not open_page("notebook").exception


def test_a_pinned_comparison_names_its_runs_so_that_later_ones_do_not_join(seeded):
    db, run_id = seeded
    app = press_pin(open_page("compare"), "compare")
    assert not app.exception
    row = list_entries(db)[0]
    assert row.view["query"]["runs"] == [run_id]
    assert row.view["facts"]["quantity"] == "chosen_win_rate"
    assert (row.view["facts"]["rate"], row.view["query"]["rate"]) == ("auto", ["auto"])


def test_the_form_is_hidden_after_a_pin_until_the_user_pins_again(seeded):
    db, run_id = seeded
    app = press_pin(open_page("live", run=run_id), "live-gate-dynamics-Δ̄_mem", title="One")
    token = app.session_state["live-gate-dynamics-Δ̄_mem-pin-token"]
    assert f"live-gate-dynamics-Δ̄_mem-pin-save-{token}" not in [button.key for button in app.button]
    assert len(list_entries(db)) == 1
    app.button(key="live-gate-dynamics-Δ̄_mem-pin-more").click().run()
    press_pin(app, "live-gate-dynamics-Δ̄_mem", title="Two")
    assert [row.title for row in list_entries(db)] == ["Two", "One"]


def test_an_empty_notebook_names_the_next_step(empty):
    app = open_page("notebook")
    assert not app.exception
    assert "The notebook is empty." in said(app)
    assert "Press *Pin*" in said(app)


def test_a_first_entry_is_written_without_a_figure(empty):
    app = open_page("notebook")
    token = app.session_state["notebook_new"]
    app.button(key=f"new-save-{token}").click().run()
    assert "An entry needs a title or a text" in said(app)
    app.text_input(key=f"new-title-{token}").set_value("An idea")
    app.text_area(key=f"new-body-{token}").set_value("$\\tau$ too low?")
    app.button(key=f"new-save-{token}").click().run()
    assert not app.exception
    assert not app.error
    assert "#### An idea" in said(app)
    assert len(list_entries(empty)) == 1


def test_text_that_is_not_saved_stays_while_another_page_is_open(empty):
    made = create_entry(empty, title="Draft", body="old")
    app = open_page("notebook")
    token = app.session_state["notebook_new"]
    app.text_input(key=f"new-title-{token}").set_value("An idea")
    app.text_area(key=f"new-body-{token}").set_value("new words")
    app.button(key=f"entry-{made}-edit").click().run()
    app.text_area(key=f"edit-body-{made}").set_value("other words").run()
    app.switch_page("../pages/sweeps.py").run()
    app.text_area(key="sweep_text-ablation-demo").set_value("steps = 1").run()
    app.switch_page("../pages/notebook.py").run()
    app.switch_page("../pages/guide.py").run()
    app.switch_page("../pages/notebook.py").run()
    assert app.text_input(key=f"new-title-{token}").value == "An idea"
    assert app.text_area(key=f"new-body-{token}").value == "new words"
    assert app.text_area(key=f"edit-body-{made}").value == "other words"
    app.switch_page("../pages/sweeps.py").run()
    assert app.text_area(key="sweep_text-ablation-demo").value == "steps = 1"


def test_markup_in_an_entry_is_escaped(empty):
    create_entry(empty, title="# <b>Big</b> [x](javascript:a)", body="<script>x</script> ![i](http://t.example/i.png)")
    text = said(open_page("notebook"))
    assert "<b>" not in text
    assert "<script>" not in text
    assert "![i]" not in text


def test_entries_are_found_by_word_and_by_run(seeded):
    db, run_id = seeded
    cited = {"page": "live", "query": {}, "runs": [{"id": run_id, "name": "Seeded run"}]}
    create_entry(db, title="Alpha", body="on corridor", run_id=run_id, view=cited)
    create_entry(db, title="Beta")
    app = open_page("notebook", q="CORRIDOR")
    assert "Alpha" in said(app)
    assert "#### Beta" not in said(app)
    assert "1 of 2 entries" in said(app)
    assert "No entry matches." in said(open_page("notebook", q="nowhere"))
    app = open_page("notebook")
    app.selectbox(key="notebook?about").set_value(run_id).run()
    assert "#### Beta" not in said(app)
    assert "#### Alpha" in said(app)


def test_many_entries_are_split_into_pages(empty):
    for number in range(11):
        create_entry(empty, title=f"Note{number}")
    first, second = said(open_page("notebook")), said(open_page("notebook", sheet="2"))
    assert "Note10" in first
    assert "#### Note2" not in first
    assert "#### Note2" in second
    app = open_page("notebook", sheet="2")
    app.text_input(key="notebook?q").set_value("note1").run()
    assert not app.exception
    assert "#### Note10" in said(app)


def test_the_url_can_select_one_entry(empty):
    made = create_entry(empty, title="First")
    create_entry(empty, title="Second")
    text = said(open_page("notebook", entry=str(made)))
    assert "#### First" in text
    assert "#### Second" not in text
    assert "There is no notebook entry 99" in said(open_page("notebook", entry="99"))


def test_a_deleted_run_is_reported_and_its_figure_stays(seeded):
    db, run_id = seeded
    press_pin(open_page("live", run=run_id), "live-gate-dynamics-Δ̄_mem", title="Kept")
    remove_run(db, run_id)
    app = open_page("notebook")
    assert not app.exception
    assert not app.error
    assert "is no longer in this database" in said(app)
    assert "Consistency error" in said(app), "the caption of the figure"


def test_a_cloud_is_drawn_and_a_figure_of_another_version_is_reported(empty):
    create_entry(empty, title="Cloud", figure=freeze(make_cloud(80)))
    assert not open_page("notebook").error
    create_entry(empty, title="Odd", figure={"figure": {"type": "Hologram"}})
    app = open_page("notebook")
    assert not app.exception
    assert "frozen by another version" in said(app)


def test_an_entry_is_edited_in_place_with_a_preview(empty):
    made = create_entry(empty, title="Draft", body="old", figure=freeze(make_chart(20)))
    app = open_page("notebook")
    app.button(key=f"entry-{made}-edit").click().run()
    app.text_area(key=f"edit-body-{made}").set_value("new **words**").run()
    assert "new **words**" in [part.value for part in app.markdown], "the preview"
    app.text_input(key=f"edit-title-{made}").set_value("Final")
    app.button(key=f"edit-save-{made}").click().run()
    assert not app.exception
    row = get_entry(empty, made)
    assert (row.title, row.body, row.has_figure) == ("Final", "new **words**", True)
    assert "#### Final" in said(app)
    assert "edited" in said(app)


def test_a_conflicting_edit_shows_both_versions(empty):
    made = create_entry(empty, title="Draft", body="old")
    app = open_page("notebook")
    app.button(key=f"entry-{made}-edit").click().run()
    edit_entry(empty, made, title="Theirs", body="their words")
    app.text_area(key=f"edit-body-{made}").set_value("my words")
    app.button(key=f"edit-save-{made}").click().run()
    assert get_entry(empty, made).body == "their words"
    assert "was changed at" in said(app)
    assert "their words" in said(app)
    assert app.text_area(key=f"edit-body-{made}").value == "my words"
    app.button(key=f"edit-save-{made}").click().run()
    assert get_entry(empty, made).body == "my words"


def test_a_deletion_can_be_undone(empty):
    made = create_entry(empty, title="Precious", figure=freeze(make_chart(20)))
    app = open_page("notebook")
    app.button(key=f"entry-{made}-delete-now").click().run()
    assert list_entries(empty) == []
    assert "Deleted entry" in said(app)
    app.button(key="notebook_undo").click().run()
    assert [row.title for row in list_entries(empty)] == ["Precious"]
    assert "#### Precious" in said(app)


def test_hostile_url_parameters_are_harmless(empty):
    create_entry(empty, title="x")
    app = open_page("notebook", q="<b>" * 500, about="nobody", sheet="-5", entry="'; drop")
    assert not app.exception
