"""The background computation of a projection on the Memory page: start, progress, cancel.

t-SNE and UMAP compute the layout of some nodes, the landmarks, and then place the other nodes between them.
"""

import streamlit as st

from app.analysis.format import escape_markdown, format_count
from app.analysis.projections.snapshots import get_phase, make_projection_params
from app.jobs.projections import cancel_job, start_job
from app.ui import data, messages
from emtc_core.errors import EmtcError
from storage.projections import get_job, list_jobs
from storage.queries.memory import Snapshot

_PHASE_LABELS = {
    "embedder": "fitting the embedder",
    "layout": "computing the layout of the landmarks",
    "placing": "placing the other nodes",
}
_ACTIVE_STATUSES = ("queued", "running")
_REFRESH_INTERVAL_S = 0.7


def show(
    snapshot: Snapshot, *, method: str, label: str, n: int, seed: int, embedder: str | None = None, key: str = ""
) -> None:
    """Draw the progress of the computation if it is running, otherwise a button that starts it.

    Args:
        snapshot: The snapshot.
        method: Key of the projection method.
        label: Name of the projection on screen.
        n: Number of landmarks.
        seed: Random seed.
        embedder: Key of an embedder that is fitted before the projection; None: the run's embedding is projected.
        key: Suffix of the button's key.
    """
    params = make_projection_params(method, n=n, seed=seed, embedder=embedder)
    jobs = [job for job in list_jobs(data.database(), snapshot.id) if job.method == method and job.params == params]
    newest_job = jobs[0] if jobs else None
    if newest_job is not None and newest_job.status in _ACTIVE_STATUSES:
        st.fragment(_show_progress, run_every=_REFRESH_INTERVAL_S)(newest_job.id, label, n, embedder)
        return
    if newest_job is not None and newest_job.status in ("failed", "lost"):
        reason = newest_job.error or "its process ended without an error message"
        st.warning(f"The last computation failed: {escape_markdown(reason)}")
    reason = messages.get_read_only_reason()
    with st.container(horizontal=True, vertical_alignment="center", border=True):
        st.markdown(f"{label} with {format_count(n)} landmarks is not computed yet. The map shows PCA.")
        if st.button(
            f"Compute {label}", icon=":material/play_arrow:", type="primary", key=f"compute_projection{key}",
            disabled=reason is not None, help=reason,
        ):  # fmt: skip
            try:
                start_job(data.database(), snapshot, method=method, n=n, seed=seed, embedder=embedder)
            except EmtcError as exc:
                messages.error(exc)
                return
            st.rerun()


def _show_progress(job_id: int, label: str, n: int, embedder: str | None) -> None:
    job = get_job(data.database(), job_id)
    if job.status not in _ACTIVE_STATUSES:
        st.rerun()
    phase = get_phase(job.progress, embedder=embedder)
    progress = f"{_PHASE_LABELS[phase.name]}, {100 * phase.fraction:.0f} %"
    text = f"{label}, {format_count(n)} landmarks, in the background: {progress}"
    with st.container(horizontal=True, vertical_alignment="center", border=True):
        st.progress(job.progress, text=text)
        if st.button("Cancel", icon=":material/close:", key=f"cancel_{job_id}", disabled=not messages.may_act()):
            cancel_job(data.database(), job_id)
            st.rerun()
