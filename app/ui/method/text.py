"""Texts of the page Method: the Markdown files in `app/guide/method`, with generated tables and figures.

A line `<!-- NAME -->` in a text is the position of a generated table or figure. Tables of measurements contain the
stored output of benchmarks. They are drawn as Markdown, so that their text wraps and the browser's search finds it.
"""

import csv
import json
import re
from functools import partial
from typing import Final

import streamlit as st

from app.analysis.format import MISSING, escape_markdown, format_number
from app.figures.kinds.chart import Chart
from app.figures.registry import find_figure
from app.ui import data, guide
from app.ui.widgets import canvas, pin
from app.ui.widgets.result_table import write_table

TEXTS: Final = guide.FOLDER / "method"
MEASUREMENTS: Final = guide.FOLDER / "measured"
_GENERATED_PART: Final = re.compile(r"^<!-- ([\w-]+) -->$", re.MULTILINE)
_INTERVAL_LABELS: Final = {
    "mean": "mean",
    "iqm": "interquartile mean",
    "median": "median",
    "difference": "difference of two means",
    "improvement": "probability of improvement",
    "profile": "performance profile",
    "wilson": "one evaluation",
    "episodes": "numbers of an embedding",
    "bootstrap-mean": "mean, percentile bootstrap",
    "bootstrap-iqm": "interquartile mean, percentile bootstrap",
    "bootstrap-median": "median, percentile bootstrap",
}
_DATA_LABELS: Final = {
    "normal": "normal",
    "piled": "many at 1",
    "half": "half of them at 1",
    "skewed": "Beta(1.8, .2)",
    "stuck": "one seed in five stuck",
}
"""Kind of simulated results in `coverage.json` → label."""
_N_SEEDS: Final = ("3", "5", "10")
"""Numbers of seeds that have a column."""
_EMBEDDING_QUANTITIES: Final = {
    "purity": "purity of neighbours [R²]",
    "info_nce": "InfoNCE [nats]",
    "info_nce_accuracy": "InfoNCE accuracy [fraction]",
    "info_nce_chance": "InfoNCE accuracy by chance [fraction]",
    "merge_rate": "states merged [fraction]",
    "return_r2": "decoded return [R²]",
}
_RETURN_SCALES: Final = ("none", "std")


def show(name: str) -> None:
    """Draw a text with its generated tables and figures.

    Args:
        name: Name of the file without its extension.
    """
    text = (TEXTS / f"{name}.md").read_text(encoding="utf-8")
    # The parts are: text, name of a table or figure, text, name, text, …
    first_text, *parts = _GENERATED_PART.split(text)
    guide.show_text(first_text)
    names = parts[::2]
    following_texts = parts[1::2]
    for generated_name, following_text in zip(names, following_texts, strict=True):
        _DRAW_BY_NAME[generated_name]()
        guide.show_text(following_text)


def read_measurements(file: str) -> dict[tuple[str, str, str], float]:
    """Read the stored output of a benchmark: the parts of each name after the first → value.

    The key of "coverage.iqm.normal.5" is ("iqm", "normal", "5").
    """
    results = json.loads((MEASUREMENTS / file).read_text(encoding="utf-8"))["figures"]
    values = {}
    for result in results:
        _, first, second, third = result["name"].split(".")
        values[first, second, third] = result["value"]
    return values


def _show_coverage() -> None:
    """Draw how often each interval contains the true value [%], with one row per kind of simulated data."""
    coverage = read_measurements("coverage.json")
    rows = []
    for interval, interval_label in _INTERVAL_LABELS.items():
        for kind, data_label in _DATA_LABELS.items():
            text_by_n = {key[2]: f"{value:.1f}" for key, value in coverage.items() if key[:2] == (interval, kind)}
            if not text_by_n:
                continue
            seed_cells = [text_by_n.get(n, "") for n in _N_SEEDS]
            # Any other number is a number of episodes.
            episode_cell = ", ".join(f"{text} (n = {n})" for n, text in text_by_n.items() if n not in _N_SEEDS)
            rows.append([interval_label, data_label, *seed_cells, episode_cell])
    header = ("Interval of", "Data", *(f"{n} seeds" for n in _N_SEEDS), "n episodes")
    st.markdown(write_table(header, rows))


def _show_return_scales() -> None:
    """Draw the measurements from which the default of `embed.return_scale` was chosen."""
    measured = read_measurements("embedding.json")
    tasks = list(dict.fromkeys(task for _, task, _ in measured))
    columns = [(task, scale) for task in tasks for scale in _RETURN_SCALES]
    rows = []
    for quantity, label in _EMBEDDING_QUANTITIES.items():
        values = [measured.get((quantity, task, scale)) for task, scale in columns]
        rows.append([label, *(MISSING if value is None else format_number(value) for value in values)])
    header = ["", *(f"{escape_markdown(task)}: {scale}" for task, scale in columns)]
    st.markdown(write_table(header, rows))


def _show_csv_table(file: str) -> None:
    lines = (MEASUREMENTS / file).read_text(encoding="utf-8").splitlines()
    header, *rows = ([escape_markdown(cell) for cell in row] for row in csv.reader(lines))
    st.markdown(write_table(header, rows))


def _show_chart(name: str, *, panel_height: int, x_name: str) -> None:
    """Draw a line chart that needs no run, with its export and its caption.

    Args:
        name: Name of the figure.
        panel_height: Height of each panel [pixels].
        x_name: Short name of the x axis.
    """
    chart = find_figure(name).make(data.database(), [])
    if not isinstance(chart, Chart):
        raise TypeError(f"{name} is not a line chart")
    key = f"method-{name}"
    with st.container(horizontal=True, horizontal_alignment="right"):
        pin.show_export(chart, key=key, stem="method")
    canvas.show(chart, key=key, panel_height=panel_height, x_name=x_name)
    st.caption(escape_markdown(chart.caption))


_DRAW_BY_NAME: Final = {
    "coverage": _show_coverage,
    "return-scales": _show_return_scales,
    "gate-shapes": partial(_show_csv_table, "gate-shapes.csv"),
    "gate-variants": partial(_show_csv_table, "gate-variants.csv"),
    "proposition-1": partial(_show_chart, "proposition-1", panel_height=320, x_name="Δ_opt"),
    "proposition-2": partial(_show_chart, "proposition-2", panel_height=200, x_name="max |H − V*|"),
}
"""Name of a table or figure in a text → function that draws it."""
