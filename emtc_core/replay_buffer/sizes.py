"""Sizes of the replay buffer. This module does not import torch, so that a page can use it."""

import math

import numpy as np

from emtc_core.envs.base import EnvInfo

PAGE_ROWS = 16
"""The rows of an episode are in pages of this number of rows."""
ROW_ALIGNMENT = 8
"""Each field of a row starts at a multiple of this [bytes]."""
HOST_FIELDS = ("reward", "beta")
"""Fields that the host stores also if the rows are on a GPU, one float32 each: it sends them with each batch."""


def list_fields(info: EnvInfo) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the shape and the number type of each field of a row, without the fields of the host."""
    return {
        "obs": ((info.n_agents, info.obs_dim), "float32"),
        "state": ((info.state_dim,), "float32"),
        "avail": ((info.n_agents, info.n_actions), "bool"),
        "action": ((info.n_agents,), "int64"),
    }


def count_row_bytes(info: EnvInfo) -> int:
    """Return the size of one row, fields of the host included [bytes]."""
    sizes = [math.prod(shape) * np.dtype(kind).itemsize for shape, kind in list_fields(info).values()]
    return sum(-(-size // ROW_ALIGNMENT) * ROW_ALIGNMENT for size in sizes) + len(HOST_FIELDS) * 4


def count_state_bytes(info: EnvInfo) -> int:
    """Return the size of one row in the host's copy of the states, which exists if the rows are on a GPU [bytes]."""
    return 4 * info.state_dim


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
