"""Options of figures and tables: the base class of their models, and the groups of options that several of them have.

A figure or table has one frozen pydantic model of its options. `emtc export` and notebook entries validate their values
with it, pages draw widgets of its fields (`app.ui.widgets.option_widget`), and a notebook entry stores the values that
differ from the defaults. An option that only one figure has is declared in the module of that figure.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from types import UnionType
from typing import Annotated, Any, Final, Literal, Self, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from app.analysis.aggregates import BAND_NAMES, DEFAULT_BANDS, Aggregation, Band
from app.analysis.finals import FINAL_RULES, LAST_TENTH, FinalRule
from app.analysis.intervals import CENTER_NAMES, Center
from app.analysis.quantities import AUTO, RATE_MEANING, RATE_NAMES, RateName
from app.analysis.rates import REASON_FOR_ROBUST
from app.analysis.results import COMMON, OWN_END, Budget, parse_budget
from app.analysis.x_axes import X_AXES, XAxisName
from emtc_core.config.values import find_count
from emtc_core.errors import ConfigError

ProjectionMethod = Literal["pca", "tsne", "umap", "axes"]
METHOD_NAMES: Final[dict[str, str]] = {"axes": "Axes", "pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}


@dataclass(frozen=True)
class Option:
    """How an option is named on pages, in the help of `emtc export`, in URLs and in messages.

    It is a part of the annotation of a field; the field has the type and the default.
    """

    label: str = ""
    """Label of the widget on pages."""
    help: str = ""
    """Help of the flag of `emtc export`, and tooltip of the widget unless `tooltip` is set."""
    tooltip: str | None = None
    """Tooltip of the widget; an empty text for none. None: `help`."""
    choices: Mapping[Any, str] = field(default_factory=dict[Any, str])
    """Value → text on pages, if there are only a few values."""
    rule: str = ""
    """What a value must be: the end of the message "… must be …". Default: made from the type of the field."""
    url_parameter: str = ""
    """Name in the URL of a page. Default: the name of the option."""
    has_flag: bool = False
    """Whether `emtc export` has a flag of this name. Otherwise it takes --set NAME=VALUE."""
    name: str = ""
    """Name in commands, scripts and notebook entries: the alias or name of the field. Set by `Options.list_options`."""
    default: Any = None
    """Value if the option is not set: the default of the field. Set by `Options.list_options`."""
    minimum: Any = None
    """Smallest valid number: `ge` of the field; None if there is none. Set by `Options.list_options`."""
    maximum: Any = None
    """Largest valid number: `le` of the field; None if there is none. Set by `Options.list_options`."""

    @property
    def flag(self) -> str:
        """The flag of `emtc export`."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def parameter(self) -> str:
        """The name in the URL of a page."""
        return self.url_parameter or self.name

    @property
    def tooltip_text(self) -> str:
        """The tooltip of the widget; empty if it has none."""
        return self.help if self.tooltip is None else self.tooltip


class Options(BaseModel):
    """Base class of the options of a figure or table. A figure or table without options uses this class itself.

    The fields of a model with several base classes are in this order: those of the last base class first.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        coerce_numbers_to_str=True,  # `--set title=5` is a text
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )

    @classmethod
    def list_options(cls) -> dict[str, Option]:
        """List the options by their public names."""
        options: dict[str, Option] = {}
        for field_name, info in cls.model_fields.items():
            # pydantic stores `Option` and the bounds `ge` and `le` of a field in its metadata
            declared = next((item for item in info.metadata if isinstance(item, Option)), Option())
            minimum = next((item.ge for item in info.metadata if hasattr(item, "ge")), None)
            maximum = next((item.le for item in info.metadata if hasattr(item, "le")), None)
            name = info.alias or field_name
            rule = declared.rule or _describe_type(info.annotation)
            options[name] = replace(
                declared, name=name, default=info.default, rule=rule, minimum=minimum, maximum=maximum
            )
        return options

    @classmethod
    def get_option(cls, name: str) -> Option:
        """Return the description of an option by its public name."""
        return cls.list_options()[name]

    @classmethod
    def read(cls, values: Mapping[str, Any], *, owner: str = "figure") -> Self:
        """Validate values from a command, a script, a URL or a notebook entry, by their public names.

        Args:
            values: The values that are set. Texts are converted to the type of their field.
            owner: What has the options, for the message: "figure ablation".

        Raises:
            ConfigError: If an option does not exist or a value is not valid.
        """
        options = cls.list_options()
        if unknown := [name for name in values if name not in options]:
            names = ", ".join(sorted(options)) or "no option"
            raise ConfigError(f"is not an option of the {owner}, which takes {names}", key=unknown[0])
        try:
            return cls.model_validate(dict(values))
        except ValidationError as exc:
            name = str(exc.errors()[0]["loc"][0])
            raise ConfigError(f"must be {options[name].rule}", key=name, value=values[name]) from exc

    @classmethod
    def select(cls, values: Mapping[str, Any]) -> Self:
        """Make options from values by their public names. Values of options that this model does not have are ignored.

        A page has one set of values for several figures and tables.
        """
        options = cls.list_options()
        return cls.model_validate({name: value for name, value in values.items() if name in options})

    def list_set_values(self) -> dict[str, Any]:
        """List the values that differ from their defaults as JSON values, by their public names."""
        return self.model_dump(mode="json", exclude_defaults=True)


def _describe_type(annotation: Any) -> str:
    """Describe the values of a type for a message: "one of mean, median", "true or false", "a whole number"."""
    is_union = get_origin(annotation) in (Union, UnionType)
    value_type = get_args(annotation)[0] if is_union else annotation  # the first type of `int | None`
    if get_origin(value_type) is Literal:
        return list_choices(get_args(value_type))
    return {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}.get(value_type, "valid")


def list_choices(names: Iterable[str]) -> str:
    """Write the rule of an option that has one of these values."""
    return f"one of {', '.join(names)}"


def convert_with(read: Callable[[Any], Any]) -> BeforeValidator:
    """Make a pydantic validator from a function that converts a value. Every error of the function means: not valid.

    The function must also accept a value that it has returned.
    """

    def convert(value: Any) -> Any:
        try:
            return read(value)
        except (AttributeError, KeyError, OverflowError, TypeError) as exc:
            raise ValueError(str(exc)) from exc  # the error that pydantic expects

    return BeforeValidator(convert)


def read_window(value: Any) -> tuple[float, float]:
    """Read a range of the x axis from a text such as "0-150", or from two numbers.

    Raises:
        ValueError: If there are not exactly two finite numbers.
    """
    low, high = value.split("-") if isinstance(value, str) else value
    window = (float(low), float(high))
    if not all(map(isfinite, window)):
        raise ValueError("the two ends of a window must be finite")
    return window


def read_episodes(value: Any, *, min_count: int) -> tuple[int, ...]:
    """Read the numbers of at most two episodes from a text such as "120,87", from a number, or from a list.

    Raises:
        ValueError: If there are fewer than `min_count` or more than two numbers, or if a number is negative.
    """
    items = str(value).split(",") if isinstance(value, str | int) else value
    numbers = tuple(map(int, items))
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


_BAND_CHOICES: Final = ", ".join(f"{band} ({name})" for band, name in BAND_NAMES.items())


class UnfinishedOptions(Options):
    """Whether unfinished runs count."""

    include_unfinished: Annotated[
        bool,
        Option(
            "Unfinished runs",
            "Also count runs that have not finished, marked with a dagger",
            url_parameter="unfinished",
            has_flag=True,
        ),
    ] = False


class CenterOptions(Options):
    """How seeds are summarized in one number."""

    center: Annotated[
        Center | None,
        Option(
            "Line over seeds",
            f"Over seeds: {', '.join(CENTER_NAMES)}",
            tooltip="",
            choices=CENTER_NAMES,
            has_flag=True,
        ),
    ] = None

    @property
    def aggregation(self) -> Aggregation | None:
        """How seeds are summarized, with the usual band of the center; None if the center is not set."""
        return None if self.center is None else Aggregation(self.center, DEFAULT_BANDS[self.center])


class AggregationOptions(CenterOptions):
    """How seeds are summarized in one number with a band."""

    band: Annotated[
        Band | None,
        Option("Band over seeds", f"Over seeds: {_BAND_CHOICES}", tooltip="", choices=BAND_NAMES, has_flag=True),
    ] = None

    @property
    def aggregation(self) -> Aggregation | None:
        """How seeds are summarized; None if neither center nor band is set.

        If only the center is set, the band is the usual one for this center.
        """
        if self.center is None and self.band is None:
            return None
        center = self.center or "mean"
        return Aggregation(center, self.band or DEFAULT_BANDS[center])


class BudgetOptions(UnfinishedOptions):
    """Which runs count, and the env steps at which they are compared."""

    budget: Annotated[
        Budget,
        convert_with(parse_budget),
        Option(
            "Compare at",
            "Env steps at which runs of different lengths are compared, for example 20000 or 0.8M. Default: the length "
            "that most runs of a map have; the others are left out. own: each run at its own end, marked",
            tooltip="These runs have different lengths. A win rate after 4,000 env steps is not comparable with one "
            "after 40,000 env steps. Only runs of the most common length of their map are compared, or all runs at the "
            "number of env steps that you select. Shorter runs are listed below the tables.",
            choices={COMMON: "most common length", OWN_END: "each run's own end (marked)"},
            rule="common, own or a number of env steps such as 20000 or 0.8M",
            has_flag=True,
        ),
    ] = COMMON


class RateOptions(Options):
    """The win rate by which runs are compared."""

    rate: Annotated[
        RateName,
        Option(
            "Win rate of episodes",
            f"Episodes of the win rate. {RATE_MEANING}. Default: auto",
            tooltip=f"**Auto**: robust on skirmish, because {REASON_FOR_ROBUST}; greedy on tasks where a run has no "
            "robust evaluation. **Greedy**: SMAC's protocol. **Robust**: greedy episodes from shifted start positions. "
            "**Training**: with exploration.",
            choices={rate: rate.capitalize() for rate in RATE_NAMES},
            has_flag=True,
        ),
    ] = AUTO


class RatedBudgetOptions(BudgetOptions, RateOptions):
    """Which runs count, the env steps at which they are compared, and the win rate."""


class FinalRuleOptions(Options):
    """The definition of a final win rate."""

    final: Annotated[
        FinalRule,
        Option(
            "Win rate at the end of a run",
            f"Win rate at the end of a run: {', '.join(FINAL_RULES)}. Default: the mean over the last tenth",
            tooltip="Successive evaluations vary while a policy is learned, so a single evaluation is a random sample.",
            choices={"last-tenth": "mean over the last tenth", "last": "last evaluation"},
            has_flag=True,
        ),
    ] = LAST_TENTH


class ResultOptions(RatedBudgetOptions, FinalRuleOptions):
    """Options of final win rates that are not summarized over seeds."""


class SeedOptions(UnfinishedOptions, AggregationOptions):
    """Options of every figure and table that summarizes seeds."""


class SeedRateOptions(RateOptions, SeedOptions):
    """Options of win rates over env steps."""


class SeedResultOptions(ResultOptions, SeedOptions):
    """Options of final win rates over seeds."""


class XAxisOptions(Options):
    """The x axis of curves."""

    x_axis: Annotated[
        XAxisName,
        Option(
            "x axis",
            f"x axis of learning curves: {', '.join(X_AXES)}. Minutes and hours are wall time in which the trainer was "
            "active, without pauses, the time between a stop and a resume, and env steps that a resume replaced. "
            "Default: env_steps",
            tooltip=X_AXES["hours"].caption,
            choices={name: axis.menu_label for name, axis in X_AXES.items()},
            url_parameter="axis",
            has_flag=True,
        ),
    ] = "env_steps"


class CurveOptions(XAxisOptions, SeedRateOptions):
    """Options of curves of win rates whose x axis can be chosen."""


class WindowOptions(Options):
    """The part of a chart that is drawn."""

    window: Annotated[
        tuple[float, float] | None,
        Field(alias="x"),
        convert_with(read_window),
        Option(rule="a window of the x axis, for example 0-150"),
    ] = None


class MethodOptions(Options):
    """The projection of a memory."""

    method: Annotated[
        ProjectionMethod | None,
        Option(
            "Projection",
            "Projection of a memory: pca, tsne or umap",
            tooltip="PCA is computed immediately, t-SNE and UMAP in the background.",
            choices=METHOD_NAMES,
            has_flag=True,
        ),
    ] = None
