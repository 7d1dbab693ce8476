"""The compared runs one by one, sorted as you like; chosen rows become the whole comparison."""

import pandas as pd
import streamlit as st

from app.compared import Compared
from app.components.compare import choice
from app.results.series import settle
from app.results.statistics import mu_w


def show(compared: Compared) -> None:
    """Draw one row for each run with its last win rate and mu_w."""
    frame = make_rows(compared)
    picked = st.dataframe(
        frame,
        key="compared_runs",
        hide_index=True,
        on_select="rerun",
        selection_mode="multi-row",
        column_config={
            "win rate": st.column_config.NumberColumn(format="percent", help="Last greedy evaluation"),
            "μ̄_w": st.column_config.NumberColumn(format="%.3f", help="Up to the run's last evaluation"),
            "last evaluation": st.column_config.NumberColumn(format="localized", help="Env step"),
        },
        alt="One row for each compared run. Choose rows to compare only them.",
    )
    rows = [row for row in picked["selection"]["rows"] if row < len(frame)]
    chosen = [str(frame["id"].iloc[row]) for row in rows]
    st.button(
        f"Compare only the {len(chosen)} chosen" if chosen else "Choose rows to compare only them",
        disabled=not chosen,
        key="compare_chosen",
        on_click=choice.choose,
        args=(chosen,),
    )


def make_rows(compared: Compared) -> pd.DataFrame:
    """List the runs by variant with what they reached."""
    rows = []
    for group in settle(compared.win_rates, include_unfinished=True).groups:
        for seed in group.seeds:
            row, curve = compared.rows[seed.id], seed.curve
            reached = {"win rate": seed.final, "μ̄_w": mu_w(curve)[-1], "last evaluation": int(curve.steps[-1])}
            about = {"variant": group.variant.name, "map": group.variant.task, "seed": row.seed}
            rows.append(about | {"status": row.live_status} | reached | {"run": row.name, "id": seed.id})
    names = ["variant", "map", "seed", "status", "win rate", "μ̄_w", "last evaluation", "run", "id"]
    return pd.DataFrame(rows, columns=pd.Index(names))
