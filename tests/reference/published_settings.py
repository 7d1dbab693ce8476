"""Comparison of every baseline's settings with the settings that its authors published.

`published_values.toml` has the published values, one entry per file of a repository. `published_rules.toml` maps
published keys to our settings, and lists differences with their reasons. A value that differs from the published one
and is not listed is a fault.

The Method page shows the differences of all baselines. They are stored in `app/ui/method/published_differences.json`.
After a change of a preset or of the tables write it again with

    python -m tests.reference.published_settings
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from emtc_core.config.base import ConfigSection
from emtc_core.config.resolve import Value, flatten, resolve
from emtc_core.config.values import format_setting

Given = bool | int | float | str
ROOT = Path(__file__).parents[2]
DATA_FILE = ROOT / "app" / "ui" / "method" / "published_differences.json"
"""The differences of all baselines, as the Method page reads them."""
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


class _Scoped(ConfigSection):
    """An entry that applies to some cases. An empty condition applies to all."""

    algos: tuple[str, ...] = ()
    game: str = ""
    maps: tuple[str, ...] = ()

    def applies_to(self, case: Case) -> bool:
        """Return whether the entry applies to a case."""
        return (
            case.algo in (self.algos or (case.algo,))
            and case.game == (self.game or case.game)
            and case.map in (self.maps or (case.map,))
        )


class Repository(ConfigSection):
    """A public repository at one commit."""

    name: str
    commit: str


class PublishedFile(ConfigSection):
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


class OmittedKeys(ConfigSection):
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


class ListedDifference(_Scoped):
    """One of our values that differs from the published value, and the reason."""

    key: str
    ours: Given
    published: Given
    why: str


class PublishedTable(ConfigSection):
    """All published values and rules."""

    repository: dict[str, Repository]
    file: dict[str, PublishedFile]
    configuration: tuple[Configuration, ...]
    counterpart: tuple[Counterpart, ...]
    constant: tuple[Constants, ...]
    omitted: tuple[OmittedKeys, ...]
    unread: tuple[UnreadSettings, ...]
    pinned: tuple[PinnedValues, ...]
    difference: tuple[ListedDifference, ...]


@dataclass(frozen=True)
class PublishedValue:
    """A published value and its source."""

    value: Given
    source: str
    """Repository and path."""


@dataclass(frozen=True)
class ComparedValue:
    """One of our values and the published value. `why` is the reason of a listed difference, else empty."""

    key: str
    ours: Value
    published: Given
    source: str
    why: str = ""


@dataclass
class PublishedComparison:
    """Result of a comparison."""

    compared: list[ComparedValue] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """One sentence each."""
    unlisted: list[str] = field(default_factory=list)
    """Our settings without a published value that are neither unread nor pinned, such as a new setting."""
    used: set[tuple[int, str]] = field(default_factory=set)
    """(id of the entry, key) for each entry of the table that was used."""

    @property
    def differences(self) -> list[ComparedValue]:
        """The values that differ, each with its reason."""
        return [row for row in self.compared if row.why]


@cache
def read_table() -> PublishedTable:
    """Read the published values and the rules."""
    texts = (Path(__file__).with_name(f"published_{part}.toml").read_text("utf-8") for part in ("values", "rules"))
    values, rules = (tomllib.loads(text) for text in texts)
    return PublishedTable.model_validate(values | rules)


def list_cases() -> list[Case]:
    """List all baselines on all tasks with a published configuration."""
    return [
        Case(algo, "skirmish" if configuration.game == "smac" else configuration.game, map)
        for configuration in read_table().configuration
        for algo in configuration.algos
        for map in configuration.maps
    ]


def find_configuration(case: Case, table: PublishedTable | None = None) -> Configuration | None:
    """Find the published files of a baseline on a task; None if there are none."""
    configurations = (table or read_table()).configuration
    return next((configuration for configuration in configurations if configuration.applies_to(case)), None)


def read_published(case: Case, table: PublishedTable | None = None) -> dict[str, PublishedValue]:
    """Read the published values of a baseline on a task, by published key; empty if there are none."""
    table = table or read_table()
    configuration = find_configuration(case, table)
    values: dict[str, PublishedValue] = {}
    for name in configuration.files if configuration else ():
        file = table.file[name]
        source = f"{table.repository[file.repository].name}: {file.path}"
        values |= {key: PublishedValue(value, source) for key, value in _read_values(table, name).items()}
    return values


def compare(
    case: Case, ours: Mapping[str, Value] | None = None, table: PublishedTable | None = None
) -> PublishedComparison:
    """Compare every setting of a baseline with the published one.

    Args:
        case: The baseline and its task.
        ours: Our values by dotted key; None uses the preset `paper`.
        table: Published values and rules; None reads them from the files.
    """
    table = table or read_table()
    if ours is None:
        ours = flatten(resolve(algo=case.algo, env=case.env, map=case.map))
    result = PublishedComparison()
    for key, published in read_published(case, table).items():
        _compare_published(key, published, case=case, ours=ours, table=table, result=result)
    compared = {row.key for row in result.compared}
    for key in ours:
        if key not in compared and key not in _NAMES:
            _check_unpublished(key, case=case, ours=ours, table=table, result=result)
    return result


def _compare_published(
    key: str,
    published: PublishedValue,
    *,
    case: Case,
    ours: Mapping[str, Value],
    table: PublishedTable,
    result: PublishedComparison,
) -> None:
    """Compare a published value with our settings or the constant for its key; add a fault if there is none."""
    counterparts = [entry for entry in table.counterpart if entry.published == key and entry.applies_to(case)]
    constant = next((entry for entry in table.constant if key in entry.values and entry.applies_to(case)), None)
    if key in ours:
        _add_comparison(ComparedValue(key, ours[key], published.value, published.source), case, table, result)
    elif counterparts:
        for counterpart in counterparts:
            result.used.add((id(counterpart), key))
            value = counterpart.means.get(format_setting(published.value), published.value)
            for name in counterpart.ours:
                _add_comparison(ComparedValue(name, ours[name], value, published.source), case, table, result)
    elif constant:
        result.used.add((id(constant), key))
        _add_comparison(
            ComparedValue(key, constant.values[key], published.value, published.source), case, table, result
        )
    else:
        result.faults.append(
            f'"{key}" of {published.source} has no counterpart for {case.algo} on {case.map}: add a setting or a '
            "constant, or list it as omitted with the reason."
        )


def _add_comparison(row: ComparedValue, case: Case, table: PublishedTable, result: PublishedComparison) -> None:
    """Add a comparison, and a fault if the values differ and the difference is not listed."""
    entries = [entry for entry in table.difference if entry.key == row.key and entry.applies_to(case)]
    matches = (
        entry for entry in entries if _is_equal(row.ours, entry.ours) and _is_equal(row.published, entry.published)
    )
    match = next(matches, None)
    result.compared.append(ComparedValue(row.key, row.ours, row.published, row.source, match.why if match else ""))
    if match:
        result.used.add((id(match), row.key))
    elif entries or not _is_equal(row.ours, row.published):
        listed = f"; the listed difference is {_describe(entries[0].ours, entries[0].published)}" if entries else ""
        result.faults.append(
            f"{row.key} of {case.algo} on {case.map} is {_describe(row.ours, row.published)} ({row.source}){listed}: "
            "correct the preset, or list the difference with its reason."
        )


def _check_unpublished(
    key: str, *, case: Case, ours: Mapping[str, Value], table: PublishedTable, result: PublishedComparison
) -> None:
    """Check that our setting without a published value is unread or has its pinned value."""
    names = {key, f"{key.rpartition('.')[0]}.*"}
    unread = next((entry for entry in table.unread if entry.applies_to(case) and names & set(entry.keys)), None)
    if unread:
        result.used |= {(id(unread), name) for name in names}
        return
    pinned = next((entry for entry in table.pinned if key in entry.values and entry.applies_to(case)), None)
    if pinned is None:
        result.unlisted.append(key)
        return
    result.used.add((id(pinned), key))
    if not _is_equal(ours[key], pinned.values[key]):
        value, pinned_value = format_setting(ours[key]), format_setting(pinned.values[key])
        result.faults.append(f"{key} of {case.algo} on {case.map} is {value}, but its pinned value is {pinned_value}.")


def _describe(ours: Value, published: Value) -> str:
    return f"{format_setting(ours)} here, {format_setting(published)} published"


def _read_values(table: PublishedTable, name: str) -> dict[str, Given]:
    """Return the values of a file, including those of the file named in `like`."""
    file = table.file[name]
    base = _read_values(table, file.like) if file.like else {}
    return {key: value for key, value in base.items() if key not in file.without} | file.values


def _is_equal(a: Value, b: Value) -> bool:
    return isinstance(a, bool) == isinstance(b, bool) and a == b


def make_data() -> dict[str, list[Any]]:
    """Return the content of DATA_FILE.

    Returns:
        `differences`: each difference once: key, our value, published value, source, reason.
        `cases`: one object per case with a summary and the indices of its differences.
    """
    indices: dict[tuple[str, ...], int] = {}
    cases: list[dict[str, Any]] = []
    for case in list_cases():
        comparison = compare(case)
        rows = [
            (row.key, format_setting(row.ours), format_setting(row.published), row.source, row.why)
            for row in comparison.differences
        ]
        differences = [indices.setdefault(row, len(indices)) for row in rows]
        summary = _summarize(case, comparison)
        cases.append(
            {"algo": case.algo, "game": case.game, "map": case.map, "summary": summary, "differences": differences}
        )
    return {"differences": [list(row) for row in indices], "cases": cases}


def _summarize(case: Case, comparison: PublishedComparison) -> str:
    """Write how many published values were compared, and the commits that they are from."""
    configuration, table = find_configuration(case), read_table()
    assert configuration is not None
    used = dict.fromkeys(table.file[name].repository for name in configuration.files)
    commits = ", ".join(f"{table.repository[name].name} at {table.repository[name].commit}" for name in used)
    n_equal, n_compared = len(comparison.compared) - len(comparison.differences), len(comparison.compared)
    counts = f"{n_equal} of {n_compared} published values are equal here; the table lists the others."
    return f"{counts} Source: {commits}. {configuration.note}".rstrip()


def write_data() -> None:
    """Write DATA_FILE with one difference or one case per line."""
    lists = (
        f'"{name}": [\n' + ",\n".join(json.dumps(item, ensure_ascii=False) for item in items) + "\n]"
        for name, items in make_data().items()
    )
    DATA_FILE.write_text(f"{{{', '.join(lists)}}}\n", "utf-8")


if __name__ == "__main__":
    write_data()
