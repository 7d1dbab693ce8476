"""Tables of every setting, of what the presets change, and of every logged number, read from the code itself."""

import re
from collections.abc import Sequence

import streamlit as st

from app.analysis.format import MISSING, escape_markdown
from app.ui import data
from app.ui.method import measured
from app.ui.method.measured import write_table
from app.ui.widgets.config_form import SECTION_TITLES
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
from emtc_core.config.values import format_value
from emtc_core.errors import ConfigError
from emtc_core.metrics import METRICS, OPEN_GROUPS

_LABEL = re.compile(r"\b[A-D]\d{1,2}\b")
_TASK = ("skirmish", "corridor")
_BASE = "paper"
_GROUPS = {
    "rollout": "Training episodes",
    "train": "Learner",
    "incentive": "Incentive",
    "gate": "Gate",
    "memory": "Memory",
    "embedder": "Embedder",
    "eval": "Evaluation",
    "time": "Time",
    "env": "What the environment tells",
    "user": "Metrics and callbacks of your own",
}


def show_settings() -> None:
    """List every setting by section; a search narrows the list."""
    st.markdown(
        "The paper leaves choices open, and its sources contradict each other in places. Each of them is a setting. "
        "A label names the question it answers: **A** memory, **B** embedder, **C** gate, incentive and loss, "
        "**D** protocol. Defaults are the recommended reading; set one with `emtc train --set key=value` or on "
        "the Launch page."
    )
    left, right = st.columns([3, 1], vertical_alignment="bottom")
    sought = left.text_input("Find", key="find", bind="query-params", placeholder="a key, a label or a word")
    only = right.toggle("Only labelled choices", key="labelled", bind="query-params")
    found = [info for info in describe_fields() if _matches(info, sought or "") and (labels_of(info) or not only)]
    if not found:
        st.info(f"No setting contains “{escape_markdown(sought or '')}”. Empty the search to see all of them.")
    for section in dict.fromkeys(_section(info) for info in found):
        st.markdown(f"##### {SECTION_TITLES.get(section, 'Run')}")
        rows = [_setting_row(info) for info in found if _section(info) == section]
        st.markdown(write_table(("Key", "Default", "Allowed", "Unit", "Question", "Meaning"), rows))
        if section == "embed":
            measured.show_return_scale()


def show_presets() -> None:
    """Compare readings of the paper with `paper`, for one algorithm and task, and say why each differs."""
    st.markdown(
        "`paper` takes the recommended reading of every open question, with the task's own values. Every other preset "
        "changes some of them, each by a rule with its reason. Choose one with `--set preset=NAME` or on the Launch "
        "page."
    )
    tasks = list(dict.fromkeys((row.env, row.map) for row in data.env_list() if row.map))
    left, right = st.columns(2)
    algo = left.selectbox("Algorithm", list_algos(), key="algo", bind="query-params")
    usual = tasks.index(_TASK) if _TASK in tasks else 0
    task = right.selectbox("Task", tasks, index=usual, format_func=" · ".join, key="task")
    others = [name for name in PRESETS if name != _BASE]
    usual_ones = [name for name in others if name != "demo"]
    chosen = st.pills(
        f"Compared with {_BASE}", others, selection_mode="multi", default=usual_ones, key="presets", bind="query-params"
    )
    try:
        _show_comparison(algo, *task, [name for name in others if name in chosen])
        measured.show(algo, *task)
    except ConfigError as exc:
        st.info(escape_markdown(str(exc)))
    measured.show_readings()


def _show_comparison(algo: str, env: str, map: str, presets: Sequence[str]) -> None:
    told = describe_presets()
    differing = [name for name in presets if compare_presets(algo, env, map, [name])]
    rows = compare_presets(algo, env, map, differing)
    st.markdown(write_table(("Key", _BASE, *differing, "Question", "Meaning"), rows))
    st.caption(f"{len(rows)} of {len(describe_fields())} settings differ; what differs from {_BASE} is bold.")
    for name in presets:
        st.markdown(f"##### {name}\n{escape_markdown(told[name])}")
        reasons = explain_preset(name, algo, env, map)
        if name in differing:
            st.markdown(write_table(("Sets", "Why"), reasons))
        else:
            st.caption(f"It changes nothing for {escape_markdown(algo)} on {escape_markdown(f'{env} {map}')}.")


def show_metrics() -> None:
    """List every number that a run may log."""
    st.markdown("A run records nothing that is not in this list, so every curve has its meaning and its unit here.")
    known = [*METRICS.values(), *OPEN_GROUPS.values()]
    for group in dict.fromkeys(metric.name.partition("/")[0] for metric in known):
        st.markdown(f"##### {_GROUPS.get(group, group)}")
        own = [metric for metric in known if metric.name.partition("/")[0] == group]
        rows = [(f"`{m.name}`", escape_markdown(m.unit), escape_markdown(m.meaning)) for m in own]
        st.markdown(write_table(("Name", "Unit", "Meaning"), rows))


def compare_presets(algo: str, env: str, map: str, presets: Sequence[str]) -> list[tuple[str, ...]]:
    """List the settings in which a preset differs from `paper`: key, paper, each preset, question, meaning.

    Raises:
        ConfigError: If the choice itself is not valid.
    """
    base, *others = (flatten(resolve(env=env, map=map, algo=algo, preset=name)) for name in (_BASE, *presets))
    return [
        (
            f"`{info.key}`",
            _value(base[info.key]),
            *(_value(o[info.key]) if o[info.key] == base[info.key] else f"**{_value(o[info.key])}**" for o in others),
            labels_of(info) or MISSING,
            escape_markdown(info.description),
        )
        for info in describe_fields()
        if info.key != "preset" and any(other[info.key] != base[info.key] for other in others)
    ]


def explain_preset(preset: str, algo: str, env: str, map: str) -> list[tuple[str, str]]:
    """List what each rule of a preset that applies here sets, and why."""
    return [
        (
            ", ".join(f"`{key} = {format_value(value)}`" for key, value in rule.values.items()),
            escape_markdown(rule.reason),
        )
        for rule in applied_rules(preset, env=env, map=map, algo=algo)
    ]


def labels_of(info: FieldInfo) -> str:
    """The open questions that a setting answers, e.g. "B13, B14"."""
    return ", ".join(_LABEL.findall(info.description))


def _section(info: FieldInfo) -> str:
    return info.key.partition(".")[0] if "." in info.key else ""


def _matches(info: FieldInfo, sought: str) -> bool:
    text = f"{info.key} {info.description} {' '.join(info.choices)}".casefold()
    return all(word in text for word in sought.casefold().split())


def _setting_row(info: FieldInfo) -> tuple[str, ...]:
    return (
        f"`{info.key}`",
        _value(info.default),
        _allowed(info),
        escape_markdown(info.unit) or MISSING,
        labels_of(info) or MISSING,
        escape_markdown(info.description),
    )


def _allowed(info: FieldInfo) -> str:
    if info.choices:
        return ", ".join(f"`{choice}`" for choice in info.choices)
    if info.type == "bool":
        return "`true`, `false`"
    parts = [info.type]
    if info.minimum is not None:
        parts.append(f"{'&gt;' if info.minimum_open else '≥'} {_bound(info.minimum)}")
    if info.maximum is not None:
        parts.append(f"≤ {_bound(info.maximum)}")
    return ", ".join(parts) + (" or unset" if info.optional else "")


def _bound(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() else f"{value:g}"


def _value(value: Value) -> str:
    if value is None:
        return "unset"
    return f"`{format_value(value)}`"
