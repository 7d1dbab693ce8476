"""Tables as frames, and frames as CSV, LaTeX, Markdown or Parquet."""

import io
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from app.variants import label_variants
from storage.engine import Database
from storage.queries.runs import list_runs, run_configs

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
    """Give the last test win rate [%] of finished runs over their seeds: variants × maps.

    Runs are one cell only if they differ in nothing but their seed (`app.variants`). `eval.report` of the newest of
    them decides how the cell quotes them, and `eval.seeds` how many seeds it should rest on.
    """
    runs = list_runs(db, limit=EVERY_RUN)
    runs = runs[(runs["status"] == "finished") & runs["win_rate"].notna()]
    if runs.empty:
        return pd.DataFrame(columns=["variant"])
    configs = run_configs(db, runs["id"].tolist())
    labels = label_variants(configs)
    groups: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for run_id, map, rate in zip(runs["id"], runs["map"], runs["win_rate"], strict=True):
        variant = labels[run_id].replace(f" on {map}", "", 1)
        groups.setdefault((variant, map), []).append((run_id, float(rate)))
    cells = {
        key: _cell([rate for _, rate in members], configs[members[0][0]].get("eval", {}))
        for key, members in groups.items()
    }
    return pd.Series(cells).unstack().fillna("–").rename_axis(index="variant").reset_index()


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


def _cell(rates: Sequence[float], rules: Mapping[str, Any]) -> str:
    """Quote one number over seeds, "97.5 ± 1.0 (n = 5)"; fewer seeds than wanted are told, "n = 2 of 5"."""
    percent = 100 * np.asarray(rates)
    wanted = int(rules.get("seeds", 5))
    count = f"n = {len(percent)}" if len(percent) >= wanted else f"n = {len(percent)} of {wanted}"
    if rules.get("report") == "median":
        low, middle, high = np.quantile(percent, (0.25, 0.5, 0.75))
        return f"{middle:.1f} [{low:.1f}–{high:.1f}] ({count})"
    spread = f" ± {percent.std(ddof=1):.1f}" if len(percent) > 1 else ""
    return f"{percent.mean():.1f}{spread} ({count})"


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
