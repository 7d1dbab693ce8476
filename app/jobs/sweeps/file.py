"""The sweep file: which settings vary, over which values, with which seeds. All its faults are found together.

What does not live here: the runs that follow from it (`plan`), the files that come with the program (`templates`).

Sweep files that come with the program: the paper's studies, and small ones for a laptop.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from emtc_core.config.base import LARGEST, Section, SettingError, parse_toml, read_text, rule_of
from emtc_core.config.resolve import flatten_tree, suggest
from emtc_core.config.run import PresetName
from emtc_core.envs.registry import usual_map
from emtc_core.errors import ConfigError, Fault
from emtc_core.plugins import find_plugin

Leaf = bool | int | float | str
Study = Literal["lambda-heatmap", "tau-study", "augmentation", "delta-embedder", "ablation", "learning-curves"]
MOST_SEEDS = 100
_MOST_FAULTS = 20
_WHAT = "sweep file"
Texts = Annotated[tuple[str, ...], Field(min_length=1)]
_FLAT = BeforeValidator(lambda value: flatten_tree(value) if isinstance(value, Mapping) else value)
"""Dotted keys of nested tables."""
_FLAT_RANGES = BeforeValidator(lambda value: _flatten(value) if isinstance(value, Mapping) else value)


class Range(Section):
    """Where a random value is drawn from."""

    low: float
    """Least value."""
    high: float
    """Greatest value."""
    log: bool = False
    """Draw the logarithm evenly instead of the value."""

    @model_validator(mode="after")
    def _rises(self) -> "Range":
        if not self.low < self.high or (self.log and self.low <= 0):
            raise SettingError(Fault("range", (self.low, self.high), "must rise, and be > 0 if log = true"))
        if not math.isfinite(self.high - self.low):
            raise SettingError(Fault("range", (self.low, self.high), "must be narrower"))
        return self


class RandomSearch(Section):
    """Samples of settings drawn at random, the same ones each time."""

    samples: Annotated[int, Field(ge=1, le=10_000)]
    """How many samples."""
    seed: Annotated[int, Field(ge=0, le=LARGEST)] = 0
    """Seed of the draw."""
    ranges: Annotated[dict[str, Range | tuple[Leaf, ...]], Field(min_length=1), _FLAT_RANGES]
    """Setting → { low, high, log } or a list to choose from."""


class OptunaSearch(Section):
    """Settings chosen by Optuna, trial after trial, from what earlier trials showed."""

    trials: Annotated[int, Field(ge=1, le=2000)]
    """How many trials; more in the file extend the search."""
    sampler: Literal["tpe", "random", "qmc"] = "tpe"
    """Who chooses settings: tree-structured Parzen estimator, chance, or a quasi-Monte Carlo sequence."""
    pruner: Literal["median", "percentile", "asha", "hyperband", "none"] = "median"
    """Who ends trials early: median or best quarter of earlier ones at the same step, successive halving, nobody."""
    metric: Annotated[str, Field(max_length=64)] = "win_rate"
    """What counts, at its last value: win_rate, mu_w, return, length, robust_win_rate, robust_mu_w, or a metric."""
    direction: Literal["maximize", "minimize"] = "maximize"
    """Which way is better."""
    startup: Annotated[int, Field(ge=0, le=1000)] = 4
    """Trials that are trained whole before any is pruned (median, percentile)."""
    warmup: Annotated[int, Field(ge=0, le=LARGEST)] = 0
    """Env steps before which no trial is pruned; 0 means one interval."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Of the sampler."""
    space: Annotated[dict[str, Range | tuple[Leaf, ...]], Field(min_length=1, max_length=50), _FLAT_RANGES]
    """Setting → { low, high, log } or a list to choose from."""


class Variant(Section):
    """Settings that belong together, under a name."""

    name: Annotated[str, Field(min_length=1, max_length=60)]
    """What the figures call it."""
    algo: str | None = None
    """Algorithm instead of the file's."""
    preset: PresetName | None = None
    """Preset instead of the file's."""
    changes: Annotated[dict[str, Leaf], Field(alias="set", default_factory=dict), _FLAT]
    """Setting → value."""


class SweepFile(Section):
    """Everything that a sweep file may say."""

    name: Annotated[str, Field(min_length=1, max_length=80)]
    """What lists call the sweep."""
    about: str = ""
    """Which question it answers."""
    study: Study = "learning-curves"
    """Which figure reads it."""
    env: str = "skirmish"
    """Environment."""
    map: Texts = ("3m",)
    """Maps, one or a list."""
    algo: Texts = ("emtc-qplex",)
    """Algorithms, one or a list."""
    preset: PresetName = "paper"
    """Where the other settings come from."""
    steps: Annotated[int, Field(ge=1, le=LARGEST)] | None = None
    """Training length of each run; unset means the task's own [env steps]."""
    seeds: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**31)], ...], Field(min_length=1, max_length=MOST_SEEDS)]
    """A list of seeds, or how many: 3 means 1, 2, 3."""
    common: Annotated[dict[str, Leaf], Field(alias="set", default_factory=dict), _FLAT]
    """Setting → value for all runs."""
    grid: Annotated[dict[str, Annotated[tuple[Leaf, ...], Field(min_length=1)]], Field(default_factory=dict), _FLAT]
    """Setting → values; every combination is run."""
    variant: tuple[Variant, ...] = ()
    """Settings that belong together; each variant is combined with the grid."""
    random: RandomSearch | None = None
    """Samples drawn at random; each is combined with the variants and the grid."""
    optuna: OptunaSearch | None = None
    """A search by Optuna: one map, one algorithm and one seed, nothing else that varies."""

    @model_validator(mode="before")
    @classmethod
    def _first_map(cls, values: Any) -> Any:
        """An environment from outside may have one map alone, whose name nobody need know."""
        env = values.get("env") if isinstance(values, Mapping) and "map" not in values else None
        if not isinstance(env, str) or find_plugin("env", env) is None:
            return values
        return {**values, "map": usual_map(env)}

    @field_validator("map", "algo", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("seeds", mode="before")
    @classmethod
    def _counted(cls, value: Any) -> Any:
        counted = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_SEEDS
        return tuple(range(1, value + 1)) if counted else value

    @model_validator(mode="after")
    def _distinct(self) -> "SweepFile":
        names = [variant.name for variant in self.variant]
        for key, values in (("variant", names), ("seeds", self.seeds), ("map", self.map), ("algo", self.algo)):
            twice = [value for value, n in Counter(values).items() if n > 1]
            if twice:
                raise SettingError(Fault(key, twice[0], "must not contain a value twice"))
        return self

    @model_validator(mode="after")
    def _searched_alone(self) -> "SweepFile":
        """Refuse a search of several seeds, maps or algorithms: its trials would not compare."""
        if self.optuna is None:
            return self
        if self.grid or self.variant or self.random:
            rule = "must be the only part that varies settings"
            raise SettingError(Fault("optuna", rule=rule, hint="Remove [grid], [[variant]] and [random]."))
        for key, values in (("seeds", self.seeds), ("map", self.map), ("algo", self.algo)):
            if len(values) > 1:
                rule, hint = "must be a single one if [optuna] is there", "Train the best trial over more afterwards."
                raise SettingError(Fault(key, values, rule, hint))
        return self

    @model_validator(mode="after")
    def _one_place(self) -> "SweepFile":
        """Refuse a setting in two places, and those that have a place of their own."""
        drawn = {**(self.random.ranges if self.random else {}), **(self.optuna.space if self.optuna else {})}
        for key in [*self.common, *self.grid, *drawn, *(key for v in self.variant for key in v.changes)]:
            if key in _ELSEWHERE:
                rule = f"must be set at the top of a sweep file: {_ELSEWHERE[key]}"
                raise SettingError(Fault(key, rule=rule))
        places = [set(self.common), set(self.grid), set(drawn)]
        both = [key for i, place in enumerate(places) for key in sorted(place) if any(key in p for p in places[:i])]
        if both:
            raise SettingError(
                *(Fault(key, rule="must be in only one of [set], [grid], [random], [optuna]") for key in both)
            )
        return self


_ELSEWHERE = {
    "seed": "seeds = 3",
    "algo": 'algo = "…"',
    "env.name": 'env = "…"',
    "env.map": 'map = "…"',
    "train.t_max": "steps = 100_000",
    "preset": 'preset = "…"',
}


def read_sweep_file(path: Path) -> SweepFile:
    """Read a sweep file.

    Raises:
        ConfigError: If it cannot be read; with all faults.
    """
    return parse_sweep(read_text(path))


def parse_sweep(text: str) -> SweepFile:
    """Read the text of a sweep file.

    Raises:
        ConfigError: With all faults.
    """
    tree = parse_toml(text, _WHAT)
    try:
        return SweepFile.model_validate(tree)
    except ValidationError as exc:
        faults = _read_faults(exc)
        if len(faults) > _MOST_FAULTS:
            faults[_MOST_FAULTS:] = [Fault(rule=f"There are {len(faults) - _MOST_FAULTS:,} more faults")]
        raise ConfigError(*faults) from exc
    except RecursionError as exc:
        raise ConfigError("is nested too deeply", key=_WHAT) from exc


def _read_faults(exc: ValidationError) -> list[Fault]:
    found: dict[tuple[str, str], Fault] = {}
    for details in exc.errors():
        path = [str(part) for part in details["loc"] if not isinstance(part, int)]
        setting = _find_setting(path)
        cause = details.get("ctx", {}).get("error")
        for fault in cause.faults if isinstance(cause, SettingError) else (_read_fault(details, path, setting),):
            # A value that may be of several types gives a fault for each: the first one is about its own type.
            key = setting or fault.key
            found.setdefault((key, "" if setting else fault.rule), replace(fault, key=key))
    return list(found.values())


def _find_setting(path: list[str]) -> str:
    """The setting whose values stand at a place of the file; empty for a key of the file itself."""
    heads = {"set": 1, "grid": 1, "random": 2, "optuna": 2, "variant": 2}
    at = heads.get(path[0], 0) if path else 0
    inner = path[1:at]
    return path[at] if at and len(path) > at and (not inner or inner[0] in ("set", "ranges", "space")) else ""


def _read_fault(details: ErrorDetails, path: list[str], setting: str) -> Fault:
    key, kind, value = ".".join(path), details["type"], details["input"]
    if kind == "extra_forbidden":
        return Fault(key, rule="is not a key of a sweep file", hint=_suggest_key(path[-1]))
    if kind == "missing":
        hint = "See an example with: emtc sweep --list-templates"
        return Fault(key, rule="must be in a sweep file", hint=hint)
    if setting:
        return _setting_fault(path[0], setting, value, is_item=isinstance(details["loc"][-2], int))
    if path and path[0] in _LISTS and kind in ("tuple_type", "too_short"):
        return Fault(path[0], value, f"must be {_LISTS[path[0]]}")
    return Fault(key, value, rule_of(details))


_LISTS = {
    "seeds": f"a list of whole numbers, or how many (1 to {MOST_SEEDS})",
    "map": "one map or a list of maps",
    "algo": "one algorithm or a list of algorithms",
    "grid": "tables of lists that are not empty",
}


def _setting_fault(section: str, key: str, value: object, *, is_item: bool) -> Fault:
    if is_item:
        return Fault(key, value, f"must have only finite numbers, texts, true or false in [{section}]")
    if section == "grid":
        return Fault(key, value, "must be a list in [grid] that is not empty, such as [1, 2]")
    if section in ("random", "optuna"):
        return Fault(key, value, f"must be {{ low = 0.1, high = 1.0 }} or a list in [{section}], with finite numbers")
    return Fault(key, value, "must be a number, a text, true or false", "Lists of values belong in [grid].")


def _suggest_key(key: str) -> str:
    models = (SweepFile, Variant, RandomSearch, OptunaSearch)
    return suggest(key, [*(name for model in models for name in model.model_fields), "set"])


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and not {"low", "high"} & set(value):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


_FOLDER = files("app.jobs.sweeps").joinpath("templates")


def list_templates() -> dict[str, SweepFile]:
    """List every template by name: those of the demo first, then the paper's."""
    names = sorted(
        (each.name.removesuffix(".toml") for each in _FOLDER.iterdir() if each.name.endswith(".toml")),
        key=lambda name: (not name.endswith("-demo"), name),
    )
    return {name: parse_sweep(read_template(name)) for name in names}


def read_template(name: str) -> str:
    """Read the text of a template.

    Raises:
        FileNotFoundError: If there is none of that name.
    """
    return _FOLDER.joinpath(f"{name}.toml").read_text(encoding="utf-8")


def find_sweep_file(file: str) -> SweepFile:
    """Read a template by its name, or a file by its path.

    Raises:
        ConfigError: If the file cannot be read; with all faults.
    """
    if f"{file}.toml" in {each.name for each in _FOLDER.iterdir()} and not Path(file).is_file():
        return parse_sweep(read_template(file))
    return read_sweep_file(Path(file))
