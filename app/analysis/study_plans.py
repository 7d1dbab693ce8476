"""Plans of studies: the question of a study, its sweeps (groups of planned runs), and its claims with their measures.

A study is declared in one TOML file NAME.study.toml. The files of this program are in `app/jobs/sweeps/templates`, next
to the sweep files and to the plans as text. `EMTC_STUDIES` names a folder with further files. `app.analysis.measures`
defines the measures, and `app.analysis.findings` computes the numbers.
"""

import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from app.analysis.measures import MEASURES
from emtc_core.config.base import IMPORTED, ConfigSection, SettingError, Value, convert_errors, parse_toml, read_text
from emtc_core.config.resolve import flatten_tree, list_keys, suggest
from emtc_core.errors import ConfigError, Fault

STUDIES_VARIABLE: Final = "EMTC_STUDIES"
"""Environment variable: a folder with study files of the user."""
FILE_ENDING: Final = ".study.toml"
_SHIPPED_FOLDER: Final = Path(__file__).parents[1] / "jobs" / "sweeps" / "templates"
_CLAIMS_FOR_OTHER_RUNS: Final = "first"
"""Name of the study of this program whose claims are applied to runs that belong to no study."""

Text = Annotated[str, Field(min_length=1)]
SettingValues = Annotated[
    dict[str, Value],
    BeforeValidator(lambda value: flatten_tree(value) if isinstance(value, Mapping) else value),
]
"""Setting → value, by dotted key. A file can also have nested tables."""
Pair = Annotated[tuple[str, ...], Field(min_length=1, max_length=2)]
"""Names of two variants that are compared, or of one variant whose measure is compared with 0."""


class StudyVariant(ConfigSection):
    """A variant of a study: an algorithm, and the settings by which its runs are recognized."""

    algo: Text
    """Algorithm of the runs."""
    settings: SettingValues = Field(default_factory=dict)
    """Setting → the value that a run of this variant has."""
    without: SettingValues = Field(default_factory=dict)
    """Setting → a value that a run of this variant does not have."""

    def matches(self, run_settings: Mapping[str, Value]) -> bool:
        """Return whether a run with these settings belongs to this variant."""
        has_settings = all(run_settings.get(key) == value for key, value in self.settings.items())
        is_excluded = any(run_settings.get(key) == value for key, value in self.without.items())
        return run_settings.get("algo") == self.algo and has_settings and not is_excluded


class Claim(ConfigSection):
    """A claim, the compared variants, and the measures. The first measure decides the claim."""

    number: Annotated[int, Field(ge=1)]
    """Number of the claim in the plan. Parts of one claim have the same number."""
    text: Text
    """The claim in one sentence."""
    pairs: tuple[Pair, ...]
    """The compared variants."""
    other_pairs: tuple[Pair, ...] = ()
    """Variants that are measured in the same way, without a verdict."""
    measures: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names of measures. The first one is the primary measure and decides. The others are only reported."""
    direction: Literal["higher", "lower"]
    """Whether the primary measure of the first variant is higher or lower than that of the second one, or than 0."""
    family: Text = "claims"
    """The p values of the claims of one family are corrected together, separately on each task."""

    @property
    def sign(self) -> int:
        """The claimed sign of the difference, 1 or -1."""
        return 1 if self.direction == "higher" else -1


class PostponedPart(ConfigSection):
    """A part of the plan that was postponed."""

    what: Text
    """The postponed runs."""
    when: date
    """Day of the decision."""
    why: Text
    """The reason, in complete sentences."""


class StudyPlan(ConfigSection):
    """The content of a study file."""

    path: Path
    """The study file. `read_plan` sets it."""
    title: Text
    """Name of the study on pages, in tables and in links."""
    question: Text
    """The question that the study answers."""
    plan_text: Text
    """Name of the file with the plan as Markdown, in the folder of the study file."""
    sweeps: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Names of the sweeps whose runs belong to the study."""
    variants: Annotated[dict[str, StudyVariant], Field(min_length=1)]
    """The variants by name. A chart of a study shows the first ones of this table."""
    claims: Annotated[tuple[Claim, ...], Field(alias="claim")]
    """The claims in the order of the tables."""
    correction: Literal["holm"]
    """Method by which the p values of a family of claims are corrected."""
    postponed: tuple[PostponedPart, ...] = ()
    """Postponed parts of the plan."""

    @property
    def name(self) -> str:
        """Name of the study file without its ending."""
        return self.path.name.removesuffix(FILE_ENDING)

    def read_plan_text(self) -> str:
        """Read the plan as Markdown.

        Raises:
            ConfigError: If the file cannot be read.
        """
        return read_text(self.path.with_name(self.plan_text))

    @model_validator(mode="after")
    def _check_names(self) -> "StudyPlan":
        """Refuse names of variants, measures and settings that do not exist."""
        faults: list[Fault] = []
        for i, claim in enumerate(self.claims):
            variants = [name for pair in (*claim.pairs, *claim.other_pairs) for name in pair]
            faults += _find_unknown_names(f"claim.{i}.pairs", variants, "a declared variant", self.variants)
            faults += _find_unknown_names(f"claim.{i}.measures", claim.measures, "a measure", MEASURES)
        settings = list_keys()
        for name, variant in self.variants.items():
            keys = [key for key in (*variant.settings, *variant.without) if not key.startswith(IMPORTED)]
            faults += _find_unknown_names(f"variants.{name}", keys, "a setting", settings)
        if faults:
            raise SettingError(*faults)
        return self


def list_plans() -> list[StudyPlan]:
    """List the studies of this program, then those in the folder `EMTC_STUDIES`, each in the order of the file names.

    Raises:
        ConfigError: If the folder or a file cannot be read, if a file is invalid, or if two studies have one title.
    """
    plans = [*_read_shipped_plans().values(), *_read_user_plans()]
    repeated = [title for title, n in Counter(plan.title for plan in plans).items() if n > 1]
    if repeated:
        raise ConfigError("must be different in each study file", key="title", value=repeated[0])
    return plans


def get_shipped_plan(name: str) -> StudyPlan:
    """Return a study of this program by the name of its file."""
    return _read_shipped_plans()[name]


@cache
def make_exploratory_plan() -> StudyPlan:
    """Make the plan for runs that belong to no study: the claims of the first study, without sweeps."""
    changes = {"title": "Runs outside the plans (exploratory)", "sweeps": ()}
    return get_shipped_plan(_CLAIMS_FOR_OTHER_RUNS).model_copy(update=changes)


def read_plan(path: Path) -> StudyPlan:
    """Read a study file.

    Raises:
        ConfigError: If the file cannot be read, with all of its faults, or if its plan as text does not exist.
    """
    content = parse_toml(read_text(path), str(path))
    try:
        plan = StudyPlan.model_validate({**content, "path": path})
    except ValidationError as exc:
        faults = [replace(fault, key=f"{path.name}:{fault.key}") for fault in convert_errors(exc)]
        raise ConfigError(*faults) from exc
    if not path.with_name(plan.plan_text).is_file():
        rule = "must be a file in the folder of the study file"
        raise ConfigError(rule, key=f"{path.name}:plan_text", value=plan.plan_text)
    return plan


@cache
def _read_shipped_plans() -> dict[str, StudyPlan]:
    plans = [read_plan(path) for path in sorted(_SHIPPED_FOLDER.glob(f"*{FILE_ENDING}"))]
    return {plan.name: plan for plan in plans}


def _read_user_plans() -> list[StudyPlan]:
    text = os.environ.get(STUDIES_VARIABLE, "").strip()
    if not text:
        return []
    folder = Path(text)
    if not folder.is_dir():
        raise ConfigError("must be a folder on this machine", key=STUDIES_VARIABLE, value=text)
    return [read_plan(path) for path in sorted(folder.glob(f"*{FILE_ENDING}"))]


def _find_unknown_names(key: str, names: Iterable[str], noun: str, options: Collection[str]) -> list[Fault]:
    """Return a fault for each name that is not an option, with the most similar option as hint."""
    return [Fault(key, name, f"must be {noun}", suggest(name, options)) for name in names if name not in options]
