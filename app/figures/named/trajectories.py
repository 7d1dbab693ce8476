"""Δ_mem, β and H along one episode, or along two over one time axis with the health of their teams."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.analysis.episodes import draw_scene, name_episode
from app.figures.figure import FigureKind, Options, Own, one_run
from app.figures.kinds.chart import Chart, Line, Panel
from app.figures.theme import AGENTS, BETA, DELTA_MEM, H_VALUE, OPPONENTS, RETURN
from emtc_core.envs.base import Scene
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.queries.episodes import Trajectory, get_playback, get_trajectory
from storage.runs.rows import RunRow, find_run

X_LABEL = "t, step of the episode"
Series = NDArray[np.floating] | None
NAMES = ("A", "B")
"""What the two episodes are called where they stand side by side."""
DASH = (6, 4)
"""How the second one's lines are drawn; both have the colour of their quantity."""


def draw_trajectory(
    *, title: str, reward: Series, h: Series = None, delta_mem: Series = None, beta: Series = None
) -> Chart:
    """Draw what is known about each transition of an episode [T]; absent quantities have no panel."""
    panels = []
    if delta_mem is not None:
        panels.append(_panel("Δ_mem", "return", DELTA_MEM, delta_mem, from_zero=True))
    if beta is not None:
        panels.append(_panel("β", "fraction", BETA, beta, range=(-0.03, 1.03)))
    if h is not None:
        panels.append(_panel("H", "return", H_VALUE, h))
    if reward is not None:
        panels.append(_panel("reward", "return", RETURN, reward))
    caption = "" if delta_mem is None else _VERDICTS
    described = f"{title}. Panels: {', '.join(panel.title for panel in panels)}, over {_steps(panels)} steps."
    return Chart("trajectory", title, X_LABEL, tuple(panels), caption, described)


_VERDICTS = (
    "Δ_mem = |r + γ·H(s′) − H(s)| when the episode was written, and the gate β that weighed its incentive. "
    "A gap means that the memory held no node within δ."
)


def _panel(
    title: str,
    unit: str,
    color: str,
    values: NDArray[np.floating],
    *,
    range: tuple[float, float] | None = None,
    from_zero: bool = False,
) -> Panel:
    y = np.asarray(values, dtype=np.float64)
    line = Line(title, color, np.arange(len(y), dtype=np.float64), y)
    return Panel(title, unit, (line,), range=range, from_zero=from_zero)


def _steps(panels: list[Panel]) -> int:
    return len(panels[0].lines[0].x) if panels else 0


def join_values(charts: Sequence[Chart], scenes: Sequence[Scene | None]) -> Chart:
    """Draw the values of one or two episodes over one time axis, with the health of the teams where it changes.

    Args:
        charts: What `draw_trajectory` made of each.
        scenes: Their frames; None where their health is not asked for.
    """
    hurt = any(scene is not None and (scene.health < 1).any() for scene in scenes)
    if hurt:
        charts = [_with_health(chart, scene) for chart, scene in zip(charts, scenes, strict=True)]
    if len(charts) == 1:
        return charts[0]
    titles = list(dict.fromkeys(panel.title for chart in charts for panel in chart.panels))
    panels = tuple(_join([_find(chart, title) for chart in charts]) for title in titles)
    first = charts[0]
    title = " beside ".join(chart.title for chart in charts)
    explained = next((chart.caption for chart in charts if chart.caption), "")
    caption = f"{NAMES[0]} is solid, {NAMES[1]} dashed. {explained}".rstrip()
    described = f"{title}. Panels: {', '.join(titles)}."
    return Chart("trajectories", title, first.x_label, panels, caption, described)


def _find(chart: Chart, title: str) -> Panel | None:
    return next((panel for panel in chart.panels if panel.title == title), None)


def _join(panels: list[Panel | None]) -> Panel:
    """Draw the same quantity of several episodes in one panel."""
    known = [panel for panel in panels if panel is not None]
    lines = tuple(
        replace(
            line,
            name=NAMES[number] if len(panel.lines) == 1 else f"{line.name} {NAMES[number]}",
            dash=DASH if number else None,
            group=NAMES[number],
        )
        for number, panel in enumerate(panels)
        if panel is not None
        for line in panel.lines
    )
    return replace(known[0], lines=lines)


def _with_health(chart: Chart, scene: Scene | None) -> Chart:
    """Add the share of health that each team has left."""
    if scene is None or not scene.health.size:
        return chart
    t = np.arange(len(scene.health) - 1, dtype=np.float64)
    lines = tuple(
        Line(name, color, t, scene.health[:-1, scene.team == team].mean(axis=1, dtype=np.float64))
        for team, (name, color) in enumerate((("agents", AGENTS), ("opponents", OPPONENTS)))
        if (scene.team == team).any()
    )
    panel = Panel("health", "fraction", lines, range=(-0.03, 1.03))
    return replace(chart, panels=(*chart.panels, panel))


def draw_episode(trajectory: Trajectory, *, title: str) -> Chart:
    """Draw what is known about each transition of a stored episode."""
    known = {name: getattr(trajectory, name) for name in ("h", "delta_mem", "beta")}
    return draw_trajectory(title=title, reward=trajectory.reward, **known)


def _read(db: Database, run: RunRow, episode: int, env_step: int | None) -> tuple[Trajectory, str]:
    """Read a training episode, or a greedy one of the evaluation at a step, and say which it is."""
    training = env_step is None
    found = get_trajectory(db, run.id, episode) if training else get_playback(db, run.id, env_step, episode)
    return found, name_episode(run.config, found, training=training)


def _trajectory(db: Database, rows: Sequence[RunRow], options: Options) -> Chart:
    run = one_run("trajectory", rows)
    if "episode" not in options.own:
        raise ConfigError("trajectory draws one episode: name it by `episode`, with `env_step` one of an evaluation")
    found, title = _read(db, run, options.get("episode"), options.get("env_step"))
    return draw_episode(found, title=options.get("title", title))


def _trajectories(db: Database, rows: Sequence[RunRow], options: Options) -> Chart:
    pair = options.get("pair")
    if not pair:
        raise ConfigError("trajectories draws two episodes: name them by `pair`")
    charts, scenes = [], []
    for run_id, episode, env_step in pair:
        run = find_run(db, run_id or rows[0].id)
        found, title = _read(db, run, episode, env_step)
        charts.append(draw_episode(found, title=title))
        scenes.append(draw_scene(run.env, run.map, found.state, found.action))
    return join_values(charts, scenes)


def _read_episodes(value: Any) -> list[tuple[str, int, int | None]]:
    pair = [
        (str(side.get("run", "")), int(side["episode"]), int(side["env_step"]) if "env_step" in side else None)
        for side in value
    ]
    if not 1 <= len(pair) <= 2:
        raise ValueError("two episodes stand beside each other")
    return pair


FIGURES = (
    FigureKind(
        "trajectory", _trajectory, needs_runs=True, question="What did the gate judge along one episode?",
        own=(
            Own("episode", int, "the number of an episode"),
            Own("env_step", int, "the step of the evaluation that played it"),
            Own("title", str, "a text"),
        ),
    ),
    FigureKind(
        "trajectories", _trajectories, needs_runs=True, question="Where do two episodes part?",
        own=(Own("pair", _read_episodes, 'a list of two, each {"episode": 3} or {"episode": 0, "env_step": 800}'),),
    ),
)  # fmt: skip
