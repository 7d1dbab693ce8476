"""Widgets for settings, generated from their descriptions: type, bounds, unit, sentence, default."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import streamlit as st

from app.analysis.format import escape_markdown
from app.jobs.launch_request import write_text
from app.ui.in_url import Bound
from emtc_core.config.resolve import FieldInfo, Value

PER_ROW = 3
SECTION_TITLES: Final = {
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
Bind = Callable[[FieldInfo, object, str, Callable[[object], str]], Bound]
"""Setting, what its widget shows, its default as text, and how the widget's value is written as text."""


def show_section(
    fields: Sequence[FieldInfo],
    defaults: Mapping[str, Value],
    texts: Mapping[str, str],
    bind: Bind,
    after: Callable[[str], None],
) -> None:
    """Draw one widget for each setting.

    Args:
        fields: The settings.
        defaults: What a setting is where no text says otherwise.
        texts: What was typed, by key.
        bind: Ties a widget to its setting.
        after: Draws what stands under the widget of a setting.
    """
    for start in range(0, len(fields), PER_ROW):
        columns = st.columns(PER_ROW, vertical_alignment="top")
        for cell, info in zip(columns, fields[start : start + PER_ROW], strict=False):
            with cell:
                _widget(info, write_text(defaults.get(info.key, info.default)), texts.get(info.key), bind)
                after(info.key)


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


def _widget(info: FieldInfo, usual: str, typed: str | None, bind: Bind) -> None:
    """Draw a setting; numbers are texts, for a box of numbers keeps what is out of bounds to itself."""
    label, about = label_of(info), help_of(info)
    text = usual if typed is None else typed
    if info.type == "bool":
        bound = bind(info, text.lower() == "true", usual, lambda value: str(value).lower())
        st.toggle(label, **bound, help=about)
    elif info.type == "choice":
        known = text in info.choices
        bound = bind(info, text if known else None, usual, str)
        st.selectbox(label, info.choices, index=0 if known else None, **bound, help=about)
    else:
        st.text_input(label, **bind(info, text, usual, str), help=about, placeholder=usual or "not set")
