"""Tables of all settings, of the settings that presets change, and of all metrics, read from the code itself.

A setting whose value the EMTC paper does not state answers an open question. Its description ends with the label of the
question, for example "B13".
"""

import re
from collections.abc import Sequence
from typing import Final

import streamlit as st

from app.analysis.format import MISSING, escape_markdown
from app.ui import data
from app.ui.method import published, text
from app.ui.page_state import Choice, Choices, Flag, Text
from app.ui.widgets.config_form import SECTION_TITLES, matches
from app.ui.widgets.result_table import write_table
from emtc_core.config.resolve import (
    FieldInfo,
    Value,
    applied_rules,
    describe_fields,
    describe_presets,
    flatten,
    resolve,
)
from emtc_core.config.run import PRESETS, list_algos
from emtc_core.config.values import format_setting
from emtc_core.errors import ConfigError
from emtc_core.metrics import METRICS, OPEN_GROUPS

_QUESTION_LABEL: Final = re.compile(r"\b[A-D]\d{1,2}\b")
_DEFAULT_TASK: Final = ("skirmish", "corridor")
"""Environment and map."""
_BASE_PRESET: Final = "paper"
"""The preset with which the others are compared."""
_SEARCH: Final = Text("find", "method")
_ONLY_LABELLED: Final = Flag("labelled", "method")
_ALGO: Final = Choice("algo", "method")
_TASK: Final = Choice("task", "method")
_PRESETS: Final = Choices("presets", "method", separator="")
_METRIC_GROUPS: Final = {
    "rollout": "Training episodes",
    "train": "Learner",
    "incentive": "Incentive",
    "gate": "Gate",
    "memory": "Memory",
    "embedder": "Embedder",
    "eval": "Evaluation",
    "time": "Time",
    "env": "Metrics of the environment",
    "user": "User metrics and callbacks",
}
"""Group of a metric (the part of its name before the slash) → its title."""


def show_settings() -> None:
    """Draw all settings by section, with a search."""
    text.show("settings")
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    search = left.text_input("Search", **_SEARCH.bind(), placeholder="Key, label or word") or ""
    only_labelled = right.toggle("Only labelled choices", **_ONLY_LABELLED.bind())
    fields = [info for info in describe_fields() if matches(info, search) and (find_labels(info) or not only_labelled)]
    if not fields:
        st.info(f"No setting contains “{escape_markdown(search)}”. Clear the search to see all settings.")
    for section in dict.fromkeys(_get_section(info) for info in fields):
        st.markdown(f"##### {SECTION_TITLES.get(section, 'Run')}")
        rows = [_make_setting_row(info) for info in fields if _get_section(info) == section]
        st.markdown(write_table(("Key", "Default", "Allowed", "Unit", "Question", "Meaning"), rows))
        if section == "memory":
            text.show("full_memory")
        if section == "embed":
            text.show("return_scale")


def show_presets() -> None:
    """Draw the comparison of presets with `paper` for one algorithm and task, with the reason of each difference."""
    text.show("presets")
    tasks = list(dict.fromkeys((row.env, row.map) for row in data.list_environments() if row.map))
    task_by_name = {" · ".join(task): task for task in tasks}
    default_task = _DEFAULT_TASK if _DEFAULT_TASK in tasks else tasks[0]
    left, right = st.columns(2)
    algo = str(left.selectbox("Algorithm", **_ALGO.bind(list_algos())))
    task_name = right.selectbox("Task", **_TASK.bind(list(task_by_name), default=" · ".join(default_task)))
    env, map = task_by_name[str(task_name)]
    presets = [name for name in PRESETS if name != _BASE_PRESET]
    default_presets = [name for name in presets if name != "demo"]
    selected = st.pills(
        f"Compare {_BASE_PRESET} with", **_PRESETS.bind(presets, default=default_presets), selection_mode="multi"
    )  # fmt: skip
    with st.container(key="method_presets"):
        try:
            _show_preset_comparison(algo, env, map, [name for name in presets if name in selected])
            published.show(algo, env, map)
        except ConfigError as exc:
            st.info(escape_markdown(str(exc)))
        text.show("gate_variants")


def show_metrics() -> None:
    """Draw all metrics by group."""
    st.markdown("The meaning and the unit of every metric that a run can record.")
    rows_by_group: dict[str, list[tuple[str, ...]]] = {}
    for metric in (*METRICS.values(), *OPEN_GROUPS.values()):
        group = metric.name.partition("/")[0]
        row = (f"`{metric.name}`", escape_markdown(metric.unit), escape_markdown(metric.meaning))
        rows_by_group.setdefault(group, []).append(row)
    for group, rows in rows_by_group.items():
        st.markdown(f"##### {_METRIC_GROUPS.get(group, group)}")
        st.markdown(write_table(("Name", "Unit", "Meaning"), rows))


def compare_presets(algo: str, env: str, map: str, presets: Sequence[str]) -> list[tuple[str, ...]]:
    """List the settings in which a preset differs from `paper`: key, value in `paper`, other values, question, meaning.

    Each of the other values is followed by the names of its presets. One column per preset would be too wide.

    Args:
        algo: Algorithm.
        env: Environment.
        map: Map.
        presets: Presets to compare.

    Raises:
        ConfigError: If algorithm, environment and map cannot be combined.
    """
    paper_settings = flatten(resolve(env=env, map=map, algo=algo, preset=_BASE_PRESET))
    settings_by_preset = {name: flatten(resolve(env=env, map=map, algo=algo, preset=name)) for name in presets}
    rows = []
    for info in describe_fields():
        key = info.key
        if key == "preset":
            continue
        presets_by_value: dict[str, list[str]] = {}
        for preset, settings in settings_by_preset.items():
            if settings[key] != paper_settings[key]:
                presets_by_value.setdefault(_write_value(settings[key]), []).append(escape_markdown(preset))
        if not presets_by_value:
            continue
        paper_value = _write_value(paper_settings[key])
        other_values = "; ".join(f"{value} ({', '.join(names)})" for value, names in presets_by_value.items())
        labels = find_labels(info) or MISSING
        rows.append((f"`{key}`", paper_value, other_values, labels, escape_markdown(info.description)))
    return rows


def explain_preset(preset: str, algo: str, env: str, map: str) -> list[tuple[str, str]]:
    """List the rules of a preset that apply to the algorithm and task: the values that a rule sets, and its reason."""
    rows = []
    for rule in applied_rules(preset, env=env, map=map, algo=algo):
        values = ", ".join(f"`{key} = {format_setting(value)}`" for key, value in rule.values.items())
        rows.append((values, escape_markdown(rule.reason)))
    return rows


def find_labels(info: FieldInfo) -> str:
    """Find the labels of the open questions that a setting answers, such as "B13, B14"."""
    return ", ".join(_QUESTION_LABEL.findall(info.description))


def _show_preset_comparison(algo: str, env: str, map: str, presets: Sequence[str]) -> None:
    descriptions = describe_presets()
    differing = [name for name in presets if compare_presets(algo, env, map, [name])]
    rows = compare_presets(algo, env, map, differing)
    st.markdown(write_table(("Key", _BASE_PRESET, "Other values (presets)", "Question", "Meaning"), rows))
    st.caption(f"{len(rows)} of {len(describe_fields())} settings differ.")
    for name in presets:
        st.markdown(f"##### {name}\n{escape_markdown(descriptions[name])}")
        if name in differing:
            st.markdown(write_table(("Values", "Reason"), explain_preset(name, algo, env, map)))
        else:
            st.caption(f"No change for {escape_markdown(algo)} on {escape_markdown(f'{env} {map}')}.")


def _get_section(info: FieldInfo) -> str:
    """Return the part of the key before the dot; empty for a setting without section."""
    return info.key.partition(".")[0] if "." in info.key else ""


def _make_setting_row(info: FieldInfo) -> tuple[str, ...]:
    return (
        f"`{info.key}`",
        _write_value(info.default),
        _describe_allowed_values(info),
        escape_markdown(info.unit) or MISSING,
        find_labels(info) or MISSING,
        escape_markdown(info.description),
    )


def _describe_allowed_values(info: FieldInfo) -> str:
    if info.choices:
        return ", ".join(f"`{choice}`" for choice in info.choices)
    if info.type == "bool":
        return "`true`, `false`"
    parts = [info.type]
    if info.minimum is not None:
        relation = "&gt;" if info.minimum_open else "≥"
        parts.append(f"{relation} {_write_bound(info.minimum)}")
    if info.maximum is not None:
        parts.append(f"≤ {_write_bound(info.maximum)}")
    return ", ".join(parts) + (" or unset" if info.optional else "")


def _write_bound(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() else f"{value:g}"


def _write_value(value: Value) -> str:
    return "unset" if value is None else f"`{format_setting(value)}`"
