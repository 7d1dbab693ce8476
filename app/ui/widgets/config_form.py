"""Widgets for settings, generated from their descriptions: type, bounds, unit, sentence, default.

And a field for a whole number that tells what it refuses: Streamlit's own keeps what is out of bounds to itself, its
box turns red, the page never hears of it, and a button beside it acts on the value before.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import streamlit as st

from app.analysis.format import escape_markdown
from app.ui import in_url
from app.ui.in_url import Bound
from emtc_core.config.resolve import Value
from emtc_core.config.values import FieldInfo, parse_count, write_text
from emtc_core.errors import ConfigError, describe_fault

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
    "mixer": "Mixer",
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


_LONGEST = 40


def ask(
    label: str,
    *,
    key: str,
    usual: int,
    low: int,
    high: int,
    about: str | None = None,
    page: str = "",
    width: int | None = None,
) -> int | None:
    """Draw the field; return its number, or None while it holds none.

    Args:
        label: Above the field.
        key: The widget's; with a `page` the name in the address, too.
        usual: What an empty field means.
        low: The least that may be typed.
        high: The most.
        about: Help.
        page: Bind it to the address of this page.
        width: Of the field [pixels].
    """
    bound = in_url.text(page, key) if page else in_url.Bound(key=key, on_change=_nothing)
    typed = st.text_input(
        label, **bound, placeholder=str(usual), help=about, max_chars=_LONGEST, width=width or "stretch"
    )
    try:
        return read(typed or "", key=key, usual=usual, low=low, high=high)
    except ConfigError as exc:
        with st.container(key=f"wrong-{key}"):
            told = describe_fault(exc.faults[0], with_key=False)
            st.markdown(f":red[:material/error: {escape_markdown(told)}]")
        return None


def read(text: str, *, key: str, usual: int, low: int, high: int) -> int:
    """Read what was typed into the field `key`.

    Raises:
        ConfigError: If it is no whole number between the bounds.
    """
    number = parse_count(text, key) if text.strip() else usual
    if not low <= number <= high:
        raise ConfigError(f"must be between {low:,} and {high:,}", key=key, value=text.strip())
    return number


def _nothing() -> None:
    """Nobody waits for it."""
