"""On every page: whose runs these are, where they are not one's own, and the way back.

On every page, once each: what happened since this tab was opened.
"""

from datetime import UTC, datetime

import streamlit as st

from app.analysis.format import escape_markdown
from app.jobs.alerts import Alert
from app.ui import data, view
from emtc_core.errors import EmtcError
from storage.alerts import read_keys
from storage.bundles.bundle_cache import Bundle

EVERY_S = 15
_SINCE, _TOLD = "alerts_since", "alerts_told"
_ICON = {"info": ":material/check_circle:", "warning": ":material/warning:", "error": ":material/error:"}


def show_alerts() -> None:
    """Show alerts now, and look again every few seconds while the tab is open; runs of a bundle have no news."""
    if view.bundle() is not None:
        return
    st.session_state.setdefault(_SINCE, datetime.now(UTC))
    st.session_state.setdefault(_TOLD, set())
    st.fragment(_tell, run_every=EVERY_S)()


def _tell() -> None:
    told: set[str] = st.session_state[_TOLD]
    try:
        alerts, read = data.alerts(), read_keys(data.database())
    except EmtcError:  # the page says what is wrong with the database
        return
    for alert in choose(alerts, since=st.session_state[_SINCE], told=told | read):
        name = f"**{escape_markdown(alert.run_name)}** " if alert.run_id else ""
        st.toast(f"{name}{escape_markdown(alert.sentence)}", icon=_ICON[alert.severity], duration="long")
        told.add(alert.key)


def choose(alerts: list[Alert], *, since: datetime, told: set[str] | frozenset[str]) -> list[Alert]:
    """Choose what is new to this tab, oldest first; what happened before it was opened stands in the inbox."""
    return [alert for alert in reversed(alerts) if alert.at >= since and alert.key not in told]


def settle() -> None:
    """Decide whose runs this session looks at, before anything is read."""
    missing = view.settle()
    if missing is not None:
        st.warning(
            f"This link shows a bundle that is not open here ({escape_markdown(missing)}): these are your own runs. "
            "Open the file on Home, then follow the link again.",
            icon=":material/link_off:",
        )


def show() -> None:
    """Show that the pages are of a bundle, which nobody can change."""
    bundle = view.bundle()
    if bundle is None:
        return
    with st.container(border=True, horizontal=True, vertical_alignment="center", key="bundle_banner"):
        st.markdown(
            f":material/lock: **From {escape_markdown(bundle.name)}, read-only.** These are not your runs; "
            f"nothing about them can be started or changed.{_say_samples(bundle)}",
            width="stretch",
        )
        st.button("Back to my own runs", icon=":material/undo:", key="leave_bundle", on_click=view.enter, args=(None,))


def _say_samples(bundle: Bundle) -> str:
    """That maps show only a part of each memory, where its maker kept no more."""
    samples = [escape_markdown(each) for each in bundle.contents if "samples" in each]
    return f" It holds {samples[0]}." if samples else ""
