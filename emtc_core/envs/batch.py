"""What adapters that gather several single games into one batch have in common.

What lives here: the batch's arrays before, after and between steps. What does not: any game.
"""

import numpy as np
from numpy.typing import NDArray

from emtc_core.envs.base import EnvInfo, Observation


def blank_observation(info: EnvInfo, copies: int) -> Observation:
    """Make zeroed arrays for `copies` games; nothing is available, nothing is over."""
    return Observation(
        obs=np.zeros((copies, info.n_agents, info.obs_dim), np.float32),
        state=np.zeros((copies, info.state_dim), np.float32),
        avail=np.zeros((copies, info.n_agents, info.n_actions), bool),
        reward=np.zeros(copies, np.float32),
        terminated=np.zeros(copies, bool),
        truncated=np.zeros(copies, bool),
        won=np.zeros(copies, bool),
    )


def copy_observation(seen: Observation) -> Observation:
    """Copy every array, so that what was handed out never changes."""
    return Observation(**{name: array.copy() for name, array in vars(seen).items()})


def refuse_unavailable(actions: NDArray[np.integer], avail: NDArray[np.bool_], over: NDArray[np.bool_]) -> None:
    """Refuse actions [B, N] that `avail` [B, N, A] forbids in a copy that is not over.

    Raises:
        ValueError: Naming the first such action, its agent and its copy.
    """
    n_actions = avail.shape[-1]
    inside = (actions >= 0) & (actions < n_actions)
    chosen = np.where(inside, actions, 0)[..., None].astype(np.intp)
    illegal = ~(inside & np.take_along_axis(avail, chosen, axis=-1)[..., 0]) & ~over[:, None]
    if illegal.any():
        copy, agent = np.argwhere(illegal)[0]
        allowed = np.flatnonzero(avail[copy, agent]).tolist()
        raise ValueError(f"action of agent {agent} in copy {copy} must be one of {allowed}, got {actions[copy, agent]}")
