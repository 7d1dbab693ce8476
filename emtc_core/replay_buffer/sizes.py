"""Sizes of the replay buffer. This module does not import torch, so that a page can use it."""

import numpy as np

from emtc_core.envs.base import EnvInfo

PAGE_ROWS = 16
"""The rows of an episode are in pages of this number of rows."""


def list_fields(info: EnvInfo) -> dict[str, tuple[int, str]]:
    """Return the width and the number type of each field of a row."""
    return {
        "obs": (info.n_agents * info.obs_dim, "float32"),
        "state": (info.state_dim, "float32"),
        "avail": (info.n_agents * info.n_actions, "bool"),
        "action": (info.n_agents, "int64"),
        "reward": (1, "float32"),
        "beta": (1, "float32"),
    }


def count_row_bytes(info: EnvInfo) -> int:
    """Return the size of one row [bytes]."""
    return sum(width * np.dtype(kind).itemsize for width, kind in list_fields(info).values())


def count_episode_pages(info: EnvInfo) -> int:
    """Return the number of pages of the longest episode, whose T steps have T + 1 rows."""
    return -(-(info.episode_limit + 1) // PAGE_ROWS)


def count_max_pages(capacity: int, info: EnvInfo, max_steps: int | None) -> int:
    """Compute an upper bound of the number of pages.

    Args:
        capacity: Maximum number of episodes; each fills T + 1 rows.
        info: Gives the maximum length of an episode.
        max_steps: Maximum number of env steps that are ever added; None: no limit.
    """
    pages = capacity * count_episode_pages(info)
    if max_steps is None:
        return pages
    return min(pages, max_steps // PAGE_ROWS + min(capacity, max_steps))
