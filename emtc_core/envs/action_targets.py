"""Whom an action is meant for, by the names that environments give their actions: "attack 2" is opponent 2."""

import re

import numpy as np
from numpy.typing import NDArray

from emtc_core.envs.base import Scene

HEALERS = frozenset({"medivac"})
"""Kinds of units whose target slots name agents, as SMAC's medivacs' do."""
_ATTACK = re.compile(r"attack (\d+)", re.ASCII)


def find_targets(scene: Scene, actions: NDArray[np.integer], action_names: tuple[str, ...]) -> NDArray[np.int16] | None:
    """Find the unit that each agent aims at after frame t, from its action there.

    Args:
        scene: T frames of U units, the N agents first.
        actions: [T - 1, N], one row per transition.
        action_names: In action order.

    Returns:
        [T, U], -1 where a unit aims at nothing or at nobody in the scene; None where no action names a target.
    """
    slots = np.array([_slot(name) for name in action_names], np.int64)
    frames, units = scene.health.shape
    n_agents = int((scene.team == 0).sum())
    if not (slots >= 0).any() or actions.shape != (frames - 1, n_agents):
        return None
    legal = (actions >= 0) & (actions < len(slots))
    slot_TN = np.where(legal, slots[np.where(legal, actions, 0)], -1)
    heals_N = np.array([kind in HEALERS for kind in scene.kind[:n_agents]], bool)
    first_N, count_N = np.where(heals_N, 0, n_agents), np.where(heals_N, n_agents, units - n_agents)
    target = np.full((frames, units), -1, np.int16)
    target[:-1, :n_agents] = np.where((slot_TN >= 0) & (slot_TN < count_N), slot_TN + first_N, -1)
    return target


def _slot(name: str) -> int:
    found = _ATTACK.fullmatch(name)
    return int(found[1]) if found else -1
