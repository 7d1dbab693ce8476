"""Health: alerts stay in the inbox until they are read; missing parts of the machine and the GPU are reported."""

from dataclasses import replace
from pathlib import Path

import pytest
import streamlit as st

from app.jobs.device_check import (
    REPORT_NAME,
    CheckResult,
    DeviceReport,
    Measurement,
    Speed,
    sign_report,
    write_report,
)
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
    monkeypatch.setattr("app.jobs.doctor._find_gpu", lambda: "")


def test_the_machine_is_checked_when_the_button_is_pressed(empty, checked):
    app = open_page("health")
    assert not app.dataframe
    app.button(key="check_machine").click().run()
    rows = app.dataframe[0].value.set_index("Part")
    assert rows.loc["env:skirmish", "State"] == "✔ usable"
    assert rows.loc["torch", "Details"]


DONE = DeviceReport(
    "cuda",
    quick=False,
    total=2,
    checks=(CheckResult("update", (Measurement("loss", 1e-7, 1e-5),)), CheckResult("index", fault="it broke <b>")),
    speeds=(Speed("act", "ms", 2.0, 0.5),),
)


@pytest.fixture
def gpu(monkeypatch, tmp_path) -> Path:
    """Path of the report of a machine with a GPU, on which a started check writes only its first report."""
    monkeypatch.setattr("app.ui.health.has_nvidia_gpu", lambda: True)
    monkeypatch.setattr("app.ui.health.report_folder", lambda: tmp_path / "device-check")
    path = tmp_path / "device-check" / REPORT_NAME

    def start(folder: Path, *, quick: bool) -> DeviceReport:
        report = sign_report(DeviceReport("cuda", quick=quick, total=3, checks=DONE.checks[:1]))
        write_report(folder / REPORT_NAME, report)
        return report

    monkeypatch.setattr("app.ui.health.start_device_check", start)
    return path


def test_without_a_gpu_its_buttons_are_not_shown(empty, monkeypatch):
    monkeypatch.setattr("app.ui.health.has_nvidia_gpu", lambda: False)
    app = open_page("health")
    assert not app.exception
    assert [button.key for button in app.button if "gpu" in (button.key or "")] == []


@pytest.mark.parametrize(("key", "quick"), [("check_gpu", False), ("check_gpu_quick", True)])
def test_the_gpu_is_checked_in_the_background_with_progress(empty, gpu, key, quick):
    app = open_page("health")
    assert not app.exception
    app.button(key=key).click().run()
    assert not app.exception
    assert [button.key for button in app.button if "gpu" in (button.key or "")] == []  # one check at a time
    assert app.get("progress")[0].proto.text == "Checking the GPU: 1 of 3 checks"
    assert app.dataframe[0].value["Check"].tolist() == ["update"]


def test_the_last_report_of_the_gpu_names_what_failed(empty, gpu):
    write_report(gpu, DONE)
    app = open_page("health")
    assert not app.exception
    assert "index" in app.error[0].value
    checks, speeds = (table.value for table in app.dataframe)
    assert checks["State"].tolist() == ["✔ ok", "✖ failed"]
    assert speeds["GPU"].tolist() == [0.5]


def test_a_check_of_the_gpu_that_ended_early_shows_where_its_log_is(empty, gpu):
    write_report(gpu, replace(DONE, total=5, pid=2**22 + 1))
    app = open_page("health")
    assert "ended early" in said(app)
    assert app.button(key="check_gpu")


def test_a_read_only_server_checks_no_gpu(empty, gpu, monkeypatch):
    monkeypatch.setenv("EMTC_READ_ONLY", "1")
    assert open_page("health").button(key="check_gpu").disabled
