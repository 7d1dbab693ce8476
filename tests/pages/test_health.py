"""Health: alerts stay in the inbox until they are read; missing parts of the machine are reported."""

import streamlit as st

from tests.pages.seed import seed_failed_run
from tests.pages.test_pages import open_page, said


def test_alerts_are_grouped_by_kind_and_unread_until_they_are_marked_as_read(seeded):
    db, _ = seeded
    app = open_page("health")
    assert "Inbox: 0 unread" in said(app), "a finished run is not an alert"
    assert [box.label for box in app.expander] == ["Finished runs (1)"]
    for _ in range(7):
        seed_failed_run(db)
    st.cache_data.clear()
    app = open_page("health", kind="lost")
    assert not app.exception
    assert "Inbox: 7 unread" in said(app)
    assert "<b>" not in said(app).replace("\\<b\\>", "")
    assert [box.label for box in app.expander] == ["2 more", "Finished runs (1)"]
    (kinds,) = app.get("button_group")
    assert [option.content for option in kinds.proto.options] == ["failed · 7"], "no run is lost"
    app.toggle(key="health?unread").set_value(True).run()
    assert len(app.expander) == 2
    app.button(key="read_all").click().run()
    assert "Inbox: 0 unread" in said(app)
    assert [box.label for box in app.expander] == ["Finished runs (1)"], "only unread alerts are shown"
    app.toggle(key="health?unread").set_value(False).run()
    assert len(app.expander) == 2, "alerts that are read stay in the list"
    assert "Inbox: 0 unread" in said(open_page("health")), "the marks are stored"


def test_alerts_are_listed_in_the_sidebar_until_they_are_read(seeded):
    app = open_page("home")
    assert "in Health" not in said(app)
    seed_failed_run(seeded[0])
    st.cache_data.clear()
    app.run()
    assert not app.toast
    links = {link.proto.label: link.proto for link in app.sidebar.get("page_link")}
    assert "Open in Health" in links
    (alert,) = [label for label in links if label.startswith(":orange[●]")]
    assert alert.endswith(": failed"), "an alert names its run and its reason"
    assert links[alert].page == "live", "and links to the run"
    open_page("health").button(key="read_all").click().run()
    assert "in Health" not in said(open_page("home"))


def test_the_machine_is_checked_when_the_button_is_pressed(empty, monkeypatch):
    monkeypatch.setattr("app.jobs.doctor._check_gpu", dict)  # starts processes; tests/app/test_doctor.py tests it
    app = open_page("health")
    assert not app.dataframe
    app.button(key="check_machine").click().run()
    rows = app.dataframe[0].value.set_index("Part")
    assert rows.loc["env:skirmish", "State"] == "✔ usable"
    assert rows.loc["torch", "Details"]
