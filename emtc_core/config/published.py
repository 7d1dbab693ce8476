"""Comparison of every baseline's settings with the settings that its authors published.

`published_values.toml` has the published values, one entry per file of a repository. `published_rules.toml` maps
published keys to our settings, and lists differences with their reasons. A value that differs from the published one and
is not listed is a fault.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from pydantic import Field

from emtc_core.config.base import Section
from emtc_core.config.resolve import Value, flatten, resolve

Given = bool | int | float | str
_SMAC = ("skirmish", "smac", "smax")
_NAMES = ("algo", "seed", "preset", "env.name", "env.map")
"""Settings that identify a run. They are not compared."""


@dataclass(frozen=True)
class Case:
    """One baseline on one task."""

    algo: str
    env: str
    map: str

    @property
    def game(self) -> str:
        """Name of the published configurations that apply: "smac", or the environment's name."""
        return "smac" if self.env in _SMAC else self.env


class _Scoped(Section):
    """An entry that applies to some cases. An empty condition applies to all."""

    algos: tuple[str, ...] = ()
    game: str = ""
    maps: tuple[str, ...] = ()

    def holds(self, case: Case) -> bool:
        """Whether the entry applies to a case."""
        return (
            case.algo in (self.algos or (case.algo,))
            and case.game == (self.game or case.game)
            and case.map in (self.maps or (case.map,))
        )


class Repository(Section):
    """A public repository at one commit."""

    name: str
    commit: str


class PublishedFile(Section):
    """Values in one file of a repository. Values that the file has in code have the keys of our settings."""

    repository: str
    path: str
    like: str = ""
    """Another entry with the same values, except for `values` and `without`."""
    without: tuple[str, ...] = ()
    values: dict[str, Given]


class Configuration(_Scoped):
    """The files with a baseline's configuration on some tasks; later files win."""

    files: tuple[str, ...]
    note: str = ""
    """Why these files are used, if the authors published none for the task."""


class Counterpart(_Scoped):
    """Our settings for a published key, and the translation of its values."""

    published: str
    ours: tuple[str, ...]
    means: dict[str, Given] = Field(default_factory=dict)


class Constants(_Scoped):
    """Published keys without a setting here, and the fixed values of our code."""

    why: str
    values: dict[str, Given]


class OmittedKeys(Section):
    """Published keys whose values are not in the table: in some files, or in all files if `files` is empty."""

    why: str
    keys: tuple[str, ...]
    files: tuple[str, ...] = ()


class UnreadSettings(_Scoped):
    """Our settings, or whole sections ("gate.*"), that a baseline never reads."""

    why: str
    keys: tuple[str, ...]


class PinnedValues(_Scoped):
    """Settings without a published value, and the value that a baseline uses."""

    why: str
    values: dict[str, Given]


class Difference(_Scoped):
    """One of our values that differs from the published value, and the reason."""

    key: str
    ours: Given
    published: Given
    why: str


class Table(Section):
    """All published values and rules."""

    repository: dict[str, Repository]
    file: dict[str, PublishedFile]
    configuration: tuple[Configuration, ...]
    counterpart: tuple[Counterpart, ...]
    constant: tuple[Constants, ...]
    omitted: tuple[OmittedKeys, ...]
    unread: tuple[UnreadSettings, ...]
    pinned: tuple[PinnedValues, ...]
    difference: tuple[Difference, ...]


@dataclass(frozen=True)
class Published:
    """A published value and its source."""

    value: Given
    source: str
    """Repository and path."""


@dataclass(frozen=True)
class Comparison:
    """One of our values and the published value. `why` is the reason of a listed difference, else empty."""

    key: str
    ours: Value
    published: Given
    source: str
    why: str = ""


@dataclass
class PublishedComparison:
    """Result of a comparison."""

    compared: list[Comparison] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """One sentence each."""
    used: set[tuple[int, str]] = field(default_factory=set)
    """(id of the entry, key) for each entry of the table that was used."""

    @property
    def differences(self) -> list[Comparison]:
        """The values that differ, each with its reason."""
        return [row for row in self.compared if row.why]


@cache
def read_table() -> Table:
    """Read the published values and the rules from the package."""
    folder = files("emtc_core.config")
    texts = (folder.joinpath(f"published_{part}.toml").read_text(encoding="utf-8") for part in ("values", "rules"))
    values, rules = (tomllib.loads(text) for text in texts)
    return Table.model_validate(values | rules)


def list_cases() -> list[Case]:
    """List all baselines on all tasks with a published configuration."""
    return [
        Case(algo, "skirmish" if configuration.game == "smac" else configuration.game, map)
        for configuration in read_table().configuration
        for algo in configuration.algos
        for map in configuration.maps
    ]


def find_configuration(case: Case, table: Table | None = None) -> Configuration | None:
    """Find the published files of a baseline on a task; None if there are none."""
    configurations = (table or read_table()).configuration
    return next((configuration for configuration in configurations if configuration.holds(case)), None)


def read_published(case: Case, table: Table | None = None) -> dict[str, Published]:
    """Read the published values of a baseline on a task, by published key; empty if there are none."""
    table = table or read_table()
    configuration = find_configuration(case, table)
    values: dict[str, Published] = {}
    for name in configuration.files if configuration else ():
        file = table.file[name]
        source = f"{table.repository[file.repository].name}: {file.path}"
        values |= {key: Published(value, source) for key, value in _read_values(table, name).items()}
    return values


def compare(case: Case, ours: Mapping[str, Value] | None = None, table: Table | None = None) -> PublishedComparison:
    """Compare every setting of a baseline with the published one.

    Args:
        case: The baseline and its task.
        ours: Our values by dotted key; None uses the preset `paper`.
        table: Published values and rules; None reads them from the package.
    """
    table = table or read_table()
    if ours is None:
        ours = flatten(resolve(algo=case.algo, env=case.env, map=case.map))
    verdict = PublishedComparison()
    for key, published in read_published(case, table).items():
        _compare_published(key, published, case=case, ours=ours, table=table, verdict=verdict)
    compared = {row.key for row in verdict.compared}
    for key in ours:
        if key not in compared and key not in _NAMES:
            _check_unpublished(key, case=case, ours=ours, table=table, verdict=verdict)
    return verdict


def _compare_published(
    key: str, published: Published, *, case: Case, ours: Mapping[str, Value], table: Table, verdict: PublishedComparison
) -> None:
    """Compare a published value with our settings or the constant for its key; add a fault if there is none."""
    counterparts = [entry for entry in table.counterpart if entry.published == key and entry.holds(case)]
    constant = next((entry for entry in table.constant if key in entry.values and entry.holds(case)), None)
    if key in ours:
        _add_comparison(Comparison(key, ours[key], published.value, published.source), case, table, verdict)
    elif counterparts:
        for counterpart in counterparts:
            verdict.used.add((id(counterpart), key))
            value = counterpart.means.get(as_text(published.value), published.value)
            for name in counterpart.ours:
                _add_comparison(Comparison(name, ours[name], value, published.source), case, table, verdict)
    elif constant:
        verdict.used.add((id(constant), key))
        _add_comparison(Comparison(key, constant.values[key], published.value, published.source), case, table, verdict)
    else:
        verdict.faults.append(
            f'"{key}" of {published.source} is in no table for {case.algo} on {case.map}: add the setting or the '
            "constant for it, or the reason why there is none."
        )


def _add_comparison(row: Comparison, case: Case, table: Table, verdict: PublishedComparison) -> None:
    """Add a comparison, and a fault if the values differ and the difference is not listed."""
    entries = [entry for entry in table.difference if entry.key == row.key and entry.holds(case)]
    matches = (
        entry for entry in entries if _is_equal(row.ours, entry.ours) and _is_equal(row.published, entry.published)
    )
    match = next(matches, None)
    verdict.compared.append(Comparison(row.key, row.ours, row.published, row.source, match.why if match else ""))
    if match:
        verdict.used.add((id(match), row.key))
    elif entries or not _is_equal(row.ours, row.published):
        listed = f"; listed is {as_text(entries[0].ours)} for {as_text(entries[0].published)}." if entries else "."
        verdict.faults.append(
            f"{row.key} is {as_text(row.ours)} for {case.algo} on {case.map}, but {as_text(row.published)} in "
            f"{row.source}: correct the preset, or list the difference with its reason{listed}"
        )


def _check_unpublished(
    key: str, *, case: Case, ours: Mapping[str, Value], table: Table, verdict: PublishedComparison
) -> None:
    """Check that our setting without a published value is listed as unread or as pinned."""
    names = {key, f"{key.rpartition('.')[0]}.*"}
    unread = next((entry for entry in table.unread if entry.holds(case) and names & set(entry.keys)), None)
    if unread:
        verdict.used |= {(id(unread), name) for name in names}
        return
    pinned = next((entry for entry in table.pinned if key in entry.values and entry.holds(case)), None)
    if pinned is None:
        verdict.faults.append(
            f'The setting "{key}" is in no table for {case.algo} on {case.map}: add its published value with the '
            "file, pin our value with a reason, or list it as unread."
        )
        return
    verdict.used.add((id(pinned), key))
    if not _is_equal(ours[key], pinned.values[key]):
        verdict.faults.append(
            f"{key} is {as_text(ours[key])} for {case.algo} on {case.map}, but pinned at {as_text(pinned.values[key])}."
        )


def _read_values(table: Table, name: str) -> dict[str, Given]:
    """Return the values of a file, including those of the file named in `like`."""
    file = table.file[name]
    base = _read_values(table, file.like) if file.like else {}
    return {key: value for key, value in base.items() if key not in file.without} | file.values


def _is_equal(a: Value, b: Value) -> bool:
    return isinstance(a, bool) == isinstance(b, bool) and a == b


def as_text(value: Value) -> str:
    """Write a value as in a TOML file: true, not True."""
    return str(value).lower() if isinstance(value, bool) else str(value)
