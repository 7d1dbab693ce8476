"""The differences between a baseline's preset `paper` and the configuration that its authors published.

The preset `paper` has the settings of the EMTC paper; the published configuration is that in the authors' code.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

import streamlit as st

from app.analysis.format import escape_markdown
from app.ui.widgets.result_table import write_table

_SMAC_ENVS: Final = ("skirmish", "smac", "smax")
"""Environments with the maps of SMAC (StarCraft). The stored comparisons name the game of all of them `smac`."""


@dataclass(frozen=True)
class PublishedConfiguration:
    """Comparison of a baseline's preset `paper` with the published configuration for one task."""

    summary: str
    """How many published values are equal to those of `paper`, and the commits from which they were read."""
    differences: tuple[tuple[str, ...], ...]
    """Rows of Markdown cells: key, value in `paper`, published value, source, reason of the difference."""


def show(algo: str, env: str, map: str) -> None:
    """Draw the table of differences, or a note if no configuration is published."""
    st.markdown(f"##### {escape_markdown(algo)}: published configuration and preset `paper`")
    published = find_published_configuration(algo, env, map)
    if published is None:
        st.caption(f"No configuration of {escape_markdown(algo)} on {escape_markdown(map)} is published in code.")
        return
    st.markdown(write_table(("Key", "Here", "Published", "Source", "Reason"), published.differences))
    st.caption(escape_markdown(published.summary))


def find_published_configuration(algo: str, env: str, map: str) -> PublishedConfiguration | None:
    """Find the published configuration of a baseline for a task. Return None if there is none."""
    published = _read_published_differences()
    game = "smac" if env in _SMAC_ENVS else env
    for case in published["cases"]:
        if (case["algo"], case["game"], case["map"]) == (algo, game, map):
            rows = []
            for index in case["differences"]:  # several cases have the same differences, which are stored once
                key, our_value, published_value, source, reason = published["differences"][index]
                values = (f"`{our_value}`", f"`{published_value}`")
                rows.append((f"`{key}`", *values, escape_markdown(source), escape_markdown(reason)))
            return PublishedConfiguration(case["summary"], tuple(rows))
    return None


@cache
def _read_published_differences() -> dict[str, Any]:
    """Read the comparisons that `python -m tests.reference.published_settings` wrote."""
    return json.loads((files("app.ui.method") / "published_differences.json").read_text("utf-8"))
