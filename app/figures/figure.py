"""What a named figure or table is: how it is made and which options it understands.

A module of `app.figures.named` lists its own in `FIGURES` and `TABLES`; `app.figures.registry` finds them there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Literal, get_args

import pandas as pd

from app.analysis.finals import LAST_TENTH, FinalRule
from app.analysis.quantities import RATES, Quantity, RateName
from app.analysis.statistics import USUAL_BAND, Band, Center, Reading
from app.figures.kinds import AnyFigure
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.runs.rows import RunRow

Option = Literal["center", "band", "color", "method", "episodes", "refit_every", "include_unfinished", "final", "rate"]
OPTIONS: tuple[Option, ...] = get_args(Option)
OVER_SEEDS: frozenset[Option] = frozenset({"center", "band", "include_unfinished"})
AT_THE_END: frozenset[Option] = frozenset({*OVER_SEEDS, "final"})
"""What a figure or a table of final win rates understands."""
OF_ANY_RATE: frozenset[Option] = frozenset({*AT_THE_END, "rate"})
"""What one understands that may be made of another win rate than that of greedy episodes."""


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
    final: FinalRule | None = None
    rate: RateName | None = None

    @property
    def final_rule(self) -> FinalRule:
        """Which win rate stands for the end of a run: the mean over the last tenth, unless another was asked for."""
        return self.final or LAST_TENTH

    @property
    def rated(self) -> Quantity:
        """Which win rate a table is made of: that of greedy episodes, unless another was asked for."""
        return RATES[self.rate or "greedy"]

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
        return [each.name for each in fields(self) if getattr(self, each.name)]


NO_OPTIONS = Options()


@dataclass(frozen=True)
class FigureKind:
    """A figure that has a name."""

    name: str
    draw: Callable[[Database, Sequence[RunRow], Options], AnyFigure]
    takes: frozenset[Option] = frozenset()
    needs_runs: bool = False
    """Whether runs must be named: it shows one run, not every run there is."""

    def make(self, db: Database, rows: Sequence[RunRow], options: Options = NO_OPTIONS) -> AnyFigure:
        """Draw it for these runs.

        Raises:
            ConfigError: If an option was given that would change nothing.
        """
        _refuse_unused("figure", self.name, self.takes, options)
        return self.draw(db, rows, options)


@dataclass(frozen=True)
class TableKind:
    """A table that has a name."""

    name: str
    tabulate: Callable[[Database, Sequence[RunRow], Options], pd.DataFrame]
    takes: frozenset[Option] = frozenset()
    takes_runs: bool = True
    """Whether runs can be chosen."""

    def make(self, db: Database, rows: Sequence[RunRow], options: Options = NO_OPTIONS) -> pd.DataFrame:
        """Make it of these runs.

        Raises:
            ConfigError: If an option was given that would change nothing.
        """
        _refuse_unused("table", self.name, self.takes, options)
        return self.tabulate(db, rows, options)


def _refuse_unused(what: str, name: str, takes: frozenset[Option], options: Options) -> None:
    for given in options.given:
        if given not in takes:
            known = ", ".join(f"--{each.replace('_', '-')}" for each in sorted(takes))
            said = f"It takes {known}." if known else "It takes no option of this kind."
            raise ConfigError(f"--{given.replace('_', '-')} would change nothing in the {what} {name}. {said}")
