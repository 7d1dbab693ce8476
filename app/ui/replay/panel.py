"""The Replay page's body: choose one or two episodes, training or evaluation, then play them.

Beside a replay the memory's map, with the paths of its episodes: scene, values and map follow one cursor. Below it
the replay as a file: a page that plays without a network, an animation, one frame as vectors.
"""

from collections.abc import Sequence
from functools import partial

import streamlit as st

from app.analysis.format import escape_markdown
from app.figures.theme import Mode
from app.replay.drawing import MOST_FRAMES
from app.replay.files import MIME, Format, make_file
from app.replay.replay import Replay, join_values, tell_apart
from app.ui import data, in_url, memory_data, messages, state, view
from app.ui.live import controls
from app.ui.memory import atlas, snapshot_map, traces
from app.ui.replay import beside, choose
from app.ui.replay.choose import FIRST
from app.ui.widgets import canvas, config_form, pin
from emtc_core.errors import EmtcError
from storage.runs.rows import RunRow


def show_save(replays: Sequence[Replay], *, start: int) -> None:
    """Offer the files; each is made only when it is asked for, while its button says that it is at work."""
    last = max(0, max(replay.side.frames for replay in replays) - 1)
    stem = "-".join(replay.stem for replay in replays)
    with st.popover("Save replay", icon=":material/movie:", key="save-replay"):
        _offer(replays, "Replay as HTML", "html", stem, help="One file that plays in any browser, without a network.")
        mode: Mode = "dark" if st.toggle("Dark background", key="save-replay-dark") else "light"
        slow = f"At most {MOST_FRAMES} frames; drawing them takes some seconds."
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
        other = beside.choose_beside(run) if chosen is not None and beside.ask(run, foot) else None
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
                replay.side.chart, key="replay", stem=replay.stem, page="replay", run=run, facts=replay.facts
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
    replays = tell_apart([first, second])
    chart = join_values([replay.side for replay in replays])
    canvas.show_sides([replay.side for replay in replays], key="replay-player", start=_start())
    if mapped:
        show_map(run, first, second)
    with st.container(horizontal=True, vertical_alignment="center"):
        show_save(replays, start=_start())
        runs = list({replay.run.id: replay.run for replay in replays}.values())
        facts = {"pair": [{"run": replay.run.id, **replay.facts} for replay in (first, second)]}
        stem = f"{first.stem}-{second.stem}"
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
