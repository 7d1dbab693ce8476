"""What may go of the chosen runs: counted first, removed when that is confirmed."""

from collections.abc import Sequence

import streamlit as st

from app.analysis.format import count, escape_markdown
from app.ui import data, messages
from app.ui.disk import whole
from emtc_core.errors import EmtcError
from storage.maintenance.sizes import RunSize
from storage.maintenance.thin import Gone, Thinning, count_thinning, thin_run


def show(runs: Sequence[RunSize]) -> None:
    """Draw the choice for the chosen runs, what it comes to, and the button that does it."""
    if not runs:
        return
    st.subheader(f"Thin {count(len(runs))} run{'s' if len(runs) > 1 else ''}")
    what = _choose()
    if what.is_nothing:
        st.caption("Choose what shall go; it is counted before anything is removed.")
        return
    free, refused = _count(runs, what)
    for sentence in refused:
        st.warning(escape_markdown(sentence), icon=":material/block:")
    total = sum(free.values(), Gone())
    lost = " They cannot be resumed afterwards." if what.transitions or what.checkpoints else ""
    st.markdown(f"For good, this removes of {count(len(free))} runs: **{escape_markdown(str(total))}**.{lost}")
    can = messages.may_act() and total != Gone()
    if st.button("Thin for good", type="primary", icon=":material/delete_sweep:", key="thin", disabled=not can):
        whole.act(lambda: _thin(list(free), what), "Thinning …")


def _choose() -> Thinning:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        every = st.number_input(
            "Keep every n-th snapshot", min_value=1, max_value=1000, value=1, key="thin_snapshots", width=200,
            help="Counted from the last one, which always stays; 1 keeps all.",
        )  # fmt: skip
        trajectories = st.checkbox(
            "Trajectories", key="thin_trajectories", help="Replays of training episodes and of single memories end."
        )
        transitions = st.checkbox(
            "Transitions", key="thin_transitions", help="Sums over 1,000 steps stay, and so the curves of Live."
        )
        checkpoints = st.checkbox("Checkpoints", key="thin_checkpoints", help="What a resume goes on from.")
    return Thinning(trajectories, transitions, checkpoints, int(every))


def _count(runs: Sequence[RunSize], what: Thinning) -> tuple[dict[str, Gone], list[str]]:
    """Count what goes of each run that is free, and say why others are not."""
    free: dict[str, Gone] = {}
    refused: list[str] = []
    for run in runs:
        try:
            free[run.run_id] = count_thinning(data.database(), run.run_id, what)
        except EmtcError as exc:
            refused.append(str(exc))
    return free, refused


def _thin(run_ids: Sequence[str], what: Thinning) -> str:
    gone = sum((thin_run(data.database(), run_id, what) for run_id in run_ids), Gone())
    return f"Removed {gone}. A vacuum gives the room back to the disk."
