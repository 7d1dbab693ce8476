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


LIVE_CHART = "live-gate-dynamics-Δ̄_mem"


def test_a_pinned_chart_is_listed_in_the_notebook_and_its_form_is_hidden_until_the_next_pin(seeded):
    db, run_id = seeded
    app = press_pin(open_page("live", run=run_id, x="0-200"), LIVE_CHART, title="β dips", note="See *here*.")
    assert not app.exception
    (row,) = list_entries(db)
    assert (row.title, row.body, row.run_id) == ("β dips", "See *here*.", run_id)
    assert row.view["page"] == "live"
    assert row.view["query"] == {"run": [run_id], "x": ["0-200"]}
    assert row.view["runs"][0]["code_version"] == "test"
    token = app.session_state[f"{LIVE_CHART}-pin-token"]
    assert f"{LIVE_CHART}-pin-save-{token}" not in [button.key for button in app.button]
    app.button(key=f"{LIVE_CHART}-pin-more").click().run()
    press_pin(app, LIVE_CHART, title="Two")
    assert [row.title for row in list_entries(db)] == ["Two", "β dips"]
    page = open_page("notebook")
    assert not page.exception
    for text in ("#### β dips", "See *here*.", "#### Two", "Seeded run"):
        assert text in said(page)


@pytest.mark.parametrize(
    ("page", "query", "key", "figure"),
    [
        ("live", {}, "live-outcomes-win rate", "outcomes"),
        ("live", {"metrics": "train/loss"}, "live-metrics-Selected metrics", "metrics"),
        ("memory", {}, "atlas", "memory-atlas"),
        ("memory", {"point": "3"}, "point-trajectory", "trajectory"),
        ("replay", {"episode": "2"}, "replay", "trajectory"),
        ("compare", {}, "compare", "learning-curves"),
    ],
)
def test_every_figure_can_be_pinned_without_title_and_note_and_names_its_runs(seeded, page, query, key, figure):
    db, run_id = seeded
    app = press_pin(open_page(page, **({} if page == "compare" else {"run": run_id}), **query), key)
    assert not app.exception
    assert len(app.success) == 1
    (row,) = list_entries(db)
    assert (row.view["figure"], row.view["page"]) == (figure, page)
    assert row.title
    assert get_figure(db, row.id)["figure"]["caption"]
    if page == "compare":  # so that later runs do not join
        assert (row.view["query"]["runs"], row.view["query"]["rate"]) == ([run_id], ["auto"])
        assert row.view["facts"]["quantity"] == "chosen_win_rate"
    shown = open_page("notebook")
    assert not shown.exception
    assert not shown.error


def test_a_first_entry_is_written_without_a_figure_and_its_markup_is_escaped(empty):
    app = open_page("notebook")
    assert "The notebook is empty." in said(app)
    token = app.session_state["notebook_new"]
    app.button(key=f"new-save-{token}").click().run()
    assert "An entry needs a title or a text" in said(app)
    app.text_input(key=f"new-title-{token}").set_value("# <b>An idea</b>")
    app.text_area(key=f"new-body-{token}").set_value("Too *low*? <script>x</script> ![i](http://t.example/i.png)")
    app.button(key=f"new-save-{token}").click().run()
    assert not app.exception
    assert not app.error
    assert len(list_entries(empty)) == 1
    text = said(app)
    assert "Too *low*?" in text
    assert not any(markup in text for markup in ("<b>", "<script>", "![i]"))


def test_text_that_is_not_saved_is_kept_while_another_page_is_open(empty):
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


def test_entries_are_found_by_word_by_run_and_by_link(seeded):
    db, run_id = seeded
    cited = {"page": "live", "query": {}, "runs": [{"id": run_id, "name": "Seeded run"}]}
    made = create_entry(db, title="Alpha", body="on corridor", run_id=run_id, view=cited)
    create_entry(db, title="Beta")
    for query in ({"q": "CORRIDOR"}, {"about": run_id}, {"entry": str(made)}):
        text = said(open_page("notebook", **query))
        assert "#### Alpha" in text, query
        assert "#### Beta" not in text, query
    assert "No entry matches." in said(open_page("notebook", q="nowhere"))
    assert "There is no notebook entry 99" in said(open_page("notebook", entry="99"))


def test_many_entries_are_split_into_pages_and_a_search_starts_at_the_first(empty):
    for number in range(11):
        create_entry(empty, title=f"Note{number}")
    first = said(open_page("notebook"))
    assert "Note10" in first
    assert "#### Note2" not in first
    app = open_page("notebook", sheet="2")
    assert "#### Note2" in said(app)
    assert "#### Note10" not in said(app)
    app.text_input(key="notebook?q").set_value("note1").run()
    assert not app.exception
    assert "#### Note10" in said(app)


def test_a_deleted_run_is_reported_and_its_figure_is_kept(seeded):
    db, run_id = seeded
    press_pin(open_page("live", run=run_id), LIVE_CHART, title="Kept")
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


def test_an_edit_has_a_preview_and_shows_a_version_that_was_saved_meanwhile(empty):
    made = create_entry(empty, title="Draft", body="old", figure=freeze(make_chart(20)))
    app = open_page("notebook")
    app.button(key=f"entry-{made}-edit").click().run()
    app.text_area(key=f"edit-body-{made}").set_value("new **words**").run()
    assert "new **words**" in [part.value for part in app.markdown], "the preview"
    edit_entry(empty, made, title="Theirs", body="their words")
    app.text_input(key=f"edit-title-{made}").set_value("Final")
    app.button(key=f"edit-save-{made}").click().run()
    assert not app.exception
    assert get_entry(empty, made).body == "their words"
    assert "their words" in said(app)
    assert app.text_area(key=f"edit-body-{made}").value == "new **words**"
    app.button(key=f"edit-save-{made}").click().run()
    row = get_entry(empty, made)
    assert (row.title, row.body, row.has_figure) == ("Final", "new **words**", True)
    assert "#### Final" in said(app)
    assert "edited" in said(app)


def test_a_deletion_can_be_undone(empty):
    made = create_entry(empty, title="Precious", figure=freeze(make_chart(20)))
    app = open_page("notebook")
    app.button(key=f"entry-{made}-delete-now").click().run()
    assert list_entries(empty) == []
    assert "Deleted entry" in said(app)
    app.button(key="notebook_undo").click().run()
    assert [row.title for row in list_entries(empty)] == ["Precious"]
    assert "#### Precious" in said(app)
