"""Tables of all settings, of the settings that presets change, and of all metrics. Read from the code itself."""

import re
from collections.abc import Sequence
from typing import Final

import streamlit as st

from app.analysis.format import MISSING, escape_markdown
from app.ui import data
from app.ui.method import capacity, measured, published
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
_BASE: Final = "paper"
_FIND: Final = Text("find", "method")
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


def show_settings() -> None:
    """Draw all settings by section, with a search."""
    st.markdown(
        "The paper leaves some choices open, and its sources contradict each other in places. Each choice is a "
        "setting. A label refers to an open question: **A** memory, **B** embedder, **C** gate, incentive and loss, "
        "**D** protocol. Defaults are the recommended choices. To change one, use `emtc train --set key=value` or "
        "the Launch page."
    )
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    search = left.text_input("Search", **_FIND.bind(), placeholder="Key, label or word") or ""
    only_labelled = right.toggle("Only labelled choices", **_ONLY_LABELLED.bind())
    fields = [info for info in describe_fields() if matches(info, search) and (labels_of(info) or not only_labelled)]
    if not fields:
        st.info(f"No setting contains “{escape_markdown(search)}”. Clear the search to see all settings.")
    for section in dict.fromkeys(_get_section(info) for info in fields):
        st.markdown(f"##### {SECTION_TITLES.get(section, 'Run')}")
        rows = [_make_setting_row(info) for info in fields if _get_section(info) == section]
        st.markdown(write_table(("Key", "Default", "Allowed", "Unit", "Question", "Meaning"), rows))
        if section == "memory":
            capacity.show()
        if section == "embed":
            measured.show_return_scale()


def show_presets() -> None:
    """Draw the comparison of presets with `paper` for one algorithm and task, with the reason of each difference."""
    st.markdown(
        "`paper` takes the recommended choice for every open question and the values of the task. Every other preset "
        "changes some of them by rules, and each rule has a reason. Select a preset with `--set preset=NAME` or on the "
        "Launch page."
    )
    tasks = list(dict.fromkeys((row.env, row.map) for row in data.env_list() if row.map))
    left, right = st.columns(2)
    algo = str(left.selectbox("Algorithm", **_ALGO.bind(list_algos())))
    by_name = {" · ".join(task): task for task in tasks}
    default_task = " · ".join(_DEFAULT_TASK if _DEFAULT_TASK in tasks else tasks[0])
    task = by_name[str(right.selectbox("Task", **_TASK.bind(list(by_name), default=default_task)))]
    presets = [name for name in PRESETS if name != _BASE]
    default_presets = [name for name in presets if name != "demo"]
    selected = st.pills(
        f"Compare {_BASE} with", **_PRESETS.bind(presets, default=default_presets), selection_mode="multi"
    )  # fmt: skip
    with st.container(key="method_presets"):
        try:
            _show_comparison(algo, *task, [name for name in presets if name in selected])
            published.show(algo, *task)
        except ConfigError as exc:
            st.info(escape_markdown(str(exc)))
        measured.show_gate_variants()


def show_metrics() -> None:
    """Draw all metrics by group."""
    st.markdown("The meaning and the unit of every metric that a run can record.")
    metrics = [*METRICS.values(), *OPEN_GROUPS.values()]
    for group in dict.fromkeys(metric.name.partition("/")[0] for metric in metrics):
        st.markdown(f"##### {_METRIC_GROUPS.get(group, group)}")
        rows = [
            (f"`{metric.name}`", escape_markdown(metric.unit), escape_markdown(metric.meaning))
            for metric in metrics
            if metric.name.partition("/")[0] == group
        ]
        st.markdown(write_table(("Name", "Unit", "Meaning"), rows))


def compare_presets(algo: str, env: str, map: str, presets: Sequence[str]) -> list[tuple[str, ...]]:
    """List the settings in which a preset differs from `paper`: key, paper, other values, question, meaning.

    The other values name their presets, because a column for each preset would be too wide for a page.

    Args:
        algo: Algorithm.
        env: Environment.
        map: Map.
        presets: Presets to compare.

    Raises:
        ConfigError: If algorithm, environment and map cannot be combined.
    """
    base, *others = (flatten(resolve(env=env, map=map, algo=algo, preset=name)) for name in (_BASE, *presets))
    rows = []
    for info in describe_fields():
        key = info.key
        if key != "preset" and any(other[key] != base[key] for other in others):
            names_by_value: dict[str, list[str]] = {}
            for name, other in zip(presets, others, strict=True):
                if other[key] != base[key]:
                    names_by_value.setdefault(_write_value(other[key]), []).append(escape_markdown(name))
            values = "; ".join(f"{value} ({', '.join(names)})" for value, names in names_by_value.items())
            meaning = escape_markdown(info.description)
            rows.append((f"`{key}`", _write_value(base[key]), values, labels_of(info) or MISSING, meaning))
    return rows


def explain_preset(preset: str, algo: str, env: str, map: str) -> list[tuple[str, str]]:
    """List the rules of a preset that apply to the algorithm and task: the values that a rule sets, and its reason."""
    return [
        (
            ", ".join(f"`{key} = {format_setting(value)}`" for key, value in rule.values.items()),
            escape_markdown(rule.reason),
        )
        for rule in applied_rules(preset, env=env, map=map, algo=algo)
    ]


def labels_of(info: FieldInfo) -> str:
    """Return the labels of the open questions that a setting answers, such as "B13, B14"."""
    return ", ".join(_QUESTION_LABEL.findall(info.description))


def _get_section(info: FieldInfo) -> str:
    return info.key.partition(".")[0] if "." in info.key else ""


def _make_setting_row(info: FieldInfo) -> tuple[str, ...]:
    return (
        f"`{info.key}`",
        _write_value(info.default),
        _describe_allowed_values(info),
        escape_markdown(info.unit) or MISSING,
        labels_of(info) or MISSING,
        escape_markdown(info.description),
    )


def _describe_allowed_values(info: FieldInfo) -> str:
    if info.choices:
        return ", ".join(f"`{choice}`" for choice in info.choices)
    if info.type == "bool":
        return "`true`, `false`"
    parts = [info.type]
    if info.minimum is not None:
        parts.append(f"{'&gt;' if info.minimum_open else '≥'} {_write_bound(info.minimum)}")
    if info.maximum is not None:
        parts.append(f"≤ {_write_bound(info.maximum)}")
    return ", ".join(parts) + (" or unset" if info.optional else "")


def _write_bound(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() else f"{value:g}"


def _write_value(value: Value) -> str:
    return "unset" if value is None else f"`{format_setting(value)}`"


def _show_comparison(algo: str, env: str, map: str, presets: Sequence[str]) -> None:
    descriptions = describe_presets()
    differing = [name for name in presets if compare_presets(algo, env, map, [name])]
    rows = compare_presets(algo, env, map, differing)
    st.markdown(write_table(("Key", _BASE, "Other values (presets)", "Question", "Meaning"), rows))
    st.caption(f"{len(rows)} of {len(describe_fields())} settings differ.")
    for name in presets:
        st.markdown(f"##### {name}\n{escape_markdown(descriptions[name])}")
        if name in differing:
            st.markdown(write_table(("Values", "Reason"), explain_preset(name, algo, env, map)))
        else:
            st.caption(f"No change for {escape_markdown(algo)} on {escape_markdown(f'{env} {map}')}.")
