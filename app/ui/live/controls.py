"""Stop, pause and resume a run, with what was asked and when the trainer obeyed; what a run stands on.

That is its checkpoints here, the run it was started again from, and what resumes superseded. A living run can be
asked, too, for an evaluation or an episode now; the training does not notice.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import get_args
from urllib.parse import urlencode

import pandas as pd
import streamlit as st

from app.analysis.format import add_utc, escape_markdown, format_count, format_duration
from app.jobs.launch import kill_run
from app.jobs.questions import describe
from app.jobs.resume import ENOUGH_CHECKPOINTS, CheckpointStatus, restart_run, resume_run
from app.ui import data, messages, run_data, state, view
from app.ui.widgets import config_form
from emtc_core.checkpoint_file import FIRST_STEP
from emtc_core.control import Command, QuestionKind
from emtc_core.errors import EmtcError
from storage.queries.runs import list_resumes
from storage.runs import lifecycle
from storage.runs.control import EvaluationRequest, command_log, request_stop, send_command
from storage.runs.lifecycle import ANSWERING_STATES, Event, State
from storage.runs.rows import RunRow, imported_label


def show_status(run: RunRow) -> None:
    """Draw at most four lines; nothing for a run that never was in danger."""
    if run.parent_id:
        st.caption(f"Started again from step 0, after run [{run.parent_id}](/live?{state.RUN}={run.parent_id}).")
    if text := describe_resumes(list_resumes(data.database(), run.id)):
        st.caption(escape_markdown(text))
    if (label := imported_label(run.config)) is not None:
        st.caption(escape_markdown(f"Imported ({label}): a curve that another program trained. It has no checkpoint."))
        return
    if run.state == State.FINISHED or run.env_steps == 0:
        return
    standing = run_data.checkpoint_status(run)
    if standing.refusal:
        st.warning(escape_markdown(standing.refusal), icon=":material/cloud_off:")
        return
    for fault in standing.faults:
        st.warning(escape_markdown(fault), icon=":material/broken_image:")
    told = describe_checkpoints(standing, first_at=_first_at(run)) + describe_best(standing)
    st.caption(escape_markdown(f"{told}{_describe_place(standing)}" if run.files else told))


def describe_resumes(resumes: pd.DataFrame) -> str:
    """How often a run was resumed and what that superseded; nothing for none."""
    rows = data.rows_of(resumes)
    if not rows:
        return ""
    last = rows[-1]
    steps = sum(row["reached_env_step"] - row["env_step"] for row in rows)
    known = all(pd.notna(row["episodes"]) for row in rows)
    told = f" in {format_count(sum(row['episodes'] for row in rows))} episodes" if known else ""
    anew = f"{format_count(steps)} recorded steps{told} were superseded: they were learned anew."
    sentences = [
        f"Resumed {format_count(len(rows))}×, last from step {format_count(last['env_step'])}.",
        anew if steps else "No step was superseded.",
    ]
    if isinstance(last["passed_over"], str):
        sentences.append(f"Newer checkpoints were passed over. {last['passed_over']}")
    return " ".join(sentences)


def describe_checkpoints(standing: CheckpointStatus, *, first_at: int | None) -> str:
    """Which checkpoints are good, and what it means when they are fewer than two."""
    good = [each.env_step for each in standing.checkpoints if each.fault is None]
    if not good:
        first = (
            f" The first one is due at step {format_count(first_at)}." if first_at and not standing.checkpoints else ""
        )
        return f"No usable checkpoint here.{first} If the trainer ends now, the run can only start again from step 0."
    listed = " and ".join(format_count(step) for step in good)
    if len(good) < ENOUGH_CHECKPOINTS:
        return f"Only one good checkpoint, at step {listed}: should its file be damaged, there is no other."
    return f"Good checkpoints at steps {listed}."


def describe_best(standing: CheckpointStatus) -> str:
    """Where the policy of the best evaluation stands; nothing where none is kept."""
    best = next((each.env_step for each in standing.best if each.fault is None), None)
    return "" if best is None else f" The policy of the best evaluation is kept too, that of step {format_count(best)}."


def _describe_place(standing: CheckpointStatus) -> str:
    """Where checkpoints lie, and how many of them a network has not taken yet."""
    if not standing.checkpoints:
        return ""
    n = standing.n_not_uploaded
    late = f", which {format_count(n)} of them {'have' if n > 1 else 'has'} not reached yet" if n else ""
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
            _button("leave-queue", "Leave the queue", ":material/stop:", lambda: request_stop(data.database(), run.id))
        elif lifecycle.allows(run.state, Event.REQUEST_STOP) and run.state != State.STOPPING:
            _command(run, "stop", "Stop", ":material/stop:")
        elif lifecycle.allows(run.state, Event.CLAIM) and imported_label(run.config) is None:
            _offer(run)
        show_buttons(run)


def _offer(run: RunRow) -> None:
    """Offer to go on from a checkpoint, or else a new run: nothing recorded is removed unsaid."""
    standing = run_data.checkpoint_status(run)
    if not standing.can_resume:
        weight = "secondary" if standing.refusal else "primary"  # where that is set right, the run can still go on
        if st.button("Start again from step 0", icon=":material/restart_alt:", type=weight, key="start-again"):
            _try(lambda: _start_again(run.id))
        why_not = "" if standing.refusal else standing.reason  # the panel below has said it
        st.caption(escape_markdown(f"As a new run; this one keeps its rows. {why_not}"))
        return
    resume = "Resume from the last checkpoint"
    if st.button(resume, icon=":material/replay:", type="primary", key="resume-ended"):
        _try(lambda: _resume(run.id))
    if standing.usable and standing.superseded_steps:
        st.caption(
            f"From step {format_count(standing.usable.env_step)}; the {format_count(standing.superseded_steps)} "
            f"steps recorded after "
            "it are superseded, once the trainer stands there."
        )


def _resume(run_id: str) -> None:
    resume_run(data.database(), run_id)
    st.rerun()


def _start_again(run_id: str) -> None:
    state.write(state.RUN, restart_run(data.database(), run_id))
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
        silent = (datetime.now(UTC) - add_utc(waiting[0])).total_seconds()
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
    asked = f"{command}: requested {add_utc(requested_at):%H:%M:%S} UTC"
    if acknowledged_at is None or pd.isna(acknowledged_at):
        return f"{asked}, not acknowledged yet"
    waited = (add_utc(acknowledged_at) - add_utc(requested_at)).total_seconds()
    text = f"{waited:.1f} s" if waited < 10 else format_duration(waited)
    return f"{asked} → acknowledged {add_utc(acknowledged_at):%H:%M:%S}, after {text}"


def _command(run: RunRow, command: Command, label: str, icon: str) -> None:
    _button(f"command-{command}", label, icon, lambda: send_command(data.database(), run.id, command))


def _button(key: str, label: str, icon: str, act: Callable[[], object]) -> None:
    if st.button(label, icon=icon, key=key):
        _try(act)


def _try(act: Callable[[], object]) -> None:
    try:
        with data.as_it_changes():
            act()
    except EmtcError as exc:
        messages.error(exc)


PLAY = "play"  # the parameter by which Replay opens a greedy episode
_EVALUATE = "As many greedy episodes as a regular evaluation has, with the present weights."
_ONE = "One greedy episode with the present weights, kept for Replay."
_ASIDE = "The training goes on as if nobody had asked, and no curve gets a point."


def show_buttons(run: RunRow) -> None:
    """Draw a button for each question; where nobody is there to answer, it says so."""
    _ask_button(run, "evaluate", "Evaluate now", ":material/exercise:", _EVALUATE)
    _ask_button(run, "play", "Play one episode now", ":material/smart_display:", _ONE)
    if why_not(run) is None and run.env_steps:
        with st.popover("Play again …", icon=":material/replay:", help="A training episode, with the present policy"):
            episode = config_form.ask("Training episode", key="ask-episode", usual=1, low=1, high=10**9)
            if episode is not None:
                show_again(run, episode)


def show_again(run: RunRow, episode: int) -> None:
    """Draw the button that plays a training episode again, from its start, with the present policy."""
    about = (
        f"One greedy episode with the present weights, from the start of training episode {episode} where the "
        "environment can repeat it; the answer says which start it was."
    )
    _ask_button(run, "play", "Play it with the present policy", ":material/replay:", about, episode=episode)


def show_answers(run: RunRow) -> None:
    """What became of the last questions, each with the way to its playback.

    The way is a plain link: this part of the page ticks, and a tick takes a page link's address back. It is relative,
    for the app may be served below a path of its own.
    """
    for asked in data.questions(run, limit=2):
        st.caption(f"{escape_markdown(describe(asked))}{_link(run, asked)}")


def why_not(run: RunRow) -> str | None:
    """Why a run cannot be asked, or None if it can."""
    if run.state in ANSWERING_STATES:
        return None
    return f"No trainer is there to answer: the run is {run.state.value}."


def _ask_button(
    run: RunRow, kind: QuestionKind, label: str, icon: str, about: str, *, episode: int | None = None
) -> None:
    reason = why_not(run)
    key = f"ask-{kind}" if episode is None else f"ask-{kind}-again"
    st.button(
        label, icon=icon, key=key, disabled=reason is not None, help=reason or f"{about} {_ASIDE}",
        on_click=_send, args=(run.id, kind, episode, key),
    )  # fmt: skip
    if isinstance(refused := st.session_state.pop(f"{key}-refused", None), EmtcError):
        messages.error(refused)


def _send(run_id: str, kind: QuestionKind, episode: int | None, key: str) -> None:
    """Send a question before anything is drawn: a page that starts anew above the button would lose the press."""
    try:
        send_command(data.database(), run_id, kind, episode=episode)
    except EmtcError as exc:
        st.session_state[f"{key}-refused"] = exc


def _link(run: RunRow, asked: EvaluationRequest) -> str:
    if asked.answer is None:
        return ""
    about = view.link({state.RUN: run.id, PLAY: f"{asked.answer.env_step}-{asked.answer.playback}"})
    return f" · [Replay](replay?{urlencode(about)})"
