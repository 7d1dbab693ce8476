"""A stored episode → what the player, the files and the command line show of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.analysis.episodes import name_episode
from app.figures.named.trajectories import draw_episode
from app.replay.side import Side, make_side
from storage.queries.episodes import Trajectory
from storage.runs.rows import RunRow


@dataclass(frozen=True)
class Replay:
    """One episode of one run, ready to be drawn."""

    run: RunRow
    trajectory: Trajectory
    side: Side
    is_training: bool
    """Whether it was played while training; the gate judged such episodes alone."""

    @property
    def title(self) -> str:
        """Which episode it is and how it ended."""
        return self.side.title

    @property
    def stem(self) -> str:
        """The stem of its files' names."""
        return f"{self.run.id}-{self.trajectory.env_step}-{self.trajectory.episode}"

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the notebook needs to draw its values again."""
        here = {"episode": self.trajectory.episode}
        return here if self.is_training else here | {"env_step": self.trajectory.env_step}


def make_replay(run: RunRow, trajectory: Trajectory, *, training: bool) -> Replay:
    """Get an episode ready to be drawn."""
    title = name_episode(run.config, trajectory, training=training)
    chart = draw_episode(trajectory, title=title)
    side = make_side(run.env, run.map, states=trajectory.state, actions=trajectory.action, chart=chart, title=title)
    return Replay(run, trajectory, side, training)


def tell_apart(replays: Sequence[Replay]) -> list[Replay]:
    """Put the run's name before each title where the episodes are of several runs."""
    if len({replay.run.id for replay in replays}) < 2:
        return list(replays)
    return [
        replace(replay, side=replace(replay.side, title=f"{replay.run.name} ({replay.run.id}): {replay.title}"))
        for replay in replays
    ]
