"""What a named figure or table is: its question, how it is made, which options it understands, where it appears.

A module of `app.figures.named` lists its own in `FIGURES` and `TABLES`; `app.figures.registry` finds them there. From
then on it is on its pages, in `emtc export`, in notebooks and in `db.figure(…)`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal, get_args

import pandas as pd

from app.analysis.comparable import COMMON, Budget, read_budget
from app.analysis.finals import LAST_TENTH, FinalRule
from app.analysis.quantities import AUTO, RATE_NAMES, RateName
from app.analysis.statistics import USUAL_BAND, Band, Center, Reading
from app.figures.kinds import AnyFigure
from app.figures.kinds.chart import Chart
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.runs.rows import RunRow

Option = Literal[
    "center", "band", "color", "method", "episodes", "refit_every", "include_unfinished", "budget", "final", "rate"
]
OPTIONS: tuple[Option, ...] = get_args(Option)
OVER_SEEDS: frozenset[Option] = frozenset({"center", "band", "include_unfinished"})
AT_A_BUDGET: frozenset[Option] = frozenset({*OVER_SEEDS, "budget"})
"""What one understands that reads every run at one number of env steps."""
OF_A_RATE: frozenset[Option] = frozenset({*OVER_SEEDS, "rate"})
"""What a figure or a table of win rates over env steps understands."""
AT_THE_END: frozenset[Option] = frozenset({*AT_A_BUDGET, "final", "rate"})
"""What a figure or a table of final win rates understands."""


OnProgress = Callable[[str, float, float], None]
"""Hears the name of the present part, the share of it that is done, and the share of all."""


@dataclass(frozen=True)
class Own:
    """An option that only some figures have: how its value is read from a script's or a file's, and what it means."""

    name: str
    read: Callable[[Any], Any]
    about: str


@dataclass(frozen=True)
class Options:
    """What was asked of a figure or a table; None and empty mean not asked."""

    center: Center | None = None
    band: Band | None = None
    color: str | None = None
    method: str | None = None
    episodes: tuple[int, ...] = ()
    refit_every: int | None = None
    include_unfinished: bool = False
    budget: int | str | None = None
    final: FinalRule | None = None
    rate: RateName | None = None
    own: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Values of the options that only this figure has."""
    on_progress: OnProgress | None = field(default=None, compare=False)

    def get(self, name: str, missing: Any = None) -> Any:
        """The value of an option that only this figure has."""
        return self.own.get(name, missing)

    @property
    def final_rule(self) -> FinalRule:
        """Which win rate stands for the end of a run: the mean over the last tenth, unless another was asked for."""
        return self.final or LAST_TENTH

    @property
    def read_at(self) -> Budget:
        """At how many env steps runs are compared: at the most that all reached, unless another was asked for.

        Raises:
            ConfigError: If it is no budget.
        """
        try:
            return COMMON if self.budget is None else read_budget(self.budget)
        except ValueError as exc:
            rule = "must be common, own or a number of env steps such as 20000 or 0.8M"
            raise ConfigError(rule, key="budget", value=self.budget) from exc

    @property
    def rate_name(self) -> RateName:
        """Which win rate runs are compared by: the default of each task, unless another was asked for.

        Raises:
            ConfigError: If there is no such win rate.
        """
        if self.rate is not None and self.rate not in RATE_NAMES:
            raise ConfigError(f"must be one of {', '.join(RATE_NAMES)}", key="rate", value=self.rate)
        return self.rate or AUTO

    @property
    def reading(self) -> Reading | None:
        """How seeds become one number, if that was asked; a centre alone brings the band that is usual beside it."""
        if self.center is None and self.band is None:
            return None
        center = self.center or "mean"
        return Reading(center, self.band or USUAL_BAND[center])

    @property
    def given(self) -> list[str]:
        """The options that were asked for."""
        return [*(name for name in OPTIONS if getattr(self, name)), *self.own]


NO_OPTIONS = Options()


def read_window(value: Any) -> tuple[float, float]:
    """Read a window of x, "0-150" or two numbers.

    Raises:
        ValueError: If it is none.
    """
    low, high = str(value).split("-") if isinstance(value, str) else value
    window = float(low), float(high)
    if not all(map(isfinite, window)):
        raise ValueError("a window has two ends")
    return window


WINDOW = Own("x", read_window, "a window of env steps, as 0-150")


@dataclass(frozen=True)
class FigureKind:
    """A figure that has a name."""

    name: str
    draw: Callable[[Database, Sequence[RunRow], Options], AnyFigure]
    takes: frozenset[Option] = frozenset()
    needs_runs: bool = False
    """Whether runs must be named: it shows one run, not every run there is."""
    question: str = ""
    """What it answers, as a page asks it."""
    own: tuple[Own, ...] = ()
    """Options that it has beside those that several figures take."""
    pages: tuple[str, ...] = ()
    """Pages that offer it under *More figures*; what a page draws with widgets of its own is not listed there."""

    def make(self, db: Database, rows: Sequence[RunRow], options: Options = NO_OPTIONS) -> AnyFigure:
        """Draw it for these runs.

        Raises:
            ConfigError: If an option was given that would change nothing.
        """
        _refuse_unused("figure", self.name, frozenset({*self.takes, *(each.name for each in self.own)}), options)
        drawn = self.draw(db, rows, options)
        window = options.get(WINDOW.name)
        return drawn.within(window) if isinstance(drawn, Chart) and window is not None else drawn

    def read_options(self, given: Mapping[str, Any], *, on_progress: OnProgress | None = None) -> Options:
        """Read options as a script, the command line or a notebook entry gives them, by name.

        Raises:
            ConfigError: If there is no such option, or a value cannot be read.
        """
        own = {each.name: each for each in self.own}
        if strange := [name for name in given if name not in (*OPTIONS, *own)]:
            rule = f"is not an option of the figure {self.name}, which takes {', '.join((*OPTIONS, *own))}"
            raise ConfigError(rule, key=strange[0])
        shared = {name: value for name, value in given.items() if name not in own}
        values = {name: self._read(own[name], value) for name, value in given.items() if name in own}
        return Options(**shared, own=values, on_progress=on_progress)

    def _read(self, option: Own, value: Any) -> Any:
        try:
            return option.read(value)
        except (AttributeError, KeyError, TypeError, ValueError) as exc:
            raise ConfigError(f"must be {option.about}", key=option.name, value=value) from exc


@dataclass(frozen=True)
class TableKind:
    """A table that has a name."""

    name: str
    tabulate: Callable[[Database, Sequence[RunRow], Options], pd.DataFrame]
    takes: frozenset[Option] = frozenset()
    takes_runs: bool = True
    """Whether runs can be chosen."""
    needs: str = "a run that has finished and was evaluated"
    """What belongs in it, as the refusal of an empty file says."""

    def make(self, db: Database, rows: Sequence[RunRow], options: Options = NO_OPTIONS) -> pd.DataFrame:
        """Make it of these runs.

        Raises:
            ConfigError: If an option was given that would change nothing.
        """
        _refuse_unused("table", self.name, self.takes, options)
        return self.tabulate(db, rows, options)


def _refuse_unused(what: str, name: str, takes: frozenset[str], options: Options) -> None:
    for given in options.given:
        if given not in takes:
            known = ", ".join(f"--{each.replace('_', '-')}" for each in sorted(takes & {*OPTIONS}))
            hint = f"It takes {known}." if known else "It takes no option of this kind."
            key = f"--{given.replace('_', '-')}"
            raise ConfigError(f"would change nothing in the {what} {name}", key=key, hint=hint)


def one_run(figure: str, rows: Sequence[RunRow]) -> RunRow:
    """The only run of a figure that shows one.

    Raises:
        ConfigError: If there are more.
    """
    if len(rows) > 1:
        raise ConfigError(f"shows one run, got {len(rows)}", key=figure)
    return rows[0]
