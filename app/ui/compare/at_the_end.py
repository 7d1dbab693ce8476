"""Which numbers stand for the end of the compared runs: the controls beside the tables, and what unequal runs mean."""

from collections.abc import Sequence

import streamlit as st

from app.analysis.budget import COMMON, OWN, Budget, read_budget
from app.analysis.finals import FINAL_RULES, FinalRule
from app.analysis.format import escape_markdown
from app.analysis.quantities import RATE_NAMES, RateName
from app.analysis.series import Comparison
from app.ui import in_url, state

_FINAL_WORDS: dict[FinalRule, str] = {"last-tenth": "mean over the last tenth", "last": "last evaluation"}


def ask(lengths: Sequence[int]) -> tuple[FinalRule, RateName, Budget]:
    """Ask, beside the tables that it changes, which win rate stands for a run, of which episodes, and at which step."""
    with st.container(horizontal=True, horizontal_alignment="right", vertical_alignment="bottom"):
        budget = _ask_budget(lengths)
        chosen = st.segmented_control(
            "Win rate at the end of a run", FINAL_RULES, required=True, format_func=_FINAL_WORDS.__getitem__,
            help="While a policy forms, successive evaluations swing, so that the last one alone is a draw.",
            **in_url.key_of("compare", "final", FINAL_RULES),
        )  # fmt: skip
        rate = st.segmented_control(
            "Of which episodes", RATE_NAMES, required=True, format_func=str.capitalize,
            help="Greedy is SMAC's protocol. Robust: from shifted starts. Training: with exploration. "
            "Falls and the numbers beside the paper are always of greedy episodes.",
            **in_url.key_of("compare", "rate", RATE_NAMES),
        )  # fmt: skip
    rule: FinalRule = next(each for each in FINAL_RULES if each == chosen)
    return rule, next(each for each in RATE_NAMES if each == rate), budget


def _ask_budget(lengths: Sequence[int]) -> Budget:
    """Ask at how many env steps runs of different lengths are compared; the URL's `budget` may name any number."""
    given = state.read_text("budget") or COMMON
    try:
        asked = read_budget(given)
    except ValueError:
        asked = COMMON
    if len(lengths) < 2:
        return asked
    options: list[str] = [COMMON, *map(str, lengths[1:]), OWN]
    options += [str(asked)] if str(asked) not in options else []
    chosen = st.selectbox(
        "Compare at", **in_url.one("compare", "budget", options), format_func=_name_budget, width=260,
        help="These runs are not of one length. A win rate after 4,000 env steps does not compare with one after "
        "40,000: so all are read at one number of steps.",
    )  # fmt: skip
    return read_budget(chosen)


def _name_budget(option: str) -> str:
    named = {COMMON: "the most that all reached", OWN: "each run's own end (marked)"}
    return named.get(option) or f"{int(option):,} env steps"


def tell_lengths(comparison: Comparison) -> None:
    """Say above the tables, not only in their captions, that the runs are of different lengths."""
    if comparison.mixed:
        st.warning(escape_markdown(comparison.budget), icon=":material/warning:")
    elif comparison.unequal:
        st.info(escape_markdown(comparison.unequal), icon=":material/straighten:")
