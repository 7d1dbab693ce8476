"""The columns of the table of runs: their order, labels and formats, and the choice of the shown ones.

Columns of the database are declared in `storage.models.Run`, with `on_home` in their `ColumnUse`. The final win rate,
curve, gate, age and duration are computed. mu_w is the time average of the win rate. The gate is the weight β of the
episodic incentive, the reward that the memory adds.
"""

from collections.abc import Collection
from typing import Any, Final

import streamlit as st

from app.ui import view
from app.ui.page_state import Choices
from app.ui.widgets import box
from app.ui.widgets.result_table import PERCENT, RATE
from storage.queries.final_rates import FINAL_RATE_LABEL, FINAL_RATE_MEANING
from storage.queries.run_search import HOME_COLUMNS, SORTS

_NAME: Final = "name"
"""The column that is always shown, because its cells are the links to the runs."""
_EPISODES: Final = "final_rate_episodes"
"""The column with the episodes of the final win rate. It is shown if they differ between the listed runs."""
_FIRST: Final = ("status", _NAME, "algo", "map", "seed", "final_rate", _EPISODES, "curve", "gate")
_LAST: Final = ("tags", "age", "duration", "win_rate", "mu_w", "return_mean", "notes", "id", "created_at")
_FIRST_SORTS: Final = ("created", "final_rate", "win_rate", "mu_w", "return", "gate", "progress", "duration", "status")
_COMPUTED_LABELS: Final = {
    "final_rate": FINAL_RATE_LABEL,
    "curve": "Win rate curve",
    "gate": "Gate",
    "age": "Age",
    "duration": "Duration",
}
_WIDTHS: Final = {
    "status": 92,
    "algo": 102,
    "map": 75,
    "seed": 46,
    "win_rate": 92,
    "mu_w": 100,
    "return_mean": 80,
    "tags": 118,
    "notes": "small",
    "id": "small",
}
_FORMATS: Final = {"win_rate": RATE, "mu_w": "%.3g", "return_mean": "%.5g"}

COLUMN_ORDER: Final = [*_FIRST, *(name for name in HOME_COLUMNS if name not in (*_FIRST, *_LAST)), *_LAST]
"""All columns from left to right. Those that neither _FIRST nor _LAST names are in between."""
_DEFAULT: Final = ["status", "algo", "map", "seed", "final_rate", "curve", "gate", "tags", "age"]
"""The shown columns if none were chosen. All are visible at 1440 pixels."""
_COLUMNS: Final = Choices("columns", "home")
SORT_LABELS: Final = {
    "": "Active first",
    **{key: SORTS[key].label for key in _FIRST_SORTS},
    **{key: sort.label for key, sort in SORTS.items() if key not in _FIRST_SORTS},
}
"""Sort key → its label in *Sort by*."""


def show_choice() -> None:
    """Draw the button that opens the choice of the columns. The URL stores it, and so does a saved view."""
    opened = box.show("Columns", icon=":material/view_column:", key="run_columns")
    if opened.is_opened:
        options = [name for name in COLUMN_ORDER if name not in (_NAME, _EPISODES)]
        labels = {name: column.label for name, column in HOME_COLUMNS.items()} | _COMPUTED_LABELS
        with opened.container:
            st.pills("Columns", **_COLUMNS.bind(options, labels.__getitem__, default=_DEFAULT), selection_mode="multi")


def list_columns(episodes: Collection[str]) -> list[str]:
    """List the shown columns from left to right.

    Args:
        episodes: The different kinds of episodes, robust or greedy, of the final win rates in the table.
    """
    selected = {_NAME, *(_COLUMNS.read() if _COLUMNS.is_in_url else _DEFAULT)}
    if "final_rate" in selected and len(episodes) > 1:
        selected.add(_EPISODES)
    return [name for name in COLUMN_ORDER if name in selected]


def column_config(episodes: Collection[str]) -> dict[str, Any]:
    """Return the label, format and width of each column.

    Args:
        episodes: As in `list_columns`. If all are equal, each cell contains them: "46 % robust".
    """
    column = st.column_config
    kind = f" {next(iter(episodes))}" if len(episodes) == 1 else ""
    return {
        **{name: _make_config(name) for name in HOME_COLUMNS},
        _NAME: column.LinkColumn(
            HOME_COLUMNS[_NAME].label,
            width=306,  # a name such as "Confirmatory study: 3s_vs_5z · EMTC, prewrite"; the seed has a column
            display_text=view.LINK_TEXT_PATTERN,
            help="Opens the run in a new tab",
        ),
        "final_rate": column.NumberColumn(
            FINAL_RATE_LABEL, format=f"{PERCENT}{kind}", width=105, help=FINAL_RATE_MEANING.capitalize()
        ),
        _EPISODES: column.TextColumn("Episodes", width=75, help="Episodes that the final win rate counts"),
        "gate": column.TextColumn(
            "Gate", width=68, help="Active if the gate removes incentive. Select the row for the reason."
        ),
        "curve": column.LineChartColumn(
            _COMPUTED_LABELS["curve"],
            width=100,
            y_min=0,
            y_max=1,
            help="From the start to the last evaluation, of the same episodes as the final win rate",
        ),
        "age": column.DatetimeColumn("Age", width=98, format="distance", help="Time since the run was created"),
        "duration": column.TextColumn("Duration", width="small", help="Training time, without pauses"),
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
