"""Widgets for settings, generated from their descriptions: type, bounds, unit, sentence, default."""

from collections.abc import Mapping, Sequence

import streamlit as st

from app.analysis.format import escape_markdown
from emtc_core.config.resolve import FieldInfo, Value

PER_ROW = 3
SECTION_TITLES = {
    "train": "Training",
    "memory": "Episodic memory",
    "embed": "Embedder",
    "gate": "Temporal-consistency gate",
    "incentive": "Episodic incentive",
    "eval": "Evaluation",
    "record": "Recording",
    "checkpoint": "Checkpoints",
    "env": "Environment",
    "qplex": "QPLEX",
    "qmix": "QMIX",
    "cds": "CDS",
    "dmix": "DMIX",
    "mappo": "MAPPO",
    "curiosity": "EMC: curiosity",
    "ec": "EMC: episodic control",
}


def show_section(fields: Sequence[FieldInfo], defaults: Mapping[str, Value]) -> dict[str, Value]:
    """Draw one widget for each setting and return what differs from the defaults.

    The default is part of a widget's key: when a choice above changes it, the widget shows the new one.
    """
    changed: dict[str, Value] = {}
    for start in range(0, len(fields), PER_ROW):
        columns = st.columns(PER_ROW, vertical_alignment="bottom")
        for cell, info in zip(columns, fields[start : start + PER_ROW], strict=False):
            default = defaults.get(info.key, info.default)
            with cell:
                value = _widget(info, default, key=f"set-{info.key}-{default}")
            if value != default:
                changed[info.key] = value
    return changed


def label_of(info: FieldInfo) -> str:
    """A setting's label, with its unit."""
    name = info.key.rpartition(".")[2].replace("_", " ")
    return f"{name} [{info.unit}]" if info.unit else name


def help_of(info: FieldInfo) -> str:
    """What a setting means, its bounds and its key on the command line."""
    bounds = []
    if info.minimum is not None:
        bounds.append(f"{'more than' if info.minimum_open else 'at least'} {info.minimum:g}")
    if info.maximum is not None:
        bounds.append(f"at most {info.maximum:g}")
    limits = f" Must be {' and '.join(bounds)}." if bounds else ""
    return f"{escape_markdown(info.description + limits)}  \n`--set {info.key}=…`"


def _widget(info: FieldInfo, default: Value, *, key: str) -> Value:
    label, text = label_of(info), help_of(info)
    if info.type == "bool":
        return st.toggle(label, value=bool(default), key=key, help=text)
    if info.type == "choice":
        index = info.choices.index(str(default)) if str(default) in info.choices else 0
        return st.selectbox(label, info.choices, index=index, key=key, help=text)
    if info.optional or info.type == "float" or (info.type == "int" and default is None):
        return _number_text(info, default, label=label, text=text, key=key)
    if info.type == "int":
        return st.number_input(label, value=int(default or 0), step=1, key=key, help=text)
    return st.text_input(label, value="" if default is None else str(default), key=key, help=text)


def _number_text(info: FieldInfo, default: Value, *, label: str, text: str, key: str) -> Value:
    """Take a number as text: an empty one is "not set", and 1.8e-5 keeps its digits."""
    shown = "" if default is None else f"{default:g}" if isinstance(default, float) else str(default)
    typed = st.text_input(label, value=shown, key=key, help=text, placeholder="not set").strip()
    if typed == shown:
        return default
    if not typed and info.optional:
        return None
    try:
        return int(typed) if info.type == "int" else float(typed)
    except ValueError:
        return typed  # the validation says what is wrong with it
