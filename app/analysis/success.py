"""What counts as a success in a run: the environment's `won`, or a return that its settings name.

`won` and `win_rate` are the environment's in every table. Where the return decides, the share of such episodes is the
metric `eval/success_rate`, and what is drawn of it says the threshold.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import isfinite
from typing import Any

from app.analysis.quantities import ROBUST, UNIT_RANGE, Quantity
from app.analysis.settings import Settings
from storage.engine import Database
from storage.queries.curves import metric

SUCCESS_RATE = "eval/success_rate"
"""Drawn in the place of the win rate where the return decides what a success is."""


def success_threshold(config: Mapping[str, Any]) -> float | None:
    """The return [env return] from which on an episode of a run is a success; None where `won` decides."""
    memory: object = config.get("memory") if config else None
    if not isinstance(memory, Mapping):  # a stored row may hold anything
        return None
    return _threshold(memory.get("success"), memory.get("success_threshold"))


def _threshold(rule: object, value: object) -> float | None:
    known = rule == "return_threshold" and isinstance(value, int | float) and isfinite(value)
    return float(value) if known and isinstance(value, int | float) else None


def name_success(threshold: float) -> str:
    """The share of successes as an axis calls it: "success (return ≥ -18)"."""
    return f"success (return ≥ {threshold:g})"


def name_outcome(config: Mapping[str, Any], *, won: bool, episode_return: float) -> str:
    """How an episode ended: won or not, or by the return where that decides."""
    threshold = success_threshold(config)
    if threshold is None:
        return "won" if won else "not won"
    told = "success" if episode_return >= threshold else "no success"
    return f"{told}, won" if won else told


def say_rule(quantity: Quantity, settings: Iterable[Settings]) -> Quantity:
    """Write the threshold of the runs into the quantity's name, where it is their success rate; shifts where robust."""
    if quantity.key == ROBUST.key:
        return replace(quantity, meaning=_say_shifts(settings))
    if quantity.key != SUCCESS_RATE:
        return quantity
    found = {_threshold(each.get("memory.success"), each.get("memory.success_threshold")) for each in settings}
    known = [threshold for threshold in found if threshold is not None]
    title = name_success(known[0]) if len(known) == 1 else "success (return ≥ each run's own threshold)"
    return replace(quantity, title=title, range=UNIT_RANGE)


def _say_shifts(settings: Iterable[Settings]) -> str:
    """By how far the starts were shifted: "… from starts shifted by up to 0.05 cells"."""
    found = (each.get("eval.robust_jitter") for each in settings)
    known = sorted({float(value) for value in found if isinstance(value, int | float) and value > 0})
    shifts = " to ".join(f"{each:g}" for each in dict.fromkeys((*known[:1], *known[-1:])))
    starts = f"starts shifted by up to {shifts} cells" if shifts else "shifted starts"
    return f"share won of as many greedy episodes from {starts}"


def last_success(db: Database, run_id: str) -> float | None:
    """Read the success rate of the last evaluation; None before the first, and where `won` decides."""
    rows = metric(db, run_id, [SUCCESS_RATE])
    return float(rows["value"].iloc[-1]) if len(rows) else None
