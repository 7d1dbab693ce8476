"""Tables of measurements with this program: the return scale of the embedder, and the variants of the gate.

The tables are stored output of the program's commands. They are drawn as Markdown, so that their text wraps and the
browser's search finds it.
"""

import csv
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final

import streamlit as st

from app.analysis.format import MISSING, escape_markdown, format_number
from app.ui.widgets.result_table import write_table

_COMMAND: Final = "python -m tests.bench embedding --json"
_QUANTITIES: Final = {
    "purity": "purity of neighbours [R²]",
    "info_nce": "InfoNCE [nats]",
    "info_nce_accuracy": "InfoNCE accuracy [fraction]",
    "info_nce_chance": "InfoNCE accuracy by chance [fraction]",
    "merge_rate": "states merged [fraction]",
    "return_r2": "decoded return [R²]",
}
_SCALES: Final = ("none", "std")
_SHAPES: Final = "gate-shapes.csv"
_STUDY: Final = "gate-variants.csv"


def show_return_scale() -> None:
    """Draw the measurements from which the default of `embed.return_scale` was chosen."""
    st.markdown("##### Measured: effect of `embed.return_scale`")
    st.markdown(
        "The same recorded episodes, embedded with raw returns (`none`) and with returns divided by their running "
        "standard deviation (`std`). InfoNCE is computed on every fifth episode, which no refit used. Purity is the "
        "share of the variance of H that the ten nearest nodes from *other* episodes explain. Merges are counted at "
        "δ = 1.8e-2, after the first refit. `std` has a better contrastive loss on 2s3z and football and a worse one "
        "on 3m; purity is almost equal. `std` is the default because it does not depend on the unit of the reward."
    )
    measured = read_embedding_results()
    tasks = list(dict.fromkeys(task for _, task, _ in measured))
    header = ["", *(f"{escape_markdown(task)}: {scale}" for task in tasks for scale in _SCALES)]
    rows = [
        [label, *(_write_value(measured.get((quantity, task, scale))) for task in tasks for scale in _SCALES)]
        for quantity, label in _QUANTITIES.items()
    ]
    st.markdown(write_table(header, rows))
    st.caption(f"Means over two embedders of a run of 20,000 env steps: `{_COMMAND}`.")


def show_gate_variants() -> None:
    """Draw the gates of each variant on the same episodes, and the results of training with each variant."""
    st.markdown("##### Measured: variants of the gate")
    st.markdown(
        "In the paper Δ̄ decreases to 0 and β̄ increases to 1. On the recorded episodes of a run of 80,000 env steps no "
        "variant shows this: Δ̄ *increases* as more different returns are stored, and β̄ decreases. A variant that "
        "retrieves the node written by the same episode almost never closes the gate. A variant that retrieves nodes "
        "written by other episodes closes the gate for a quarter to two fifths of the transitions."
    )
    st.markdown(_read_csv_table(_SHAPES))
    st.caption(
        "Recorded episodes of EMTC(QPLEX), preset paper, seed 1, 80,000 env steps, written to one memory per preset."
    )
    st.markdown(
        "Training with each variant, with and without its gate, over three seeds: all intervals with and without the "
        "gate overlap. Intervals this wide show only very large effects."
    )
    st.markdown(_read_csv_table(_STUDY))
    st.caption(
        "80,000 env steps, three seeds: mean [percentile bootstrap with 2000 resamples; with three seeds it covers "
        "74 %]. The target network was copied every 50 episodes, the value of the preset at that time."
    )


def read_results(file: str) -> dict[tuple[str, str, str], float]:
    """Read the stored output of a benchmark: the three parts of each name after the first → value."""
    figures = json.loads((files("app") / "guide" / "measured" / file).read_text())["figures"]
    names = (figure["name"].split(".") for figure in figures)
    return {(a, b, c): figure["value"] for (_, a, b, c), figure in zip(names, figures, strict=True)}


@cache
def read_embedding_results() -> Mapping[tuple[str, str, str], float]:
    """Read the measurements of the embedder: (quantity, map, return scale) → value."""
    return read_results("embedding.json")


def _write_value(value: float | None) -> str:
    return MISSING if value is None else format_number(value)


def _read_csv_table(name: str) -> str:
    text = (files("app") / "guide" / "measured" / name).read_text()
    header, *rows = ([escape_markdown(cell) for cell in row] for row in csv.reader(text.splitlines()))
    return write_table(header, rows)
