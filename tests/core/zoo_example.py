"""A small PettingZoo environment as a user would bring it: agents leave early, masks stand in infos."""

import functools

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv
from pettingzoo.utils import parallel_to_aec


class Corridor(ParallelEnv):
    """Two walkers of different reach walk right; one leaves at cell 3, the game is won at cell 5."""

    metadata = {"name": "corridor_v0", "render_modes": []}  # noqa: RUF012 (PettingZoo's form)

    def __init__(self, *, with_state: bool = False, length: int = 30):
        self.possible_agents = ["short", "long"]
        self.agents = []
        self._length = length
        self._cells = {"short": 0, "long": 0}
        self._t = 0
        if with_state:
            self.state_space = spaces.Box(-1, 100, (3,), np.float32)

    @functools.cache  # noqa: B019 (PettingZoo asks for the same object at every call)
    def observation_space(self, agent):
        return spaces.Box(0, 100, (1,) if agent == "short" else (2,), np.float32)

    @functools.cache  # noqa: B019
    def action_space(self, agent):
        return spaces.Discrete(2 if agent == "short" else 3)

    def reset(self, seed=None, options=None):
        start = 0 if seed is None else seed % 2
        self.agents = list(self.possible_agents)
        self._cells, self._t = {"short": start, "long": 0}, 0
        return self._observe(), self._infos()

    def step(self, actions):
        self._t += 1
        agents = self.agents
        for agent, action in actions.items():
            self._cells[agent] += int(action)
        won = self._cells["long"] >= 5
        gone = {a: won or (a == "short" and self._cells[a] >= 3) for a in agents}
        cut = {a: self._t >= self._length and not gone[a] for a in agents}
        rewards = {a: float(self._cells[a] >= 5) + 0.5 * (a == "short") for a in agents}
        self.agents = [a for a in agents if not gone[a] and not cut[a]]
        return self._observe(agents), rewards, gone, cut, self._infos(agents, won=won)

    def state(self):
        return np.array([self._cells["short"], self._cells["long"], self._t], np.float32)

    def _observe(self, agents=None):
        sizes = {"short": 1, "long": 2}
        return {a: np.full(sizes[a], self._cells[a], np.float32) for a in agents or self.agents}

    def _infos(self, agents=None, won=False):
        masks = {"short": [1, 1], "long": [1, 1, self._t % 2]}
        return {a: {"action_mask": np.array(masks[a]), "won": won} for a in agents or self.agents}


def make() -> Corridor:
    return Corridor()


def make_with_state() -> Corridor:
    return Corridor(with_state=True)


def make_turns():
    game = Corridor()
    game.render_mode = None
    return parallel_to_aec(game)


def make_continuous() -> Corridor:
    env = Corridor()
    env.action_space = lambda agent: spaces.Box(0, 1, (2,))  # type: ignore[method-assign]
    return env


class Speechless(Corridor):
    """The same walk, as most environments tell it: its infos never say whether it was won."""

    def _infos(self, agents=None, won=False):
        return {agent: {} for agent in agents or self.agents}


class Pictures(Speechless):
    """Agents that observe an image each."""

    @functools.cache  # noqa: B019
    def observation_space(self, agent):
        return spaces.Box(0, 255, (84, 84, 3), np.uint8)

    def _observe(self, agents=None):
        return {agent: np.zeros((84, 84, 3), np.uint8) for agent in agents or self.agents}


def make_speechless() -> Corridor:
    return Speechless()


def make_pictures() -> Corridor:
    return Pictures()


not_callable = 3
