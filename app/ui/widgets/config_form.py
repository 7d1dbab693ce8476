"""Labels and help texts of settings, a text field for an integer, and fields that edit stored values.

Streamlit's number field does not send a value that is out of bounds. The page could not show that it is invalid, and a
button next to the field would use the former value. `integer_field` is therefore a text field.
"""

from collections.abc import Mapping
from typing import Final

import streamlit as st

from app.analysis.format import escape_markdown
from app.ui.page_state import BoundText, Text
from emtc_core.config.values import FieldInfo, parse_count
from emtc_core.errors import ConfigError, describe_fault

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
    "plugin": "Plug-in",
    "qplex": "QPLEX",
    "qmix": "QMIX",
    "cds": "CDS",
    "mappo": "MAPPO",
    "curiosity": "EMC: curiosity",
    "ec": "EMC: episodic control",
}
_LABELS: Final = {
    "memory.delta": "Merge radius δ",
    "gate.successor": "H(s′) source",
    "gate.lookup": "H(s) source",
    "gate.on_miss": "No neighbor within δ",
    "gate.on_empty": "Empty memory",
    "incentive.on_miss": "No neighbor within δ",
}
"""Labels of the settings whose name alone does not describe them."""
_SYMBOLS: Final = {
    "gate.tau_start": "τ_start",
    "gate.tau_end": "τ_end",
    "gate.delta_scale": "scale of Δ_mem",
    "train.gamma": "γ",
    "embed.interval": "t_emb",
    "embed.samples": "N",
    "embed.batch": "B",
    "embed.lambda_rcon": "λ_rcon",
    "embed.lambda_cl": "λ_cl",
    "embed.tau_cl": "τ_cl",
    "embed.sigma": "σ",
}
"""Symbols of the paper, drawn after the names of their settings."""
_MAX_CHARACTERS = 40


def write_label(info: FieldInfo) -> str:
    """Return a setting's label, with its symbol and its unit."""
    name = _LABELS.get(info.key) or info.key.rpartition(".")[2].replace("_", " ")
    if symbol := _SYMBOLS.get(info.key):
        name = f"{name} {symbol}"
    return f"{name} [{info.unit}]" if info.unit else name


def matches(info: FieldInfo, search: str) -> bool:
    """Return whether a setting's key, label, meaning and choices contain all words of a search."""
    text = f"{info.key} {write_label(info)} {info.description} {' '.join(info.choices)}".casefold()
    return all(word in text for word in search.casefold().split())


def write_help(info: FieldInfo) -> str:
    """Return a setting's meaning, its bounds, and its key on the command line."""
    bounds = []
    if info.minimum is not None:
        bounds.append(f"{'more than' if info.minimum_open else 'at least'} {info.minimum:g}")
    if info.maximum is not None:
        bounds.append(f"at most {info.maximum:g}")
    limits = f" Must be {' and '.join(bounds)}." if bounds else ""
    return f"{escape_markdown(info.description + limits)}  \n`--set {info.key}=…`"


def integer_field(
    label: str,
    *,
    key: str | Text,
    default: int,
    low: int,
    high: int,
    help_text: str | None = None,
    width: int | None = None,
) -> int | None:
    """Draw a text field for an integer; return the integer, or None if the text is invalid.

    Args:
        label: Label of the field.
        key: Key of the widget; or a parameter of the URL, which then stores the text.
        default: Value of an empty field.
        low: Smallest valid value.
        high: Largest valid value.
        help_text: Help text.
        width: Width of the field [pixels].
    """
    if isinstance(key, str):
        name = key
        bound = BoundText(key=key, on_change=lambda: None, max_chars=_MAX_CHARACTERS)
    else:
        name = key.name
        bound = key.bind()
    text = st.text_input(label, **bound, placeholder=str(default), help=help_text, width=width or "stretch")
    try:
        return _parse_integer(text or "", key=name, default=default, low=low, high=high)
    except ConfigError as exc:
        with st.container(key=f"wrong-{name}"):
            fault = describe_fault(exc.faults[0], with_key=False)
            st.markdown(f":red[:material/error: {escape_markdown(fault)}]")
        return None


def _parse_integer(text: str, *, key: str, default: int, low: int, high: int) -> int:
    """Parse the text of the field `key`; an empty text is `default`.

    Raises:
        ConfigError: If the text is not an integer between the bounds.
    """
    number = parse_count(text, key) if text.strip() else default
    if not low <= number <= high:
        raise ConfigError(f"must be between {low:,} and {high:,}", key=key, value=text.strip())
    return number


def set_fields_to_stored_values(values: Mapping[str, object]) -> None:
    """Set the fields of a form to stored values when the form is first drawn, and when the stored values have changed.

    At other reruns, the fields keep the texts that the user has typed and not saved yet.

    Args:
        values: Key of a widget with `persist_state="session"` → stored value.
    """
    first_widget = next(iter(values))
    key = f"stored-{first_widget}"  # of the session state: the values to which the fields were set last
    if st.session_state.get(key) != values:
        st.session_state[key] = dict(values)
        for widget_key, value in values.items():
            st.session_state[widget_key] = value
