"""One finished episode as arrays. The collector makes it; memory, gate, replay buffer and recorder read it."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Episode:
    """T transitions and T + 1 observations, without padding.

    `reward` is in the learner's unit (after `train.reward_scale`); `episode_return` is in the
    environment's unit and undiscounted.

    Source: the episode of Algorithm 3.
    """

    obs: NDArray[np.float32]  # [T+1, N, O] [observation features]
    state: NDArray[np.float32]  # [T+1, S] [state features]
    avail: NDArray[np.bool_]  # [T+1, N, A] boolean, available actions
    action: NDArray[np.int64]  # [T, N] action indices
    reward: NDArray[np.float32]  # [T] [reward]
    terminated: bool
    truncated: bool
    won: bool
    episode_return: float
    epsilon: float = 0.0
    infos: dict[str, float] = field(default_factory=dict)
    """Values of the environment's infos by name; means over the steps that have a value."""

    @property
    def length(self) -> int:
        """Number of transitions T."""
        return len(self.reward)


def discounted_returns(reward: NDArray[np.float32], gamma: float) -> NDArray[np.float64]:
    """Compute the discounted return from each step to the end of the episode (Algorithm 2, R = r_t + gamma R).

    Args:
        reward: [T] [reward] in the learner's unit.
        gamma: Discount in [0, 1].

    Returns:
        [T + 1] [return] in the unit of the reward; the last one, of the terminal state, is 0.
    """
    returns = np.zeros(len(reward) + 1)
    for t in range(len(reward) - 1, -1, -1):
        returns[t] = float(reward[t]) + gamma * returns[t + 1]
    return returns
