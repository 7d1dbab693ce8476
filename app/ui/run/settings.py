"""The settings that affect a run, as a table that can be searched and compared with the preset and with another run.

A setting that this version does not have is listed at the end, with its value.
"""

from collections.abc import Mapping

import pandas as pd
import streamlit as st

from app.analysis.format import escape_markdown, format_count
from app.analysis.settings import has_effect
from app.jobs.launch_request import CHOICE_SETTINGS, resolve_defaults
from app.ui import data, messages
from app.ui.page_state import Choice, Text
from emtc_core.config.resolve import Value, describe_fields, flatten_tree
from emtc_core.config.values import format_argument
from emtc_core.errors import EmtcError
from storage.queries.run_search import RunFilter, run_names
from storage.queries.runs import find_run_names
from storage.runs.rows import RunRow, find_run

_FIND = Text("find", "run")
_OTHER_RUN = Choice("beside", "run")
"""Id of the run to compare with."""
_LISTED = Choice("list", "run")
"""Which settings are listed: all, or those that differ from the preset or from the other run."""
ALL = "all"
NOT_PRESET = "preset"
"""List the settings that differ from the preset. Also the column that is True for them."""
NOT_OTHER = "other"
"""List the settings that differ from the other run. Also the column that is True for them."""
_ABSENT = "–"
"""Value of a setting that a run or a preset does not have."""
_MAX_LISTED = 200
"""Number of the newest runs that are listed under *Compare with*."""


def show(run: RunRow) -> None:
    """Draw the search, the choice of the listed settings, and the table."""
    settings = flatten_tree(run.config)
    preset_values = resolve_defaults(settings)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        text = st.text_input(
            "Find a setting", **_FIND.bind(), type="search", placeholder="tau",
            help="Words in a setting's key, value, unit or meaning. Only settings with all words are listed.",
        )  # fmt: skip
        other_run = _choose_other_run(run)
    rows = make_rows(settings, preset_values, flatten_tree(other_run.config) if other_run else None)
    filter_column = _choose_rows(rows, other_run)
    if filter_column:
        rows = rows.loc[rows[filter_column], :]
    listed_rows = search_rows(rows, text or "")
    preset = str(settings.get("preset", "paper"))
    if not preset_values:
        st.caption(f"This version does not have the preset {escape_markdown(preset)} for this map.")
    if not len(listed_rows):
        messages.empty("No setting matches.", "Remove a word, or list all settings.")
        return
    _draw_table(listed_rows, preset, other_run)


def make_rows(
    settings: Mapping[str, Value], defaults: Mapping[str, Value], other: Mapping[str, Value] | None = None
) -> pd.DataFrame:
    """Tabulate settings in the order of their declaration.

    Settings of other environments and algorithms are left out, because they have no effect on the run.

    Args:
        settings: Key → value of the run.
        defaults: Key → value of the preset; empty if this version does not have the preset.
        other: Key → value of another run.

    Returns:
        One row for each setting. The columns `preset` and `other` are True if the value differs from them.
    """
    infos = {info.key: info for info in describe_fields()}
    stored_keys = {**settings, **(other or {})}
    declared: list[str] = []
    for key in infos:
        has_effect_here = has_effect(key, settings) or (other is not None and has_effect(key, other))
        if key in stored_keys and has_effect_here:
            declared.append(key)
    undeclared = [key for key in stored_keys if key not in infos]
    rows = []
    for key in [*declared, *undeclared]:
        info = infos.get(key)
        value = _format_value(settings, key)
        # CHOICE_SETTINGS (algorithm, map, seed, …) are chosen together with the preset, so they have no preset value.
        preset_value = _format_value(defaults, key) if defaults and key not in CHOICE_SETTINGS else ""
        other_value = _format_value(other, key) if other is not None else ""
        rows.append(
            {
                "Setting": key,
                "Value": value,
                "Preset's": preset_value,
                "Other": other_value,
                "Unit": info.unit if info else "",
                "Meaning": " ".join(info.description.split()) if info else "No setting of this version.",
                NOT_PRESET: bool(preset_value) and preset_value != value,
                NOT_OTHER: other is not None and other_value != value,
            }
        )
    return pd.DataFrame(rows)


def search_rows(rows: pd.DataFrame, text: str) -> pd.DataFrame:
    """Select the rows that contain every word of a text."""
    texts = rows[["Setting", "Value", "Unit", "Meaning"]].agg(" ".join, axis=1).str.lower()
    matches = pd.Series(True, index=rows.index)
    for word in text.lower().split():
        matches &= texts.str.contains(word, regex=False)
    return rows.loc[matches, :]


def _format_value(settings: Mapping[str, Value], key: str) -> str:
    if key not in settings:
        return _ABSENT
    return format_argument(settings[key]) or "not set"


def _choose_other_run(run: RunRow) -> RunRow | None:
    """Draw the choice of the run to compare with."""
    listed_names, _ = data.cached(run_names, ttl=2)(RunFilter(visibility="all"), limit=_MAX_LISTED)
    # The run in the URL may be older than the listed runs.
    names = listed_names | data.cached(find_run_names, ttl=5)(_OTHER_RUN.list_texts())
    names.pop(run.id, None)
    if not names:
        return None
    other_id = st.selectbox(
        "Compare with",
        **_OTHER_RUN.bind(
            ["", *names],
            lambda run_id: f"{names[run_id]} · {run_id}" if run_id else "no other run",
            on_change=_list_all_if_different,
        ),
        help="The settings of this run are shown in another column.",
    )  # fmt: skip
    if not other_id:
        return None
    try:
        return find_run(data.database(), other_id)
    except EmtcError:  # the run was deleted
        return None


def _list_all_if_different() -> None:
    """List all settings again after another run is chosen: the listed differences are those from the previous one."""
    if _LISTED.read() == NOT_OTHER:
        _LISTED.write(None)


def _choose_rows(rows: pd.DataFrame, other_run: RunRow | None) -> str:
    """Draw the choice of the listed settings; return the column that selects them, an empty text for all."""
    n_changed = format_count(rows[NOT_PRESET].to_numpy().sum())
    labels = {ALL: f"All {len(rows)}", NOT_PRESET: f"Changed from preset: {n_changed}"}
    if other_run:
        n_different = format_count(rows[NOT_OTHER].to_numpy().sum())
        labels[NOT_OTHER] = f"Different from {other_run.id}: {n_different}"
    column = st.segmented_control(
        "List", **_LISTED.bind(list(labels), labels.__getitem__), label_visibility="collapsed"
    )
    return "" if column in (None, ALL) else str(column)


def _draw_table(rows: pd.DataFrame, preset: str, other_run: RunRow | None) -> None:
    marks: list[str] = []
    for differs_from_preset, differs_from_other in zip(rows[NOT_PRESET], rows[NOT_OTHER], strict=True):
        marks_of_row: list[str] = []
        if differs_from_preset:
            marks_of_row.append("≠ preset")
        if differs_from_other:
            marks_of_row.append("≠ other")
        marks.append(" ".join(marks_of_row))
    config = st.column_config
    st.dataframe(
        rows.assign(Mark=marks),
        hide_index=True,
        key="run_settings",
        height=36 * min(len(rows), 16) + 38,  # at most 16 rows and the header [pixels]
        column_order=["Setting", "Value", "Mark", "Preset's", *(["Other"] if other_run else []), "Unit", "Meaning"],
        column_config={
            "Setting": config.TextColumn(width=210, help="As on the command line: --set KEY=VALUE"),
            "Value": config.TextColumn(width=150),
            "Mark": config.TextColumn("Differs", width=100),
            "Preset's": config.TextColumn(f"Preset {preset}", width=130, help="For this algorithm, map and length"),
            "Other": config.TextColumn(other_run.name if other_run else "Other", width=150),
            "Unit": config.TextColumn(width=90),
            "Meaning": config.TextColumn(width="large"),
        },
        alt="Table of settings: key, value, the preset's value, unit and meaning.",
    )
