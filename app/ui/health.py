"""The Health page: what happened lately, the unread first, and what this machine has and lacks.

Read marks are shared by all who use the database. The machine is checked as by `emtc doctor`, when it is asked for.
Where there is a GPU, a button starts `emtc check gpu` in the background.
"""

from collections.abc import Sequence
from typing import Final

import pandas as pd
import streamlit as st

from app.analysis.format import escape_markdown, format_count, format_time
from app.jobs.alerts import Alert, Severity
from app.jobs.device_check import (
    LOG_NAME,
    REPORT_NAME,
    DeviceReport,
    has_nvidia_gpu,
    read_report,
    report_folder,
    start_device_check,
)
from app.jobs.doctor import Check, run_checks
from app.ui import data, messages, state
from emtc_core.errors import EmtcError
from storage.alerts import mark_read, read_keys

_ICON: Final[dict[Severity, str]] = {
    "info": ":material/check_circle:",
    "warning": ":material/warning:",
    "error": ":material/error:",
}
_COLOR: Final = {"info": "green", "warning": "orange", "error": "red"}
_SHOWN: Final = 100


def show() -> None:
    """Draw the alerts of the last days."""
    alerts = data.alerts()
    read = read_keys(data.database())
    unread = [alert for alert in alerts if alert.key not in read]
    st.subheader(f"Inbox: {format_count(len(unread))} unread")
    if not alerts:
        messages.empty(
            "Nothing happened in the last seven days.",
            "What finishes, fails, is lost, stands still or yields no numbers will stand here. `emtc watch` sends it.",
        )
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button("Mark all as read", key="read_all", disabled=not (unread and messages.may_act())):
            _mark(unread, alerts)
        only = st.toggle("Only unread", key="unread", bind="query-params")
    for alert in (unread if only else alerts)[:_SHOWN]:
        _draw(alert, is_new=alert in unread)
    if only and not unread:
        st.caption("All is read.")


def _draw(alert: Alert, *, is_new: bool) -> None:
    with st.container(border=is_new, horizontal=True, vertical_alignment="center"):
        st.badge(alert.kind, icon=_ICON[alert.severity], color=_COLOR[alert.severity])  # type: ignore[arg-type]
        name = f"**{escape_markdown(alert.run_name)}** " if alert.run_id else ""
        st.markdown(f"{name}{escape_markdown(alert.message)}", width="stretch")
        st.caption(format_time(alert.at), width="content")
        if alert.run_id:
            st.page_link("../pages/live.py", label="Live", query_params={state.RUN: alert.run_id})


def _mark(unread: Sequence[Alert], alerts: Sequence[Alert]) -> None:
    try:
        mark_read(data.database(), [alert.key for alert in unread], existing_keys=[alert.key for alert in alerts])
    except OSError as exc:
        st.error(escape_markdown(f"The marks cannot be written: {exc.strerror}."))
        return
    st.rerun()


_SEEN = "machine_checked"


def show_machine() -> None:
    """Draw the button, and the table once it was pressed."""
    st.subheader("This machine")
    if st.button("Check this machine", icon=":material/stethoscope:", key="check_machine"):
        _checks.clear()
        st.session_state[_SEEN] = True
    if not st.session_state.get(_SEEN):
        st.caption("Libraries, graphics card, environments and browser, as `emtc doctor` lists them. Takes seconds.")
        return
    checks = _checks()
    missing = [check.name for check in checks if check.needed and not check.usable]
    if missing:
        st.error(escape_markdown(f"Nothing works without {', '.join(missing)}. The advice below says how to get it."))
    else:
        st.success("All that is needed is there; what else is missing limits only what it names.")
    st.dataframe(
        make_rows(checks), hide_index=True, key="machine_table",
        alt="Table of what this machine has: name, whether it can be used, what was found, and how to get it.",
    )  # fmt: skip


@st.cache_data(ttl=600, show_spinner="Checking this machine …")
def _checks() -> list[Check]:
    return run_checks()


def make_rows(checks: list[Check]) -> pd.DataFrame:
    """Turn checks into what the table shows; a word stands beside each sign."""
    return pd.DataFrame(
        {
            "Part": [check.name for check in checks],
            "State": ["✔ usable" if check.usable else "✖ missing" for check in checks],
            "Found": [check.detail for check in checks],
            "How to get it": [check.advice for check in checks],
        }
    )


_PROGRESS_EVERY_S = 1.0


def show_gpu() -> None:
    """Draw the check of the GPU and its last report; nothing where NVIDIA's driver lists no GPU."""
    if not has_nvidia_gpu():
        return
    st.subheader("GPU")
    report = read_report(report_folder() / REPORT_NAME)
    if report is not None and report.is_running:
        st.fragment(_show_progress, run_every=_PROGRESS_EVERY_S)()
        return
    _draw_gpu_buttons()
    if report is not None:
        _draw_report(report)


def _draw_gpu_buttons() -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        clicked = {
            quick: st.button(label, key=key, icon=":material/memory:", disabled=not messages.may_act())
            for label, key, quick in (("Check the GPU", "check_gpu", False), ("Quick check", "check_gpu_quick", True))
        }
        st.caption("Compares what the GPU computes with the CPU, as `emtc check gpu`: five minutes, quick one.")
    for quick, is_clicked in clicked.items():
        if is_clicked:
            try:
                start_device_check(report_folder(), quick=quick)
            except (EmtcError, OSError) as exc:
                messages.error(exc)
                return
            st.rerun()


def _show_progress() -> None:
    report = read_report(report_folder() / REPORT_NAME)
    if report is None or not report.is_running:
        st.rerun()
    done = len(report.checks)
    st.progress(done / report.total, text=f"Checking the GPU: {done} of {report.total} checks")
    _draw_checks(report)


def _draw_report(report: DeviceReport) -> None:
    failed = [check.name for check in report.checks if not check.passed]
    if not report.is_complete:
        st.warning(escape_markdown(f"The last check ended early. Its log: {report_folder() / LOG_NAME}"))
    elif failed:
        st.error(escape_markdown(f"Failed: {', '.join(failed)}. The guide's page On a GPU lists what to send us."))
    else:
        st.success("The GPU computes what the CPU computes.")
    _draw_checks(report)
    if report.speeds:
        st.dataframe(
            make_speed_rows(report), hide_index=True, key="gpu_speeds",
            alt="Table of speeds: stage, unit, CPU and GPU.",
        )  # fmt: skip


def _draw_checks(report: DeviceReport) -> None:
    if report.checks:
        st.dataframe(
            make_check_rows(report), hide_index=True, key="gpu_checks",
            alt="Table of the checks of the GPU: name, state, what was measured, and seconds.",
        )  # fmt: skip


def make_check_rows(report: DeviceReport) -> pd.DataFrame:
    """Turn results into what the table shows."""
    return pd.DataFrame(
        {
            "Check": [check.name for check in report.checks],
            "State": ["✔ ok" if check.passed else "✖ failed" for check in report.checks],
            "Measured": [check.details for check in report.checks],
            "Seconds": [round(check.seconds, 1) for check in report.checks],
        }
    )


def make_speed_rows(report: DeviceReport) -> pd.DataFrame:
    """Turn speeds into what the table shows."""
    columns = {"Stage": "stage", "Unit": "unit", "CPU": "cpu", "GPU": "device"}
    return pd.DataFrame({label: [getattr(each, name) for each in report.speeds] for label, name in columns.items()})
