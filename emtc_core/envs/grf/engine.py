"""One football engine, used without gfootball's Python environment.

This module starts, resets and steps the compiled engine, and copies its numbers to a state row. Observations, rewards
and time limits are in `env.py`, worker processes in `engine_group.py`. gfootball's own environment converts and
deep-copies about forty fields per player and step, and records a trace for its dumps. Here a step costs only the
engine's time and about forty attribute reads.
"""

import os
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from emtc_core.envs.grf.scenarios import ACTION_NAMES, Lineup

RUNNING: Final = 0
ENDED: Final = 1
"""After a goal, the ball out of play, or a change of possession."""

_DURATION = 400
"""Length of a match [steps]. It is longer than any episode."""
_PHYSICS_STEPS_PER_FRAME = 10
_HEADLESS = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}
_idle_engines: list[Any] = []
"""Engines for reuse, as in gfootball, because destroying an engine does not free its memory."""


@dataclass(frozen=True)
class Squad:
    """The settings of a scenario that an engine needs."""

    lineup: Lineup
    n_agents: int
    n_opponents: int


def load_engine() -> ModuleType:
    """Import the compiled engine with video and audio output disabled.

    Raises:
        ImportError: If gfootball is not installed or its library cannot be loaded.
    """
    for name, value in _HEADLESS.items():
        os.environ.setdefault(name, value)
    import gfootball_engine  # pyright: ignore[reportMissingImports]  (an extra)

    return gfootball_engine


class Engine:
    """One match at a time. Numbers are read directly from the engine's structures into a state row."""

    def __init__(self, squad: Squad) -> None:
        self._lib: Any = load_engine()  # Any: a Boost.Python module has no types
        self._squad = squad
        self._normal_mode = int(self._lib.e_GameMode.e_GameMode_Normal)
        self._actions = [getattr(self._lib.e_BackendAction, name.replace(" ", "_")) for name in ACTION_NAMES]
        self._game: Any = _idle_engines.pop() if _idle_engines else self._start()
        self._mode = -1
        self._owner = -1

    def reset(self, seed: int, state: NDArray[np.float64]) -> None:
        """Start a match and write its state.

        Source: `scenarios.py`, which defines the layout of the state.

        Args:
            seed: Seed of the engine's random numbers.
            state: [S], output row in the engine's units [state features].
        """
        self._game.state = self._lib.GameState.game_running
        self._game.reset(self._make_config(seed), False)
        info = self._game.get_info()
        while not info.is_in_play:
            self._game.step()
            info = self._game.get_info()
        self._mode = -1
        self._owner = -1
        self._write_state(info, state)

    def step(self, actions: list[int], state: NDArray[np.float64]) -> tuple[int, int]:
        """Advance by one step of 0.1 s and write the new state.

        Source: `scenarios.py`, which defines the layout of the state.

        Args:
            actions: One action index per agent.
            state: [S], output row in the engine's units [state features].

        Returns:
            Goals for minus goals against (+1, 0 or -1), and RUNNING or ENDED.
        """
        game = self._game
        for player, action in enumerate(actions):
            game.perform_action(self._actions[action], True, player)
        game.step()
        info = game.get_info()
        while not info.is_in_play:
            game.step()
            info = game.get_info()
        self._write_state(info, state)
        return info.left_goals - info.right_goals, self._check_end(info)

    def close(self) -> None:
        """Add the engine to the idle engines, so that this process can reuse it."""
        if self._game is not None:
            _idle_engines.append(self._game)
            self._game = None

    def _start(self) -> Any:
        game = self._lib.GameEnv()
        game.game_config.physics_steps_per_frame = _PHYSICS_STEPS_PER_FRAME
        game.start_game()
        return game

    def _make_config(self, seed: int) -> Any:
        """Make a new configuration for each match, because the engine scales the positions in it."""
        lib, lineup = self._lib, self._squad.lineup
        config = lib.ScenarioConfig.make()
        config.game_duration = _DURATION
        config.deterministic = False
        config.offsides = False
        config.real_time = False
        config.end_episode_on_score = True
        config.end_episode_on_out_of_play = True
        config.end_episode_on_possession_change = True
        config.left_agents = self._squad.n_agents
        config.right_agents = 0
        config.game_engine_random_seed = seed
        config.reverse_team_processing = bool(seed % 2)  # as gfootball does, so that equal seeds give equal matches
        config.ball_position[0], config.ball_position[1] = lineup.ball
        for team, players in ((config.left_team, lineup.left), (config.right_team, lineup.right)):
            for player in players:
                role = getattr(lib.e_PlayerRole, f"e_PlayerRole_{player.role}")
                # lazy: no; controllable: yes, the keeper too, as in gfootball and in every published result
                team.append(lib.FormationEntry(player.x, player.y, role, False, True))
        return config

    def _check_end(self, info: Any) -> int:
        """Apply the three end rules of the academy scenarios, in gfootball's order."""
        ended = info.left_goals > 0 or info.right_goals > 0
        mode, owner = int(info.game_mode), info.ball_owned_team
        ended |= mode != self._normal_mode and self._mode == self._normal_mode
        self._mode = mode
        if owner != -1:
            ended |= self._owner not in (-1, owner)
            self._owner = owner
        return ENDED if ended else RUNNING

    def _write_state(self, info: Any, state: NDArray[np.float64]) -> None:
        n, m = self._squad.n_agents, self._squad.n_opponents
        left, right = info.left_team, info.right_team
        first = len(left) - n  # the agents are the last n players of the left team
        agents = [left[first + i] for i in range(n)]
        opponents = [right[j] for j in range(m)]
        values: list[float] = []
        for group in (agents, opponents):
            directions: list[float] = []
            for player in group:
                position, direction = player.position, player.direction
                values += (position[0], position[1])
                directions += (direction[0], direction[1])
            values += directions
        ball, motion = info.ball_position, info.ball_direction
        values += (ball[0], ball[1], ball[2], motion[0], motion[1], motion[2])
        state[:] = values
