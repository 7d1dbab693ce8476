"""Which intervals have a confidence level, how they are computed, and their measured coverage."""

from collections.abc import Mapping
from functools import cache
from typing import Final

import streamlit as st

from app.analysis.bootstrap import BOOTSTRAP_COVERAGE
from app.ui.method.measured import read_results
from app.ui.widgets.result_table import write_table

COMMAND: Final = "python -m tests.reference.coverage --json"
_METHODS: Final = """
An interval has a confidence level only if it reaches that level with as few seeds as are trained here. The unit is the
seed: the episodes of a seed are averaged first.

- **Numbers of any unit**: Student's t for the mean; Yuen's t for the interquartile mean, with the winsorised variance;
  for the median t with the variance of the median of a normal population.
- **Shares** (win rates, μ̄_w): Wilson's score interval with the quantile of Student's t. The effective number of
  episodes is computed from the spread between seeds, with at most 8 episodes per seed: five seeds that won all of 160
  episodes each are 100 % [84, 100]. Without this limit the interval is far too narrow if some seeds get stuck and none
  of them is in the sample.
- **Median of shares**: t, clipped to [0, 1].
- **Difference of two variants**: t of the paired differences if both have the same seeds, Welch's t otherwise; at least
  as wide as the number of episodes allows. It fails if one seed in five of one variant gets stuck and none is in the
  sample. **Probability of improvement**: the Mann-Whitney statistic with the variance of Hanley and McNeil (Newcombe
  2006), and Student's t.
- **Performance profiles** and **one evaluation** on Live: Wilson's interval, with the number of runs or episodes.
- **Numbers of an embedding**: percentile bootstrap over whole episodes, of which a memory contains many.

The **percentile bootstrap** over seeds is also available, labelled as such.
"""
_INTERVAL_NAMES: Final = {
    "mean": "mean", "iqm": "interquartile mean", "median": "median", "difference": "difference of two means",
    "improvement": "probability of improvement", "profile": "performance profile", "wilson": "one evaluation",
    "episodes": "numbers of an embedding", "bootstrap-mean": "mean, percentile bootstrap",
    "bootstrap-iqm": "interquartile mean, percentile bootstrap", "bootstrap-median": "median, percentile bootstrap",
}  # fmt: skip
_DATA_NAMES: Final = {
    "normal": "normal", "piled": "many at 1", "half": "half of them at 1", "skewed": "Beta(1.8, .2)",
    "stuck": "one seed in five stuck",
}  # fmt: skip
_N_SEEDS: Final = ("3", "5", "10")


def show() -> None:
    """Draw the description of the intervals and the table of their measured coverage."""
    st.markdown(_METHODS)
    st.markdown("##### Measured: how often the interval contains the true value [%]")
    coverage = read_coverage()
    rows = []
    for interval in _INTERVAL_NAMES:
        for data in _DATA_NAMES:
            cells = {key[2]: f"{value:.1f}" for key, value in coverage.items() if key[:2] == (interval, data)}
            if cells:
                others = ", ".join(f"{text} (n = {n})" for n, text in cells.items() if n not in _N_SEEDS)
                seeds = (cells.get(n, "") for n in _N_SEEDS)
                rows.append([_INTERVAL_NAMES[interval], _DATA_NAMES[data], *seeds, others])
    header = ("Interval of", "Data", *(f"{n} seeds" for n in _N_SEEDS), "n episodes")
    st.markdown(write_table(header, rows))
    st.caption(
        f"`{COMMAND}`: simulated tables, 10,000 for each mean, interquartile mean and median, 2,000 for most others. "
        "Normal: N(0, 1). Many at 1: each seed wins 16 episodes with a probability drawn from Beta(9, 1), so that "
        "36 % win all. Half of them at 1: min(1, N(1, 0.1)). Beta(1.8, .2): the same with 160 episodes, as many as a "
        "final win rate has. One seed in five stuck: it wins 40 % of 160 episodes, the others win all. Two variants: "
        "normal with means .7 and .5 and a standard deviation of .1; two equal populations; or a variant that wins "
        f"all and one with one seed in five stuck. {BOOTSTRAP_COVERAGE}"
    )


@cache
def read_coverage() -> Mapping[tuple[str, str, str], float]:
    """Read the measured coverage [%]: (interval, data, n) → share of tables whose interval contains the true value."""
    return read_results("coverage.json")
