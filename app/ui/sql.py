"""The SQL page: the query form with examples, the description of the tables, and the result with its downloads."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pandas as pd
import streamlit as st

from app.analysis.format import escape_markdown, format_count
from app.analysis.tables import (
    NO_PARQUET,
    TABLE_MIME,
    TABLE_SUFFIX,
    TableFormat,
    can_write_parquet,
    export_table,
    make_plain_table,
)
from app.ui import data, messages, view
from app.ui.page_state import Choice, Flag, Text, without_on_change
from app.ui.widgets import files
from app.ui.widgets.result_table import number_columns
from storage.queries.runs import run_configs
from storage.sql.glossary import EXAMPLES, describe_schema
from storage.sql.query import MAX_QUERY_LENGTH, QueryCancel, QueryResult, run_query

_QUERY: Final = Text("q", "sql", max_characters=MAX_QUERY_LENGTH)
_TABLE: Final = Choice("table", "sql")
_MAX_ROWS: Final = Choice("rows", "sql")
_SHOWS_CHART: Final = Flag("chart", "sql")
_SUBMITTED: Final = "sql_query"
"""Key of Streamlit's session state: the last `_SubmittedQuery`."""
_FORMAT_LABELS: Final[dict[TableFormat, str]] = {"csv": "CSV", "parquet": "Parquet"}
_RUN_ID_COLUMNS: Final = ("id", "run_id", "run")
_MAX_ROWS_WITH_LINKS: Final = 1000
"""The ids of runs are links only in results with at most this number of rows."""
_CHARTS: Final[dict[str, Callable[..., Any]]] = {
    "Line": st.line_chart,
    "Points": st.scatter_chart,
    "Bars": st.bar_chart,
}
_MAX_GROUPS: Final = 12
"""A column with more values cannot be the color of a chart."""
_CHART_HEIGHT: Final = 320  # [pixels]
_MAX_ROWS_IN_CHART: Final = 5000
_ROW_LIMITS: Final = (100, 1000, 10_000, 100_000)
_DEFAULT_ROW_LIMIT: Final = 1000
_TIMEOUT_S: Final = 10.0
_WAIT_S: Final = 0.5
"""The page waits this time for the result. For a query that takes longer, it draws the button *Cancel*."""
_CHECK_EVERY_S: Final = 0.5
"""Interval at which the page checks whether the query has ended [s]."""
_QUERY_THREADS: Final = ThreadPoolExecutor(4, thread_name_prefix="sql")
"""Runs the queries of all sessions of this server. Further queries wait."""


@dataclass(frozen=True)
class _SubmittedQuery:
    """A query that runs or has ended."""

    future: Future[QueryResult]
    cancel: QueryCancel


def show() -> None:
    """Draw the query form. The query is in the URL and runs only when the button is pressed."""
    st.selectbox(
        "Example", list(EXAMPLES), index=None, key="example", on_change=_insert_example, placeholder="Select an example"
    )
    with st.form("sql", border=False):  # in a form, Ctrl+Enter submits
        # Ctrl+Enter works only if the button is created before the text area. The container places the area above it.
        text_container = st.container()
        with st.container(horizontal=True, vertical_alignment="bottom"):
            limit = st.selectbox(
                "Maximum rows",
                **without_on_change(_MAX_ROWS.bind(_ROW_LIMITS, format_count, default=_DEFAULT_ROW_LIMIT)),
                width=160,
            )
            is_submitted = st.form_submit_button(
                "Run", type="primary", icon=":material/play_arrow:", key="run_query", on_click=_store_query
            )
        query = text_container.text_area(
            "Query", **without_on_change(_QUERY.bind()), height=240,
            placeholder="select name, win_rate from runs",
            help="One read-only statement. The query is part of the link to this page.",
        )  # fmt: skip
    if is_submitted:
        _submit_query(query or "", limit or _DEFAULT_ROW_LIMIT)
    if (submitted := _get_submitted()) is not None and not submitted.future.done():
        st.fragment(_show_running, run_every=_CHECK_EVERY_S)(submitted)
    st.caption(
        f"Ctrl+Enter runs the query. The time limit is {_TIMEOUT_S:.0f} s. For longer queries use `emtc sql` on the "
        "command line."
    )


def show_schema() -> None:
    """Draw the selection of a table and the meaning of its columns."""
    tables = {table.name: table for table in describe_schema()}
    name = st.selectbox(
        "Table", **_TABLE.bind(list(tables), lambda name: f"{name}: {tables[name].meaning}"),
        help="Results show the size of a blob.",
    )  # fmt: skip
    table = tables[name or "runs"]
    columns = [{"Column": column.name, "Type": column.kind, "Meaning": column.meaning} for column in table.columns]
    st.dataframe(
        pd.DataFrame(columns),
        hide_index=True,
        height=390,
        key="columns",
        column_config={"Column": st.column_config.TextColumn(width=115), "Type": st.column_config.TextColumn(width=60)},
        alt=f"Columns of the table {table.name} with their types and meanings.",
    )
    if data.database().dialect == "sqlite":
        st.caption(escape_markdown("Times are text in UTC, such as 2026-01-31 12:00:00. Booleans are 1 or 0."))


def show_result() -> None:
    """Draw the result of the last query, or its error, if it has ended."""
    submitted = _get_submitted()
    if submitted is None or not submitted.future.done():
        return
    if (error := submitted.future.exception()) is not None:
        messages.error(error)
        return
    result = submitted.future.result()
    st.subheader("Result")
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        count = result.truncation or f"{format_count(len(result.rows))} row{'' if len(result.rows) == 1 else 's'}."
        st.caption(escape_markdown(f"{count} {result.seconds:.1f} s"), width="stretch")
        for format, label in _FORMAT_LABELS.items():
            can_write = format != "parquet" or can_write_parquet()
            files.button(
                label,
                partial(export_table, make_plain_table(result.frame()), format),
                file_name=f"result.{TABLE_SUFFIX[format]}",
                mime=TABLE_MIME[format],
                icon=":material/download:",
                key=f"result-{format}",
                disabled=not can_write,
                help=None if can_write else NO_PARQUET,
            )
    if result.rows:
        _show_rows(result.frame())
        _show_chart(result.frame())
    else:
        st.markdown("The query returned no rows. Check the column names, or relax the condition.")


def _show_rows(frame: pd.DataFrame) -> None:
    """Draw the table of the result. The ids of runs are links to the page Run."""
    linked_columns = _find_run_id_columns(frame)
    links = {name: [view.link_run(str(value), str(value)) for value in frame[name]] for name in linked_columns}
    st.dataframe(
        frame.assign(**links),
        hide_index=True,
        key="result_table",
        column_config=number_columns(frame)
        | {
            name: st.column_config.LinkColumn(
                display_text=view.LINK_TEXT_PATTERN, help="Opens the page Run in a new tab", width="small"
            )
            for name in linked_columns
        },
        alt="The rows of the result.",
    )


def _find_run_id_columns(frame: pd.DataFrame) -> list[str]:
    """Find the columns in which every value is the id of an existing run; none if the result is too long for links."""
    if len(frame) > _MAX_ROWS_WITH_LINKS:
        return []
    ids_by_column = {name: set(map(str, frame[name])) for name in frame.columns if name in _RUN_ID_COLUMNS}
    ids = tuple(set().union(*ids_by_column.values()))
    existing_ids = data.cached(run_configs, ttl=2)(ids).keys() if ids else set[str]()
    return [name for name, column_ids in ids_by_column.items() if column_ids <= existing_ids]


def _show_chart(frame: pd.DataFrame) -> None:
    """Draw the choice of a chart of the result, and the chart."""
    numeric = [str(name) for name in frame.columns if pd.api.types.is_numeric_dtype(frame[name])]
    if not numeric or len(frame) < 2:
        return
    columns = [str(name) for name in frame.columns]
    suffix = ",".join(columns)  # of the widgets' keys: a result with other columns needs new widgets
    expander = st.expander("Chart", icon=":material/show_chart:", **_SHOWS_CHART.bind())
    if not expander.open:
        return
    with expander:
        with st.container(horizontal=True, vertical_alignment="bottom"):
            kind = st.segmented_control(
                "Kind", list(_CHARTS), default=next(iter(_CHARTS)), required=True, key="chart_kind"
            )
            default_x = columns.index(numeric[0]) if len(numeric) > 1 else 0  # the only numeric column is y
            x = st.selectbox("x", columns, index=default_x, key=f"chart_x-{suffix}", width=220)
            y = st.selectbox("y", numeric, index=len(numeric) - 1, key=f"chart_y-{suffix}", width=220)
            groups = [name for name in columns if len(set(map(str, frame[name].tolist()))) <= _MAX_GROUPS]
            color = st.selectbox(
                "Color", groups, index=None, placeholder="none", key=f"chart_color-{suffix}", width=220
            )
        _CHARTS[kind](frame.head(_MAX_ROWS_IN_CHART), x=x, y=y, color=color, height=_CHART_HEIGHT)
        if len(frame) > _MAX_ROWS_IN_CHART:
            st.caption(f"The chart shows the first {format_count(_MAX_ROWS_IN_CHART)} rows.")


def _insert_example() -> None:
    name = st.session_state.get("example")
    if name in EXAMPLES:
        _QUERY.write(EXAMPLES[name])


def _store_query() -> None:
    _QUERY.store()
    _MAX_ROWS.store(_DEFAULT_ROW_LIMIT)


def _get_submitted() -> _SubmittedQuery | None:
    return st.session_state.get(_SUBMITTED)


def _submit_query(query: str, limit: int) -> None:
    """Start a query in a thread and cancel the query before it. Wait a moment, because most queries are fast."""
    if (previous := _get_submitted()) is not None:
        previous.cancel.cancel()
    cancel = QueryCancel()
    future = _QUERY_THREADS.submit(run_query, data.database(), query, max_rows=limit, seconds=_TIMEOUT_S, cancel=cancel)
    st.session_state[_SUBMITTED] = _SubmittedQuery(future, cancel)
    wait([future], timeout=_WAIT_S)


def _show_running(submitted: _SubmittedQuery) -> None:
    """Draw a message and the button *Cancel*. A timer executes this fragment; it reruns the page at the query's end."""
    if submitted.future.done():
        st.rerun()
    with st.container(horizontal=True, vertical_alignment="center", border=True):
        st.markdown("The query is running.")
        st.button("Cancel", icon=":material/close:", key="cancel", on_click=submitted.cancel.cancel)
