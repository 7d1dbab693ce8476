"""Options of figures and tables. Each option is declared once: its name, type, default, label and help.

`emtc export` makes its flags of the declarations, pages make their widgets, and notebook entries store the values that
are set, by name. Options that only one figure has are declared in the module of that figure.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from typing import Any, Final, Generic, TypeVar

from app.analysis.aggregates import BAND_NAMES, DEFAULT_BANDS, Aggregation, Band
from app.analysis.finals import FINAL_RULES, LAST_TENTH, FinalRule
from app.analysis.intervals import CENTER_NAMES, CENTERS, Center
from app.analysis.quantities import AUTO, RATE_MEANING, RATE_NAMES, RateName
from app.analysis.results import COMMON, Budget, parse_budget
from app.analysis.selection import NODE_QUANTITIES
from app.analysis.x_axes import X_AXES, XAxisName
from emtc_core.config.values import find_count
from emtc_core.errors import ConfigError

V = TypeVar("V")


@dataclass(frozen=True, eq=False)
class Option(Generic[V]):
    """The declaration of one option.

    `read` converts a value from the command line, a script, a URL or a notebook entry. It may raise AttributeError,
    KeyError, TypeError or ValueError. A value that `read` returned must not be converted again.
    """

    name: str
    read: Callable[[Any], V]
    rule: str
    """What a value must be: the end of the error message "… must be …"."""
    default: V
    label: str = ""
    """Label of the widget on pages."""
    help: str = ""
    """Help of the flag of `emtc export`, and tooltip of the widget."""
    choices: Mapping[str, str] = field(default_factory=dict[str, str])
    """Value → text on pages, if there are only a few values."""
    url_parameter: str = ""
    """Name in the URL of a page. Default: the name of the option."""
    has_flag: bool = False
    """Whether `emtc export` has a flag of this name. Otherwise it takes --set NAME=VALUE."""
    metavar: str = ""
    """Placeholder of the value in the help of the flag."""
    is_repeated: bool = False
    """Whether the flag may be given several times. `read` then gets a list."""

    @property
    def flag(self) -> str:
        """The flag of `emtc export`."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def parameter(self) -> str:
        """The name in the URL of a page."""
        return self.url_parameter or self.name

    def parse(self, value: Any) -> V:
        """Convert a value.

        Raises:
            ConfigError: If the value is not valid.
        """
        try:
            return self.read(value)
        except (AttributeError, KeyError, TypeError, ValueError) as exc:
            raise ConfigError(f"must be {self.rule}", key=self.name, value=value) from exc


@dataclass(frozen=True)
class Options:
    """The values of the options that are set, by name."""

    values: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __getitem__(self, option: Option[V]) -> V:
        """Return the value of an option, or its default."""
        return self.values.get(option.name, option.default)

    def __contains__(self, option: Option[Any]) -> bool:
        """Return whether an option is set."""
        return option.name in self.values

    def select(self, options: Iterable[Option[Any]]) -> "Options":
        """Keep only the values of these options."""
        names = {option.name for option in options}
        return Options({name: value for name, value in self.values.items() if name in names})

    @property
    def aggregation(self) -> Aggregation | None:
        """How seeds are summarized, or None if neither center nor band is set.

        If only the center is set, the band is the usual one for this center.
        """
        if CENTER not in self and BAND not in self:
            return None
        center = self[CENTER] or "mean"
        return Aggregation(center, self[BAND] or DEFAULT_BANDS[center])


def make_options(values: Mapping[Option[Any], Any]) -> Options:
    """Make options of values that are valid already. A value that equals the default of its option is not set."""
    return Options({option.name: value for option, value in values.items() if value != option.default})


def read_choice(choices: Iterable[str]) -> Callable[[Any], Any]:
    """Make a function that returns a value if it is one of the choices, and raises ValueError otherwise."""
    allowed = list(choices)
    return lambda value: allowed[allowed.index(str(value))]


def read_flag(value: Any) -> bool:
    """Read true or false.

    Raises:
        ValueError: If it is a text other than "true" or "false".
    """
    if isinstance(value, str):
        return ("false", "true").index(value.lower()) == 1
    return bool(value)


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


def read_episodes(value: Any, *, min_count: int) -> tuple[int, ...]:
    """Read the numbers of at most two episodes from a text such as "120,87", from a number, or from a list.

    Raises:
        ValueError: If there are fewer than `min_count` or more than two numbers, or if a number is negative.
    """
    numbers = tuple(map(int, str(value).split(",") if isinstance(value, str | int) else value))
    if not min_count <= len(numbers) <= 2 or min(numbers) < 0:
        raise ValueError(value)
    return numbers


def read_step_count(value: Any) -> int:
    """Read a number of env steps, at least 0, such as 20000 or "20k".

    Raises:
        ValueError: If it is not such a number.
    """
    steps = find_count(str(value))
    if steps is None or steps < 0:
        raise ValueError(value)
    return steps


def _list_choices(names: Iterable[str]) -> str:
    return f"one of {', '.join(names)}"


_BANDS: Final = ", ".join(f"{band} ({name})" for band, name in BAND_NAMES.items())
_METHODS: Final = ("pca", "tsne", "umap", "axes")
CENTER: Final[Option[Center | None]] = Option(
    "center",
    read_choice(CENTERS),
    _list_choices(CENTERS),
    None,
    label="Line over seeds",
    help=f"Over seeds: {', '.join(CENTERS)}",
    choices={center: CENTER_NAMES[center] for center in CENTERS},
    has_flag=True,
)
BAND: Final[Option[Band | None]] = Option(
    "band",
    read_choice(BAND_NAMES),
    _list_choices(BAND_NAMES),
    None,
    label="Band over seeds",
    help=f"Over seeds: {_BANDS}",
    choices={str(band): name for band, name in BAND_NAMES.items()},
    has_flag=True,
)
INCLUDE_UNFINISHED: Final[Option[bool]] = Option(
    "include_unfinished",
    read_flag,
    "true or false",
    False,
    label="Unfinished runs",
    help="Also count runs that have not finished, marked with a dagger",
    url_parameter="unfinished",
    has_flag=True,
)
BUDGET: Final[Option[Budget]] = Option(
    "budget",
    parse_budget,
    "common, own or a number of env steps such as 20000 or 0.8M",
    COMMON,
    label="Compare at",
    help="Env steps at which runs of different lengths are compared, for example 20000 or 0.8M. Default: the "
    "length that most runs of a map have; the others are left out. own: each run at its own end, marked",
    has_flag=True,
    metavar="STEPS",
)
FINAL: Final[Option[FinalRule]] = Option(
    "final",
    read_choice(FINAL_RULES),
    _list_choices(FINAL_RULES),
    LAST_TENTH,
    label="Win rate at the end of a run",
    help=f"Win rate at the end of a run: {', '.join(FINAL_RULES)}. Default: the mean over the last tenth",
    choices={"last-tenth": "mean over the last tenth", "last": "last evaluation"},
    has_flag=True,
)
RATE: Final[Option[RateName]] = Option(
    "rate",
    read_choice(RATE_NAMES),
    _list_choices(RATE_NAMES),
    AUTO,
    label="Win rate of episodes",
    help=f"Episodes of the win rate. {RATE_MEANING}. Default: auto",
    choices={rate: rate.capitalize() for rate in RATE_NAMES},
    has_flag=True,
)
COLOR: Final[Option[str]] = Option(
    "color",
    read_choice(NODE_QUANTITIES),
    _list_choices(NODE_QUANTITIES),
    "h",
    help="Quantity for the color of the memory atlas. Default: h",
    has_flag=True,
)
METHOD: Final[Option[str]] = Option(
    "method",
    read_choice(_METHODS),
    _list_choices(_METHODS),
    "",
    help="Projection of a memory: pca, tsne or umap",
    has_flag=True,
)
EPISODES: Final[Option[tuple[int, ...]]] = Option(
    "episodes",
    partial(read_episodes, min_count=2),
    "two numbers of episodes, for example 120,87",
    (),
    help="Two episodes of strategy-divergence, for example 120,87",
    has_flag=True,
)
X_AXIS: Final[Option[XAxisName]] = Option(
    "x_axis",
    read_choice(X_AXES),
    _list_choices(X_AXES),
    "env_steps",
    label="x axis",
    help=f"x axis of learning curves: {', '.join(X_AXES)}. Minutes and hours are wall time in which the trainer was "
    "active, without pauses, the time between a stop and a resume, and env steps that a resume replaced. "
    "Default: env_steps",
    choices={name: axis.choice for name, axis in X_AXES.items()},
    url_parameter="axis",
    has_flag=True,
)
FLAG_OPTIONS: Final[tuple[Option[Any], ...]] = (
    *(CENTER, BAND, COLOR, METHOD, EPISODES, INCLUDE_UNFINISHED, BUDGET, FINAL, RATE, X_AXIS),
)
"""Options with a flag of `emtc export`."""
SEED_OPTIONS: Final[tuple[Option[Any], ...]] = (CENTER, BAND, INCLUDE_UNFINISHED)
"""Options of every figure and table that summarizes seeds."""
BUDGET_OPTIONS: Final[tuple[Option[Any], ...]] = (*SEED_OPTIONS, BUDGET)
"""Options of a figure or table that reads all runs at the same number of env steps."""
RATE_OPTIONS: Final[tuple[Option[Any], ...]] = (*SEED_OPTIONS, RATE)
"""Options of a figure or table of win rates over env steps."""
CURVE_OPTIONS: Final[tuple[Option[Any], ...]] = (*RATE_OPTIONS, X_AXIS)
"""Options of a figure of win rates whose x axis can be chosen."""
FINAL_OPTIONS: Final[tuple[Option[Any], ...]] = (*BUDGET_OPTIONS, FINAL, RATE)
"""Options of a figure or table of final win rates."""
WINDOW: Final[Option[tuple[float, float] | None]] = Option(
    "x", read_window, "a window of the x axis, for example 0-150", None
)
