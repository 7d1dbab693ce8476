"""Health: alerts stay in the inbox until they are read; missing parts of the machine are reported."""

import pytest
import streamlit as st

from tests.pages.seed import seed_failed_run
from tests.pages.test_pages import open_page, said


def test_an_empty_inbox_explains_which_alerts_it_lists(empty):
    app = open_page("health")
    assert not app.exception
    assert "No alerts in the last seven days" in said(app)
    assert "Inbox: 0 unread" in said(app)


def test_an_alert_is_unread_until_it_is_marked_as_read(seeded):
    seed_failed_run(seeded[0])
    app = open_page("health")
    assert "Inbox: 1 unread" in said(app)
    assert "could not be started" in said(app)
    assert "<b>" not in said(app).replace("\\<b\\>", "")
    app.button(key="read_all").click().run()
    assert "Inbox: 0 unread" in said(app)
    assert "could not be started" in said(app)
    app.toggle(key="health?unread").set_value(True).run()
    assert "All alerts are read" in said(app)
    assert "Inbox: 0 unread" in said(open_page("health"))


def test_warnings_are_listed_in_the_sidebar_and_no_page_raises_a_toast(seeded):
    app = open_page("home")
    assert "in Health" not in said(app)  # a finished run is not a warning
    seed_failed_run(seeded[0])
    st.cache_data.clear()
    app.run()
    assert not app.toast
    links = {link.proto.label: link.proto for link in app.sidebar.get("page_link")}
    assert "Open in Health" in links
    (alert,) = [label for label in links if label.startswith(":orange[●]")]
    assert alert.endswith(": failed"), "an alert names its run and its reason"
    assert links[alert].page == "live", "and links to the run"
    app = open_page("health", unread="true")
    assert "Inbox: 1 unread" in said(app)
    app.button(key="read_all").click().run()
    assert "in Health" not in said(open_page("home"))


def test_alerts_are_grouped_by_kind_and_a_finished_run_is_no_alert(seeded):
    db, _ = seeded
    app = open_page("health")
    assert "Inbox: 0 unread" in said(app)
    assert "No alerts in the last seven days" in said(app)
    assert [box.label for box in app.expander] == ["Finished runs (1)"]
    for _ in range(7):
        seed_failed_run(db)
    st.cache_data.clear()
    app = open_page("health")
    assert "Inbox: 7 unread" in said(app)
    assert [box.label for box in app.expander] == ["2 more", "Finished runs (1)"]
    assert "failed · 7" in said(app)
    (kinds,) = app.get("button_group")
    assert [option.content for option in kinds.proto.options] == ["failed · 7"]
    app = open_page("health", kind="lost")
    assert not app.exception
    assert "failed · 7" in said(app), "no run is lost, so the filter of the address is ignored"


@pytest.fixture
def checked(monkeypatch):
    """Without the parts of the check that start other processes; `tests/app/test_doctor.py` makes the whole check."""
    monkeypatch.setattr("app.jobs.doctor._check_gpu", dict)


def test_the_machine_is_checked_when_the_button_is_pressed(empty, checked):
    app = open_page("health")
    assert not app.dataframe
    app.button(key="check_machine").click().run()
    rows = app.dataframe[0].value.set_index("Part")
    assert rows.loc["env:skirmish", "State"] == "✔ usable"
    assert rows.loc["torch", "Details"]
