"""Every baseline against what its authors published: settings that equal theirs, and differences with their reasons.

What does not live here: the values (published_values.toml: one entry per file of their repositories) and what
corresponds to what (published_rules.toml). A fault is a value that neither equals the published one nor is listed.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from pydantic import Field

from emtc_core.config.base import Section
from emtc_core.config.resolve import Value, flatten, resolve

Given = bool | int | float | str
_SMAC = ("skirmish", "smac", "smax")
_NAMES = ("algo", "seed", "preset", "env.name", "env.map")
"""Settings that say which run this is; no author publishes them."""


@dataclass(frozen=True)
class Case:
    """One baseline on one task."""

    algo: str
    env: str
    map: str

    @property
    def game(self) -> str:
        """Which published configurations apply: SMAC's or football's."""
        return "smac" if self.env in _SMAC else self.env


class _Scoped(Section):
    """Something that holds for some cases; an empty condition holds for all."""

    algos: tuple[str, ...] = ()
    game: str = ""
    maps: tuple[str, ...] = ()

    def holds(self, case: Case) -> bool:
        """Whether this concerns a case."""
        return (
            case.algo in (self.algos or (case.algo,))
            and case.game == (self.game or case.game)
            and case.map in (self.maps or (case.map,))
        )


class Repository(Section):
    """A public repository, as it was at one commit."""

    name: str
    commit: str


class PublishedFile(Section):
    """What one of its files says; in code, in the words of our settings."""

    repository: str
    path: str
    like: str = ""
    """Another entry that says the same but for `values` and `without`."""
    without: tuple[str, ...] = ()
    values: dict[str, Given]


class Configuration(_Scoped):
    """The files that make up a baseline's configuration on some tasks; later files win."""

    files: tuple[str, ...]
    note: str = ""
    """Why these files, where the authors published nothing for the task itself."""


class Counterpart(_Scoped):
    """Our settings for a published key, and its values in our words."""

    published: str
    ours: tuple[str, ...]
    means: dict[str, Given] = Field(default_factory=dict)


class Constants(_Scoped):
    """Published keys that are no setting here: what our code does instead of asking."""

    why: str
    values: dict[str, Given]


class LeftOut(Section):
    """Published keys whose values the table does not repeat: in some files, or in all of them."""

    why: str
    keys: tuple[str, ...]
    files: tuple[str, ...] = ()


class Unread(_Scoped):
    """Settings of ours, or whole sections ("gate.*"), that a baseline never reads."""

    why: str
    keys: tuple[str, ...]


class Pinned(_Scoped):
    """Settings that no author publishes, and the value that a baseline runs with."""

    why: str
    values: dict[str, Given]


class Difference(_Scoped):
    """One value of ours that is not the published one, and the reason."""

    key: str
    ours: Given
    published: Given
    why: str


class Table(Section):
    """All that is known of the published configurations."""

    repository: dict[str, Repository]
    file: dict[str, PublishedFile]
    configuration: tuple[Configuration, ...]
    counterpart: tuple[Counterpart, ...]
    constant: tuple[Constants, ...]
    left_out: tuple[LeftOut, ...]
    unread: tuple[Unread, ...]
    pinned: tuple[Pinned, ...]
    difference: tuple[Difference, ...]


@dataclass(frozen=True)
class Published:
    """A published value and where it stands."""

    value: Given
    source: str
    """Repository and path."""


@dataclass(frozen=True)
class Compared:
    """One value of ours beside the published one; `why` is empty where they are equal."""

    key: str
    ours: Value
    published: Given
    source: str
    why: str = ""


@dataclass
class Verdict:
    """What a comparison found."""

    compared: list[Compared] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """One sentence each."""
    used: set[tuple[int, str]] = field(default_factory=set)
    """Identity of each entry of the table that decided something, and for which key."""

    @property
    def differences(self) -> list[Compared]:
        """The values that differ, each with its reason."""
        return [row for row in self.compared if row.why]


@cache
def read_table() -> Table:
    """Read the published values and what corresponds to them."""
    folder = files("emtc_core.config")
    texts = (folder.joinpath(f"published_{part}.toml").read_text(encoding="utf-8") for part in ("values", "rules"))
    values, rules = (tomllib.loads(text) for text in texts)
    return Table.model_validate(values | rules)


def list_cases() -> list[Case]:
    """List every baseline on every task for which a published configuration is known."""
    return [
        Case(algo, "skirmish" if known.game == "smac" else known.game, map)
        for known in read_table().configuration
        for algo in known.algos
        for map in known.maps
    ]


def find_configuration(case: Case, table: Table | None = None) -> Configuration | None:
    """Find the files that the authors published for a baseline on a task; None where there are none."""
    known = (table or read_table()).configuration
    return next((one for one in known if one.holds(case)), None)


def read_published(case: Case, table: Table | None = None) -> dict[str, Published]:
    """Read what the authors' files say for a baseline on a task, by their own keys; empty where there are none."""
    table = table or read_table()
    known = find_configuration(case, table)
    said: dict[str, Published] = {}
    for name in known.files if known else ():
        file = table.file[name]
        source = f"{table.repository[file.repository].name}: {file.path}"
        said |= {key: Published(value, source) for key, value in _values(table, name).items()}
    return said


def compare(case: Case, ours: Mapping[str, Value] | None = None, table: Table | None = None) -> Verdict:
    """Compare every setting of a baseline with the published one.

    Args:
        case: The baseline and its task.
        ours: Our values by dotted key; None resolves the preset `paper`.
        table: What was published; None reads it from the package.
    """
    table = table or read_table()
    if ours is None:
        ours = flatten(resolve(algo=case.algo, env=case.env, map=case.map))
    verdict = Verdict()
    for key, published in read_published(case, table).items():
        _compare_published(key, published, case=case, ours=ours, table=table, verdict=verdict)
    compared = {row.key for row in verdict.compared}
    for key in ours:
        if key not in compared and key not in _NAMES:
            _account_for(key, case=case, ours=ours, table=table, verdict=verdict)
    return verdict


def _compare_published(
    key: str, published: Published, *, case: Case, ours: Mapping[str, Value], table: Table, verdict: Verdict
) -> None:
    """Find what stands for a published key here: a setting (or several), or a constant of the code."""
    settings = [one for one in table.counterpart if one.published == key and one.holds(case)]
    constant = next((one for one in table.constant if key in one.values and one.holds(case)), None)
    if key in ours:
        _judge(Compared(key, ours[key], published.value, published.source), case, table, verdict)
    elif settings:
        for one in settings:
            verdict.used.add((id(one), key))
            said = one.means.get(as_text(published.value), published.value)
            for name in one.ours:
                _judge(Compared(name, ours[name], said, published.source), case, table, verdict)
    elif constant:
        verdict.used.add((id(constant), key))
        _judge(Compared(key, constant.values[key], published.value, published.source), case, table, verdict)
    else:
        verdict.faults.append(
            f'"{key}" of {published.source} is in no table for {case.algo} on {case.map}: name the setting or the '
            "constant that stands for it, or why there is none."
        )


def _judge(row: Compared, case: Case, table: Table, verdict: Verdict) -> None:
    """Keep a value that equals the published one, or whose difference is listed; the rest is a fault."""
    listed = [one for one in table.difference if one.key == row.key and one.holds(case)]
    reason = next((one for one in listed if _same(row.ours, one.ours) and _same(row.published, one.published)), None)
    verdict.compared.append(Compared(row.key, row.ours, row.published, row.source, reason.why if reason else ""))
    if reason:
        verdict.used.add((id(reason), row.key))
    elif listed or not _same(row.ours, row.published):
        verdict.faults.append(
            f"{row.key} is {as_text(row.ours)} for {case.algo} on {case.map}, and {row.source} says "
            f"{as_text(row.published)}: mend the preset, or list the difference with its reason"
            + (f"; what is listed is {as_text(listed[0].ours)} for {as_text(listed[0].published)}." if listed else ".")
        )


def _account_for(key: str, *, case: Case, ours: Mapping[str, Value], table: Table, verdict: Verdict) -> None:
    """Why a setting of ours has no published value: nothing reads it, or its value is pinned."""
    if _first_naming(key, table.unread, case, verdict):
        return
    pinned = next((one for one in table.pinned if key in one.values and one.holds(case)), None)
    if pinned is None:
        verdict.faults.append(
            f'The setting "{key}" is in no table for {case.algo} on {case.map}: give its published value with the '
            "file, pin ours with a reason, or say that nothing reads it."
        )
        return
    verdict.used.add((id(pinned), key))
    if not _same(ours[key], pinned.values[key]):
        verdict.faults.append(
            f"{key} is {as_text(ours[key])} for {case.algo} on {case.map}, but pinned at {as_text(pinned.values[key])}."
        )


def _first_naming(key: str, entries: Iterable[Unread], case: Case, verdict: Verdict) -> Unread | None:
    """Find the entry that names a key, or its whole section as "section.*"."""
    names = {key, f"{key.rpartition('.')[0]}.*"}
    found = next((one for one in entries if one.holds(case) and names & set(one.keys)), None)
    verdict.used |= {(id(found), name) for name in names} if found else set()
    return found


def _values(table: Table, name: str) -> dict[str, Given]:
    """Join a file's own values with those of the file that it is like."""
    file = table.file[name]
    base = _values(table, file.like) if file.like else {}
    return {key: value for key, value in base.items() if key not in file.without} | file.values


def _same(one: Value, other: Value) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def as_text(value: Value) -> str:
    """Write a value as a preset would: true, not True."""
    return str(value).lower() if isinstance(value, bool) else str(value)
