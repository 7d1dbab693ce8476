"""What a run stands on: its checkpoints here, the run it was started again from, and what resumes superseded."""

import pandas as pd
import streamlit as st

from app.analysis.format import count, escape_markdown
from app.jobs.resume import GOOD_ENOUGH, CheckpointStatus
from app.ui import data, run_files, state
from emtc_core.checkpoint_file import FIRST_STEP
from storage.queries.runs import list_resumes
from storage.runs.lifecycle import State
from storage.runs.rows import RunRow


def show(run: RunRow) -> None:
    """Draw at most four lines; nothing for a run that never was in danger."""
    if run.parent_id:
        st.caption(f"Started again from step 0, after run [{run.parent_id}](/live?{state.RUN}={run.parent_id}).")
    if text := describe_resumes(list_resumes(data.database(), run.id)):
        st.caption(escape_markdown(text))
    if run.state == State.FINISHED or run.env_steps == 0:
        return
    standing = run_files.checkpoint_status(run)
    if standing.refused:
        st.warning(escape_markdown(standing.refused), icon=":material/cloud_off:")
        return
    for fault in standing.faults:
        st.warning(escape_markdown(fault), icon=":material/broken_image:")
    told = describe_checkpoints(standing, first_at=_first_at(run))
    st.caption(escape_markdown(f"{told}{_describe_place(standing)}" if run.files else told))


def describe_resumes(resumes: pd.DataFrame) -> str:
    """Say how often a run was resumed and what that superseded; nothing for none."""
    rows = data.rows_of(resumes)
    if not rows:
        return ""
    last = rows[-1]
    steps = sum(row["reached_env_step"] - row["env_step"] for row in rows)
    known = all(pd.notna(row["episodes"]) for row in rows)
    told = f" in {count(sum(row['episodes'] for row in rows))} episodes" if known else ""
    anew = f"{count(steps)} recorded steps{told} were superseded: they were learned anew."
    sentences = [
        f"Resumed {count(len(rows))}×, last from step {count(last['env_step'])}.",
        anew if steps else "No step was superseded.",
    ]
    if isinstance(last["passed_over"], str):
        sentences.append(f"Newer checkpoints were passed over. {last['passed_over']}")
    return " ".join(sentences)


def describe_checkpoints(standing: CheckpointStatus, *, first_at: int | None) -> str:
    """Say which checkpoints are good, and what it means when they are fewer than two."""
    good = [each.env_step for each in standing.checkpoints if each.fault is None]
    if not good:
        first = f" The first one is due at step {count(first_at)}." if first_at and not standing.checkpoints else ""
        return f"No usable checkpoint here.{first} If the trainer ends now, the run can only start again from step 0."
    listed = " and ".join(count(step) for step in good)
    if len(good) < GOOD_ENOUGH:
        return f"Only one good checkpoint, at step {listed}: should its file be damaged, there is no other."
    return f"Good checkpoints at steps {listed}."


def _describe_place(standing: CheckpointStatus) -> str:
    """Say where checkpoints lie, and how many of them a network has not taken yet."""
    if not standing.checkpoints:
        return ""
    n = standing.not_carried
    late = f", which {count(n)} of them {'have' if n > 1 else 'has'} not reached yet" if n else ""
    return f" Checkpoints lie at {standing.folder}{late}."


def _first_at(run: RunRow) -> int | None:
    value = run.config.get("checkpoint", {}).get("interval")
    return min(value, FIRST_STEP) if isinstance(value, int) else None
