"""The notebook page, and the pin beside a figure, reached as a user reaches them."""

from storage.notebook import list_entries
from tests.pages.test_pages import open_page, said


def press_pin(app, figure: str, *, title: str = "", note: str = ""):
    token = app.session_state[f"{figure}-pin-token"]
    if title:
        app.text_input(key=f"{figure}-pin-title-{token}").set_value(title)
    if note:
        app.text_area(key=f"{figure}-pin-note-{token}").set_value(note)
    return app.button(key=f"{figure}-pin-save-{token}").click().run()


def test_a_chart_pinned_on_live_stands_in_the_notebook(seeded):
    db, run_id = seeded
    app = press_pin(open_page("live", run=run_id, x="0-200"), "live-gate-dynamics", title="β dips", note="See *here*.")
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
