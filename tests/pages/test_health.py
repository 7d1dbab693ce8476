"""Health: what happened stands in the inbox until it is read, and the machine says what it lacks."""

import pytest
import streamlit as st

from tests.pages.seed import seed_failed_run
from tests.pages.test_pages import open_page, said


def test_an_empty_inbox_says_what_will_stand_there(empty):
    app = open_page("health")
    assert not app.exception
    assert "Nothing happened in the last seven days" in said(app)
    assert "Inbox: 0 unread" in said(app)


def test_what_happened_is_new_until_it_is_read(seeded):
    seed_failed_run(seeded[0])
    app = open_page("health")
    assert "Inbox: 2 unread" in said(app)
    assert "could not be started" in said(app)
    assert "<b>" not in said(app).replace("\\<b\\>", "")
    app.button(key="read_all").click().run()
    assert "Inbox: 0 unread" in said(app)
    assert "could not be started" in said(app)
    app.toggle(key="unread").set_value(True).run()
    assert "All is read" in said(app)
    assert "Inbox: 0 unread" in said(open_page("health"))


def test_warnings_are_counted_in_the_sidebar_and_no_page_raises_a_toast(seeded):
    app = open_page("home")
    assert "in Health" not in said(app)  # that a run has finished is no warning
    seed_failed_run(seeded[0])
    st.cache_data.clear()
    app.run()
    assert not app.toast
    assert ":orange[●] 1 warning in Health" in [link.proto.label for link in app.sidebar.get("page_link")]
    app = open_page("health", unread="true")
    assert "Inbox: 2 unread" in said(app)
    app.button(key="read_all").click().run()
    assert "in Health" not in said(open_page("home"))


@pytest.fixture
def checked(monkeypatch):
    monkeypatch.setattr("app.jobs.doctor._ask_cuda", lambda: "")


def test_the_machine_is_checked_when_asked(empty, checked):
    app = open_page("health")
    assert not app.dataframe
    app.button(key="check_machine").click().run()
    rows = app.dataframe[0].value.set_index("Part")
    assert rows.loc["env:skirmish", "State"] == "✔ usable"
    assert rows.loc["torch", "Found"]
