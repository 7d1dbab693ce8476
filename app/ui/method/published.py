"""The differences between a baseline's preset `paper` and the configuration that its authors published.

The preset `paper` has the settings of the EMTC paper; the published configuration is that in the authors' code.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import streamlit as st

from app.analysis.format import escape_markdown
from app.ui.widgets.result_table import write_table

_SMAC_ENVS = ("skirmish", "smac", "smax")


@dataclass(frozen=True)
class ComparisonWithPublished:
    """Comparison of a baseline's preset `paper` with the published configuration on one task."""

    summary: str
    """How many published values are equal here, and the commits from which they were read."""
    rows: tuple[tuple[str, ...], ...]
    """The differences as Markdown: key, our value, published value, source, reason."""


def show(algo: str, env: str, map: str) -> None:
    """Draw the table of differences, or a note if no configuration is published."""
    st.markdown(f"##### {escape_markdown(algo)}: published configuration and preset `paper`")
    comparison = find_comparison(algo, env, map)
    if comparison is None:
        st.caption(f"No configuration of {escape_markdown(algo)} on {escape_markdown(map)} is published in code.")
        return
    st.markdown(write_table(("Key", "Here", "Published", "Source", "Reason"), comparison.rows))
    st.caption(escape_markdown(comparison.summary))


def find_comparison(algo: str, env: str, map: str) -> ComparisonWithPublished | None:
    """Find the stored comparison of a baseline on a task. Return None if no configuration is published."""
    data, game = _read_data(), "smac" if env in _SMAC_ENVS else env
    for case in data["cases"]:
        if (case["algo"], case["game"], case["map"]) == (algo, game, map):
            rows = tuple(
                (f"`{key}`", f"`{ours}`", f"`{published}`", escape_markdown(source), escape_markdown(reason))
                for key, ours, published, source, reason in (
                    data["differences"][index] for index in case["differences"]
                )
            )
            return ComparisonWithPublished(case["summary"], rows)
    return None


@cache
def _read_data() -> dict[str, Any]:
    """Read the comparisons that `python -m tests.reference.published_settings` wrote."""
    return json.loads((files("app.ui.method") / "published_differences.json").read_text("utf-8"))
