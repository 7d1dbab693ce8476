"""Parse and write sweep files: which settings vary, over which values, with which seeds. Read the templates.

All faults of a file are reported together. `plan` makes the list of runs from a sweep file. The templates are sweep
files of this program: the paper's studies, and small sweeps for a laptop.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from emtc_core.config.base import LARGEST, ConfigSection, SettingError, format_rule, parse_toml, read_text
from emtc_core.config.resolve import flatten_tree, parse_overrides, suggest
from emtc_core.config.run import PresetName
from emtc_core.envs.registry import get_default_map
from emtc_core.errors import ConfigError, Fault
from emtc_core.plugins import list_names

SettingValue = bool | int | float | str
"""Type of the value of one setting."""
StudyFigure = Literal["lambda-heatmap", "tau-study", "augmentation", "delta-embedder", "ablation", "learning-curves"]
MAX_SEEDS = 100
_MAX_FAULTS = 20
_SWEEP_FILE = "sweep file"
"""Name of the file in error messages."""
_TEMPLATE_FOLDER = files("app.jobs.sweeps").joinpath("templates")
_TOP_LEVEL_KEYS = {
    "seed": "seeds = 3",
    "algo": 'algo = "…"',
    "env.name": 'env = "…"',
    "env.map": 'map = "…"',
    "train.t_max": "steps = 100_000",
    "preset": 'preset = "…"',
}
"""Setting that has its own key at the top of a sweep file → example of this key."""
_FILE_KEYS = {"algo": "algo", "env.name": "env", "env.map": "map", "train.t_max": "steps", "preset": "preset"}
"""Setting → its key at the top of a sweep file. Seeds are missing, because a file has several."""
_LIST_RULES = {
    "seeds": f"a list of whole numbers, or how many (1 to {MAX_SEEDS})",
    "map": "one map or a list of maps",
    "algo": "one algorithm or a list of algorithms",
    "grid": "tables of lists that are not empty",
}
"""Key of a sweep file whose value is a list → rule in error messages."""
NonEmptyValues = Annotated[tuple[SettingValue, ...], Field(min_length=1)]
NonEmptyTexts = Annotated[tuple[str, ...], Field(min_length=1)]
_FLATTEN_TABLES = BeforeValidator(lambda value: flatten_tree(value) if isinstance(value, Mapping) else value)
"""Validator that turns nested tables into dotted keys: {gate: {enabled: false}} becomes {"gate.enabled": false}."""
_FLATTEN_RANGES = BeforeValidator(lambda value: _flatten_ranges(value) if isinstance(value, Mapping) else value)
"""The same, but a table with the keys low and high is a `Range` and is not changed."""


class Range(ConfigSection):
    """A range of values for a random search or a search by Optuna."""

    low: float
    """Smallest value."""
    high: float
    """Largest value."""
    log: bool = False
    """Draw the logarithm of the value from a uniform distribution."""

    @model_validator(mode="after")
    def _check_order(self) -> "Range":
        if not self.low < self.high or (self.log and self.low <= 0):
            raise SettingError(Fault("range", (self.low, self.high), "must have low < high, and low > 0 if log = true"))
        if not math.isfinite(self.high - self.low):
            raise SettingError(Fault("range", (self.low, self.high), "must be narrower"))
        return self


class RandomSearch(ConfigSection):
    """Settings drawn at random. The same seed gives the same samples."""

    samples: Annotated[int, Field(ge=1, le=10_000)]
    """Number of samples."""
    seed: Annotated[int, Field(ge=0, le=LARGEST)] = 0
    """Random seed of the samples."""
    ranges: Annotated[dict[str, Range | tuple[SettingValue, ...]], Field(min_length=1), _FLATTEN_RANGES]
    """Setting → { low, high, log } or a list to choose from."""


class OptunaSearch(ConfigSection):
    """A search in which Optuna chooses the settings of each trial from the results of earlier trials."""

    trials: Annotated[int, Field(ge=1, le=2000)]
    """Number of trials. A larger number extends the search."""
    sampler: Literal["tpe", "random", "qmc"] = "tpe"
    """How settings are chosen: tree-structured Parzen estimator, at random, or quasi-Monte Carlo sequence."""
    pruner: Literal["median", "percentile", "asha", "hyperband", "none"] = "median"
    """When a trial ends early: worse than the median or the best 25 % of earlier trials, successive halving, never."""
    metric: Annotated[str, Field(max_length=64)] = "win_rate"
    """Objective, at its last value: win_rate, mu_w, return, length, robust_win_rate, robust_mu_w, or a metric."""
    direction: Literal["maximize", "minimize"] = "maximize"
    """Direction of the objective."""
    startup: Annotated[int, Field(ge=0, le=1000)] = 4
    """Number of complete trials before the first trial can be pruned (median, percentile)."""
    warmup: Annotated[int, Field(ge=0, le=LARGEST)] = 0
    """Env steps before a trial can be pruned; 0 means one interval."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Random seed of the sampler."""
    space: Annotated[dict[str, Range | tuple[SettingValue, ...]], Field(min_length=1, max_length=50), _FLATTEN_RANGES]
    """Setting → { low, high, log } or a list to choose from."""


class SweepVariant(ConfigSection):
    """A named set of settings."""

    name: Annotated[str, Field(min_length=1, max_length=60)]
    """Name in figures."""
    algo: str | None = None
    """Algorithm instead of the file's."""
    preset: PresetName | None = None
    """Preset instead of the file's."""
    changes: Annotated[dict[str, SettingValue], Field(alias="set", default_factory=dict), _FLATTEN_TABLES]
    """Setting → value."""


class SweepFile(ConfigSection):
    """The content of a sweep file."""

    name: Annotated[str, Field(min_length=1, max_length=80)]
    """Name of the sweep."""
    about: str = ""
    """The question that the sweep answers."""
    study: StudyFigure = "learning-curves"
    """The figure that shows the sweep."""
    env: str = "skirmish"
    """Environment."""
    map: NonEmptyTexts = ("3m",)
    """Maps, one or a list."""
    algo: NonEmptyTexts = ("emtc-qplex",)
    """Algorithms, one or a list."""
    preset: PresetName = "paper"
    """Preset with the values of all other settings."""
    steps: Annotated[int, Field(ge=1, le=LARGEST)] | None = None
    """Training length of each run; unset means the default of the task [env steps]."""
    seeds: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**31)], ...], Field(min_length=1, max_length=MAX_SEEDS)]
    """A list of seeds, or their number: 3 means 1, 2, 3."""
    common: Annotated[dict[str, SettingValue], Field(alias="set", default_factory=dict), _FLATTEN_TABLES]
    """Setting → value for all runs."""
    grid: Annotated[dict[str, NonEmptyValues], Field(default_factory=dict), _FLATTEN_TABLES]
    """Setting → values. All combinations are trained."""
    variant: tuple[SweepVariant, ...] = ()
    """Named sets of settings. Each is combined with the grid."""
    random: RandomSearch | None = None
    """Random samples of settings. Each is combined with the variants and the grid."""
    optuna: OptunaSearch | None = None
    """A search by Optuna, with one map, one algorithm, one seed and no other settings that vary."""

    @model_validator(mode="before")
    @classmethod
    def _set_default_map(cls, values: Any) -> Any:
        """Set the default map of a plug-in environment if the file names no map."""
        env = values.get("env") if isinstance(values, Mapping) and "map" not in values else None
        if not isinstance(env, str) or env not in list_names("environment"):
            return values
        return {**values, "map": get_default_map(env)}

    @field_validator("map", "algo", mode="before")
    @classmethod
    def _make_tuple(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("seeds", mode="before")
    @classmethod
    def _expand_seeds(cls, value: Any) -> Any:
        is_count = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_SEEDS
        return tuple(range(1, value + 1)) if is_count else value

    @model_validator(mode="after")
    def _check_distinct(self) -> "SweepFile":
        names = [variant.name for variant in self.variant]
        for key, values in (("variant", names), ("seeds", self.seeds), ("map", self.map), ("algo", self.algo)):
            repeated = [value for value, n in Counter(values).items() if n > 1]
            if repeated:
                raise SettingError(Fault(key, repeated[0], "must not contain a value twice"))
        return self

    @model_validator(mode="after")
    def _check_search(self) -> "SweepFile":
        """Refuse a search with several seeds, maps or algorithms, because its trials would not be comparable."""
        if self.optuna is None:
            return self
        if self.grid or self.variant or self.random:
            rule = "must be the only part that varies settings"
            raise SettingError(Fault("optuna", rule=rule, hint="Remove [grid], [[variant]] and [random]."))
        for key, values in (("seeds", self.seeds), ("map", self.map), ("algo", self.algo)):
            if len(values) > 1:
                rule = "must have one value if the file has [optuna]"
                raise SettingError(Fault(key, values, rule, hint="Train the best trial with more afterwards."))
        return self

    @model_validator(mode="after")
    def _check_tables(self) -> "SweepFile":
        """Refuse a setting in two tables, and a setting that has a key at the top of the file."""
        for key in [*self.common, *self.varied_settings]:
            if key in _TOP_LEVEL_KEYS:
                rule = f"must be set at the top of a sweep file: {_TOP_LEVEL_KEYS[key]}"
                raise SettingError(Fault(key, rule=rule))
        n_tables = Counter([*self.common, *self.grid, *self.searched_settings])
        repeated = [key for key, n in n_tables.items() if n > 1]
        if repeated:
            rule = "must be in only one of [set], [grid], [random], [optuna]"
            raise SettingError(*(Fault(key, rule=rule) for key in repeated))
        return self

    @property
    def searched_settings(self) -> list[str]:
        """Settings whose values are drawn at random or chosen by Optuna."""
        if self.random is not None:
            return list(self.random.ranges)
        return list(self.optuna.space) if self.optuna is not None else []

    @property
    def varied_settings(self) -> list[str]:
        """Settings that vary between the runs, except algorithm, map and seed."""
        variant_settings = [key for variant in self.variant for key in variant.changes]
        return [*self.grid, *self.searched_settings, *variant_settings]


def parse_sweep(text: str) -> SweepFile:
    """Parse the text of a sweep file.

    Raises:
        ConfigError: With all faults of the text.
    """
    return _validate(parse_toml(text, _SWEEP_FILE))


def change_settings(file: SweepFile, settings: Sequence[str] = (), *, steps: int | None = None) -> SweepFile:
    """Return a sweep file with other settings for all of its runs.

    Args:
        file: The sweep file.
        settings: NonEmptyTexts "key=value", as `emtc train --set` takes them.
        steps: Training length of each run [env steps].

    Raises:
        ConfigError: If a setting is invalid, or varies between the runs of the file.
    """
    changes = parse_overrides(settings)
    if steps is not None:
        changes |= {"train.t_max": steps}
    if not changes:
        return file
    varied = sorted(changes.keys() & set(file.varied_settings))
    if varied:
        raise ConfigError(*(Fault(key, rule="varies between the runs of the sweep file") for key in varied))
    content = file.model_dump(by_alias=True, exclude_unset=True)
    content["set"] = dict(file.common)
    for key, value in changes.items():
        if key in _FILE_KEYS:
            content[_FILE_KEYS[key]] = value
        else:
            content["set"][key] = value
    return _validate(content)


def _validate(tree: Mapping[str, Any]) -> SweepFile:
    try:
        return SweepFile.model_validate(tree)
    except ValidationError as exc:
        faults = _read_faults(exc)
        if len(faults) > _MAX_FAULTS:  # one fault replaces the rest
            faults[_MAX_FAULTS:] = [Fault(rule=f"There are {len(faults) - _MAX_FAULTS:,} more faults")]
        raise ConfigError(*faults) from exc
    except RecursionError as exc:
        raise ConfigError("is nested too deeply", key=_SWEEP_FILE) from exc


def write_sweep_file(file: SweepFile) -> str:
    """Write a sweep file as TOML. `parse_sweep` of the text gives an equal file."""
    content = {key: value for key, value in file.model_dump(mode="json").items() if value not in (None, "", [], {})}
    tables = {key: content.pop(key) for key in ("set", "grid", "random", "optuna") if key in content}
    variants = content.pop("variant", [])
    for name in ("random", "optuna"):
        for key in ("ranges", "space"):  # the ranges of settings have a separate table
            if key in tables.get(name, {}):
                tables[f"{name}.{key}"] = tables[name].pop(key)
    lines = _write_pairs(content)
    for name, table in tables.items():
        lines += ["", f"[{name}]", *_write_pairs(table)]
    for variant in variants:
        lines += ["", "[[variant]]", *_write_pairs({key: value for key, value in variant.items() if value})]
    return "\n".join(lines) + "\n"


def _write_pairs(table: Mapping[str, Any]) -> list[str]:
    return [f"{_write_key(key)} = {_write_toml(value)}" for key, value in table.items()]


def _write_key(key: str) -> str:
    return key if re.fullmatch(r"[\w.-]+", key, re.ASCII) else json.dumps(key)


def _write_toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(_write_pairs(value))} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_write_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _read_faults(exc: ValidationError) -> list[Fault]:
    """Convert the errors of pydantic to faults, with one fault for each setting."""
    faults: dict[tuple[str, str], Fault] = {}
    for details in exc.errors():
        path = [str(part) for part in details["loc"] if not isinstance(part, int)]
        setting = _find_setting(path)
        cause = details.get("ctx", {}).get("error")
        causes = cause.faults if isinstance(cause, SettingError) else [_make_fault(details, path, setting)]
        for fault in causes:
            # For a setting, Pydantic reports an error for each type that a value may have. Only the first one is kept.
            key = setting or fault.key
            rule = "" if setting else fault.rule
            faults.setdefault((key, rule), replace(fault, key=key))
    return list(faults.values())


def _find_setting(path: list[str]) -> str:
    """Return the setting at a path of the file, or "" if the path is a key of the file itself."""
    match path:
        case ["set" | "grid", setting, *_]:
            return setting
        case ["random" | "optuna" | "variant", "set" | "ranges" | "space", setting, *_]:
            return setting
        case _:
            return ""


def _make_fault(details: ErrorDetails, path: list[str], setting: str) -> Fault:
    key = ".".join(path)
    kind = details["type"]
    value = details["input"]
    if kind == "extra_forbidden":
        models = (SweepFile, SweepVariant, RandomSearch, OptunaSearch)
        keys = [*(name for model in models for name in model.model_fields), "set"]
        return Fault(key, rule="is not a key of a sweep file", hint=suggest(path[-1], keys))
    if kind == "missing" and not setting:
        hint = "See an example with: emtc sweep --list-templates"
        return Fault(key, rule="must be in a sweep file", hint=hint)
    if setting:
        return _make_setting_fault(path[0], setting, value, is_item=isinstance(details["loc"][-2], int))
    if path and path[0] in _LIST_RULES and kind in ("tuple_type", "too_short"):
        return Fault(path[0], value, f"must be {_LIST_RULES[path[0]]}")
    return Fault(key, value, format_rule(details))


def _make_setting_fault(table: str, key: str, value: object, *, is_item: bool) -> Fault:
    if is_item:
        return Fault(key, value, f"must have only finite numbers, texts, true or false in [{table}]")
    if table == "grid":
        return Fault(key, value, "must be a list in [grid] that is not empty, such as [1, 2]")
    if table in ("random", "optuna"):
        return Fault(key, value, f"must be {{ low = 0.1, high = 1.0 }} or a list in [{table}], with finite numbers")
    return Fault(key, value, "must be a number, a text, true or false", "Lists of values belong in [grid].")


def _flatten_ranges(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn nested tables into dotted keys. A table with the key low or high is a range and is not changed."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and not {"low", "high"} & set(value):
            flat |= _flatten_ranges(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def list_templates() -> dict[str, SweepFile]:
    """List the templates by name: first those for a laptop (`-demo`), then those of the paper."""
    names = sorted(_list_template_names(), key=lambda name: (not name.endswith("-demo"), name))
    return {name: parse_sweep(read_template(name)) for name in names}


def _list_template_names() -> list[str]:
    """List the names of the sweep files in the folder of the templates, which also contains study files."""
    file_names = [file.name for file in _TEMPLATE_FOLDER.iterdir()]
    sweep_files = [name for name in file_names if name.endswith(".toml") and not name.endswith(".study.toml")]
    return [name.removesuffix(".toml") for name in sweep_files]


def read_template(name: str) -> str:
    """Read the text of a template.

    Raises:
        FileNotFoundError: If there is no template with this name.
    """
    return _TEMPLATE_FOLDER.joinpath(f"{name}.toml").read_text(encoding="utf-8")


def is_sweep_file(name: str) -> bool:
    """Return whether a text is the name of a template or the path of an existing file."""
    return _is_file(name) or name in _list_template_names()


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except OSError:  # the name is too long
        return False


def find_sweep_file(file: str) -> SweepFile:
    """Read a sweep file by its path, or a template by its name. A file with the name of a template takes precedence.

    Raises:
        ConfigError: If the file cannot be read, or with all of its faults.
    """
    if is_sweep_file(file) and not _is_file(file):
        return parse_sweep(read_template(file))
    return parse_sweep(read_text(Path(file)))
