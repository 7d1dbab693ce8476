"""The Replay page's body: choose one or two episodes, training or evaluation, then play them.

The second episode may be of another run; the URL names both. Beside a replay stands the memory's map, with the paths
of its episodes: scene, values and map follow one cursor. Below it the replay as a file: a page that plays without a
network, an animation, one frame as vectors.
"""

from collections.abc import Sequence
from functools import partial

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.analysis.format import escape_markdown
from app.figures.theme import Mode
from app.replay.drawing import MAX_FRAMES
from app.replay.files import MIME, Format, make_file
from app.replay.replay import Replay, add_run_names, join_values
from app.ui import data, in_url, memory_data, messages, state, view
from app.ui.live import controls
from app.ui.memory import atlas, snapshot_map, traces
from app.ui.replay import choose
from app.ui.replay.choose import BESIDE, FIRST, TRAINING
from app.ui.widgets import canvas, config_form, pin
from emtc_core.errors import EmtcError
from storage.queries.runs import RunFilter
from storage.runs.rows import RunRow

LISTED = 100
_ON, _RUN, _NOTE = "beside_on", "choose-beside-run", "extremes_note"
_HELP = "Two episodes under one time cursor; the second may be of another run."
_BEST = "The run's training episode with the highest return, of those that can be replayed, beside this one"
_RULE = (
    "The two training episodes with the highest and the lowest return. Two that began in the same node of the memory "
    "are preferred if their returns differ by at least half as much as those of the best and the worst of all; among "
    "equal returns the newest is taken."
)


def ask(run: RunRow, foot: DeltaGenerator) -> bool:
    """Offer a second episode; say whether one is wanted."""
    if BESIDE.is_in_url():
        st.session_state[_ON] = True
    with foot:
        on = st.toggle("Beside", key=_ON, on_change=_toggled, help=_HELP)
        st.button("Beside the best", key="beside_best", on_click=_take_best, args=(run,), help=_BEST)
        st.button("Best against worst", key="extremes", on_click=_take_extremes, args=(run,), help=_RULE)
    if note := st.session_state.pop(_NOTE, ""):
        st.toast(note, icon=":material/compare:")
    return on


def choose_beside(run: RunRow) -> Replay | None:
    """Draw the choice of the second episode and read it."""
    bar = st.container(horizontal=True, vertical_alignment="center")
    return choose.choose(_choose_run(run, bar), bar, st.container(), BESIDE)


def _choose_run(run: RunRow, bar: DeltaGenerator) -> RunRow:
    """Draw the choice of the run; the URL names one that is not the page's own."""
    names, _ = data.run_names(RunFilter(), LISTED)
    wanted = state.read_text(state.BESIDE_RUN) or run.id
    try:
        other = data.get_run(wanted)
    except EmtcError as exc:
        messages.error(exc)
        other = run
    for each in (run, other):
        names = names if each.id in names else names | {each.id: each.name}
    st.session_state[_RUN] = other.id
    bar.selectbox(
        "Run of the second",
        list(names),
        format_func=lambda each: f"{names.get(each, '')} · {each}",
        key=_RUN,
        width=240,
        label_visibility=BESIDE.labels,
        on_change=_run_chosen,
        args=(run.id,),
    )
    return other


def _run_chosen(own: str) -> None:
    chosen = st.session_state[_RUN]
    _forget()
    state.write(state.BESIDE_RUN, chosen if chosen != own else None)


def _toggled() -> None:
    if not st.session_state[_ON]:
        _forget()


def _forget() -> None:
    """Take the second episode out of the URL; which one comes next is the list's first."""
    for name in (BESIDE.episode, BESIDE.play, state.BESIDE_RUN):
        state.write(name, None)
        st.session_state.pop(f"choose-{name}", None)


def _take_best(run: RunRow) -> None:
    """Show the run's best training episode beside the one that is shown."""
    found = data.extremes(run.id)
    if found is None:
        st.session_state[_NOTE] = "No two episodes of this run can be replayed that differ in return."
        return
    _forget()
    st.session_state[BESIDE.source] = TRAINING
    st.session_state[BESIDE.find] = ""
    state.write(BESIDE.episode, found.best)


def _take_extremes(run: RunRow) -> None:
    """Show the best training episode of the run beside its worst."""
    try:
        found = data.extremes(run.id)
    except EmtcError as exc:
        st.session_state[_NOTE] = str(exc)
        return
    if found is None:
        st.session_state[_NOTE] = "No two episodes of this run can be replayed that differ in return."
        return
    _forget()
    state.write(choose.PLAY, None)
    state.write(state.START, None)
    for place in (FIRST, BESIDE):
        st.session_state[place.source] = TRAINING
        st.session_state[place.find] = ""
    state.write(FIRST.episode, found.best)
    state.write(BESIDE.episode, found.worst)
    where = "both began in one node of the memory" if found.node is not None else "they began in different nodes"
    st.session_state[_NOTE] = f"Episode {found.best} had the highest return, {found.worst} the lowest; {where}."


def show_save(replays: Sequence[Replay], *, start: int) -> None:
    """Offer the files; each is made only when it is asked for, while its button says that it is at work."""
    last = max(0, max(replay.side.frames for replay in replays) - 1)
    stem = "-".join(replay.file_stem for replay in replays)
    with st.popover("Save replay", icon=":material/movie:", key="save-replay"):
        _offer(replays, "Replay as HTML", "html", stem, help="One file that plays in any browser, without a network.")
        mode: Mode = "dark" if st.toggle("Dark background", key="save-replay-dark") else "light"
        slow = f"At most {MAX_FRAMES} frames; drawing them takes some seconds."
        _offer(replays, "GIF", "gif", stem, mode=mode, help=slow)
        at = min(max(0, start), last)
        t = config_form.ask("Step of the frame", key=f"save-replay-t-{stem}-{at}", usual=at, low=0, high=last)
        if t is not None:
            _offer(replays, "SVG of this frame", "svg", stem, t=t, mode=mode)


def _offer(
    replays: Sequence[Replay],
    label: str,
    format: Format,
    stem: str,
    *,
    t: int = 0,
    mode: Mode = "light",
    help: str | None = None,
) -> None:
    st.download_button(
        label,
        data=partial(make_file, replays, format, t=t, mode=mode),
        file_name=f"replay-{stem}{f'-t{t}' if format == 'svg' else ''}.{format}",
        mime=MIME[format],
        key=f"save-replay-{format}",
        on_click="ignore",
        width="stretch",
        help=help,
    )


def show(run: RunRow) -> None:
    """Draw the choice and the player."""
    if view.bundle() is not None and _tell_none_kept(run):
        return
    bar = st.container(horizontal=True, vertical_alignment="bottom")
    foot = st.container(horizontal=True, vertical_alignment="center")
    try:
        chosen = choose.choose(run, bar, foot, FIRST)
        other = choose_beside(run) if chosen is not None and ask(run, foot) else None
    except EmtcError as exc:
        messages.error(exc)
        return
    if chosen is None:
        return
    with foot:
        mapped = ask_map(run, chosen)
    if other is not None:
        _play_both(run, chosen, other, mapped=mapped)
    else:
        _play(run, chosen, mapped=mapped)


def _tell_none_kept(run: RunRow) -> bool:
    """Say of a bundle's run that nothing of it can be replayed, and which of its runs can; false of any other run."""
    others = data.runs_with_states(), data.playback_page(run.id, "", limit=1).recorded
    if run.id in others[0] or others[1]:
        return False
    messages.empty(
        "This bundle holds the outcomes of this run's episodes, and the states of none.",
        "Runs of it with episodes to replay:" if others[0] else "It holds those of no other run either.",
    )
    names = data.names_of(others[0][:10])
    for run_id in others[0][:10]:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.page_link(
                "../pages/replay.py", label=escape_markdown(names[run_id]), icon=":material/smart_display:",
                query_params=view.link({state.RUN: run_id}),
            )  # fmt: skip
    return True


def _play(run: RunRow, replay: Replay, *, mapped: bool) -> None:
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="bottom"):
        st.markdown(f"**{escape_markdown(replay.title)}**, {replay.trajectory.length} steps")
        with st.container(horizontal=True, width="content", gap="small"):
            show_save([replay], start=_start())
            pin.show_with_export(
                replay.side.chart, key="replay", stem=replay.file_stem, page="replay", run=run, facts=replay.facts
            )
    with st.container(key="replay_grid", horizontal=True, gap="medium"):
        with st.container(gap="xsmall"):
            canvas.show_sides([replay.side], key="replay-player", start=_start())
        if mapped:
            with st.container(gap="xsmall"):
                show_map(run, replay)
    if replay.is_training:
        st.caption(escape_markdown(replay.side.chart.caption))
        if controls.why_not(run) is None:
            st.fragment(_ask_again, run_every=1.0)(run.id, replay.trajectory.episode)
    else:
        st.caption(
            "Evaluation episodes are played greedily and are not written to the memory, so the gate gave no verdict "
            "on them. Choose *Training episodes* to see Δ\\_mem and β under the cursor."
        )


def _ask_again(run_id: str, episode: int) -> None:
    """Offer a living run's episode to its present policy, and say what it answered."""
    run = data.get_run(run_id)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        controls.show_again(run, episode)
        controls.show_answers(run)


def _play_both(run: RunRow, first: Replay, second: Replay, *, mapped: bool) -> None:
    replays = add_run_names([first, second])
    chart = join_values([replay.side for replay in replays])
    canvas.show_sides([replay.side for replay in replays], key="replay-player", start=_start())
    if mapped:
        show_map(run, first, second)
    with st.container(horizontal=True, vertical_alignment="center"):
        show_save(replays, start=_start())
        runs = list({replay.run.id: replay.run for replay in replays}.values())
        facts = {"pair": [{"run": replay.run.id, **replay.facts} for replay in (first, second)]}
        stem = f"{first.file_stem}-{second.file_stem}"
        pin.show_with_export(chart, key="replay-both", stem=stem, page="replay", run=runs, facts=facts)
        st.caption(escape_markdown(chart.caption), width="stretch")


def _start() -> int:
    return state.read_int(state.START) or 0


_PAGE, _MAP_ON = "replay", "atlas"
_ABOUT = "The episode's path over the memory, under the cursor of the replay; a press on the path goes to that step"


def ask_map(run: RunRow, replay: Replay) -> bool:
    """Offer the map where there is one: of a run that kept its memory, for an episode that was written to it."""
    if not replay.is_training or not len(memory_data.snapshots(run.id)):
        return False
    return st.toggle("Memory's map", **in_url.flag(_PAGE, _MAP_ON), help=_ABOUT)


def show_map(run: RunRow, replay: Replay, other: Replay | None = None) -> None:
    """Draw the map with the path of the episode, and of the other one where it is of the same run."""
    with messages.guarded():
        with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
            chosen = snapshot_map.choose(run, snapshot_map.FIRST)
        if chosen is None:
            return
        shown = snapshot_map.show(chosen)
        second = other.trajectory if other is not None and other.is_training and other.run.id == run.id else None
        paths = traces.make_paths(shown, replay.trajectory, second)
        atlas.mark(channel=snapshot_map.FIRST.channel, selected=None, traces=paths, every=traces.EVERY, seek=True)
        if not any(place for path in paths for place in path["places"]):
            st.caption("No state of this episode is in the memory of this snapshot; choose another.")
