"""Δ_mem, β, H and reward along one episode; or along two episodes with the health of the teams.

H is the return that the episodic memory recalls for a state, Δ_mem the consistency error of two successive H, and the
gate β the weight of the episodic incentive.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from app.analysis.episodes import draw_scene, name_episode
from app.figures.figure import FigureKind, get_single_run
from app.figures.kinds.chart import Chart, Line, Panel
from app.figures.options import Option, Options
from app.figures.theme import AGENT_COLOR, BETA_COLOR, DELTA_MEM_COLOR, H_VALUE_COLOR, OPPONENT_COLOR, RETURN_COLOR
from emtc_core.envs.scene import Scene
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.queries.episodes import Trajectory, get_playback, get_trajectory
from storage.runs.rows import RunRow, find_run

X_LABEL = "t, step of the episode"
Series = NDArray[np.floating] | None
"""One value for each transition, shape [T]; None: the quantity is not stored."""
EPISODE_NAMES = ("A", "B")
"""Names of the two episodes in a comparison."""
DASH_OF_B = (6, 4)
"""Dash of the lines of episode B. Both episodes have the color of the quantity."""
_NOTHING_STORED = "Δ_mem, β and H are not stored for this episode."
_FRACTION_RANGE = (-0.03, 1.03)
_DELTA_MEM_NOTE = (
    "Δ_mem = |r + γ·H(s′) − H(s)| when the episode was written, and the gate β for its incentive. "
    "A gap means that the memory had no node within δ."
)


class TrajectoryOptions(Options):
    """Options of the figure `trajectory`: the episode and the title of its chart."""

    episode: Annotated[int | None, Option(rule="the number of an episode")] = None
    env_step: Annotated[int | None, Option(rule="the env step of the evaluation with this episode")] = None
    title: str = ""


class PairedEpisode(BaseModel):
    """One of the two episodes of the figure `trajectories`."""

    run: str = ""
    """Id of the run. Default: the first run of the figure."""
    episode: int
    env_step: int | None = None
    """Env step of the evaluation with this episode. Default: it is an episode of the training."""


class PairOptions(Options):
    """Options of the figure `trajectories`."""

    pair: Annotated[
        tuple[PairedEpisode, ...],
        Field(min_length=1, max_length=2),
        Option(rule='a list of two, each {"episode": 3} or {"episode": 0, "env_step": 800}'),
    ] = ()


class Episode(NamedTuple):
    """A stored episode, with the title of its chart: the data of the figure `trajectory`."""

    trajectory: Trajectory
    title: str


class EpisodePair(NamedTuple):
    """The charts and scenes of one or two episodes: the data of the figure `trajectories`."""

    charts: Sequence[Chart]
    scenes: Sequence[Scene | None]


def draw_trajectory(
    *, title: str, reward: Series, h: Series = None, delta_mem: Series = None, beta: Series = None
) -> Chart:
    """Draw the values of each transition of an episode, shape [T]. A quantity without any value has no panel."""
    quantities = (
        (delta_mem, DELTA_MEM_COLOR, Panel("Δ_mem", "return", (), from_zero=True)),
        (beta, BETA_COLOR, Panel("β", "fraction", (), range=_FRACTION_RANGE)),
        (h, H_VALUE_COLOR, Panel("H", "return", ())),
        (reward, RETURN_COLOR, Panel("reward", "return", ())),
    )
    panels: list[Panel] = []
    n_steps = 0
    for values, color, panel in quantities:
        if values is None:
            continue
        y = np.asarray(values, dtype=np.float64)
        n_steps = len(y)
        if np.isfinite(y).any():
            line = Line(panel.title, color, np.arange(n_steps, dtype=np.float64), y)
            panels.append(replace(panel, lines=(line,)))
    titles = [panel.title for panel in panels]
    if "β" in titles:
        caption = _DELTA_MEM_NOTE
    elif any(name != "reward" for name in titles):
        caption = ""
    else:
        caption = _NOTHING_STORED
    description = f"{title}. Panels: {', '.join(titles)}, over {n_steps} steps."
    return Chart("trajectory", title, X_LABEL, tuple(panels), caption, description)


def draw_episode(trajectory: Trajectory, *, title: str) -> Chart:
    """Draw the values of each transition of a stored episode."""
    return draw_trajectory(
        title=title, reward=trajectory.reward, h=trajectory.h, delta_mem=trajectory.delta_mem, beta=trajectory.beta
    )


def join_values(charts: Sequence[Chart], scenes: Sequence[Scene | None]) -> Chart:
    """Draw the values of one or two episodes over one time axis, and the teams' health if a unit has lost health.

    Args:
        charts: The chart of each episode from `draw_trajectory`.
        scenes: The frames of each episode, or None to draw no health.
    """
    has_damage = any(scene is not None and (scene.health < 1).any() for scene in scenes)
    if has_damage:
        charts = [_add_health(chart, scene) for chart, scene in zip(charts, scenes, strict=True)]
    if len(charts) == 1:
        return charts[0]
    titles = list(dict.fromkeys(panel.title for chart in charts for panel in chart.panels))
    panels = tuple(_join_panels(charts, title) for title in titles)
    title = "; ".join(f"{name}: {chart.title}" for name, chart in zip(EPISODE_NAMES, charts, strict=True))
    note = next((chart.caption for chart in charts if chart.caption), "")
    caption = f"{EPISODE_NAMES[0]} is solid, {EPISODE_NAMES[1]} dashed. {note}".rstrip()
    description = f"{title}. Panels: {', '.join(titles)}."
    return Chart("trajectories", title, charts[0].x_label, panels, caption, description)


def _join_panels(charts: Sequence[Chart], title: str) -> Panel:
    """Draw the panels with the same title, at most one of each chart, in one panel."""
    panels: list[Panel] = []
    lines: list[Line] = []
    for chart, name, dash in zip(charts, EPISODE_NAMES, (None, DASH_OF_B), strict=True):
        for panel in chart.panels:
            if panel.title != title:
                continue
            panels.append(panel)
            for line in panel.lines:
                line_name = name if len(panel.lines) == 1 else f"{line.name} {name}"
                lines.append(replace(line, name=line_name, dash=dash, group=name))
    return replace(panels[0], lines=tuple(lines))


def _add_health(chart: Chart, scene: Scene | None) -> Chart:
    """Add a panel with the mean health of each team, as a fraction of the full health."""
    if scene is None or not scene.health.size:
        return chart
    t = np.arange(len(scene.health) - 1, dtype=np.float64)  # without the state after the last action
    lines = []
    for team, (name, color) in enumerate((("agents", AGENT_COLOR), ("opponents", OPPONENT_COLOR))):
        is_member = scene.team == team
        if is_member.any():
            mean_health = scene.health[:-1, is_member].mean(axis=1, dtype=np.float64)
            lines.append(Line(name, color, t, mean_health))
    panel = Panel("health", "fraction", tuple(lines), range=_FRACTION_RANGE)
    return replace(chart, panels=(*chart.panels, panel))


def _read_episode(db: Database, run: RunRow, episode: int, env_step: int | None) -> tuple[Trajectory, str]:
    """Read a training episode, or a greedy episode of the evaluation at `env_step`. Also return its title."""
    if env_step is None:
        trajectory = get_trajectory(db, run.id, episode)
    else:
        trajectory = get_playback(db, run.id, env_step, episode)
    return trajectory, name_episode(run.config, trajectory, training=env_step is None)


def _read_trajectory(db: Database, rows: Sequence[RunRow], options: TrajectoryOptions) -> Episode:
    run = get_single_run("trajectory", rows)
    if options.episode is None:
        raise ConfigError(
            "trajectory needs the option `episode`", hint="For an episode of an evaluation, it also needs `env_step`."
        )
    trajectory, title = _read_episode(db, run, options.episode, options.env_step)
    return Episode(trajectory, title)


def _draw_trajectory(episode: Episode, options: TrajectoryOptions) -> Chart:
    return draw_episode(episode.trajectory, title=options.title or episode.title)


def _read_pair(db: Database, rows: Sequence[RunRow], options: PairOptions) -> EpisodePair:
    if not options.pair:
        raise ConfigError("trajectories needs the option `pair` with two episodes")
    charts = []
    scenes = []
    for paired in options.pair:
        run = find_run(db, paired.run or rows[0].id)
        trajectory, title = _read_episode(db, run, paired.episode, paired.env_step)
        charts.append(draw_episode(trajectory, title=title))
        scenes.append(draw_scene(run.env, run.map, trajectory.state, trajectory.action))
    return EpisodePair(charts, scenes)


def _draw_pair(pair: EpisodePair, options: PairOptions) -> Chart:
    return join_values(pair.charts, pair.scenes)


FIGURES = (
    FigureKind(
        "trajectory", _draw_trajectory, _read_trajectory, TrajectoryOptions, needs_runs=True,
        question="How do Δ_mem and β change along one episode?",
    ),
    FigureKind(
        "trajectories", _draw_pair, _read_pair, PairOptions, needs_runs=True, question="Where do two episodes diverge?"
    ),
)  # fmt: skip
