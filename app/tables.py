"""Tables as frames, and frames as CSV, LaTeX, Markdown or Parquet."""

import io
from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
import pandas as pd

from storage.engine import Database
from storage.queries.runs import list_runs

TableFormat = Literal["csv", "latex", "markdown", "parquet"]
TABLE_FORMATS: tuple[TableFormat, ...] = get_args(TableFormat)
EVERY_RUN = 1_000_000

_LATEX = str.maketrans(
    {"_": r"\_", "&": r"\&", "%": r"\%", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}", "±": r"$\pm$", "–": "--"}
)


def make_runs_table(db: Database) -> pd.DataFrame:
    """List every run, newest first."""
    columns = ["id", "name", "env", "map", "algo", "seed", "status", "env_steps", "target_steps", "win_rate"]
    return list_runs(db, limit=EVERY_RUN).loc[:, columns]


def make_win_rates_table(db: Database) -> pd.DataFrame:
    """Give the last test win rate [%] of finished runs: algorithms × maps, mean ± std over seeds (median, n)."""
    runs = list_runs(db, limit=EVERY_RUN)
    runs = runs[(runs["status"] == "finished") & runs["win_rate"].notna()]
    if runs.empty:
        return pd.DataFrame(columns=["algo"])
    cells = runs.groupby(["algo", "map"])["win_rate"].agg(_cell).unstack("map")
    return cells.fillna("–").reset_index()


TABLES: dict[str, Callable[[Database], pd.DataFrame]] = {"runs": make_runs_table, "win-rates": make_win_rates_table}


def export_table(frame: pd.DataFrame, format: TableFormat) -> bytes:
    """Write a table in one format.

    Raises:
        ValueError: If the format is unknown.
    """
    if format == "csv":
        return frame.to_csv(index=False).encode()
    if format == "markdown":
        return _markdown(frame).encode()
    if format == "latex":
        return _latex(frame).encode()
    if format == "parquet":
        buffer = io.BytesIO()
        frame.to_parquet(buffer, index=False)
        return buffer.getvalue()
    raise ValueError(f"format must be one of {', '.join(TABLE_FORMATS)}, got {format!r}")


def _cell(rates: pd.Series) -> str:
    percent = 100 * rates.to_numpy(dtype=np.float64)
    spread = f" ± {percent.std(ddof=1):.1f}" if len(percent) > 1 else ""
    return f"{percent.mean():.1f}{spread} (median {np.median(percent):.1f}, n = {len(percent)})"


def _texts(frame: pd.DataFrame) -> list[list[str]]:
    return [["–" if pd.isna(value) else str(value) for value in row] for row in frame.itertuples(index=False)]


def _markdown(frame: pd.DataFrame) -> str:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"

    head = [line(list(frame.columns)), line(["---"] * len(frame.columns))]
    return "\n".join([*head, *(line(row) for row in _texts(frame))]) + "\n"


def _latex(frame: pd.DataFrame) -> str:
    def line(cells: list[str]) -> str:
        return " & ".join(cell.replace("\\", r"\textbackslash ").translate(_LATEX) for cell in cells) + r" \\"

    rows = [line(row) for row in _texts(frame)]
    spec = "l" * len(frame.columns)
    body = [rf"\begin{{tabular}}{{{spec}}}", r"\toprule", line(list(frame.columns)), r"\midrule", *rows]
    return "\n".join([*body, r"\bottomrule", r"\end{tabular}"]) + "\n"
