"""All settings of a run as a table: searched, beside what its preset says and beside another run's.

What is no setting of this version, in a run of another one, stands at the end with its value.
"""

from collections.abc import Mapping

import pandas as pd
import streamlit as st

from app.analysis.format import escape_markdown, format_count
from app.jobs.launch_request import IDENTITY, resolve_defaults
from app.ui import data, in_url, messages
from emtc_core.config.plugin_settings import ORIGINS
from emtc_core.config.resolve import Value, describe_fields, flatten_tree
from emtc_core.config.values import write_text
from emtc_core.errors import EmtcError
from storage.queries.runs import RunFilter
from storage.runs.rows import RunRow

PAGE = "run"
ALL, NOT_PRESET, NOT_OTHER = "all", "preset", "other"
_ABSENT = "–"


def show(run: RunRow) -> None:
    """Draw the search, the choice of what is listed, and the table."""
    settings = flatten_tree(run.config)
    usual = resolve_defaults(settings)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        text = st.text_input(
            "Find a setting", **in_url.text(PAGE, "find"), type="search", placeholder="tau",
            help="Words of a setting's key, value, unit and meaning; all of them must be there.",
        )  # fmt: skip
        beside = _choose_other(run)
    other = flatten_tree(beside.config) if beside else None
    rows = make_rows(settings, usual, other)
    listed = _choose_rows(rows, beside)
    shown = find_rows(rows.loc[rows[listed], :] if listed else rows, text or "")
    if not usual:
        st.caption(f"This version does not know the preset {escape_markdown(str(settings.get('preset')))} on this map.")
    if not len(shown):
        messages.empty("No setting matches.", "Take a word away, or list all settings.")
        return
    _draw(shown, str(settings.get("preset", "paper")), beside)


def make_rows(
    settings: Mapping[str, Value], usual: Mapping[str, Value], other: Mapping[str, Value] | None = None
) -> pd.DataFrame:
    """Tabulate settings in the order of their declaration, with `preset` and `other` true where a value differs."""
    known = {info.key: info for info in describe_fields()}
    keys = [*known, *(key for key in {**settings, **(other or {})} if key not in known)]
    rows = []
    for key in keys:
        if key not in settings and key not in (other or {}):
            continue
        info, value = known.get(key), _write(settings, key)
        by_preset = _write(usual, key) if usual and key not in IDENTITY else ""
        theirs = _write(other, key) if other is not None else ""
        rows.append(
            {
                "Setting": key,
                "Value": value,
                "Preset's": by_preset,
                "Other": theirs,
                "Unit": info.unit if info else "",
                "Meaning": " ".join(info.description.split()) if info else _name_unknown(key),
                NOT_PRESET: bool(by_preset) and by_preset != value,
                NOT_OTHER: other is not None and theirs != value,
            }
        )
    return pd.DataFrame(rows)


def _name_unknown(key: str) -> str:
    came = "Where it came from: distribution and version, or module. Recorded, never set."
    return came if key.startswith(f"{ORIGINS}.") else "No setting of this version."


def find_rows(rows: pd.DataFrame, text: str) -> pd.DataFrame:
    """Keep the rows in which every word stands somewhere."""
    texts = rows[["Setting", "Value", "Unit", "Meaning"]].agg(" ".join, axis=1).str.lower()
    found = pd.Series(True, index=rows.index)
    for word in text.lower().split():
        found &= texts.str.contains(word, regex=False)
    return rows.loc[found, :]


def _write(settings: Mapping[str, Value], key: str) -> str:
    return (write_text(settings[key]) or "not set") if key in settings else _ABSENT


def _choose_other(run: RunRow) -> RunRow | None:
    """Choose the run whose settings stand beside."""
    names = {each: name for each, name in data.run_names(RunFilter(shelf="all"), 200)[0].items() if each != run.id}
    if not names:
        return None
    chosen = st.selectbox(
        "Beside", **in_url.one(PAGE, "beside", ["", *names]),
        format_func=lambda each: f"{names[each]} · {each}" if each else "no other run",
        help="Another run, whose settings stand in a column of their own.",
    )  # fmt: skip
    try:
        return data.get_run(chosen) if chosen else None
    except EmtcError:
        return None


def _choose_rows(rows: pd.DataFrame, beside: RunRow | None) -> str:
    """Choose which settings are listed; an empty text is all of them."""
    names = {
        ALL: f"All {len(rows)}",
        NOT_PRESET: f"Not the preset's: {format_count(rows[NOT_PRESET].to_numpy().sum())}",
    }
    if beside:
        names[NOT_OTHER] = f"Other than in {beside.id}: {format_count(rows[NOT_OTHER].to_numpy().sum())}"
    chosen = st.segmented_control(
        "List", **in_url.one(PAGE, "list", list(names)), format_func=names.__getitem__, label_visibility="collapsed"
    )
    return "" if chosen in (None, ALL) else str(chosen)


def _draw(rows: pd.DataFrame, preset: str, beside: RunRow | None) -> None:
    marks = [
        " ".join(word for word, differs in (("≠ preset", a), ("≠ other", b)) if differs)
        for a, b in zip(rows[NOT_PRESET], rows[NOT_OTHER], strict=True)
    ]
    column = st.column_config
    st.dataframe(
        rows.assign(Mark=marks),
        hide_index=True,
        key="run_settings",
        height=36 * min(len(rows), 16) + 38,
        column_order=["Setting", "Value", "Mark", "Preset's", *(["Other"] if beside else []), "Unit", "Meaning"],
        column_config={
            "Setting": column.TextColumn(width=210, help="As on the command line: --set KEY=VALUE"),
            "Value": column.TextColumn(width=150),
            "Mark": column.TextColumn("Differs", width=100),
            "Preset's": column.TextColumn(f"Preset {preset}", width=130, help="For this algorithm, map and length"),
            "Other": column.TextColumn(beside.name if beside else "Other", width=150),
            "Unit": column.TextColumn(width=90),
            "Meaning": column.TextColumn(width="large"),
        },
        alt="Table of settings: key, value, the preset's value, unit and meaning.",
    )
