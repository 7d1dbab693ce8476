"""Which intervals name a level, how each is computed, and how often each was found to hold the truth."""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import streamlit as st

from app.analysis.statistics import BOOTSTRAP_COVERS
from app.ui.method.measured import write_table

COMMAND = "emtc bench coverage --json"
_HOW = """
A level is named only by an interval that holds it with as few seeds as are trained here. A seed is the only unit: its
episodes are averaged first.

- **Numbers of any unit**: Student's t around the mean; Yuen's t around the interquartile mean, with the winsorised
  variance; around the median t with the variance that a median has in a normal population.
- **Shares** (win rates, μ̄_w): Wilson's score interval with the quantile of Student's t. It counts as many episodes as
  the spread between seeds leaves, and never more than were played: three seeds that won all of 16 episodes are
  100 % [72 – 100]. It covers more than 95 % with three seeds, because it does not trust a spread of three numbers.
- **Median of shares**: t, kept within [0, 1]. Where seeds can only be a few sixteenths, no interval of so few
  holds a level.
- **Difference of two variants**: from the intervals of both (Zou and Donner 2008). **Probability of improvement**: the
  Mann-Whitney statistic with the variance of Hanley and McNeil (Newcombe 2006), and Student's t.
- **Performance profiles** and **one evaluation** on Live: Wilson's, of so many runs and of so many episodes.
- **Numbers of an embedding**: percentile bootstrap over whole episodes, of which a memory has many.

The **percentile bootstrap** over seeds can still be chosen, under its own name.
"""
_NAMES = {
    "mean": "mean", "iqm": "interquartile mean", "median": "median", "difference": "difference of two means",
    "improvement": "probability of improvement", "profile": "performance profile", "wilson": "one evaluation",
    "episodes": "numbers of an embedding", "bootstrap-mean": "mean, percentile bootstrap",
    "bootstrap-iqm": "interquartile mean, percentile bootstrap", "bootstrap-median": "median, percentile bootstrap",
}  # fmt: skip
_DATA = {"normal": "normal", "piled": "piled up at 1", "half": "half of them at 1"}
_SIZES = ("3", "5", "10")


def show() -> None:
    """Explain the intervals, and show what each was measured to cover."""
    st.markdown(_HOW)
    st.markdown("##### Measured: how often the interval holds the truth [%]")
    measured = read_measured()
    pairs = [(what, data) for what in _NAMES for data in _DATA if any((what, data) == key[:2] for key in measured)]
    rows = []
    for what, data in pairs:
        cells = {n: f"{measured[key]:.1f}" for key in measured if key[:2] == (what, data) for n in [key[2]]}
        others = ", ".join(f"{text} (n = {n})" for n, text in cells.items() if n not in _SIZES)
        rows.append([_NAMES[what], _DATA[data], *(cells.get(n, "") for n in _SIZES), others])
    head = ("Interval of", "Data", *(f"{n} seeds" for n in _SIZES), "n episodes")
    st.markdown(write_table(head, rows))
    st.caption(
        f"`{COMMAND}`: simulated tables, 10,000 for each of the first nine rows and 2,000 for most others. Normal: "
        "N(0, 1). Piled up at 1: each seed wins 16 episodes with a probability of its own from Beta(9, 1), so that "
        "36 % win all. Half of them at 1: min(1, N(1, 0.1)). Two variants: normal with means .7 and .5 and a spread "
        f"of .1, or both piled up alike. {BOOTSTRAP_COVERS}"
    )


@cache
def read_measured() -> Mapping[tuple[str, str, str], float]:
    """Read the shares [%]: (interval, data, n) → tables whose interval held the truth."""
    text = (files("app.bench") / "measured" / "coverage.json").read_text()
    parts = {figure["name"]: figure["value"] for figure in json.loads(text)["figures"]}
    return {_split(name): value for name, value in parts.items()}


def _split(name: str) -> tuple[str, str, str]:
    _, what, data, n = name.split(".")
    return what, data, n
