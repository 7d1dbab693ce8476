"""The Replay page's body: choose an evaluation playback or a training episode, then play it."""

import streamlit as st

from app import data, messages, state
from app.components import pin, playback
from app.components.replay import choose
from app.components.replay.choose import PLAY
from app.figures.chart import Chart
from app.figures.trajectory import draw_trajectory
from app.format import escape_markdown, number
from emtc_core.errors import EmtcError
from storage.queries.episodes import Trajectory
from storage.runs import RunRow

TRAINING, EVALUATION = "training", "evaluation"
_SOURCES = {TRAINING: "Training episodes", EVALUATION: "Evaluation playbacks"}


def show(run: RunRow) -> None:
    """Draw the choice and the player."""
    if state.read_text(PLAY) is not None and "source" not in st.session_state:
        st.session_state["source"] = EVALUATION
    bar = st.container(horizontal=True, vertical_alignment="bottom")
    source = bar.segmented_control(
        "Episodes",
        list(_SOURCES),
        default=TRAINING,
        required=True,
        format_func=_SOURCES.__getitem__,
        key="source",
        on_change=_to_first_page,
        help="Training episodes carry the gate's verdicts; evaluation playbacks show the greedy team.",
    )
    try:
        chosen = choose.training(run, bar) if source == TRAINING else choose.playback(run, bar)
    except EmtcError as exc:
        messages.error(exc)
        return
    if chosen is not None:
        _play(run, chosen, training=source == TRAINING)


def _to_first_page() -> None:
    st.session_state[choose.PAGE] = 1


def _play(run: RunRow, trajectory: Trajectory, *, training: bool) -> None:
    kind = "Training episode" if training else f"Evaluation at step {trajectory.env_step}, episode"
    outcome = "won" if trajectory.won else "not won"
    title = f"{kind} {trajectory.episode}, {outcome}, return {number(trajectory.episode_return)}"
    chart = _chart(trajectory, title)
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="bottom"):
        st.markdown(f"**{escape_markdown(title)}**, {trajectory.length} steps")
        stem = f"{run.id}-{trajectory.env_step}-{trajectory.episode}"
        facts = {"episode": trajectory.episode} | ({} if training else {"env_step": trajectory.env_step})
        pin.show_with_export(chart, key="replay", stem=stem, page="replay", run=run, facts=facts)
    scene = data.scene(run.env, run.map, trajectory.state)
    playback.show(scene, chart, key="replay-player", start=state.read_int(state.START) or 0, title=title)
    if training:
        st.caption(escape_markdown(chart.caption))
    else:
        st.caption(
            "Evaluation episodes are played greedily and are not written to the memory, so the gate gave no verdict "
            "on them. Choose *Training episodes* to see Δ\\_mem and β under the cursor."
        )


def _chart(trajectory: Trajectory, title: str) -> Chart:
    known = {name: getattr(trajectory, name) for name in ("h", "delta_mem", "beta")}
    return draw_trajectory(title=title, reward=trajectory.reward, **known)
