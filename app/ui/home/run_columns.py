"""The columns of the table of runs: their order, labels and formats.

Columns of the database are declared in `storage.models.Run`, with `on_home` in their `ColumnUse`. The columns progress,
curve, gate, age and duration are computed. mu_w is the time average of the win rate. The gate is the weight β of the
episodic incentive.
"""

from typing import Any, Final

import streamlit as st

from app.ui import view
from app.ui.widgets.result_table import PERCENT, RATE
from storage.queries.run_search import HOME_COLUMNS, SORTS

_FIRST: Final = (
    "status", "name", "algo", "map", "seed", "win_rate", "curve", "progress", "gate", "age", "mu_w", "return_mean",
)  # fmt: skip
_LAST: Final = ("tags", "notes", "duration", "id", "created_at")
_FIRST_SORTS: Final = ("created", "win_rate", "mu_w", "return", "gate", "progress", "duration", "status")
# At 1440 pixels all columns up to the age are visible.
_WIDTHS: Final = {
    "status": 90,
    "algo": 105,
    "map": 75,
    "seed": 50,
    "win_rate": 92,
    "mu_w": 100,
    "return_mean": 80,
    "tags": 130,
    "notes": "small",
    "id": "small",
}
_FORMATS: Final = {"win_rate": RATE, "mu_w": "%.3g", "return_mean": "%.5g"}

COLUMN_ORDER: Final = [*_FIRST, *(name for name in HOME_COLUMNS if name not in (*_FIRST, *_LAST)), *_LAST]
"""The columns from left to right. Those that neither _FIRST nor _LAST names are in between."""
SORT_LABELS: Final = {
    "": "Active first",
    **{key: SORTS[key].label for key in _FIRST_SORTS},
    **{key: sort.label for key, sort in SORTS.items() if key not in _FIRST_SORTS},
}
"""Sort key → its label in *Sort by*."""


def column_config() -> dict[str, Any]:
    """Return the label, format and width of each column."""
    column = st.column_config
    return {
        **{name: _make_config(name) for name in HOME_COLUMNS},
        "name": column.LinkColumn(
            HOME_COLUMNS["name"].label,
            width=250,  # a name such as "First study A: 3s_vs_5z · No-TCGM · seed 3"
            display_text=view.LINK_TEXT_PATTERN,
            help="Opens the run in a new tab",
        ),
        "progress": column.ProgressColumn("Progress", format=PERCENT, min_value=0, max_value=100, width=90),
        "gate": column.TextColumn(
            "Gate", width=74, help="Active if the gate removes incentive. Select the row for the reason."
        ),
        "curve": column.LineChartColumn(
            "Win rate curve",
            width=94,
            y_min=0,
            y_max=1,
            help="Greedy win rate from the start to the last evaluation",
        ),
        "age": column.DatetimeColumn("Age", width=100, format="distance", help="Time since the run was created"),
        "duration": column.TextColumn("Duration", width="small", help="From start to end, with pauses"),
    }


def _make_config(name: str) -> Any:
    """Make the configuration of a column of the database. Numbers have their meaning as a tooltip."""
    column = HOME_COLUMNS[name]
    column_config = st.column_config
    width: Any = _WIDTHS.get(name)
    if column.kind in ("integer", "real"):
        return column_config.NumberColumn(column.label, help=column.meaning, format=_FORMATS.get(name), width=width)
    if column.kind == "time":
        return column_config.DatetimeColumn(column.label, format="YYYY-MM-DD HH:mm", timezone="UTC", width=width)
    if column.kind == "JSON":
        return column_config.ListColumn(column.label, width=width)
    return column_config.TextColumn(column.label, width=width)
