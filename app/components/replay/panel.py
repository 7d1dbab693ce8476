"""The Replay page's body: choose an evaluation playback or a training episode, then play it."""

from typing import Any

import streamlit as st

from app import data, messages, state
from app.components import pin, playback
from app.figures.chart import Chart
from app.figures.trajectory import draw_trajectory
from app.format import count, escape_markdown, number
from emtc_core.errors import EmtcError
from storage.queries.episodes import Order, Trajectory
from storage.runs import RunRow

TRAINING, EVALUATION = "training", "evaluation"
_SOURCES = {TRAINING: "Training episodes", EVALUATION: "Evaluation playbacks"}
_ORDERS: dict[Order, str] = {
    "-episode": "newest first",
    "-episode_return": "highest return first",
    "episode_return": "lowest return first",
    "-length": "longest first",
}
PLAY = "play"


def show(run: RunRow) -> None:
    """Draw the choice and the player."""
    if state.read_text(PLAY) is not None and "source" not in st.session_state:
        st.session_state["source"] = EVALUATION
    source = st.segmented_control(
        "Episodes",
        list(_SOURCES),
        default=TRAINING,
        required=True,
        format_func=_SOURCES.__getitem__,
        key="source",
        help="Training episodes carry the gate's verdicts; evaluation playbacks show the greedy team.",
    )
    try:
        chosen = _choose_training(run) if source == TRAINING else _choose_playback(run)
    except EmtcError as exc:
        messages.error(exc)
        return
    if chosen is not None:
        _play(run, chosen, training=source == TRAINING)


def _choose_playback(run: RunRow) -> Trajectory | None:
    listed = data.playbacks(run.id)
    if not len(listed):
        _nothing("No evaluation episode has been kept yet.", "The first evaluation follows the first training round.")
        return None
    labels = {
        f"{row['env_step']}-{row['episode']}": (
            f"step {count(row['env_step'])} · episode {row['episode']} · {_outcome(row)}"
        )
        for row in data.rows_of(listed)
    }
    chosen = _select("Playback", labels, parameter=PLAY)
    step, _, episode = chosen.partition("-")
    return data.playback(run.id, int(step), int(episode))


def _choose_training(run: RunRow) -> Trajectory | None:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        order = st.selectbox("Order", list(_ORDERS), format_func=_ORDERS.__getitem__, key="episode_order", width=200)
        listed = data.episode_list(run.id, order)
        if not len(listed):
            _nothing("No training episode has been recorded yet.", "The first ones follow within seconds of the start.")
            return None
        labels = {
            str(row["episode"]): f"episode {count(row['episode'])} · {_outcome(row)}" for row in data.rows_of(listed)
        }
        wanted = state.read_int(state.EPISODE)
        if wanted is not None and str(wanted) not in labels:
            labels = {str(wanted): f"episode {count(wanted)}"} | labels
        chosen = _select("Episode", labels, parameter=state.EPISODE)
    return data.trajectory(run.id, int(chosen))


def _select(label: str, labels: dict[str, str], *, parameter: str) -> str:
    widget = f"choose-{parameter}"
    wanted = state.read_text(parameter)
    if wanted in labels:
        st.session_state[widget] = wanted
    elif st.session_state.get(widget) not in labels:
        st.session_state[widget] = next(iter(labels))

    def changed() -> None:
        state.write(parameter, st.session_state[widget])
        state.write(state.START, None)

    return str(
        st.selectbox(
            label, list(labels), format_func=lambda key: str(labels.get(key, key)), key=widget, on_change=changed
        )
    )


def _outcome(row: dict[str, Any]) -> str:
    won = "won" if row["won"] else "not won"
    return f"{won} · return {number(row['episode_return'])} · {row['length']} steps"


def _nothing(what: str, next_step: str) -> None:
    messages.empty(what, next_step, page="../pages/live.py", label="Watch the run on Live")


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
