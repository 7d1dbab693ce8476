"""A slow twin of the football environment: gfootball's own wrapped environment, observed the long way.

Written from the published description of the wrappers, one agent and one feature at a time; it shares no
line with `emtc_core.envs.grf`. The engine and its Python layers are gfootball's.
"""

import sys
import types

import numpy as np

from emtc_core.envs.grf.scenarios import SCENARIOS, Lineup

EPISODE_LIMIT = 150


def install_scenario(name: str, lineup: Lineup) -> None:
    """Let gfootball find a scenario of this name: its builder imports `gfootball.scenarios.<name>`."""
    import gfootball.scenarios as library

    def build_scenario(builder) -> None:
        config = builder.config()
        config.game_duration = 400
        config.deterministic = False
        config.offsides = False
        config.end_episode_on_score = True
        config.end_episode_on_out_of_play = True
        config.end_episode_on_possession_change = True
        builder.SetBallPosition(*lineup.ball)
        for team, players in ((library.Team.e_Left, lineup.left), (library.Team.e_Right, lineup.right)):
            builder.SetTeam(team)
            for player in players:
                builder.AddPlayer(player.x, player.y, getattr(library, f"e_PlayerRole_{player.role}"))

    module = types.ModuleType(f"gfootball.scenarios.{name}")
    module.build_scenario = build_scenario
    sys.modules[module.__name__] = module


class WrappedFootball:
    """One match through `gfootball.env.create_environment`, rewards and ends as the CDS wrapper has them."""

    def __init__(self, scenario: str, *, n_agents: int, n_opponents: int, seed: int):
        import gfootball.env as football

        self.n, self.m, self.t = n_agents, n_opponents, 0
        self.env = football.create_environment(
            env_name=scenario,
            representation="simple115",
            rewards="scoring",
            number_of_left_players_agent_controls=n_agents,
            number_of_right_players_agent_controls=0,
            other_config_options={"game_engine_random_seed": seed},
        )

    def reset(self):
        self.t = 0
        self.env.reset()

    def step(self, actions: list[int]) -> tuple[float, bool, bool]:
        """Return the emu reward, whether the game is over, and whether we scored."""
        self.t += 1
        _, rewards, done, _ = self.env.step(actions)
        raw = self.env.unwrapped.observation()[0]
        done = done or self.t >= EPISODE_LIMIT
        done = done or raw["ball"][0] < 0 or any(x < 0 for x, _ in raw["left_team"][-self.n :])
        scored = sum(rewards) > 0
        return (100.0 if scored else -float(done)), done, scored

    def state(self) -> np.ndarray:
        raw = self.env.unwrapped.observation()[0]
        parts = [*raw["left_team"][-self.n :], *raw["left_team_direction"][-self.n :]]
        parts += [raw["right_team"][j] for j in range(self.m)]
        parts += [raw["right_team_direction"][j] for j in range(self.m)]
        return np.concatenate([*parts, raw["ball"], raw["ball_direction"]])

    def obs(self, agent: int) -> np.ndarray:
        raw = self.env.unwrapped.observation()[0]
        team, motion = raw["left_team"][-self.n :], raw["left_team_direction"][-self.n :]
        ego, mates = team[agent], [i for i in range(self.n) if i != agent]
        parts = [ego, *(team[i] - ego for i in mates), motion[agent], *(motion[i] for i in mates)]
        parts += [raw["right_team"][j] - ego for j in range(self.m)]
        parts += [raw["right_team_direction"][j] for j in range(self.m)]
        return np.concatenate([*parts, raw["ball"][:2] - ego, raw["ball"][2:], raw["ball_direction"]])

    def close(self):
        self.env.close()


def wrapped(map: str, seed: int, *, trimmed: bool = True) -> WrappedFootball:
    """Make the twin of `GrfEnv(map)` whose engine is seeded with `seed`."""
    facts = SCENARIOS[map]
    name = map
    if trimmed and facts.trimmed is not facts.full:
        name = f"{map}_trimmed"
        install_scenario(name, facts.trimmed)
    return WrappedFootball(name, n_agents=facts.n_agents, n_opponents=facts.n_opponents, seed=seed)
