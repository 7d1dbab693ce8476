"""Types of the registry: `FigureKind`, a named figure, and `TableKind`, a named table.

A kind has two steps. `read` reads the data from a database. `draw` or `tabulate` makes the figure or table from these
data. The command line, notebooks and scripts call `make`, which does both. A page that already has the data calls only
the second step, so that page and file show the same.

Each module of `app.figures.named` lists its figures in `FIGURES` and its tables in `TABLES`. `app.figures.registry`
collects both lists.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from app.analysis.tables import Table
from app.figures.kinds import AnyFigure
from app.figures.kinds.chart import Chart
from app.figures.options import Options, WindowOptions
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.runs.rows import RunRow

D = TypeVar("D")
O = TypeVar("O", bound=Options)


class StoredRuns(NamedTuple):
    """Runs and their database: the data of a kind whose second step reads everything else itself."""

    db: Database
    rows: Sequence[RunRow]


class PageSection(NamedTuple):
    """A part of a page that always shows a figure or table: a tab of Compare, a heading of Live."""

    page: str
    title: str


def get_stored_runs(db: Database, rows: Sequence[RunRow], options: Options) -> StoredRuns:
    """Return the runs without reading more."""
    return StoredRuns(db, rows)


@dataclass(frozen=True)
class FigureKind(Generic[D, O]):
    """A named figure."""

    name: str
    draw: Callable[[D, O], AnyFigure]
    read: Callable[[Database, Sequence[RunRow], O], D] = get_stored_runs  # type: ignore[assignment]
    options: type[O] = Options  # type: ignore[assignment]
    """The model of the options that have an effect on the figure."""
    needs_runs: bool = False
    """Whether the caller must name runs. If False, the default is all evaluated runs."""
    question: str = ""
    """The question that the figure answers, as a page shows it."""
    pages: tuple[str, ...] = ()
    """Pages that list the figure under *More figures*."""
    section: PageSection | None = None
    """The part of a page that always shows the figure."""
    metrics: tuple[str, ...] = ()
    """Logged metrics that the figure draws. The page Live reads them while the run trains."""

    def make(self, db: Database, rows: Sequence[RunRow], options: O | None = None) -> AnyFigure:
        """Read the data of these runs and draw the figure."""
        options = self.options() if options is None else options
        figure = self.draw(self.read(db, rows, options), options)
        if isinstance(figure, Chart) and isinstance(options, WindowOptions):
            return figure.keep_window(options.window)
        return figure

    def read_options(self, values: Mapping[str, Any]) -> O:
        """Validate option values from a script, the command line or a notebook entry, by name.

        Raises:
            ConfigError: If an option does not exist or a value is not valid.
        """
        return self.options.read(values, owner=f"figure {self.name}")


@dataclass(frozen=True)
class TableKind(Generic[D, O]):
    """A named table."""

    name: str
    tabulate: Callable[[D, O], Table]
    read: Callable[[Database, Sequence[RunRow], O], D] = get_stored_runs  # type: ignore[assignment]
    options: type[O] = Options  # type: ignore[assignment]
    """The model of the options that have an effect on the table."""
    selects_runs: bool = True
    """Whether the caller can select runs. If False, the table lists all runs of the database."""
    required_runs: str = "a run that has finished and was evaluated"
    """The runs that the table needs. The error message for an empty table contains this text."""
    section: PageSection | None = None
    """The part of a page that always shows the table."""

    def make(self, db: Database, rows: Sequence[RunRow], options: O | None = None) -> Table:
        """Read the data of these runs and compute the table."""
        options = self.options() if options is None else options
        return self.tabulate(self.read(db, rows, options), options)

    def read_options(self, values: Mapping[str, Any]) -> O:
        """Validate option values from the command line, by name.

        Raises:
            ConfigError: If an option does not exist or a value is not valid.
        """
        return self.options.read(values, owner=f"table {self.name}")


def get_single_run(figure: str, rows: Sequence[RunRow]) -> RunRow:
    """Return the only run of a figure that shows one run.

    Raises:
        ConfigError: If there are several runs.
    """
    if len(rows) > 1:
        raise ConfigError(f"shows one run, got {len(rows)}", key=figure)
    return rows[0]
