"""The compared runs one by one, sorted as you like; chosen rows become the whole comparison."""

import pandas as pd
import streamlit as st

from app.analysis.finals import FALLEN, FINAL_MEANINGS, FINAL_NAMES, FINAL_RULES, MADE_IT, count_falls, final_rate
from app.analysis.series import settle
from app.analysis.statistics import mu_w
from app.ui.compare import choice
from app.ui.compared import Compared

_COUNTS = ("falls", "after")
_COLUMNS = (
    *("variant", "map", "seed", "status"),
    *FINAL_NAMES.values(),
    *_COUNTS,
    *("μ̄_w", "last evaluation", "run", "id"),
)


def show(compared: Compared) -> None:
    """Draw one row for each run with its final and its last win rate, its falls and mu_w."""
    frame = make_rows(compared)
    picked = st.dataframe(
        frame,
        key="compared_runs",
        hide_index=True,
        on_select="rerun",
        selection_mode="multi-row",
        column_config={
            **{
                FINAL_NAMES[rule]: st.column_config.NumberColumn(
                    format="percent", help=FINAL_MEANINGS[rule].capitalize()
                )
                for rule in FINAL_RULES
            },
            "falls": st.column_config.NumberColumn(
                format="localized",
                help=f"Evaluations below {FALLEN:g} after the first of at least {MADE_IT:g}; empty if there is none",
            ),
            "after": st.column_config.NumberColumn(format="localized", help="Of how many evaluations after that one"),
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
            rates = {FINAL_NAMES[rule]: final_rate(seed, rule) for rule in FINAL_RULES}
            fallen = dict(zip(_COUNTS, count_falls(curve) or (None, None), strict=True))
            reached = rates | fallen | {"μ̄_w": mu_w(curve)[-1], "last evaluation": int(curve.steps[-1])}
            about = {"variant": group.variant.name, "map": group.variant.task, "seed": row.seed}
            rows.append(about | {"status": row.live_status} | reached | {"run": row.name, "id": seed.id})
    return pd.DataFrame(rows, columns=pd.Index(_COLUMNS)).astype(dict.fromkeys(_COUNTS, "Int64"))
