"""Types of the figure registry: a named figure or table, and the options that can be set for it.

Each module of `app.figures.named` lists its figures in `FIGURES` and its tables in `TABLES`. `app.figures.registry`
collects both lists for the pages, `emtc export`, notebooks and `db.figure(…)`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal, get_args

import pandas as pd

from app.analysis.aggregates import DEFAULT_BANDS, Aggregation, Band
from app.analysis.comparable import COMMON, Budget, parse_budget
from app.analysis.finals import LAST_TENTH, FinalRule
from app.analysis.intervals import Center
from app.analysis.quantities import AUTO, RATE_NAMES, RateName
from app.figures.kinds import AnyFigure
from app.figures.kinds.chart import Chart
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.runs.rows import RunRow

OptionName = Literal[
    "center", "band", "color", "method", "episodes", "refit_every", "include_unfinished", "budget", "final", "rate"
]
OPTIONS: tuple[OptionName, ...] = get_args(OptionName)
SEED_OPTIONS: frozenset[OptionName] = frozenset({"center", "band", "include_unfinished"})
"""Options of every figure and table that summarizes seeds."""
BUDGET_OPTIONS: frozenset[OptionName] = frozenset({*SEED_OPTIONS, "budget"})
"""Options of a figure or table that reads all runs at the same number of env steps."""
RATE_OPTIONS: frozenset[OptionName] = frozenset({*SEED_OPTIONS, "rate"})
"""Options of a figure or table of win rates over env steps."""
FINAL_OPTIONS: frozenset[OptionName] = frozenset({*BUDGET_OPTIONS, "final", "rate"})
"""Options of a figure or table of final win rates."""

OnProgress = Callable[[str, float, float], None]
"""Callback with the name of the current part, the completed fraction of this part, and the completed fraction of all
parts."""


@dataclass(frozen=True)
class FigureOption:
    """An option that only some figures have.

    `read` converts a value from a script or a file. It may raise AttributeError, KeyError, TypeError or ValueError.
    `description` is the end of the error message "… must be …".
    """

    name: str
    read: Callable[[Any], Any]
    description: str


@dataclass(frozen=True)
class Options:
    """The option values for one figure or table. None, False and empty mean: not set."""

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
    extra_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Values of the options in `FigureKind.own`, by name."""
    on_progress: OnProgress | None = field(default=None, compare=False)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of an option in `FigureKind.own`."""
        return self.extra_options.get(name, default)

    @property
    def final_rule(self) -> FinalRule:
        """The rule for the final win rate of a run. Default: the mean over the last tenth of the run."""
        return self.final or LAST_TENTH

    @property
    def comparison_budget(self) -> Budget:
        """The number of env steps at which runs are compared. Default: the largest that all runs reached.

        Raises:
            ConfigError: If `budget` is not valid.
        """
        try:
            return COMMON if self.budget is None else parse_budget(self.budget)
        except ValueError as exc:
            rule = "must be common, own or a number of env steps such as 20000 or 0.8M"
            raise ConfigError(rule, key="budget", value=self.budget) from exc

    @property
    def rate_name(self) -> RateName:
        """The win rate by which runs are compared. Default: the usual win rate of each task.

        Raises:
            ConfigError: If `rate` is not the name of a win rate.
        """
        if self.rate is not None and self.rate not in RATE_NAMES:
            raise ConfigError(f"must be one of {', '.join(RATE_NAMES)}", key="rate", value=self.rate)
        return self.rate or AUTO

    @property
    def reading(self) -> Aggregation | None:
        """How seeds are summarized, or None if neither `center` nor `band` is set.

        If only `center` is set, the band is the usual one for this center.
        """
        if self.center is None and self.band is None:
            return None
        center = self.center or "mean"
        return Aggregation(center, self.band or DEFAULT_BANDS[center])

    @property
    def names(self) -> list[str]:
        """The names of the options that are set."""
        return [*(name for name in OPTIONS if getattr(self, name)), *self.extra_options]


NO_OPTIONS = Options()


def read_window(value: Any) -> tuple[float, float]:
    """Read a window of x from a text such as "0-150", or from two numbers.

    Raises:
        ValueError: If there are not exactly two finite numbers.
    """
    low, high = str(value).split("-") if isinstance(value, str) else value
    window = float(low), float(high)
    if not all(map(isfinite, window)):
        raise ValueError("the two ends of a window must be finite")
    return window


WINDOW = FigureOption("x", read_window, "a window of env steps, for example 0-150")


@dataclass(frozen=True)
class FigureKind:
    """A named figure."""

    name: str
    draw: Callable[[Database, Sequence[RunRow], Options], AnyFigure]
    supported_options: frozenset[OptionName] = frozenset()
    """The shared options that have an effect on this figure."""
    needs_runs: bool = False
    """Whether the caller must name runs. If False, the default is all evaluated runs."""
    question: str = ""
    """The question that the figure answers, as a page shows it."""
    extra_options: tuple[FigureOption, ...] = ()
    """The options of this figure in addition to the shared options in `supported_options`."""
    pages: tuple[str, ...] = ()
    """Pages that list the figure under *More figures*. A page that draws the figure itself does not list it there."""

    def make(self, db: Database, rows: Sequence[RunRow], options: Options = NO_OPTIONS) -> AnyFigure:
        """Draw the figure for these runs.

        Raises:
            ConfigError: If an option is set that has no effect on this figure.
        """
        _check_options(
            "figure",
            self.name,
            frozenset({*self.supported_options, *(option.name for option in self.extra_options)}),
            options,
        )
        figure = self.draw(db, rows, options)
        window = options.get(WINDOW.name)
        return figure.keep_window(window) if isinstance(figure, Chart) and window is not None else figure

    def read_options(self, given: Mapping[str, Any], *, on_progress: OnProgress | None = None) -> Options:
        """Validate option values from a script, the command line or a notebook entry, by name.

        Raises:
            ConfigError: If an option does not exist or a value is not valid.
        """
        figure_options = {option.name: option for option in self.extra_options}
        if unknown := [name for name in given if name not in (*OPTIONS, *figure_options)]:
            rule = f"is not an option of the figure {self.name}, which takes {', '.join((*OPTIONS, *figure_options))}"
            raise ConfigError(rule, key=unknown[0])
        shared, own = {}, {}
        for name, value in given.items():
            if name not in figure_options:
                shared[name] = value
                continue
            option = figure_options[name]
            try:
                own[name] = option.read(value)
            except (AttributeError, KeyError, TypeError, ValueError) as exc:
                raise ConfigError(f"must be {option.description}", key=name, value=value) from exc
        return Options(**shared, extra_options=own, on_progress=on_progress)


@dataclass(frozen=True)
class TableKind:
    """A named table."""

    name: str
    tabulate: Callable[[Database, Sequence[RunRow], Options], pd.DataFrame]
    supported_options: frozenset[OptionName] = frozenset()
    """The shared options that have an effect on this table."""
    selects_runs: bool = True
    """Whether the caller can select runs."""
    required_runs: str = "a run that has finished and was evaluated"
    """The runs that the table needs. The error message for an empty table contains this text."""

    def make(self, db: Database, rows: Sequence[RunRow], options: Options = NO_OPTIONS) -> pd.DataFrame:
        """Compute the table for these runs.

        Raises:
            ConfigError: If an option is set that has no effect on this table.
        """
        _check_options("table", self.name, self.supported_options, options)
        return self.tabulate(db, rows, options)


def get_single_run(figure: str, rows: Sequence[RunRow]) -> RunRow:
    """Return the only run of a figure that shows one run.

    Raises:
        ConfigError: If there are several runs.
    """
    if len(rows) > 1:
        raise ConfigError(f"shows one run, got {len(rows)}", key=figure)
    return rows[0]


def _check_options(noun: Literal["figure", "table"], name: str, supported: frozenset[str], options: Options) -> None:
    for option in options.names:
        if option not in supported:
            flags = ", ".join(f"--{each.replace('_', '-')}" for each in sorted(supported & {*OPTIONS}))
            hint = f"It takes {flags}." if flags else "It takes no option of this kind."
            key = f"--{option.replace('_', '-')}"
            raise ConfigError(f"would change nothing in the {noun} {name}", key=key, hint=hint)
