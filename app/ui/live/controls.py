"""Stop, pause and resume a run, with what was asked and when the trainer obeyed.

What a run stands on: its checkpoints here, the run it was started again from, and what resumes superseded.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import get_args

import pandas as pd
import streamlit as st

from app.analysis.format import aware, count, duration, escape_markdown
from app.jobs.launch import kill_run
from app.jobs.resume import GOOD_ENOUGH, CheckpointStatus, launch_again, resume_run
from app.ui import data, messages, run_files, state
from app.ui.live import ask_run
from emtc_core.checkpoint_file import FIRST_STEP
from emtc_core.control import Command
from emtc_core.errors import EmtcError
from storage.queries.runs import list_resumes
from storage.runs import lifecycle
from storage.runs.control import ask_stop, command_log, send_command
from storage.runs.lifecycle import Event, State
from storage.runs.rows import RunRow


def show_status(run: RunRow) -> None:
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
    """How often a run was resumed and what that superseded; nothing for none."""
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
    """Which checkpoints are good, and what it means when they are fewer than two."""
    good = [each.env_step for each in standing.checkpoints if each.fault is None]
    if not good:
        first = f" The first one is due at step {count(first_at)}." if first_at and not standing.checkpoints else ""
        return f"No usable checkpoint here.{first} If the trainer ends now, the run can only start again from step 0."
    listed = " and ".join(count(step) for step in good)
    if len(good) < GOOD_ENOUGH:
        return f"Only one good checkpoint, at step {listed}: should its file be damaged, there is no other."
    return f"Good checkpoints at steps {listed}."


def _describe_place(standing: CheckpointStatus) -> str:
    """Where checkpoints lie, and how many of them a network has not taken yet."""
    if not standing.checkpoints:
        return ""
    n = standing.not_carried
    late = f", which {count(n)} of them {'have' if n > 1 else 'has'} not reached yet" if n else ""
    return f" Checkpoints lie at {standing.folder}{late}."


def _first_at(run: RunRow) -> int | None:
    value = run.config.get("checkpoint", {}).get("interval")
    return min(value, FIRST_STEP) if isinstance(value, int) else None


SILENCE_S = 10.0


def show(run: RunRow) -> None:
    """Draw the buttons that fit the run's state."""
    with st.container(horizontal=True, width="content", gap="xsmall"):
        if not messages.may_act():
            return
        if run.state == State.RUNNING:
            _command(run, "pause", "Pause", ":material/pause:")
        elif run.state == State.PAUSED:
            _command(run, "resume", "Go on", ":material/play_arrow:")
        if run.state == State.CREATED:
            _button("leave-queue", "Leave the queue", ":material/stop:", lambda: ask_stop(data.database(), run.id))
        elif lifecycle.allows(run.state, Event.ASK_STOP) and run.state != State.STOPPING:
            _command(run, "stop", "Stop", ":material/stop:")
        elif lifecycle.allows(run.state, Event.CLAIM):
            _offer(run)
        ask_run.show_buttons(run)


def _offer(run: RunRow) -> None:
    """Offer to go on from a checkpoint, or else a new run: nothing recorded is removed unsaid."""
    standing = run_files.checkpoint_status(run)
    if not standing.can_resume:
        weight = "secondary" if standing.refused else "primary"  # where that is set right, the run can still go on
        if st.button("Start again from step 0", icon=":material/restart_alt:", type=weight, key="start-again"):
            _try(lambda: _start_again(run.id))
        why_not = "" if standing.refused else standing.why_not  # the panel below has said it
        st.caption(escape_markdown(f"As a new run; this one keeps its rows. {why_not}"))
        return
    resume = "Resume from the last checkpoint"
    if st.button(resume, icon=":material/replay:", type="primary", key="resume-ended"):
        _try(lambda: _resume(run.id))
    if standing.usable and standing.superseded_steps:
        st.caption(
            f"From step {count(standing.usable.env_step)}; the {count(standing.superseded_steps)} steps recorded after "
            "it are superseded, once the trainer stands there."
        )


def _resume(run_id: str) -> None:
    resume_run(data.database(), run_id)
    st.rerun()


def _start_again(run_id: str) -> None:
    state.write(state.RUN, launch_again(data.database(), run_id))
    st.cache_data.clear()
    st.rerun()


def show_log(run: RunRow) -> None:
    """What was asked of the trainer and how fast it obeyed; offer the hard way after a long silence."""
    log = command_log(data.database(), run.id)
    rows = data.rows_of(log.loc[log["command"].isin(get_args(Command))].tail(3))
    for row in reversed(rows):
        st.caption(describe_command(row["command"], row["requested_at"], row["acknowledged_at"]))
    waiting = [row["requested_at"] for row in rows if pd.isna(row["acknowledged_at"])]
    if waiting and run.live_status in ("running", "paused"):
        silent = (datetime.now(UTC) - aware(waiting[0])).total_seconds()
        if (
            silent > SILENCE_S
            and messages.may_act()
            and st.button(
                "End the process now", icon=":material/dangerous:", help="Loses the steps after the last checkpoint."
            )
        ):
            _try(lambda: kill_run(data.database(), run.id))


def describe_command(command: str, requested_at: datetime, acknowledged_at: datetime | None) -> str:
    """In one line, when something was asked and when the trainer obeyed."""
    asked = f"{command}: requested {aware(requested_at):%H:%M:%S} UTC"
    if acknowledged_at is None or pd.isna(acknowledged_at):
        return f"{asked}, not acknowledged yet"
    waited = (aware(acknowledged_at) - aware(requested_at)).total_seconds()
    text = f"{waited:.1f} s" if waited < 10 else duration(waited)
    return f"{asked} → acknowledged {aware(acknowledged_at):%H:%M:%S}, after {text}"


def _command(run: RunRow, command: Command, label: str, icon: str) -> None:
    _button(f"command-{command}", label, icon, lambda: send_command(data.database(), run.id, command))


def _button(key: str, label: str, icon: str, act: Callable[[], object]) -> None:
    if st.button(label, icon=icon, key=key):
        _try(act)


def _try(act: Callable[[], object]) -> None:
    try:
        act()
    except EmtcError as exc:
        messages.error(exc)
