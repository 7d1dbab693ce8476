"""Every setting of a baseline is the published one, or a difference with a reason."""

import json
from collections.abc import Iterable, Iterator

import pytest

from emtc_core.config.base import ConfigSection
from emtc_core.config.resolve import Value, flatten, resolve
from tests.reference.published_settings import (
    DATA_FILE,
    Case,
    Given,
    PublishedTable,
    compare,
    find_configuration,
    list_cases,
    make_data,
    read_table,
)

ALGOS = ("emu-qplex", "emu-cds", "qplex", "cds", "emc", "qmix", "vdn", "dmix", "mappo")
SMAC = ("1c3s5z", "3s_vs_5z", "MMM2", "3s5z_vs_3s6z", "corridor", "6h_vs_8z", "5m_vs_6m", "3m", "8m", "2s3z", "3s5z")
FOOTBALL = ("academy_3_vs_1_with_keeper", "academy_counterattack_easy", "academy_counterattack_hard")
NOT_PUBLISHED = {Case("mappo", "skirmish", "2s3z")}
ONE_TASK_EACH = [Case(algo, env, map) for algo in ALGOS for env, map in (("skirmish", "MMM2"), ("grf", FOOTBALL[0]))]


def ours(case: Case) -> dict[str, Value]:
    return flatten(resolve(algo=case.algo, env=case.env, map=case.map))


def other(value: Value) -> Given:
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    return f"{value} no more" if isinstance(value, str) else (value or 0) * 2 + 1


def with_value(name: str, key: str, value: Given) -> PublishedTable:
    """Return the table with one published value of one file changed."""
    table = read_table()
    file = table.file[name]
    return table.model_copy(
        update={"file": table.file | {name: file.model_copy(update={"values": file.values | {key: value}})}}
    )


def files_behind(case: Case) -> Iterator[str]:
    configuration = find_configuration(case)
    assert configuration is not None
    for name in configuration.files:
        while name:
            yield name
            name = read_table().file[name].like


@pytest.mark.parametrize("case", list_cases(), ids=lambda case: f"{case.algo}-{case.map}")
def test_every_setting_of_a_baseline_is_the_published_one_or_a_difference_with_a_reason(case: Case) -> None:
    assert compare(case).faults == []


def test_every_baseline_is_compared_on_every_task() -> None:
    tasks = [("skirmish", map) for map in SMAC] + [("grf", map) for map in FOOTBALL]
    assert set(list_cases()) == {Case(algo, env, map) for algo in ALGOS for env, map in tasks} - NOT_PUBLISHED


def list_unused(table: PublishedTable) -> list[str]:
    """List each line of the rules that has no effect for any baseline on any task."""
    used = {pair for case in list_cases() for pair in compare(case, table=table).used}
    named: list[tuple[ConfigSection, Iterable[str]]] = [(one, one.values) for one in (*table.constant, *table.pinned)]
    named += [(one, one.keys) for one in table.unread]
    named += [(one, (one.key,)) for one in table.difference]
    named += [(one, (one.published,)) for one in table.counterpart]
    return [f"{type(one).__name__}: {key}" for one, keys in named for key in keys if (id(one), key) not in used]


def test_every_line_of_the_rules_has_an_effect() -> None:
    assert list_unused(read_table()) == []


def test_one_published_value_changed_is_a_fault() -> None:
    cases = {case: ours(case) for case in list_cases()}
    users = {name: [case for case in cases if name in files_behind(case)] for name in read_table().file}
    unnoticed = [
        (name, key)
        for name, file in read_table().file.items()
        for key, value in file.values.items()
        if not any(compare(case, cases[case], with_value(name, key, other(value))).faults for case in users[name])
    ]
    assert unnoticed == []


@pytest.mark.parametrize("case", ONE_TASK_EACH, ids=lambda case: f"{case.algo}-{case.map}")
def test_one_value_of_ours_changed_is_a_fault(case: Case) -> None:
    values, table, result = ours(case), read_table(), compare(case)
    unread = {key for entry in table.unread if entry.applies_to(case) for key in entry.keys}
    compared = {row.key for row in result.compared}
    ignored = {"algo", "seed", "preset", "env.name", "env.map", *result.unlisted}
    listed_as_unread = {key for key in values if {key, f"{key.rpartition('.')[0]}.*"} & unread}
    read = set(values) - listed_as_unread - ignored | compared & set(values)
    assert len(read) > 30
    assert [key for key in read if not compare(case, values | {key: other(values[key])}).faults] == []


def test_every_setting_is_published_pinned_or_unread() -> None:
    """A new setting fails here, and only here.

    Add its published value with the file, pin its value with a reason, or list it as unread.
    """
    assert sorted({key for case in list_cases() for key in compare(case).unlisted}) == []


def test_the_method_page_has_the_differences_of_this_comparison() -> None:
    """`python -m tests.reference.published_settings` writes the file again."""
    assert json.loads(DATA_FILE.read_text("utf-8")) == make_data()
