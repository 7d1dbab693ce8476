"""The Replay page: choose one or two episodes, of training or evaluation, and play them.

The second episode may be of another run; the URL names both. In the code, the two are a pair. In the URL, the
parameters of the second one have a prefix, see `SECOND_EPISODE`. The map of the memory can be shown next to the replay.
It then contains the paths of the played episodes. Scene, values and map have one time cursor. The replay can be saved
as a page that works offline, as an animation, or as one frame in vector format. A frame is the scene at one step t, and
has the same number.

A stored evaluation episode is called a playback in the database. A replay is one episode, of training or evaluation,
with all that is drawn of it; `Replay.side` is its scene and chart, as one side of the player. A pin stores a figure on
the page Notebook, with options (`facts`) from which an exported notebook makes it again.

Training episodes have values of the gate: β, the weight of the episodic incentive, and Δ_mem, the consistency error on
which β depends.
"""

from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec

import streamlit as st
from streamlit.components.v2 import component
from streamlit.delta_generator import DeltaGenerator

from app.analysis.format import escape_markdown, format_count, format_number
from app.figures.assets import read_asset
from app.figures.theme import ENDED_STATUSES, Mode
from app.replay.files import MAX_FRAMES, MIME, Format, make_file
from app.replay.replay import Replay, add_run_names, join_values
from app.ui import data, messages, view
from app.ui.live import controls
from app.ui.memory import atlas, episode_paths, snapshot_map
from app.ui.page_state import START, Choice, Flag
from app.ui.replay.episode_choice import FIRST_EPISODE, SECOND_EPISODE, TRAINING, choose_episode
from app.ui.widgets import canvas, config_form, files, pin, run_picker
from emtc_core.errors import EmtcError
from emtc_core.install import get_install_command
from storage.queries.episode_search import (
    Extremes,
    find_episodes,
    find_extremes,
    find_playbacks,
    find_replayable_episodes,
    list_replayable_runs,
)
from storage.queries.memory import list_snapshots
from storage.queries.run_search import RunFilter, run_names
from storage.runs.rows import RunRow, find_run
from storage.runs.status import allows

MAX_LISTED_RUNS = 100
"""Maximum number of runs in the choice of the second episode's run."""
_HAS_MAP = Flag("atlas", "replay")
"""Whether the map of the memory is shown."""
_SECOND_RUN = Choice("beside_run", "replay")
"""Run of the second episode."""
_report_frame = component("emtc_lab_frame", js=read_asset("frame.js"))
"""The component that sends the number of the frame in the player from the browser to the server."""
_IS_PAIR = Flag("compare", "replay")
"""Whether a second episode is played. A link that contains the second episode does not need it."""
_EXTREMES_NOTE = "extremes_note"
"""Key of the session state: a text (result or error) that the next rerun shows once as a toast."""
_COMPARE_MENU = "compare_menu"
"""Key of the menu."""
_ANOTHER = "another"
_BEST = "best"
_EXTREMES = "extremes"
_NO_PAIR = "none"
_COMPARE_ACTIONS = {
    _ANOTHER: "With another episode",
    _BEST: "With the best episode",
    _EXTREMES: "Best and worst episode",
    _NO_PAIR: "Stop comparing",
}
"""Entry of the menu → its label."""
_COMPARE_HELP = (
    "Two episodes with one time cursor. The second may be of another run. Best and worst: the highest and the lowest "
    "return of the training episodes that can be replayed. Two that began in the same node of the memory are preferred "
    "if their returns differ by at least half as much."
)
_MAP_HELP = "The path of the episode on the map of the memory, with the same cursor. Click the path to go to a step"
_NO_EXTREMES = "This run has no two episodes with different returns that can be replayed."


def show(run: RunRow) -> None:
    """Draw the choice of episodes and the player.

    A single episode is chosen in a list at the left. Two episodes, or one with the map, are chosen in rows above, so
    that they have the whole width of the page.
    """
    # A run that is being trained stores episodes soon. A bundle (a file with exported runs) may contain none.
    is_ended = run.live_status in ENDED_STATUSES
    may_have_none = (is_ended and not FIRST_EPISODE.is_in_url()) or view.get_bundle() is not None
    # `_show_if_none_stored` draws the page and returns True if there is no episode
    if may_have_none and _show_if_none_stored(run):
        return
    if SECOND_EPISODE.is_in_url():
        _IS_PAIR.write(True)  # it remains a pair if a new search or source removes the episode from the URL
    is_pair = _IS_PAIR.read()
    tools = st.container(key="replay_tools", horizontal=True, vertical_alignment="center", gap="small")
    if is_pair or _HAS_MAP.read():
        choice_container = st.container(horizontal=True, vertical_alignment="center")
        player_container = st.container(gap="xsmall")
        is_list = False
    else:
        with st.container(key="replay_columns", horizontal=True, gap="medium"):
            choice_container = st.container(key="replay_list", gap="small")
            player_container = st.container(gap="xsmall")
        is_list = True
    with player_container:
        try:
            first = choose_episode(run, choice_container, FIRST_EPISODE, is_list=is_list)
            if first is None:
                return
            with tools:
                _show_compare_menu(run, is_pair=is_pair)
            second = _choose_second(run) if is_pair else None
        except EmtcError as exc:
            messages.error(exc)
            return
        has_map = False
        if first.is_training and len(data.cached(list_snapshots, ttl=2)(run.id)):
            with tools:
                has_map = st.toggle("Show on memory map", **_HAS_MAP.bind(), help=_MAP_HELP)
        if second is not None:
            _show_pair(run, first, second, tools, has_map=has_map)
        else:
            _show_single(run, first, tools, has_map=has_map)


def _show_if_none_stored(run: RunRow) -> bool:
    """If this run has no episode to replay, draw links to runs that have some. Return whether they were drawn."""
    if data.cached(find_replayable_episodes, ttl=10)(run.id):
        return False
    # `recorded` is the number of the run's episodes
    if data.cached(find_playbacks, ttl=2)(run.id, limit=1).recorded:
        return False
    replayable_runs = data.cached(list_replayable_runs, ttl=60)()
    source = "bundle" if view.get_bundle() is not None else "database"
    has_outcomes = data.cached(find_episodes, ttl=2)(run.id, limit=1).recorded
    reason = f"This {source} contains no episodes of this run."
    if has_outcomes:
        reason = f"This {source} contains only the outcomes of this run's episodes, not their states."
    next_step = "The same is true of its other runs."  # they have no episodes to replay either
    if replayable_runs:
        next_step = f"Runs of the {source} with episodes to replay:"
    messages.empty(reason, next_step)
    run_picker.show_run_links("replay", replayable_runs)
    return True


def _show_compare_menu(run: RunRow, *, is_pair: bool) -> None:
    """Draw the menu that chooses a second episode, or both, or removes the second one."""

    def on_select() -> None:
        action = st.session_state[_COMPARE_MENU]
        if action == _ANOTHER:
            _IS_PAIR.write(True)
        elif action == _BEST:
            _compare_with_best(run)
        elif action == _EXTREMES:
            _compare_extremes(run)
        elif action == _NO_PAIR:
            _clear_second()

    actions = [action for action in _COMPARE_ACTIONS if action != (_ANOTHER if is_pair else _NO_PAIR)]
    st.menu_button(
        "Compare", actions, format_func=_COMPARE_ACTIONS.__getitem__, icon=":material/compare:", key=_COMPARE_MENU,
        help=_COMPARE_HELP, on_click=on_select,
    )  # fmt: skip
    if note := st.session_state.pop(_EXTREMES_NOTE, ""):
        st.toast(note, icon=":material/compare:")


def _choose_second(run: RunRow) -> Replay | None:
    """Draw the choice of the second episode and read it."""
    bar = st.container(horizontal=True, vertical_alignment="center")
    return choose_episode(_choose_second_run(run, bar), bar, SECOND_EPISODE)


def _choose_second_run(run: RunRow, bar: DeltaGenerator) -> RunRow:
    """Draw the choice of the second episode's run. The URL names it if it is not the page's run."""
    names, _ = data.cached(run_names, ttl=2)(RunFilter(), limit=MAX_LISTED_RUNS)
    replayable_runs = data.cached(list_replayable_runs, ttl=60)()
    names = dict(sorted(names.items(), key=lambda item: item[0] not in replayable_runs))  # runs with episodes first
    id_in_url = _SECOND_RUN.read()  # the beginning of an id is enough
    try:
        second_run = find_run(data.database(), id_in_url or run.id)
    except EmtcError as exc:
        messages.error(exc)
        second_run = run
    names = names | {row.id: row.name for row in (run, second_run) if row.id not in names}
    if id_in_url and id_in_url != second_run.id:
        _SECOND_RUN.write(second_run.id)
    bar.selectbox(
        "Run of the second episode",
        **_SECOND_RUN.bind(
            list(names), lambda run_id: f"{names.get(run_id, '')} · {run_id}", default=run.id, on_change=_clear_episode
        ),
        width=240,
        label_visibility="collapsed",
    )
    return second_run


def _clear_episode() -> None:
    """Remove the second episode from the URL, but not its run. The default of the list is then selected."""
    SECOND_EPISODE.episode.write(None)
    SECOND_EPISODE.play.write(None)  # the evaluation episode, if one was selected


def _clear_second() -> None:
    """Remove the second episode and its run from the URL."""
    _IS_PAIR.write(None)
    _clear_episode()
    _SECOND_RUN.write(None)


def _find_extremes(run: RunRow) -> Extremes | None:
    """Find the best and the worst episode. If there are none, store a note for the next rerun of the page."""
    try:
        extremes = data.cached(find_extremes, ttl=10)(run.id)
    except EmtcError as exc:
        st.session_state[_EXTREMES_NOTE] = str(exc)
        return None
    if extremes is None:
        st.session_state[_EXTREMES_NOTE] = _NO_EXTREMES
    return extremes


def _compare_with_best(run: RunRow) -> None:
    """Select the training episode with the highest return as the second episode."""
    extremes = _find_extremes(run)
    if extremes is None:
        return
    _clear_second()
    SECOND_EPISODE.source.write(TRAINING)
    SECOND_EPISODE.search.write(None)
    SECOND_EPISODE.episode.write(extremes.highest)  # of all, not `best`, which can be of a pair from one node


def _compare_extremes(run: RunRow) -> None:
    """Select the best and the worst episode of `find_extremes` as first and second."""
    extremes = _find_extremes(run)
    if extremes is None:
        return
    _clear_second()
    FIRST_EPISODE.play.write(None)
    START.write(None)
    for parameters in (FIRST_EPISODE, SECOND_EPISODE):
        parameters.source.write(TRAINING)
        parameters.search.write(None)
    FIRST_EPISODE.episode.write(extremes.best)
    SECOND_EPISODE.episode.write(extremes.worst)
    st.session_state[_EXTREMES_NOTE] = _describe_extremes(extremes)


def _describe_extremes(extremes: Extremes) -> str:
    best = f"{format_count(extremes.best)} (return {format_number(extremes.best_return)})"
    worst = f"{format_count(extremes.worst)} (return {format_number(extremes.worst_return)})"
    if extremes.node is not None:
        text = f"episodes {best} and {worst} differ most in return among those that began in one node of the memory."
    else:
        text = f"episode {best} has the highest return, episode {worst} the lowest."
    if extremes.n_replayable < extremes.n_recorded:
        n = f"{format_count(extremes.n_replayable)} of {format_count(extremes.n_recorded)}"
        return f"Of the {n} episodes that can be replayed, {text}"
    return f"{text[0].upper()}{text[1:]}"


def _show_single(run: RunRow, replay: Replay, tools: DeltaGenerator, *, has_map: bool) -> None:
    start = START.read() or 0
    with tools:
        _show_save([replay], start=start)
        pin.show_with_export(
            replay.side.chart, key="replay", stem=replay.file_stem, page="replay", run=run, facts=replay.pinned_values
        )
    st.markdown(f"**{escape_markdown(replay.title)}**, {replay.trajectory.length} steps")
    with st.container(key="replay_grid", horizontal=True, gap="medium"):
        with st.container(gap="xsmall"):
            canvas.show_episodes([replay.side], key="replay-player", start=start)
        if has_map:
            with st.container(gap="xsmall"):
                _show_map(run, replay)
    if replay.is_training:
        st.caption(escape_markdown(replay.side.chart.caption or "Gate off: this run has no β."))
        if allows(run.live_status, "evaluate"):
            st.fragment(_show_repeat_button, run_every=1.0)(run.id, replay.trajectory.episode)
    else:
        st.caption(
            "Evaluation episodes are greedy and are not written to the memory, so they have no values of the gate. "
            "Choose *Training* to see Δ\\_mem and β."
        )


def _show_repeat_button(run_id: str, episode: int) -> None:
    """Draw the button to repeat the episode, and the results of earlier requests.

    The trainer of a running run repeats the episode with its current policy.
    """
    run = find_run(data.database(), run_id)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        controls.show_repeat_button(run, episode)
        controls.show_requests(run)


def _show_pair(run: RunRow, first: Replay, second: Replay, tools: DeltaGenerator, *, has_map: bool) -> None:
    start = START.read() or 0
    replays = add_run_names([first, second])
    chart = join_values([replay.side for replay in replays])
    canvas.show_episodes([replay.side for replay in replays], key="replay-player", start=start)
    st.caption(escape_markdown(chart.caption))
    if has_map:
        _show_map(run, first, second)
    with tools:
        _show_save(replays, start=start)
        runs = list({replay.run.id: replay.run for replay in replays}.values())
        pinned_values = {"pair": [{"run": replay.run.id, **replay.pinned_values} for replay in (first, second)]}
        stem = f"{first.file_stem}-{second.file_stem}"
        pin.show_with_export(chart, key="replay-both", stem=stem, page="replay", run=runs, facts=pinned_values)


def _show_map(run: RunRow, replay: Replay, second: Replay | None = None) -> None:
    """Draw the map with the path of the episode, and of the second one if it is a training episode of the same run."""
    with messages.guarded():
        with st.container(horizontal=True, vertical_alignment="top", gap="small"):
            choice = snapshot_map.choose_map(run, snapshot_map.FIRST_MAP)
        if choice is None:
            return
        memory_map = snapshot_map.make_map(choice)
        snapshot_map.draw_map(memory_map)
        second_trajectory = None
        if second is not None and second.is_training and second.run.id == run.id:
            second_trajectory = second.trajectory
        paths = episode_paths.make_paths(memory_map, replay.trajectory, second_trajectory)
        atlas.show_marks(
            channel=snapshot_map.FIRST_MAP.channel,
            selected_slot=None,
            paths=paths,
            steps_per_mark=episode_paths.STEPS_PER_MARK,
            path_moves_player=True,
        )
        has_points = any(point for path in paths for point in path["points"])
        if not has_points:
            # `whole` is set only if the snapshot is a sample of the memory
            source = "this snapshot" if memory_map.snapshot.whole is None else "this sample of the memory"
            st.caption(f"No state of this episode is in {source}. Choose another snapshot.")


@st.fragment
def _show_save(replays: Sequence[Replay], *, start: int) -> None:
    """Offer the replay as files. A file is made when its button is clicked.

    When the menu opens, the browser sends the number of the frame in the player. It is the default of the frame that
    is saved as SVG.
    """
    last_frame = max(0, max(replay.side.frames for replay in replays) - 1)
    stem = "-".join(replay.file_stem for replay in replays)
    with st.popover("Save replay", icon=":material/movie:", key="save-replay"):
        # Read the frame that the browser sent, or `start` before that. The browser gets it, and sends only another one.
        key = f"save-replay-frame-{stem}"
        reported_frame = getattr(st.session_state.get(key), "t", None)
        frame = start if reported_frame is None else int(reported_frame)
        _report_frame(key=key, data={"t": frame}, on_t_change=lambda: None)  # declares `t` as a value of the component
        _show_download(
            replays, "Replay as HTML", "html", stem, help="One file that plays in any browser without a network."
        )
        mode: Mode = "dark" if st.toggle("Dark background", key="save-replay-dark") else "light"
        gif_help = f"At most {MAX_FRAMES} frames. Drawing takes some seconds."
        _show_download(replays, "GIF", "gif", stem, mode=mode, help=gif_help)
        has_video = find_spec("imageio_ffmpeg") is not None
        _show_download(
            replays, "MP4", "mp4", stem, mode=mode, help="H.264, the same frames as the GIF", disabled=not has_video
        )
        if not has_video:
            st.caption(f"MP4 needs a package that is not installed. Install it with: `{get_install_command('video')}`")
        default = min(max(0, frame), last_frame)
        t = config_form.integer_field(
            "Step of the frame", key=f"save-replay-t-{stem}-{default}", default=default, low=0, high=last_frame
        )
        if t is not None:
            _show_download(replays, "SVG of this frame", "svg", stem, t=t, mode=mode)


def _show_download(
    replays: Sequence[Replay],
    label: str,
    format: Format,
    stem: str,
    *,
    t: int = 0,
    mode: Mode = "light",
    help: str | None = None,
    disabled: bool = False,
) -> None:
    files.button(
        label,
        partial(make_file, replays, format, t=t, mode=mode),
        file_name=f"replay-{stem}{f'-t{t}' if format == 'svg' else ''}.{format}",
        mime=MIME[format],
        key=f"save-replay-{format}",
        width="stretch",
        help=help,
        disabled=disabled,
    )
