"""Buttons that stop, pause or resume a run, its requests, and its events: commands, checkpoints and resumes.

A command changes the training of a run: stop, pause or resume. A request does not change it: a running trainer
evaluates its policy or records an episode. In `emtc_core.control`, a request is a question. Rows are superseded if a
resumed run trains their steps again, because its checkpoint is older than these rows.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, get_args
from urllib.parse import urlencode

import pandas as pd
import streamlit as st

from app.analysis.format import add_utc, escape_markdown, format_count, format_duration, format_time
from app.figures.theme import ENDED_STATUSES
from app.jobs.launch import find_trainer, kill_run
from app.jobs.questions import describe
from app.jobs.resume import ENOUGH_CHECKPOINTS, CheckpointStatus, examine_checkpoints, restart_run, resume_run
from app.ui import data, messages, view
from app.ui.page_state import PLAY, RUN
from app.ui.widgets import box, config_form
from emtc_core.checkpoint_file import FIRST_STEP
from emtc_core.control import Command, QuestionKind
from emtc_core.errors import EmtcError
from storage.queries.runs import list_resumes
from storage.runs.control import command_log, list_evaluation_requests, send_command, stop_run
from storage.runs.rows import RunRow, imported_label
from storage.runs.status import allows

KILL_AFTER_S = 10.0
"""If a command is not acknowledged for this time, the page offers to end the process [s]."""
EVENTS = "live_events"
"""Key of the box *Events*."""
_EVALUATE_HELP = "Runs as many greedy episodes as a regular evaluation, with the current policy."
_RECORD_HELP = "Records one greedy episode with the current policy. You can play it on Replay."
_NO_EFFECT_HELP = "The training does not change, and no curve gets a point."


def show_events(run: RunRow) -> None:
    """Draw the button *Events*, with the times, commands, requests, checkpoints and resumes of a run."""
    help_text = "Commands, requests, checkpoints and times"
    events = box.show("Events", icon=":material/history:", help=help_text, key=EVENTS)
    if not events.is_opened:  # the timer of the page does not read the events of a closed box
        return
    with events.container:
        started = "not started" if run.started_at is None else f"started {format_time(run.started_at)}"
        st.caption(escape_markdown(f"Created {format_time(run.created_at)}, {started}."))
        if run.parent_id:
            earlier_run = view.address_of("live", {RUN.name: run.parent_id})
            st.caption(f"Restarted from step 0. The earlier run is [{run.parent_id}]({earlier_run}).")
        resumes = describe_resumes(list_resumes(data.database(), run.id))
        if resumes:
            st.caption(escape_markdown(resumes))
        checkpoints = _describe_checkpoint_files(run)
        if checkpoints:
            st.caption(escape_markdown(checkpoints))
        show_requests(run)
        for row in reversed(_list_last_commands(run)):
            st.caption(describe_command(row["command"], row["requested_at"], row["acknowledged_at"]))


def show_warnings(run: RunRow) -> None:
    """Draw a warning if the checkpoints of a run cannot be read, and one for each damaged checkpoint."""
    if not _has_checkpoints(run):
        return
    status = examine_checkpoints(data.database(), run)
    if status.refusal:  # why the checkpoints cannot be read
        st.warning(escape_markdown(status.refusal), icon=":material/cloud_off:")
        return
    for fault in status.faults:
        st.warning(escape_markdown(fault), icon=":material/broken_image:")


def _has_checkpoints(run: RunRow) -> bool:
    """Return whether a run can have checkpoints: a trainer of EMTC Lab has trained it, and it has not finished."""
    return imported_label(run.config) is None and run.live_status != "finished" and run.env_steps > 0


def _describe_checkpoint_files(run: RunRow) -> str:
    """Describe the checkpoints of a run that is not finished. For an imported run, state that it has none."""
    label = imported_label(run.config)
    if label is not None:
        return f"Imported ({label}): trained by another program. It has no checkpoint."
    if not _has_checkpoints(run):
        return ""
    status = examine_checkpoints(data.database(), run)
    if status.refusal:
        return ""
    # The first checkpoint is written at FIRST_STEP, or earlier if the interval between checkpoints is shorter.
    interval = run.config.get("checkpoint", {}).get("interval")
    first_step = min(interval, FIRST_STEP) if isinstance(interval, int) else None
    text = describe_checkpoints(status, first_step=first_step, has_ended=run.live_status in ENDED_STATUSES)
    best_step = next((policy.env_step for policy in status.best if policy.fault is None), None)
    if best_step is not None:
        text += f" The policy of the best evaluation is stored too (step {format_count(best_step)})."
    if status.checkpoints:
        text += f" Folder of the checkpoints: {status.folder}."
    return text


def describe_resumes(resumes: pd.DataFrame) -> str:
    """Return a text that states how often a run was resumed and how many steps that replaced; empty if it never was."""
    rows = data.rows_of(resumes)
    if not rows:
        return ""
    last = rows[-1]
    sentences = [f"Resumed {format_count(len(rows))}×, last from step {format_count(last['env_step'])}."]
    n_superseded = sum(row["reached_env_step"] - row["env_step"] for row in rows)
    if n_superseded:
        in_episodes = ""
        if all(pd.notna(row["episodes"]) for row in rows):
            in_episodes = f" in {format_count(sum(row['episodes'] for row in rows))} episodes"
        sentences.append(
            f"{format_count(n_superseded)} recorded steps{in_episodes} were superseded: the run trained them a second "
            "time."
        )
    else:
        sentences.append("No step was superseded.")
    if isinstance(last["passed_over"], str):
        sentences.append(f"Newer checkpoints were not used. {last['passed_over']}")
    return " ".join(sentences)


def describe_checkpoints(status: CheckpointStatus, *, first_step: int | None, has_ended: bool = False) -> str:
    """Return a text that lists the usable checkpoints, and states the risk if there are fewer than two.

    Args:
        status: The checkpoints.
        first_step: Env step of the first checkpoint; None if it is not known.
        has_ended: Whether the trainer has ended, so that no checkpoint follows.
    """
    steps = [checkpoint.env_step for checkpoint in status.checkpoints if checkpoint.fault is None]
    if not steps and has_ended:
        return "No usable checkpoint here. The run can only start again from step 0."
    if not steps:
        due = ""
        if first_step and not status.checkpoints:
            due = f" The first one is due at step {format_count(first_step)}."
        return f"No usable checkpoint here.{due} If the trainer ends now, the run can only start again from step 0."
    step_list = " and ".join(format_count(step) for step in steps)
    if len(steps) < ENOUGH_CHECKPOINTS:
        return f"Only one good checkpoint, at step {step_list}. If its file is damaged, the run cannot resume."
    return f"Good checkpoints at steps {step_list}."


def show(run: RunRow) -> str:
    """Draw the buttons that pause, stop or resume a run.

    Returns:
        What happens to the rows of the run if it is resumed or starts again; empty if neither is possible now.
    """
    explanation = ""
    with st.container(horizontal=True, width="content", gap="xsmall"):
        if not messages.may_act():
            return explanation
        if allows(run.live_status, "pause"):
            _show_command_button(run, "pause", "Pause", ":material/pause:")
        if allows(run.live_status, "continue"):
            _show_command_button(run, "resume", "Resume", ":material/play_arrow:")
        if run.live_status == "queued":
            if st.button("Remove from queue", icon=":material/stop:", key="leave-queue"):
                _run_action(lambda: stop_run(data.database(), run.id))
        elif allows(run.live_status, "stop"):
            _show_command_button(run, "stop", "Stop", ":material/stop:")
        if allows(run.live_status, "resume") and imported_label(run.config) is None:
            explanation = _show_resume_button(run)
    return explanation


def show_request_buttons(run: RunRow) -> None:
    """Draw the buttons that request an evaluation or an episode of the current policy, if a trainer can answer."""
    if not messages.may_act() or not allows(run.live_status, "evaluate"):
        return
    _show_request_button(run, "evaluate", "Evaluate now", ":material/exercise:", _EVALUATE_HELP)
    _show_request_button(run, "play", "Record an episode", ":material/smart_display:", _RECORD_HELP)
    if run.env_steps:
        help_text = "Play a new episode with the current policy, from the start of a training episode"
        with st.popover("Replay a training episode", icon=":material/replay:", help=help_text):
            episode = config_form.integer_field("Training episode", key="ask-episode", default=1, low=1, high=10**9)
            if episode is not None:
                show_repeat_button(run, episode)


def show_repeat_button(run: RunRow, episode: int) -> None:
    """Draw the button that repeats a training episode from its start state with the current policy.

    Draw nothing if no trainer can answer.
    """
    if not allows(run.live_status, "evaluate"):
        return
    help_text = (
        f"Records one greedy episode with the current policy. It starts like training episode {episode} if the "
        "environment can repeat that start; the result states which start was used."
    )
    _show_request_button(
        run, "play", "Replay this episode with the current policy", ":material/replay:", help_text, episode=episode
    )


def show_requests(run: RunRow, *, limit: int = 5) -> None:
    """Draw the results of the last requests, each with a link to its recorded episode.

    The link is Markdown, because a page link in a fragment loses its query parameters at the next automatic rerun. It
    is relative, because the app may be served below a path.
    """
    for request in list_evaluation_requests(data.database(), run, limit):
        replay_link = ""
        if request.answer is not None:
            play = f"{request.answer.env_step}-{request.answer.playback}"  # id of the recorded episode
            parameters = view.add_bundle({RUN.name: run.id, PLAY.name: play})
            replay_link = f" · [Replay](replay?{urlencode(parameters)})"
        st.caption(f"{escape_markdown(describe(request))}{replay_link}")


def offer_kill(run: RunRow) -> None:
    """Offer to end a process that sends no heartbeat, or does not acknowledge a command for `KILL_AFTER_S`."""
    if not allows(run.live_status, "kill") or not messages.may_act():
        return
    if run.live_status == "lost":
        if find_trainer(run) is None:
            return
        st.warning("The process of the trainer still exists.")
    else:
        pending = [row["requested_at"] for row in _list_last_commands(run) if pd.isna(row["acknowledged_at"])]
        if not pending:
            return
        waited_s = (datetime.now(UTC) - add_utc(pending[0])).total_seconds()
        if waited_s <= KILL_AFTER_S:
            return
        st.warning(f"The trainer has not acknowledged a command for {format_duration(waited_s)}.")
    help_text = "Loses the steps after the last checkpoint."
    if st.button("End its process", icon=":material/dangerous:", key="kill", help=help_text):
        _run_action(lambda: kill_run(data.database(), run.id))


def _list_last_commands(run: RunRow) -> list[dict[str, Any]]:
    """List the last three commands, oldest first."""
    log = command_log(data.database(), run.id)
    return data.rows_of(log.loc[log["command"].isin(get_args(Command))].tail(3))


def describe_command(command: str, requested_at: datetime, acknowledged_at: datetime | None) -> str:
    """Return one line of text: when a command was requested and when the trainer acknowledged it."""
    request = f"{command}: requested {add_utc(requested_at):%H:%M:%S} UTC"
    if acknowledged_at is None or pd.isna(acknowledged_at):
        return f"{request}, not acknowledged yet"
    waited_s = (add_utc(acknowledged_at) - add_utc(requested_at)).total_seconds()
    duration = f"{waited_s:.1f} s" if waited_s < 10 else format_duration(waited_s)
    return f"{request} → acknowledged {add_utc(acknowledged_at):%H:%M:%S}, after {duration}"


def _show_resume_button(run: RunRow) -> str:
    """Draw the button that resumes from a checkpoint, or that starts again as a new run. Return which rows change."""
    status = examine_checkpoints(data.database(), run)
    if not status.can_resume:
        button_type = "secondary" if status.refusal else "primary"  # after a refusal, a resume may be possible later
        if st.button("Start again from step 0", icon=":material/restart_alt:", type=button_type, key="start-again"):
            _run_action(lambda: _start_again(run.id))
        reason = "" if status.refusal else status.reason  # `show_warnings` draws the refusal
        return f"Creates a new run; this one keeps its rows. {reason}"
    help_text = "Continues the training from the last checkpoint"
    if st.button("Resume", icon=":material/replay:", type="primary", key="resume-ended", help=help_text):
        _run_action(lambda: _resume(run.id))
    if not (status.usable and status.superseded_steps):
        return ""
    return (
        f"Resume from step {format_count(status.usable.env_step)}; the {format_count(status.superseded_steps)} "
        "steps recorded after it are superseded when the trainer has loaded the checkpoint."
    )


def _resume(run_id: str) -> None:
    resume_run(data.database(), run_id)
    st.rerun()


def _start_again(run_id: str) -> None:
    RUN.write(restart_run(data.database(), run_id))
    st.cache_data.clear()
    st.rerun()


def _show_command_button(run: RunRow, command: Command, label: str, icon: str) -> None:
    if st.button(label, icon=icon, key=f"command-{command}"):
        _run_action(lambda: send_command(data.database(), run.id, command))


def _run_action(action: Callable[[], object]) -> None:
    """Run an action, and draw its error if it has one."""
    try:
        with data.use_current_data():
            action()
    except EmtcError as exc:
        messages.error(exc)


def _show_request_button(
    run: RunRow, kind: QuestionKind, label: str, icon: str, help_text: str, *, episode: int | None = None
) -> None:
    key = f"ask-{kind}" if episode is None else f"ask-{kind}-again"
    st.button(
        label, icon=icon, key=key, help=f"{help_text} {_NO_EFFECT_HELP}", on_click=_send,
        args=(run.id, kind, episode, key),
    )  # fmt: skip
    error = st.session_state.pop(f"{key}-refused", None)
    if isinstance(error, EmtcError):
        messages.error(error)


def _send(run_id: str, kind: QuestionKind, episode: int | None, key: str) -> None:
    """Send a request. As a callback, it is also called if the page reruns before it draws the button."""
    try:
        send_command(data.database(), run_id, kind, episode=episode)
    except EmtcError as exc:
        st.session_state[f"{key}-refused"] = exc
